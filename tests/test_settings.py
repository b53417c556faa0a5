"""What users can set: good values come through as they should, and every bad one is in the text of its error."""

from __future__ import annotations

import math
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rendezvous_async.backends.names import check_key
from rendezvous_async.settings import (
    DEFAULT_PORTS,
    MAX_NODES,
    Endpoint,
    Settings,
    Timeouts,
    check_id,
    check_seconds,
    decode_segment,
    encode_segment,
    format_address,
    parse_endpoint,
    parse_nodes,
    settings_of,
)

counts = st.integers(1, MAX_NODES)
texts = st.text(st.characters(exclude_categories=["Cs"]))
short_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


def fails(call: Any, *args: Any, value: object = None, **kwargs: Any) -> str:
    """Return the text of the ValueError that a call raises, which must have the value in it."""
    with pytest.raises(ValueError) as caught:
        call(*args, **kwargs)
    value = args[-1] if value is None else value
    assert repr(value) in str(caught.value) or str(value) in str(caught.value)
    return str(caught.value)


BAD_RANGES: list[object] = [
    0, -1, 1.0, 2.5, None, True, [], [1], (1,), (1, 2, 3), (0, 1), (1.0, 2.0), (True, 2), ("1", "2"), {}, b"2", "",
    ":", "1:", ":1", "1:2:3", "0", "0:1", "-1:2", "1:-2", " 1", "1 ", "1_0", "+1", "٣", "²", "1e3", "0x1", "two",
    MAX_NODES + 1, (1, MAX_NODES + 1), f"1:{MAX_NODES + 1}", "9" * 5000, "1:" + "9" * 5000,
]  # fmt: skip

BAD_ENDPOINTS = [
    "", "head:29400", "tcp:head", "TCP://head", "http://head", "://head", "tcp://", "tcp:///", "tcp://:29400",
    "tcp://head:", "tcp://head:x", "tcp://head:-1", "tcp://head:65536", "tcp://head:٣", "tcp://head:1:2", "tcp://a,b",
    "tcp://head/path", "tcp://user:pw@head", "tcp://head#x", "tcp://::1", "tcp://[::1", "tcp://[::1]x", "tcp://[]",
    "tcp://head:" + "9" * 5000, "tcp://head?x", "tcp://head?a=1&a=2", "tcp://head?a=1&&b", "tcp://he ad",
    "tcp://head\n", "tcp://\thead", "etcd://", "etcd://a,,b", "etcd://a,", "etcd://a, b", "file://", "file:",
    "file://relative", "memory://", "memory://?a=1",
]  # fmt: skip


class TestNodes:
    @given(counts, counts)
    def test_all_ways_to_say_it(self, one: int, other: int) -> None:
        low, high = sorted((one, other))
        assert parse_nodes(f"{low}:{high}") == parse_nodes((low, high)) == (low, high)
        assert parse_nodes(low) == parse_nodes(str(low)) == (low, low)

    @given(counts, counts)
    def test_min_must_not_be_above_max(self, one: int, other: int) -> None:
        low, high = sorted((one, other))
        if low < high:
            fails(parse_nodes, f"{high}:{low}")
            fails(parse_nodes, (high, low))

    @given(st.text(string.digits + ":-+ ._ex\n٣²", max_size=8))
    def test_any_text_is_a_range_or_an_error(self, text: str) -> None:
        try:
            low, high = parse_nodes(text)
        except ValueError as error:
            assert repr(text) in str(error)
        else:
            assert 1 <= low <= high <= MAX_NODES
            assert parse_nodes(f"{low}:{high}") == (low, high)

    @pytest.mark.parametrize("nodes", BAD_RANGES, ids=lambda nodes: repr(nodes)[:20])
    def test_what_is_no_range(self, nodes: object) -> None:
        assert "1 <= min <= max" in fails(parse_nodes, nodes)


