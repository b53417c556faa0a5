"""Bugs that could have been: each is one small change of the source, with the test that catches it within a minute.

    python -m tests.proof.mutations                    # plant all of them, one after another
    python -m tests.proof.mutations --only tcp         # those whose file has this in its name

Each bug is planted in a copy of the package, and its test is run there. The table is checked by
``tests/proof/test_mutations.py``: every text to replace must occur exactly once. Bugs of the rules and of the model
that need a whole simulation to be seen are in ``tests/proof/test_planted_bugs.py`` and ``test_model_bugs.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["MUTATIONS", "Mutation", "Outcome", "plant"]

ROOT = Path(__file__).parents[2]
LIMIT = 60.0
"""Seconds in which a bug must be caught."""


class Mutation(NamedTuple):
    """A bug.

    Attributes:
        file: Where, inside the package.
        before: The text that is replaced; it occurs once.
        after: What takes its place.
        breaks: What is wrong then.
        caught_by: The test that fails, as pytest names it.
    """

    file: str
    before: str
    after: str
    breaks: str
    caught_by: str


class Outcome(NamedTuple):
    """What came of a bug: ``caught``, ``missed``, ``skipped`` (its test could not run here) or ``late``."""

    verdict: str
    seconds: float


MUTATIONS: tuple[Mutation, ...] = (
    # The rules
    Mutation(
        "core/rules.py",
        "    if size == tally.shape.most or fills_the_gap:",
        "    if fills_the_gap:",
        "a full barrier waits for the last call",
        "tests/node/test_join.py::test_max_forms_at_once",
    ),
    Mutation(
        "core/rules.py",
        "            ends = min(ends, notes.last_call_ends)",
        "            pass",
        "every arrival extends the last call",
        "tests/node/test_join.py::test_the_last_call_is_never_extended_by_arrivals",
    ),
    Mutation(
        "core/rules.py",
        "        return Shut(head.closed, spare)",
        "        return Pending(spare)",
        "a node at the barrier is not told of a close",
        "tests/node/test_join.py::test_closing_ends_every_join_and_every_world_for_good",
    ),
    Mutation(
        "core/rules.py",
        "seat.arrival == arrival and seat.attempt == head.attempt",
        "seat.arrival == arrival",
        "a seat counts before the head names its attempt",
        "tests/core/test_rules.py::test_admit_refuses_a_seat_before_the_head_names_its_attempt",
    ),
    Mutation(
        "core/tally.py",
        "        return count_newcomers(self.member_domains, self.newcomer_domains, self.shape)",
        "        return len(self.newcomers)",
        "spares count as waiting, and a full world restarts for them",
        "tests/core/test_tally.py::test_spares_are_not_wanted",
    ),
    Mutation(
        "core/tally.py",
        "        return max(self._survived, *self._last_rounds_of_foreign, 0)",
        "        return self.head.round",
        "round numbers are used again after the backend forgot everything",
        "tests/node/test_join.py::test_round_numbers_grow_even_if_the_backend_forgot_everything",
    ),
    Mutation(
        "core/ranks.py",
        "    if needs_lead and survivors and free and free[-1] == 0:",
        "    if False:",
        "a newcomer takes rank 0 from the survivors",
        "tests/core/test_ranks.py::test_sticky_3_if_0_is_free_the_lowest_survivor_moves_there",
    ),
    # The shape of worlds
    Mutation(
        'core/rules.py',
        '    fills_the_gap = tally.lost > 0 and tally.has_survivor and size >= head.size',
        '    fills_the_gap = False',
        'a world waits for more though spares have filled the gap',
        'tests/core/test_rules_of_shape.py::test_a_gap_that_spares_fill_is_not_waited_for',
    ),
    Mutation(
        'core/rules.py',
        'size >= head.size',
        'size > 0',
        'after a loss nobody is waited for',
        'tests/core/test_rules_of_shape.py::test_a_gap_that_nobody_fills_is_waited_for',
    ),
    Mutation(
        'core/rules.py',
        'not ends_anyway and not head.let_in and',
        'not ends_anyway and',
        'a new coordinator holds those back again who were let in',
        'tests/core/test_rules_of_shape.py::test_once_let_in_nobody_is_held_back',
    ),
    Mutation(
        'core/rules.py',
        'not head.let_in and tally.size < tally.shape.most',
        'not head.let_in',
        'newcomers who complete the world are held back',
        'tests/core/test_rules_of_shape.py::test_nobody_is_held_back_who_completes_the_world_or_when_the_round_ends_anyway',
    ),
    Mutation(
        'core/rules.py',
        '        held_since = now if notes.held_since is None else notes.held_since',
        '        held_since = now',
        'every newcomer starts the time again for which all are held back',
        'tests/core/test_rules_of_shape.py::test_the_time_is_that_of_the_first_who_came',
    ),
    Mutation(
        'core/rules.py',
        '    return 0 < shape.size_within(min(head.size, shape.most)) < head.size',
        '    return shape.size_within(min(head.size, shape.most)) < head.size',
        'a world that is too small now is given up before a larger one can form',
        'tests/core/test_rules_of_shape.py::test_a_world_is_resized_only_if_a_smaller_one_can_be_made_of_it',
    ),
    Mutation(
        'core/rules.py',
        '    return leaves_over or head.size',
        '    return head.size',
        'the join of a leftover times out behind a world that has no place for it',
        'tests/core/test_rules_of_shape.py::test_who_is_not_counted_is_a_spare',
    ),
    Mutation(
        'core/state.py',
        '        return self.origin == settings.fingerprint if self.origin else self.settings == settings',
        '        return self.settings == settings',
        'nodes with the old arguments do not match a run that was scaled',
        'tests/core/test_rules_of_shape.py::test_nodes_bring_what_the_founder_brought',
    ),
    Mutation(
        'core/state.py',
        'origin="", generation=0, target=0',
        'origin="", generation=0',
        'a target outlives the settings that it was made for',
        'tests/core/test_rules_of_shape.py::test_other_settings_replace_all_that_was_scaled',
    ),
    Mutation(
        'core/spec.py',
        '        waiting=head.returned,  # The',
        '        # The',
        'members restart for newcomers that count no more',
        'tests/core/test_rules_of_shape.py::test_the_count_of_newcomers_starts_over',
    ),
    Mutation(
        'core/shape.py',
        '    units.sort(key=lambda found: (-sum(place < survivors for place in found), found[0]))',
        '    units.sort(key=lambda found: found[0])',
        'a survivor is dropped that another choice keeps',
        'tests/core/test_shape.py::test_the_world_with_more_survivors_goes_before_the_first_ranks',
    ),
    Mutation(
        'core/shape.py',
        'sum(mixed[: max(0, taken - whole)])',
        '0',
        'a newcomer that fills a gap is counted with all of its domain',
        'tests/core/test_shape.py::test_growing_is_what_choosing_again_would_show',
    ),
    Mutation(
        'core/ranks.py',
        '        if end <= start <= size - len(blocks[domain]):',
        '        if False:',
        'a domain that is replaced moves the ranks of the others',
        'tests/core/test_ranks.py::test_a_domain_keeps_its_ranks_whatever_happens_to_others',
    ),
    Mutation(
        'core/ranks.py',
        '    if homes and lowest[first] is None:',
        '    if False:',
        'a domain of newcomers takes rank 0 from the survivors',
        'tests/core/test_ranks.py::test_a_survivor_has_rank_0_if_there_is_one',
    ),
    Mutation(
        'core/tally.py',
        '            self.shape = head.shape\n        self.head = head',
        '            pass\n        self.head = head',
        'a coordinator goes on with the old sizes after the run was scaled',
        'tests/core/test_rules_of_shape.py::test_what_holds_now_is_followed_in_the_middle_of_a_round',
    ),
    Mutation(
        'admin.py',
        '        if changed == head:\n            return head\n',
        '',
        'scaling to what holds already makes another generation',
        'tests/node/test_shape.py::test_scaling_says_what_it_cannot_do_and_changes_nothing',
    ),
    Mutation(
        'node/world.py',
        'max(head.waiting + head.lost, int(change is Change.RESIZED))',
        'head.waiting + head.lost',
        'a launcher that polls is not told that its world is too large',
        'tests/node/test_shape.py::test_a_lower_max_turns_the_last_ranks_into_spares',
    ),
    Mutation(
        'node/store.py',
        '            return await self._result_at(place)  # All were',
        '            return b""  # All were',
        'a member that was cut off gets nothing of what the others gathered',
        'tests/node/test_gather.py::test_a_member_that_gives_up_after_it_came_can_still_fetch_what_the_others_gathered',
    ),
    Mutation(
        "core/codec.py",
        " or data[0] != FORMAT or data[1] != _KINDS[kind]:",
        " or data[0] != FORMAT:",
        "one kind of record is read as another",
        "tests/core/test_codec.py::test_a_record_of_another_kind_is_a_state_error",
    ),
    # Versions
    Mutation(
        "node/view.py",
        "                check_features(head, self._run_id)",
        "                pass",
        "an old node takes part by rules that it does not know",
        "tests/node/test_versions.py::test_join_says_at_once_which_version_the_run_needs",
    ),
    Mutation(
        "admin.py",
        "        check_features(head, backend.run_id)\n        put = Put(",
        "        put = Put(",
        "an old version writes the head of a newer one",
        "tests/node/test_versions.py::test_closing_is_refused_and_writes_nothing",
    ),
    Mutation(
        "admin.py",
        "        except RendezvousVersionError:\n            raise\n",
        "",
        "an old version takes a newer head for a damaged one, and overwrites it",
        "tests/node/test_versions.py::test_closing_is_refused_and_writes_nothing",
    ),
    Mutation(
        "core/rules.py",
        "attempt=attempt, size=len(seats), token=None",
        "attempt=attempt, size=len(seats), token=None, requires=()",
        "the next round lets old nodes in again",
        "tests/core/test_features.py::test_every_step_of_a_coordinator_keeps_what_the_head_requires",
    ),
    Mutation(
        "core/features.py",
        " if head.closed is None else ()",
        "",
        "a node is told to upgrade for a run that is over",
        "tests/node/test_versions.py::test_a_close_by_a_newer_version_is_understood",
    ),
    Mutation(
        "backends/table/head.py",
        "    if version > VERSIONS[-1]:",
        "    if False:",
        "a log of a newer version is cut as if a crash had torn it",
        "tests/backends/table/test_log.py::test_a_log_of_a_newer_version_is_refused_and_left_as_it_is",
    ),
    # The coordinator
    Mutation(
        "core/duty.py",
        "{STATE: self.state, COORDINATOR: self._post}",
        "{STATE: self.state}",
        "a coordinator that was replaced goes on writing",
        "tests/node/test_coordinator.py::test_every_write_of_the_coordinator_compares_the_state_and_the_post",
    ),
    Mutation(
        "core/duty.py",
        "            self._forming = stamp",
        "            pass",
        "two attempts under way mix their seats",
        "tests/node/test_coordinator.py::test_a_round_that_does_not_fit_is_written_in_batches",
    ),
    Mutation(
        "node/coordinator.py",
        "    return vacant and head is not None and head.closed is None and head.accepts(settings)",
        "    return vacant and head is not None and head.accepts(settings)",
        "nodes fight for the post of a run that is over",
        "tests/node/test_coordinator.py::test_nobody_campaigns_for_a_closed_run",
    ),
    Mutation(
        "core/duty.py",
        "                self.script = self._clean_up(gone, before.head.round)",
        "                del gone",
        "seats and stores of old rounds pile up",
        "tests/node/test_coordinator.py::test_seats_of_those_who_left_are_deleted_after_the_next_round",
    ),
    # The node
    Mutation(
        "node/membership.py",
        "        return self.error is not None or self._keep_alive.is_out",
        "        return self.error is not None",
        "after a stall a node believes in a world that went on without it",
        "tests/node/test_membership.py::test_after_a_stall_beyond_its_deadline_a_node_is_out_before_anything_else",
    ),
    Mutation(
        "core/arrival.py",
        "        and standing.record.arrival == record.arrival\n",
        "",
        "a node takes an older arrival of its own for the new one, and never arrives again",
        "tests/node/test_rendezvous.py::test_an_arrival_whose_answer_is_lost_is_not_repeated",
    ),
    Mutation(
        "backends/watch.py",
        "        known.update((entry.key, entry.token) for entry in news)",
        "        pass",
        "a post that was vacated while a node came stays vacant for it, and no round forms",
        "tests/node/test_membership.py::test_a_post_that_falls_vacant_while_a_node_comes_is_taken",
    ),
    Mutation(
        "backends/tcp/client/channel.py",
        "                self._drop(future.result())",
        "                pass",
        "a join that is cancelled as its answer comes leaves a record behind",
        "tests/backends/tcp/test_client.py::test_a_session_whose_answer_comes_with_the_cancellation_ends",
    ),
    Mutation(
        "backends/tcp/server/requests.py",
        "    peer.server.end_sessions_of(peer)\n",
        "",
        "who says goodbye is missed only after the grace",
        "tests/backends/tcp/test_client.py::test_what_is_open_when_a_client_says_goodbye_ends_at_once",
    ),
    Mutation(
        "backends/tcp/client/channel.py",
        "            if id not in self._calls:",
        "            if True:",
        "a watch that is still to be started with its session is started twice on a new connection",
        "tests/backends/tcp/test_client.py::test_a_watch_that_starts_with_a_session_survives_a_lost_connection",
    ),
    Mutation(
        "backends/tcp/client/driver.py",
        "                subscription.close()",
        "                pass",
        "a watch whose session was given up stays with the server",
        "tests/backends/tcp/test_client.py::test_a_watch_of_a_session_that_is_given_up_is_none_of_the_servers",
    ),
    Mutation(
        "backends/tcp/client/channel.py",
        "            if self._alarm.at is None or call.until < self._alarm.at:",
        "            if self._alarm.at is None:",
        "a call has the patience of the one before it",
        "tests/backends/tcp/test_client.py::test_a_call_that_is_impatient_does_not_wait_for_the_patient",
    ),
    Mutation(
        "node/rendezvous.py",
        "                    if not await membership.view.changed.wait(deadline.left_or_none):",
        "                    if not await membership.view.changed.wait(None):",
        "a join never times out",
        "tests/node/test_join.py::test_a_join_that_times_out_says_who_is_here_and_how_many_are_missing",
    ),
    Mutation(
        "node/rendezvous.py",
        "        if spare:\n            return Deadline",
        "        if False:\n            return Deadline",
        "a spare times out behind a full world",
        "tests/node/test_join.py::test_a_spares_clock_stands_still_and_starts_anew_when_a_place_frees",
    ),
    Mutation(
        "node/rendezvous.py",
        "detail=why)\n                await supervisor.see_through(supervisor.end_membership)",
        "detail=why)",
        "a join that failed or was cancelled leaves its record at the barrier",
        "tests/node/test_cancellation.py::test_a_first_join_that_waits_for_another",
    ),
    Mutation(
        "node/supervisor.py",
        "        if self._unended:\n            raise",
        "        if False:\n            raise",
        "a node has two sessions at once",
        "tests/node/test_rendezvous.py::test_a_session_that_cannot_be_ended_is_followed_by_no_other",
    ),
    Mutation(
        "node/world.py",
        "        if (head is None or head.closed is None) and self._membership.is_out:",
        "        if self._membership.is_out:",
        "who is out of a closed run joins it again",
        "tests/node/test_world.py::test_closed_beats_evicted",
    ),
    Mutation(
        "node/store.py",
        "        conditions = [self._fence] if when is None else [self._fence, when]",
        "        conditions = [] if when is None else [when]",
        "members of an old round write to its store",
        "tests/node/test_store.py::test_a_store_of_an_old_round_refuses",
    ),
    # The table and its log
    Mutation(
        "backends/table/table.py",
        "        if id is not None and (revision := self._answers.find(id)) is not None:",
        "        if id is not None and (revision := self._answers.find(id)) is None and revision:",
        "a commit that is sent again is done again",
        "tests/backends/tcp/test_client.py::test_a_commit_whose_answer_was_lost_is_not_done_again",
    ),
    Mutation(
        "backends/table/table.py",
        "            if old.session is not None and old.session != entry.session:",
        "            if False:",
        "the end of an old session deletes what a new one wrote",
        "tests/backends/table/test_table.py::test_a_key_belongs_to_the_session_of_its_last_put",
    ),
    Mutation(
        "backends/table/graves.py",
        "            key, self.horizon = self._revisions.popitem(last=False)",
        "            key, _ = self._revisions.popitem(last=False)",
        "a watcher that was away for long misses deletions",
        "tests/backends/table/test_table.py::TestRevisions::test_graves_are_bounded",
    ),
    Mutation(
        "backends/table/frames.py",
        "    if data[end : end + 1] != _END or zlib.crc32(payload) != _HEAD.unpack_from(data, start)[2]:",
        "    if data[end : end + 1] != _END:",
        "a damaged log is believed",
        "tests/backends/table/test_log.py::test_a_flipped_bit_is_refused",
    ),
    # The TCP server
    Mutation(
        "backends/tcp/server/handshake.py",
        '        if key is None or not verify(key, "client", body, self._challenge, proof):',
        "        if key is None:",
        "any secret will do",
        "tests/backends/tcp/test_auth.py::test_both_sides_must_know_the_secret",
    ),
    Mutation(
        "backends/tcp/server/handshake.py",
        "        version = pick_version(hello.versions)",
        "        version = min(hello.versions, default=1)",
        "a peer can have the server speak an old version",
        "tests/hostile/test_peers.py::test_no_other_version_is_spoken_not_even_an_old_one",
    ),
    Mutation(
        "backends/tcp/server/connection.py",
        "        if journal is None or journal.idle:",
        "        if True:",
        "a commit is acknowledged before it is on disk",
        "tests/backends/tcp/test_durability.py::test_nothing_is_acknowledged_before_it_is_on_disk",
    ),
    Mutation(
        "backends/tcp/server/requests.py",
        "        if not name.startswith(scope):",
        "        if False:",
        "a restricted secret opens every run",
        "tests/backends/tcp/test_auth.py::test_a_restricted_secret_opens_its_runs_alone",
    ),
    Mutation(
        "backends/tcp/server/handshake.py",
        "        challenge = wire.Challenge(new_nonce(), version)",
        "        challenge = wire.Challenge(new_nonce(), 1)",
        "the version that is picked is not the one that is proved",
        "tests/backends/tcp/test_versions.py::test_the_server_picks_and_says_so",
    ),
    Mutation(
        "backends/tcp/client/link.py",
        "                self._challenge, self._versions = body, (version,)",
        "                self._challenge = body",
        "a welcome can name another version than the one that was proved",
        "tests/backends/tcp/test_versions.py::test_a_client_holds_the_server_to_what_was_proved",
    ),
    Mutation(
        "backends/tcp/wire.py",
        "            if length > self.max_frame:",
        "            if False:",
        "a peer can have the server wait for four gigabytes",
        "tests/backends/tcp/test_wire.py::test_a_frame_that_is_too_long_is_refused_by_its_length_alone",
    ),
    Mutation(
        "backends/tcp/wire.py",
        "(msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)",
        "(msgspec.DecodeError, RecursionError)",
        "text that is no text raises in the server",
        "tests/hostile/test_peers.py::test_text_that_is_no_utf8_is_refused_with_a_reason",
    ),
    Mutation(
        "backends/tcp/server/server.py",
        "            self.table.hasten(session, expires_at)",
        "            pass",
        "a killed process is missed only after its TTL",
        "tests/backends/tcp/test_server.py::test_a_killed_process_is_gone_after_the_grace",
    ),
    # The shared directory
    Mutation(
        "backends/observer.py",
        "                silent = watched.silent_for + min(now - watched.looked_at, 2 * interval)",
        "                silent = watched.silent_for + now - watched.looked_at",
        "an observer that was stopped takes everybody for dead",
        "tests/backends/file/test_life.py::test_an_observer_that_did_not_look_has_seen_no_silence",
    ),
    Mutation(
        "backends/file/life.py",
        "    if not _PLAIN.fullmatch(session):",
        "    if False:",
        "a forged log removes files outside of the directory",
        "tests/hostile/test_fuzz.py::test_a_decoder_answers_nonsense_with_its_own_error[file session names]",
    ),
    Mutation(
        "backends/file/ledger.py",
        "            if self.table.has_session(session) and self.lives.look(session) == look:",
        "            if self.table.has_session(session):",
        "a session that has just shown life is ended",
        "tests/backends/file/test_ledger.py::test_a_session_that_shows_life_under_the_lock_is_not_ended",
    ),
    Mutation(
        "backends/file/ledger.py",
        "            for undo in change.undo:\n                undo()",
        "            pass",
        "the file of a session that never came to be stays",
        "tests/backends/file/test_ledger.py::test_what_fails_leaves_no_session_file_behind",
    ),
    # etcd
    Mutation(
        "backends/etcd/commits.py",
        "        if marker and marker[0].value == number:\n            slot.revision",
        "        if False:\n            slot.revision",
        "a commit whose answer was lost counts as lost",
        "tests/backends/etcd/test_commits.py::test_a_commit_whose_answer_was_lost_is_recognised",
    ),
    Mutation(
        "backends/etcd/commits.py",
        "        if trail.doubt and (won := await self._void(slot, number)) is not None:",
        "        if trail.doubt and (won := None) is not None:",
        "a copy of a commit that lost wins later",
        "tests/backends/etcd/test_commits.py::test_a_commit_that_lost_after_a_missing_answer_cannot_win_later",
    ),
    Mutation(
        "backends/etcd/lease.py",
        "lease if session_id(lease) == session and lease < 2**63 else None",
        "lease",
        "an id that no session can have reaches etcd",
        "tests/hostile/test_fuzz.py::test_a_decoder_answers_nonsense_with_its_own_error[etcd keys and leases]",
    ),
    # One value that is compared and set
    Mutation(
        "backends/cas/replica.py",
        "        return bool(is_made)",
        "        return False",
        "a write whose answer was lost is made again",
        "tests/backends/cas/test_replica.py::test_a_write_whose_answers_are_lost_is_made_once",
    ),
    Mutation(
        "backends/cas/replica.py",
        "        if image.epoch == known.epoch and image.number < known.number:",
        "        if image.epoch == known.epoch and not known.is_written:",
        "a store that went back to an old value hands out its tokens again",
        "tests/backends/cas/test_replica.py::test_a_store_that_went_back_begins_another_history",
    ),
    Mutation(
        "backends/cas/replica.py",
        "            elif call.undo is not None and call.error is None:",
        "            elif call.undo is not None and call.error is not None:",
        "a session that was opened for a node that gave up stays open",
        "tests/backends/cas/test_replica.py::test_a_session_whose_opening_was_given_up_before_its_answer_is_ended",
    ),
    Mutation(
        "backends/cas/image.py",
        ' if Look(b"%d" % self._beats.get(session, -2)) == look]',
        "]",
        "a session that was kept alive at the last moment is ended",
        "tests/backends/cas/test_image.py::test_only_a_session_that_still_looks_the_same_is_ended",
    ),
    # The facade, the plugin, the page
    Mutation(
        "sync/handler.py",
        "        return 0 if seen.closed else max(seen.pending, 1) if seen.out else seen.pending",
        "        return 0 if seen.closed else seen.pending",
        "an agent whose node is out trains on",
        "tests/sync/test_handler.py::test_a_node_that_is_cut_off_knows_that_it_is_out",
    ),
    Mutation(
        "sync/handler.py",
        "        failing = sys.exc_info()[0] is not None",
        "        failing = False",
        "an agent that fails closes the run for all",
        "tests/sync/test_handler.py::test_a_member_that_failed_leaves_and_the_others_go_on[memory]",
    ),
    Mutation(
        "sync/handler.py",
        "            except RoundLostError as error:",
        "            except RecursionError as error:",
        "a member that is lost while a round is set up fails the others",
        "tests/sync/test_handler.py::test_a_round_that_loses_a_member_while_it_is_set_up_is_left_for_the_next",
    ),
    Mutation(
        "sync/handler.py",
        "nodes=settings.sizes or (settings.min_nodes, settings.max_nodes),",
        "nodes=(settings.min_nodes, settings.max_nodes),",
        "the facade forgets the sizes",
        "tests/sync/test_shape.py::test_leftovers_are_not_counted_until_they_make_the_next_size",
    ),
    Mutation(
        "sync/options.py",
        'value.replace("/", ",")',
        "value",
        "torchrun, which splits its options at commas, cannot be given a list of sizes",
        "tests/sync/test_params.py::test_the_sizes_of_a_world[4/8/16-4,8,16]",
    ),
    Mutation(
        "sync/params.py",
        "if sizes.smallest < self.min_nodes or sizes.largest > self.max_nodes:",
        "if sizes.smallest < self.min_nodes:",
        "sizes go beyond --nnodes",
        "tests/sync/test_params.py::test_wrong_sizes_say_why",
    ),
    Mutation(
        "launch/launcher.py",
        "if others.closed is None and others.fit is not None and others.fit.usable:",
        "if others.closed is None and len(others.here) >= self._rendezvous.settings.min_nodes:",
        "a launcher that gives up closes a run that was scaled down, though the others could go on",
        "tests/launch/test_launcher.py::test_restarts_run_out_and_the_others_can_go_on[smaller]",
    ),
    Mutation(
        "cli/scale.py",
        "if now.generation == before.spec.generation:",
        "if now == before.spec.nodes:",
        "a scaling that changes nothing is reported as one",
        "tests/cli/test_runs.py::test_scale_says_what_held_what_holds_and_what_is_next",
    ),
    Mutation(
        "core/diagnosis.py",
        "0 < self.fit.shape.size_within(min(size, self.fit.shape.most)) < size",
        "self.fit.shape.most < size",
        "the status says that members of a size which is not allowed any more keep their round",
        "tests/core/test_diagnosis.py::test_members_of_a_world_that_is_too_large_now_go_back",
    ),
    Mutation(
        "sync/torchrun.py",
        "            raise SystemExit(0) from error",
        "            raise",
        "a spare of a run that is over crashes",
        "tests/torchrun/test_plugin.py::test_a_spare_whose_run_is_over_exits_well",
    ),
    Mutation(
        "sync/torchrun.py",
        "            store = TCPStore(round.address, 0, None, True, self._read_timeout, wait_for_workers=False)",
        "            store = self._server or TCPStore(round.address, 0, None, True, self._read_timeout, True)",
        "a round finds the keys of the last one in its store",
        "tests/torchrun/test_plugin.py::test_each_round_has_a_fresh_store",
    ),
    Mutation(
        "page/site.py",
        "        if path not in self.documents.public and not self._may_see(",
        "        if path not in self.documents.public and self._may_see(",
        "the status page is shown to those who do not know the secret",
        "tests/hostile/test_fuzz.py::test_a_decoder_answers_nonsense_with_its_own_error[http request]",
    ),
)  # fmt: skip


def plant(mutation: Mutation, place: Path) -> Outcome:
    """Plant a bug in a copy at ``place``, run its test there, and take the bug out again."""
    path = place / "rendezvous_async" / mutation.file
    sound = path.read_text()
    assert sound.count(mutation.before) == 1, f"{mutation.file} has not exactly one {mutation.before!r}"
    write_source(path, sound.replace(mutation.before, mutation.after))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", mutation.caught_by]
    environment = {**os.environ, "PYTHONPATH": str(place), "RENDEZVOUS_TEST_PATIENCE": "15"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, timeout=5 * LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome("late", 5 * LIMIT)
    finally:
        write_source(path, sound)
    seconds = time.monotonic() - begin
    if done.returncode != 1 and "passed" not in done.stdout and "skipped" in done.stdout:
        return Outcome("skipped", seconds)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest could not run {mutation.caught_by}:\n{done.stdout}\n{done.stderr}")
    if done.returncode == 0:
        return Outcome("missed", seconds)
    return Outcome("caught" if seconds <= LIMIT else "late", seconds)


def write_source(path: Path, source: str) -> None:
    """Write a source so that no bytecode of the one before is taken for it: those are told apart by whole seconds."""
    changed = int(path.stat().st_mtime)
    path.write_text(source)
    os.utime(path, (changed + 1, changed + 1))


def copy_to(place: Path) -> None:
    """Copy all that a test needs."""
    ignored = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis")
    for name in ("rendezvous_async", "tests", "examples", "docs"):
        shutil.copytree(ROOT / name, place / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, place / name)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.mutations", description=__doc__)
    parser.add_argument("--only", default="", help="only those whose file has this in its name")
    options = parser.parse_args(arguments)
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="rendezvous-mutations-") as name:
        place = Path(name)
        copy_to(place)
        for mutation in MUTATIONS:
            if options.only in mutation.file:
                outcome = plant(mutation, place)
                counts[outcome.verdict] = counts.get(outcome.verdict, 0) + 1
                line = {**outcome._asdict(), "file": mutation.file, "breaks": mutation.breaks}
                print(json.dumps({**line, "seconds": round(outcome.seconds, 1)}), flush=True)
    print(json.dumps(counts))
    return 0 if set(counts) <= {"caught", "skipped"} else 1


if __name__ == "__main__":
    sys.exit(main())
