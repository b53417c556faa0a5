"""What users can set: good values come through as they should, and every bad one is in the text of its error."""

from __future__ import annotations

import math
import string
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rendezvous_async.backends.names import check_key
from rendezvous_async.settings import (
    DEFAULT_PORTS,
    Endpoint,
    Settings,
    Timeouts,
    check_id,
    check_seconds,
    decode_segment,
    encode_segment,
    format_address,
    parse_endpoint,
    parse_seconds,
    settings_for,
    settings_of,
)
from rendezvous_async.sizes import MAX_NODES, parse_sizes
from rendezvous_async.texts import quoted

counts = st.integers(1, MAX_NODES)
texts = st.text(st.characters(exclude_categories=["Cs"]))
short_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


def fails(call: Any, *args: Any, value: object = None, **kwargs: Any) -> str:
    """Return the text of the ValueError that a call raises, which must have the value in it."""
    with pytest.raises(ValueError) as caught:
        call(*args, **kwargs)
    value = args[-1] if value is None else value
    assert quoted(value) in str(caught.value) or str(value) in str(caught.value)
    return str(caught.value)


BAD_ENDPOINTS = [
    "", "head:29400", "tcp:head", "TCP://head", "h ttp://head", "http://", "http://u:p@head", "://head", "tcp://", "tcp:///",
    "tcp://:29400",
    "tcp://head:", "tcp://head:x", "tcp://head:-1", "tcp://head:65536", "tcp://head:٣", "tcp://head:1:2", "tcp://a,b",
    "tcp://head/path", "tcp://user:pw@head", "tcp://head#x", "tcp://::1", "tcp://[::1", "tcp://[::1]x", "tcp://[]",
    "tcp://head:" + "9" * 5000, "tcp://head?x", "tcp://head?a=1&a=2", "tcp://head?a=1&&b", "tcp://he ad",
    "tcp://head\n", "tcp://\thead", "etcd://", "etcd://a,,b", "etcd://a,", "etcd://a, b", "file://", "file:",
    "file://relative", "memory://", "memory://?a=1",
]  # fmt: skip


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

    def test_the_ports_that_people_know(self) -> None:
        assert DEFAULT_PORTS == {"tcp": 29400, "etcd": 2379, "etcds": 2379}

    @pytest.mark.parametrize("port", [0, 1, 65535])
    def test_any_port_may_be_named(self, port: int) -> None:
        assert parse_endpoint(f"tcp://head:{port}").hosts == (("head", port),)
        assert parse_endpoint(f"tcp://[::1]:{port}").hosts == (("::1", port),)

    @pytest.mark.parametrize("port", ["65536", "000000000000000000001", "1e3"])
    def test_a_wrong_port_is_named(self, port: str) -> None:
        for host in ("head", "[::1]"):
            with pytest.raises(ValueError, match=f"has the port '{port}'; it must be a number from 0 to 65535"):
                parse_endpoint(f"tcp://{host}:{port}")

    @given(st.sampled_from(sorted(DEFAULT_PORTS)), hosts | ipv6)
    def test_default_ports(self, scheme: str, host: str) -> None:
        text = f"{scheme}://[{host}]" if ":" in host else f"{scheme}://{host}"
        assert parse_endpoint(text).hosts == ((host, DEFAULT_PORTS[scheme]),)
        assert parse_endpoint(text + "/").hosts == ((host, DEFAULT_PORTS[scheme]),)

    @given(st.lists(texts.filter(bool).map(encode_segment), min_size=1, max_size=3), options)
    def test_paths_are_percent_decoded(self, segments: list[str], chosen: dict[str, str]) -> None:
        assume("%00" not in "".join(segments))
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

    @given(texts.filter(lambda text: "@" not in text), options)
    def test_the_place_of_a_scheme_that_is_not_known_here_is_its_path(self, place: str, chosen: dict[str, str]) -> None:
        quoted = encode_segment(place) or "-"
        endpoint = parse_endpoint(f"my+scheme.2://{quoted}{query(chosen)}")
        assert endpoint == Endpoint("my+scheme.2", path=place or "-", options=chosen)

    @pytest.mark.parametrize("text", BAD_ENDPOINTS, ids=lambda text: repr(text)[:30])
    def test_what_is_no_endpoint(self, text: str) -> None:
        shown = text.partition("?")[0].rpartition("@")[2]
        assert fails(parse_endpoint, text, value=shown).startswith("endpoint ")

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("head:29400", "endpoint must look like scheme://..., for example tcp://head:29400, not 'head:29400'"),
            ("tcp:head", "endpoint must look like scheme://..., for example tcp://head:29400, not 'tcp:head'"),
            ("a@b://c", "endpoint '...@b://c' must begin with a scheme of small letters, for example tcp://"),
            ("tcp://h?x", "endpoint 'tcp://h' has a query that is not name=value&name=value"),
            ("tcp://h?a=1&a=2", "endpoint 'tcp://h' names an option twice"),
            ("file://relative", "endpoint 'file://relative' must name a place, for example file:///shared/dir"),
            ("file://", "endpoint 'file://' must name a place, for example file:///shared/dir"),
            ("memory://", "endpoint 'memory://' must name a place, for example memory://name"),
            ("tcp://h/x", "endpoint 'tcp://h/x' must be tcp://host:port without a path, user or password"),
            ("etcd://h#x", "endpoint 'etcd://h#x' must be etcd://host:port without a path, user or password"),
            ("tcp://u@h", "endpoint 'tcp://...@h' must be tcp://host:port without a path, user or password"),
            ("tcp://a,b", "endpoint 'tcp://a,b' must name one host; only etcd takes a list"),
            ("tcp://[::1", "endpoint 'tcp://[::1' has an IPv6 address without its brackets closed"),
            ("tcp://[::1]5", "endpoint 'tcp://[::1]5' has an IPv6 address without its brackets closed"),
            ("tcp://[]:5", "endpoint 'tcp://[]:5' names no host"),
            ("tcp://::1", "endpoint 'tcp://::1': put an IPv6 address in brackets, for example tcp://[::1]:29400"),
            ("tcp://:5", "endpoint 'tcp://:5' names no host"),
            ("tcp://a b", "endpoint 'tcp://a b' has a host with a blank in it"),
            ("tcp://a\t", r"endpoint 'tcp://a\t' has a host with a blank in it"),
            (f"tcp://{'a' * 64}", f"endpoint 'tcp://{'a' * 64}' has a host that is not a valid name"),
            ("tcp://h:", "endpoint 'tcp://h:' has the port ''; it must be a number from 0 to 65535"),
            ("tcp://[::1]:", "endpoint 'tcp://[::1]:' has the port ''; it must be a number from 0 to 65535"),
            ("tcp://h:65536", "endpoint 'tcp://h:65536' has the port '65536'; it must be a number from 0 to 65535"),
            ("tcp://h:secret=x", "endpoint 'tcp://h:secret=...' has a wrong port; it must be a number from 0 to 65535"),
        ],
    )
    def test_what_is_wrong_is_said(self, text: str, why: str) -> None:
        with pytest.raises(ValueError) as caught:
            parse_endpoint(text)
        assert str(caught.value) == why

    @pytest.mark.parametrize("value", [None, 29400, b"tcp://head", ["tcp://head"], Endpoint("tcp", (("head", 1),))])
    def test_what_is_no_text(self, value: object) -> None:
        shown = f"a value of type {type(value).__name__}" if isinstance(value, bytes | list) else repr(value)
        assert fails(parse_endpoint, value, value=shown).endswith(f", not {shown}")

    def test_an_endpoint_never_changes(self) -> None:
        with pytest.raises(AttributeError):
            parse_endpoint("tcp://head").hosts = ()  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("etcd://trainer:hunter2@h1:2379", "'etcd://...@h1:2379'"),
            ("etcd://trainer:hunter2@h1,trainer:hunter2@h2", "'etcd://...@h2'"),
            ("etcd://trainer:hunter2?@h1:2379", "'etcd://...'"),
            ("trainer:hunter2@h1:2379", "'...@h1:2379'"),
            ("trainer:hunter2@etcd://h1", "'...@etcd://h1'"),
            ("tcp://h?secret=ab&hunter2", "'tcp://h'"),
            ("h ttp://h?%73ecret=hunter2", "'h ttp://h'"),
            ("tcp://h?%73ecret=hunter2&secret=hunter2", "'tcp://h'"),
            ("tcp://h:x?%73ecret=hunter2", "'tcp://h:x'"),
            ("tcp://h:1&secret=hunter2", "'tcp://h:1&secret=...'"),
            ("h?secret=hunter2://", "'h'"),
            ("a:hunter2@b://c:hunter2@d", "'...@d'"),
            ("h?hunter2@x", "'...'"),
            ("tcp://h?a=1&a=hunter2@x", "'tcp://...'"),
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
        told = fails(check_id, "run_id", value)
        assert told.startswith(
            ("run_id must be a non-empty string, not", "run_id must be a string that UTF-8 can encode")
        )

    @pytest.mark.parametrize("character", ["x", "語"])
    def test_ids_are_bounded(self, character: str) -> None:
        text = fails(
            check_id, "run_id", character * 200 if character == "語" else character * 257, value=character * 32
        )
        assert text.startswith("run_id must have at most ")

    def test_an_id_may_be_as_long_as_the_bounds_say(self) -> None:
        """The bound on what it becomes in a key is its own: 111 characters of three bytes and another one."""
        for text in ("x" * 256, "語" * 111 + "x"):
            assert check_id("node", text) == text
        assert len(encode_segment("語" * 111 + "x")) == 1000
        assert "at most 256 characters, not 257" in fails(check_id, "node", "x" * 257, value="x" * 32)
        long = "語" * 111 + "xy"
        assert "at most 1000 characters in a URL, not 1001" in fails(check_id, "node", long)

    def test_only_what_must_be_is_encoded(self) -> None:
        texts = ["job-7_A", "a.b", ".", "..", "a b", "a/b", "%"]
        assert list(map(encode_segment, texts)) == ["job-7_A", "a.b", "%2E", "%2E%2E", "a%20b", "a%2Fb", "%25"]


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

    @pytest.mark.parametrize("value", [5, 0.25, "5", "0.25", "1e2"])
    def test_an_option_may_be_a_text(self, value: float | str) -> None:
        assert parse_seconds("timeout", value) == float(value)

    @pytest.mark.parametrize("value", ["", "five", "0", "-1", "nan", "inf", 0, None, True])
    def test_an_option_that_is_no_number_of_seconds(self, value: object) -> None:
        with pytest.raises(ValueError, match=r"^timeout must be a"):
            parse_seconds("timeout", value)

    @pytest.mark.parametrize("name", Timeouts.__struct_fields__)
    def test_every_timeout_is_checked_by_its_name(self, name: str) -> None:
        assert f"timeouts.{name}" in fails(Timeouts, value=-3, **{name: -3})
        assert getattr(Timeouts(**{name: 7}), name) == 7

    @pytest.mark.parametrize("name", Timeouts.__struct_fields__)
    def test_only_regroup_may_be_left_open(self, name: str) -> None:
        nothing: Any = None
        if name == "regroup":
            assert Timeouts(regroup=None).regroup is None
        else:
            with pytest.raises(ValueError, match=f"timeouts.{name} must be a number of seconds, not None"):
                Timeouts(**{name: nothing})

    def test_timeouts_are_named_and_never_change(self) -> None:
        with pytest.raises(TypeError):
            Timeouts(5)  # type: ignore[call-arg]
        with pytest.raises(AttributeError):
            Timeouts().join = 5  # type: ignore[misc]

    def test_what_holds_when_nothing_is_said(self) -> None:
        assert Timeouts() == Timeouts(join=600, last_call=30, regroup=None, close=30, heartbeat=5)
        assert Settings(1, 2) == Settings(1, 2, "sticky", 30, 3)

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

    def test_settings_never_change(self) -> None:
        with pytest.raises(AttributeError):
            Settings(1, 2).ranks = "sorted"  # type: ignore[misc]

    def test_as_many_nodes_as_the_bound_says(self) -> None:
        assert MAX_NODES == 1_000_000
        assert Settings(MAX_NODES, MAX_NODES).max_nodes == MAX_NODES

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

    @given(
        st.sampled_from(["2:4", "4:64:4", "4,8,24", "8"]),
        st.sampled_from(["", "nvlink", "a b", "é/%", "x last_call=30 regroup=3"]),
        st.integers(1, 4),
        st.sampled_from([0.0, 5.0, 0.1, math.inf]),
        st.sampled_from(["sticky", "label:a last_call=1 regroup=1 grow=5 domain=4:nvlink"]),
    )
    def test_a_fingerprint_names_a_shape_in_full(
        self, nodes: str, domain: str, per_domain: int, grow: float, ranks: str
    ) -> None:
        assume(domain or per_domain == 1)
        sizes = parse_sizes(nodes)
        assume(sizes.multiples_of(per_domain))
        settings = settings_for(sizes, ranks, 30.0, 3.0, domain, per_domain, grow)
        assert settings_of(settings.fingerprint) == settings
        assert settings.sizes == sizes
        assert settings.is_plain == (settings == Settings(sizes.smallest, sizes.largest, ranks))

    def test_fingerprints_of_different_shapes_differ(self) -> None:
        sizes = parse_sizes("4:8:4")
        shapes = [
            Settings(4, 8),
            settings_for(sizes),
            settings_for(sizes, domain="a"),
            settings_for(sizes, domain="b"),
            settings_for(sizes, domain="a", per_domain=4),
            settings_for(sizes, grow=5.0),
            settings_for(sizes, grow=math.inf),
            settings_for(parse_sizes("4,8,24")),
        ]
        assert len({settings.fingerprint for settings in shapes}) == len(shapes)
        assert Settings(4, 8).fingerprint == "4:8 sticky last_call=30 regroup=3", "as version 0.1 writes it"

    def test_a_bad_shape(self) -> None:
        assert "needs a domain" in fails(Settings, 2, 4, per_domain=2, value=2)
        assert "grow" in fails(Settings, 2, 4, grow=-1.0, value=-1.0)
        assert "a list of sizes" in fails(Settings, 2, 4, listed=(2, 4), value=2)
        assert "do not reach" in fails(Settings, 2, 5, step=2, value=5)
        assert "256 characters" in fails(Settings, 2, 4, domain="x" * 257, value=257)

    @pytest.mark.parametrize("grow", [0, 0.0, 5, 0.25, math.inf])
    def test_newcomers_may_be_held_back_for_any_time(self, grow: float) -> None:
        assert Timeouts(grow=grow).grow == grow

    @pytest.mark.parametrize("grow", [-1, math.nan, -math.inf, "5", None, True])
    def test_bad_times_to_hold_newcomers_back(self, grow: object) -> None:
        with pytest.raises(ValueError, match=r"timeouts\.grow must be .*inf only by hand"):
            Timeouts(grow=grow)  # type: ignore[arg-type]

    def test_a_label_may_have_a_line_break(self) -> None:
        settings = Settings(2, 4, "label:a\nb last_call=5")
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