def is_name(host: str) -> bool:
    """Whether every label has a letter at least; the last one may be empty."""
    return all(host.removesuffix(".").split("."))


hosts = st.text(string.ascii_lowercase + string.digits + "-._", min_size=1, max_size=12).filter(is_name)
ports = st.integers(0, 65535)
ipv6 = st.sampled_from(["::1", "fe80::1", "2001:db8::8a2e:370:7334", "::ffff:10.0.0.1", "fe80::1%eth0"])
addresses = st.tuples(hosts | ipv6, ports)
options = st.dictionaries(st.text(string.ascii_lowercase + "_", min_size=1), texts, max_size=3)


def query(chosen: dict[str, str]) -> str:
    return "?" + "&".join(f"{name}={encode_segment(value)}" for name, value in chosen.items()) if chosen else ""


class TestEndpoints:
    @given(addresses, options)
    def test_tcp(self, address: tuple[str, int], chosen: dict[str, str]) -> None:
        endpoint = parse_endpoint(f"tcp://{format_address(*address)}{query(chosen)}")
        assert endpoint == Endpoint("tcp", (address,), options=chosen)
        assert parse_endpoint(str(endpoint)) == Endpoint("tcp", (address,))

    @given(st.sampled_from(["etcd", "etcds"]), st.lists(addresses, min_size=1, max_size=4), options)
    def test_etcd(self, scheme: str, listed: list[tuple[str, int]], chosen: dict[str, str]) -> None:
        text = f"{scheme}://{','.join(format_address(*address) for address in listed)}{query(chosen)}"
        endpoint = parse_endpoint(text)
        assert endpoint == Endpoint(scheme, tuple(listed), options=chosen)
        assert parse_endpoint(str(endpoint)).hosts == tuple(listed)

    @given(st.sampled_from(sorted(DEFAULT_PORTS)), hosts | ipv6)
    def test_default_ports(self, scheme: str, host: str) -> None:
        text = f"{scheme}://[{host}]" if ":" in host else f"{scheme}://{host}"
        assert parse_endpoint(text).hosts == ((host, DEFAULT_PORTS[scheme]),)
        assert parse_endpoint(text + "/").hosts == ((host, DEFAULT_PORTS[scheme]),)

    @given(st.lists(texts.filter(bool).map(encode_segment), min_size=1, max_size=3), options)
    def test_paths_are_percent_decoded(self, segments: list[str], chosen: dict[str, str]) -> None:
        path = "/" + "/".join(segments)
        wanted = "/" + "/".join(decode_segment(segment) for segment in segments)
        assert parse_endpoint(f"file://{path}{query(chosen)}") == Endpoint("file", path=wanted, options=chosen)
        assert parse_endpoint(f"memory://{segments[0]}").path == decode_segment(segments[0])

    @given(st.sampled_from(["", "tcp", "etcd", "etcds", "file", "memory", "http"]), texts)
    def test_any_text_is_an_endpoint_or_an_error_that_quotes_its_place(self, scheme: str, rest: str) -> None:
        for text in (rest, f"{scheme}://{rest}"):
            try:
                endpoint = parse_endpoint(text)
            except ValueError as error:
                assert str(error).startswith("endpoint ")
                assert repr(text) in str(error) or set(text) & {"?", "@"} or "=" in text
            else:
                assert endpoint.scheme == scheme or endpoint.scheme in rest
                assert endpoint.hosts or endpoint.path
                assert all(host and 0 <= port <= 65535 for host, port in endpoint.hosts)

    @pytest.mark.parametrize("text", BAD_ENDPOINTS, ids=lambda text: repr(text)[:30])
    def test_what_is_no_endpoint(self, text: str) -> None:
        shown = text.partition("?")[0].rpartition("@")[2]
        assert fails(parse_endpoint, text, value=shown).startswith("endpoint ")

    @pytest.mark.parametrize("value", [None, 29400, b"tcp://head", ["tcp://head"], Endpoint("tcp", (("head", 1),))])
    def test_what_is_no_text(self, value: object) -> None:
        fails(parse_endpoint, value, value=type(value).__name__ if isinstance(value, bytes | list) else repr(value))

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("etcd://trainer:hunter2@h1:2379", "'etcd://...@h1:2379'"),
            ("etcd://trainer:hunter2@h1,trainer:hunter2@h2", "'etcd://...@h2'"),
            ("etcd://trainer:hunter2?@h1:2379", "'etcd://...'"),
            ("trainer:hunter2@h1:2379", "'...@h1:2379'"),
            ("trainer:hunter2@etcd://h1", "'...@etcd://h1'"),
            ("tcp://h?secret=ab&hunter2", "'tcp://h'"),
            ("http://h?%73ecret=hunter2", "'http://h'"),
            ("tcp://h?%73ecret=hunter2&secret=hunter2", "'tcp://h'"),
            ("tcp://h:x?%73ecret=hunter2", "'tcp://h:x'"),
            ("tcp://h:1&secret=hunter2", "'tcp://h:1&secret=...'"),
            ("h?secret=hunter2://", "'h'"),
        ],
    )
    def test_a_message_shows_where_it_leads_and_no_secret(self, text: str, shown: str) -> None:
        with pytest.raises(ValueError) as caught:
            parse_endpoint(text)
        assert shown in str(caught.value)
        assert "hunter2" not in f"{caught.value!r} {caught.value.__context__!r}"

    def test_an_endpoint_shows_no_values_of_options(self) -> None:
        endpoint = parse_endpoint("tcp://h?%73ecret=hunter2&is_host=auto")
        assert endpoint.options["secret"] == "hunter2"
        assert repr(endpoint).endswith("options={'secret': ..., 'is_host': ...})")
        assert "hunter2" not in f"{endpoint!r} {endpoint} {list(endpoint.__rich_repr__())}"

    def test_it_reads_as_it_was_written(self) -> None:
        for text in ("tcp://head:29400", "etcd://a:1,[::1]:2", "file:///shared/dir", "memory://name"):
            assert str(parse_endpoint(text)) == text

    def test_a_question_mark_with_nothing_behind_it(self) -> None:
        assert parse_endpoint("tcp://head?") == Endpoint("tcp", (("head", 29400),))


