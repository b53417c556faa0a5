"""Checks of names: keys and subtrees, odd characters, and the isolation of runs."""

from __future__ import annotations

from functools import partial

import anyio

from rendezvous_async.backends.base import Condition, Delete, Put
from rendezvous_async.backends.names import MAX_KEY_LENGTH
from rendezvous_async.testing.conformance.check import WAIT, Check, Trial, WatchReader, expect_error, expect_same

NEIGHBOURS = ["A", "a", "a b", "a!", "a-", "a-/b", "a.", "a/b", "a/b/c", "a/bc", "a/é", "a0", "a0/b", "aa/b", "ab", "b"]
"""Keys around ``a`` and ``a/``, including those whose bytes sort just before and after the slash."""

ODD_KEYS = [
    "..", ".", "../up", "./here", "a/../b", "~", "%", "%2F", "a%2Fb", "%2e%2e", "a b", " ", "a\\b", "*", "?", "[a]",
    "$x", "'", '"', "`", "&;|<>", "#", "@", "a=b", "a:b", "a,b", "ü", "u\u0308", "日本語/鍵", "🔑", "ß", "-", "_", "+",
    "CON", "nul", "classic/x", "k" * 200 + "/" + "k" * 200,
]  # fmt: skip

RUN_IDS = ["{}", "{}/x", "{}/", "/{}", "{} x", "{}x", "{}%2Fx", "{}ü日本", "{}/../x", "{}\\x", "{}*", "{}?", "{}#\n"]
"""Run ids that an encoding may confuse; ``{}`` stands for a unique part."""


@Check
async def a_name_is_one_key_or_a_subtree(run: Trial) -> None:
    """In list, watch and Delete, a name that ends in a slash is a subtree, and any other exactly one key."""
    wanted = {
        "a": ["a"],
        "a/": ["a/b", "a/b/c", "a/bc", "a/é"],
        "a/b": ["a/b"],
        "a/b/": ["a/b/c"],
        "a0/": ["a0/b"],
        "b/": [],
        "absent": [],
        "": NEIGHBOURS,
    }
    async with run.client() as backend:
        puts = [Put(key, key.encode()) for key in NEIGHBOURS]
        for name, keys in wanted.items():
            await backend.commit(*puts)
            listing = await backend.list(name)
            expect_same([entry.key for entry in listing.entries], keys, f"list({name!r})")
            expect_same([entry.value for entry in listing.entries], [key.encode() for key in keys], "its values")
            async with backend.watch(name) as watch:
                first = await WatchReader(watch, name).read()
                expect_same([entry.key for entry in first.entries], keys, f"the first listing of watch({name!r})")
            await backend.commit(Delete(name))
            left = [entry.key for entry in (await backend.list("")).entries]
            expect_same(left, [key for key in NEIGHBOURS if key not in keys], f"what Delete({name!r}) leaves")


@Check
async def odd_characters_are_just_characters(run: Trial) -> None:
    """Dots, percent signs, spaces, capitals and any printable unicode are kept distinct and unchanged."""
    async with run.client() as backend:
        view = {}
        for number, key in enumerate(ODD_KEYS):
            view[key] = b"%d" % number
            commit = await backend.commit(Put(key, view[key]), when=[Condition(key, None)])
            expect_same((commit.won, commit.entries), (True, ()), f"creating {key!r}")
        for key, value in view.items():
            entry = await backend.get(key)
            expect_same(entry and (entry.key, entry.value), (key, value), "get()")
        listing = await backend.list("")
        expect_same([entry.key for entry in listing.entries], sorted(view), "the keys of the run, in order")
        async with backend.watch("") as watch:
            reader = WatchReader(watch, "")
            await reader.read()
            expect_same(reader.view, view, "the run as a watch shows it")
            await backend.commit(*(Delete(key) for key in ODD_KEYS))
            await reader.until("the deletion of keys with odd characters", lambda view: not view)


@Check
async def bad_keys_are_refused(run: Trial) -> None:
    """A key that is empty, too long, not printable, or has empty segments is a ValueError, and nothing is written."""
    async with run.client() as backend:
        for key in ("", "a/", "/", "/a", "a//b", "a\nb", "a\0b", "\ud800", "k" * (MAX_KEY_LENGTH + 1)):
            what = f"the key {key!r:.20}"
            await expect_error(ValueError, partial(backend.get, key), what)
            await expect_error(ValueError, partial(backend.commit, Put(key, b"")), what)
            await expect_error(ValueError, partial(backend.commit, Put("ok", b""), when=[Condition(key, None)]), what)
        for name in ("/", "/a", "a//", "a\nb/"):
            await expect_error(ValueError, partial(backend.list, name), f"list({name!r})")
            await expect_error(ValueError, partial(backend.commit, Put("ok", b""), Delete(name)), f"Delete({name!r})")
            try:
                backend.watch(name)
            except ValueError:
                continue
            raise AssertionError(f"watch({name!r}) was not refused")
        expect_same((await backend.list("")).entries, (), "the run after bad keys")


@Check
async def runs_do_not_see_each_other(run: Trial) -> None:
    """What is put, watched and deleted in one run stays in it, whatever characters the run ids have."""
    run_ids = [pattern.format(run.id) for pattern in RUN_IDS] + ["..", ".", "%2E%2E"]
    for run_id in run_ids:
        async with run.client(run_id) as backend:
            await backend.commit(Delete(""))
    for run_id in run_ids:
        async with run.client(run_id) as backend:
            commit = await backend.commit(Put("x", run_id.encode()), when=[Condition("x", None)])
            expect_same((commit.won, commit.entries), (True, ()), f"creating a key in the run {run_id!r}")
            await backend.commit(Put("x/x", run_id.encode()))
    for run_id in run_ids:
        async with run.client(run_id) as backend:
            view = {entry.key: entry.value for entry in (await backend.list("")).entries}
            expect_same(view, {"x": run_id.encode(), "x/x": run_id.encode()}, f"the run {run_id!r}")
    async with run.client() as mine, run.client(f"{run.id}/x") as other:
        async with mine.watch("") as watch:
            reader = WatchReader(watch, "")
            await reader.read()
            with anyio.fail_after(WAIT):
                await other.commit(Put("y", b"other"), Delete("x"))
                await mine.commit(Put("z", b"mine"))
            await reader.until("a change in its own run", lambda view: "z" in view)
            expect_same(sorted(reader.view), ["x", "x/x", "z"], "a watch of one run while another changes")
        await mine.commit(Delete(""))
        expect_same([entry.key for entry in (await other.list("")).entries], ["x/x", "y"], "the other run")