class TestIds:
    @given(short_texts.filter(str.strip))
    def test_an_id_becomes_a_segment_of_a_key_and_comes_back(self, text: str) -> None:
        segment = encode_segment(text)
        assert decode_segment(segment) == text
        assert check_key(segment) == segment
        assert "/" not in segment
        assert segment.isascii()
        assert segment.strip(".") != ""

    @given(texts, texts)
    def test_different_ids_are_different_segments(self, one: str, other: str) -> None:
        assert (encode_segment(one) == encode_segment(other)) == (one == other)

    @given(texts.filter(str.strip))
    def test_an_id_that_is_accepted_fits_in_a_key(self, text: str) -> None:
        for long in (text, text * (200 // len(text)), "語" * len(text)):
            try:
                check_id("node", long)
            except ValueError as error:
                assert "node must" in str(error) and repr(long)[1:8] in str(error)
            else:
                check_key(f"nodes/{encode_segment(long)}")

    @pytest.mark.parametrize("value", ["", " ", "\n\t", None, 7, b"id", "\ud800"])
    def test_what_is_no_id(self, value: object) -> None:
        assert fails(check_id, "run_id", value).startswith("run_id must be a text")

    @pytest.mark.parametrize("character", ["x", "語"])
    def test_ids_are_bounded(self, character: str) -> None:
        text = fails(
            check_id, "run_id", character * 200 if character == "語" else character * 257, value=character * 32
        )
        assert text.startswith("run_id must have at most ")


class TestSeconds:
    @given(st.floats(min_value=0, exclude_min=True, allow_infinity=False) | st.integers(1, 10**300))
    def test_positive_numbers(self, value: float) -> None:
        assert check_seconds("timeout", value) == float(value)
        assert isinstance(check_seconds("timeout", value), float)

    @pytest.mark.parametrize(
        "value",
        [0, 0.0, -1, -0.5, math.inf, -math.inf, math.nan, None, True, "5", [], 10**400],
        ids=lambda value: repr(value)[:20],
    )
    def test_anything_else(self, value: object) -> None:
        assert fails(check_seconds, "timeout", value).startswith("timeout must be a")

    @pytest.mark.parametrize("name", Timeouts.__struct_fields__)
    def test_every_timeout_is_checked_by_its_name(self, name: str) -> None:
        assert f"timeouts.{name}" in fails(Timeouts, value=-3, **{name: -3})
        assert getattr(Timeouts(**{name: 7}), name) == 7

    def test_regroup_is_at_most_three_seconds_by_default(self) -> None:
        assert Timeouts().regroup_seconds == 3
        assert Timeouts(last_call=2).regroup_seconds == 2
        assert Timeouts(regroup=20).regroup_seconds == 20


class TestSettings:
    @pytest.mark.parametrize("ranks", ["sticky", "sorted", "label:rack"])
    def test_rank_policies(self, ranks: str) -> None:
        assert Settings(1, 2, ranks).label == ("rack" if ranks == "label:rack" else None)

    @pytest.mark.parametrize("ranks", ["", "label", "label:", "Sticky", "random"])
    def test_unknown_rank_policies(self, ranks: str) -> None:
        fails(Settings, 1, 2, ranks)

    @pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (2, 1), (1, MAX_NODES + 1)])
    def test_bad_ranges(self, low: int, high: int) -> None:
        fails(Settings, low, high, value=f"{low}:{high}")

    def test_bad_times(self) -> None:
        assert "last_call" in fails(Settings, 1, 2, last_call=-1.5, value=-1.5)
        assert "regroup" in fails(Settings, 1, 2, regroup=0, value=0)

    @given(counts, counts, st.floats(0.1, 1e6), st.floats(0.1, 1e6))
    def test_equal_settings_have_equal_fingerprints(
        self, one: int, other: int, last_call: float, regroup: float
    ) -> None:
        low, high = sorted((one, other))
        ours = Settings(low, high, "sticky", last_call, regroup)
        assert ours.fingerprint == Settings(low, high, "sticky", last_call, regroup).fingerprint
        for theirs in (
            Settings(low, high, "sorted", last_call, regroup),
            Settings(low, high, "sticky", last_call * 1.001, regroup),
            Settings(low, high, "sticky", last_call, regroup * 1.001),
        ):
            assert ours.fingerprint != theirs.fingerprint

    @given(
        counts,
        counts,
        st.sampled_from(["sticky", "sorted"]) | st.text(min_size=1).map(lambda name: f"label:{name}"),
        st.floats(1e-9, 1e15) | st.integers(1, 1000),
        st.floats(1e-9, 1e15) | st.integers(1, 1000),
    )
    def test_a_fingerprint_names_the_settings_in_full(
        self, one: int, other: int, ranks: str, last_call: float, regroup: float
    ) -> None:
        low, high = sorted((one, other))
        settings = Settings(low, high, ranks, last_call, regroup)
        assert settings_of(settings.fingerprint) == settings

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "2:4",
            "4:2 sticky last_call=30 regroup=3",
            "2:4 nonsense last_call=30 regroup=3",
            "2:4 sticky last_call=thirty regroup=3",
            "2:4 sticky last_call=30.0 regroup=3",
            "2:4 sticky last_call=nan regroup=3",
            "2:4 sticky last_call=30 regroup=3 of a newer version",
            "02:4 sticky last_call=30 regroup=3",
        ],
    )
    def test_what_is_no_fingerprint_names_nothing(self, text: str) -> None:
        assert settings_of(text) is None
