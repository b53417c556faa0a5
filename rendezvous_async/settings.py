"""What a user can set, checked where it enters: timeouts, node counts, endpoints.

Everything here is a frozen value. A wrong argument raises ``ValueError`` with the value in the text, before any I/O.
"""

from __future__ import annotations

import contextlib
import math
import re
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from rendezvous_async.sizes import MAX_NODES, Sizes, check_domains, parse_sizes
from rendezvous_async.texts import quoted

__all__ = [
    "DEFAULT_PORTS",
    "Endpoint",
    "Settings",
    "Timeouts",
    "parse_endpoint",
    "settings_for",
    "settings_of",
]

DEFAULT_PORTS = {"tcp": 29400, "etcd": 2379, "etcds": 2379}
MAX_ID_LENGTH = 256
MAX_LABEL = 256
MAX_ENCODED_ID_LENGTH = 1000
"""Percent-encoded, an id must fit into a backend's key."""
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_SECRET = re.compile(r"\b(secret|password)=[^&]*")
"""What a message about an endpoint must not repeat."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")


def check_seconds(name: str, value: object) -> float:
    """Return ``value`` as a finite, positive number of seconds."""
    if type(value) is float and 0 < value < math.inf:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number of seconds, not {quoted(value)}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds <= 0:
        raise ValueError(f"{name} must be a positive, finite number of seconds, not {quoted(value)}")
    return seconds


def check_grow(name: str, value: object) -> float:
    """Return ``value`` as a number of seconds that may also be 0 or without end."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value in (0, math.inf):
        return float(value)
    try:
        return check_seconds(name, value)
    except ValueError as error:
        raise ValueError(f"{error}; 0 lets newcomers in at once, inf only by hand") from None


def parse_seconds(name: str, value: object) -> float:
    """Return the same of an option, which may be the text of a query."""
    return check_seconds(name, as_number(value))


def as_number(value: object) -> object:
    """Return the number that a text is; any other value as it is."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def check_id(name: str, value: object) -> str:
    """Return ``value`` as a run or node id: a short, non-empty string."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a non-empty string, not {quoted(value)}")
    if len(value) > MAX_ID_LENGTH:
        raise ValueError(f"{name} must have at most {MAX_ID_LENGTH} characters, not {len(value)}: {value[:32]!r}...")
    length = len(encode_segment(check_encodable(name, value)))
    if length > MAX_ENCODED_ID_LENGTH:
        raise ValueError(
            f"{name} must have at most {MAX_ENCODED_ID_LENGTH} characters in a URL, not {length}: {value!r}"
        )
    return value


def check_encodable(name: str, value: str) -> str:
    """Return a string that others can read: one that UTF-8 can encode."""
    if not value.isascii() and value.encode(errors="ignore").decode() != value:
        raise ValueError(f"{name} must be a string that UTF-8 can encode, not {quoted(value)}")
    return value


def encode_segment(text: str) -> str:
    """Return ``text`` as one segment of a key: percent-encoded, with no slash in it, and never only dots."""
    if _PLAIN.fullmatch(text):
        return text
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted.strip(".") == "" else quoted


def decode_segment(segment: str) -> str:
    """Undo ``encode_segment``."""
    return unquote(segment)


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for what, in seconds.

    Attributes:
        join: For a round to form, from the call of ``join()``.
        last_call: For late comers, once ``min`` nodes are at the barrier.
        regroup: The same when a member of the last round is among them; None means ``min(last_call, 3)``.
        close: For leaving and closing cleanly; to leave takes 2 s at most.
        heartbeat: For one keep-alive to be answered.
        grow: For more newcomers, before those who are here make the world larger: so that ten arrivals are one change.
            ``math.inf`` lets them in only by ``Rendezvous.grow()``, or once no larger world can come.
    """

    join: float = 600.0
    last_call: float = 30.0
    regroup: float | None = None
    close: float = 30.0
    heartbeat: float = 5.0
    grow: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name == "grow":
                check_grow("timeouts.grow", value)
            elif not (name == "regroup" and value is None):
                check_seconds(f"timeouts.{name}", value)

    @property
    def regroup_seconds(self) -> float:
        """The regroup time in force."""
        return min(self.last_call, 3.0) if self.regroup is None else self.regroup


class Settings(msgspec.Struct, frozen=True):
    """What all nodes of a run must agree on; it lives in the run's state.

    Attributes:
        min_nodes: The smallest size of a world.
        max_nodes: The largest.
        ranks: The rank policy.
        last_call: Seconds to wait for late comers.
        regroup: The same when a member of the last round is here.
        step: From each allowed size to the next; 0 for a list.
        listed: All allowed sizes, if they are not a progression.
        domain: The label whose values are domains; empty: there are none.
        per_domain: A world has a multiple of this number of nodes from each domain.
        grow: Seconds for which newcomers are held back; infinite if only a member lets them in. JSON has no infinity:
            there it is null, which is read back as infinite.
    """

    min_nodes: int
    max_nodes: int
    ranks: str = "sticky"
    last_call: float = 30.0
    regroup: float = 3.0
    step: int = 1
    listed: tuple[int, ...] = ()
    domain: str = ""
    per_domain: int = 1
    grow: float | None = 0.0

    def __post_init__(self) -> None:
        if self.grow is None:
            msgspec.structs.force_setattr(self, "grow", math.inf)
        if not 1 <= self.min_nodes <= self.max_nodes <= MAX_NODES:
            given = f"{quoted(self.min_nodes)}:{quoted(self.max_nodes)}"
            raise ValueError(f"nodes must satisfy 1 <= min <= max <= {MAX_NODES}, not {given}")
        if not self.is_plain:
            check_domains(self.sizes, self.domain, self.per_domain)
            if len(self.domain) > MAX_LABEL:
                raise ValueError(f"domain must have at most {MAX_LABEL} characters, not {len(self.domain)}")
            check_grow("grow", self.grow)
        ranks = str(self.ranks)
        if ranks not in ("sticky", "sorted") and not (ranks.startswith("label:") and ranks != "label:"):
            raise ValueError(f"ranks must be 'sticky', 'sorted' or 'label:<name>', not {quoted(self.ranks)}")
        check_seconds("last_call", self.last_call)
        check_seconds("regroup", self.regroup)

    @property
    def fingerprint(self) -> str:
        """A short text that names these settings in full; every node's record carries it. See ``settings_of``."""
        text = f"{self.ranks} last_call={_exactly(self.last_call)} regroup={_exactly(self.regroup)}"
        if self.is_plain:
            return f"{self.min_nodes}:{self.max_nodes} {text}"
        grow = f" grow={_exactly(self.grow_seconds)}" if self.grow else ""
        domain = f" domain={self.per_domain}:{encode_segment(self.domain)}" if self.domain else ""
        return f"{self.sizes} {text}{grow}{domain}"

    @property
    def sizes(self) -> Sizes:
        """The sizes that a world may have."""
        return Sizes(self.min_nodes, self.max_nodes, self.step, self.listed)

    @property
    def grow_seconds(self) -> float:
        """The seconds for which newcomers are held back."""
        return math.inf if self.grow is None else self.grow

    @property
    def is_plain(self) -> bool:
        """Whether any size from min to max will do, of any nodes, at once: all that version 0.1 knows."""
        return self.step == 1 and not self.listed and not self.domain and self.per_domain == 1 and not self.grow

    @property
    def label(self) -> str | None:
        """The label that ranks go by, if they do."""
        return self.ranks.removeprefix("label:") if self.ranks.startswith("label:") else None


_FINGERPRINT = re.compile(
    r"([\d:,]+) (.*) last_call=(\S{1,40}) regroup=(\S{1,40})(?: grow=(\S{1,40}))?(?: domain=(\d{1,9}):(\S+))?",
    re.ASCII | re.DOTALL,
)


def settings_of(fingerprint: str) -> Settings | None:
    """Return the settings that a fingerprint names; None if it is not one of this version."""
    found = _FINGERPRINT.fullmatch(fingerprint)
    if found is None:
        return None
    nodes, ranks, last_call, regroup, grow, per_domain, domain = found.groups()
    try:
        settings = settings_for(
            parse_sizes(nodes),
            ranks,
            float(last_call),
            float(regroup),
            decode_segment(domain or ""),
            int(per_domain or 1),
            float(grow or 0.0),
        )
    except ValueError:
        return None
    return settings if settings.fingerprint == fingerprint else None


def settings_for(
    sizes: Sizes,
    ranks: str = "sticky",
    last_call: float = 30.0,
    regroup: float = 3.0,
    domain: str = "",
    per_domain: int = 1,
    grow: float = 0.0,
) -> Settings:
    """Return the settings of a run whose worlds have these sizes."""
    low, high, step, listed = msgspec.structs.astuple(sizes)
    return Settings(low, high, ranks, last_call, regroup, step, listed, domain, per_domain, grow)


def _exactly(seconds: float) -> str:
    """Return a number as a text that stands for no other: ``30``, ``0.5``."""
    return repr(float(seconds)).removesuffix(".0")


class Endpoint(msgspec.Struct, frozen=True):
    """Where a backend lives, taken apart.

    Attributes:
        scheme: ``tcp``, ``etcd``, ``etcds``, ``file``, ``memory``, or that of another distribution's backend.
        hosts: ``(host, port)`` pairs of ``tcp``, ``etcd`` and ``etcds``.
        path: The directory of ``file``, the name of ``memory``, the whole place of a scheme that is not known here.
        options: What stood in the query string.
    """

    scheme: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    options: dict[str, str] = {}

    def __repr__(self) -> str:
        options = "{" + ", ".join(f"{name!r}: ..." for name in self.options) + "}"  # There may be secrets among them.
        return f"Endpoint({self.scheme!r}, hosts={self.hosts!r}, path={self.path!r}, options={options})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("place", str(self))]

    def __str__(self) -> str:
        return f"{self.scheme}://" + (self.path or ",".join(format_address(host, port) for host, port in self.hosts))


def format_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def show_endpoint(given: object) -> str:
    """Return an endpoint for a message, also one that is wrong: without its query, and without a user or password."""
    if not isinstance(given, str):
        is_plain = given is None or isinstance(given, int | float | Endpoint)
        return quoted(given) if is_plain else f"a value of type {type(given).__name__}"
    place, _, query = given.partition("?")
    scheme, mark, _ = place.partition("://")
    if "@" in place:
        host = place.rpartition("@")[2]
        place = f"...@{host}" if "@" in scheme else f"{scheme}://...@{host}"
    elif "@" in query:  # A password may have a question mark in it.
        place = f"{scheme}://..." if mark else "..."
    return quoted(_SECRET.sub(r"\1=...", place))


def parse_endpoint(text: str) -> Endpoint:
    """Take an endpoint apart: ``tcp://head:29400?is_host=auto``, ``etcd://a,b,c``, ``file:///dir``, ``memory://name``.

    Whether there is a backend for the scheme is seen where backends are opened.
    """
    given: object = text
    shown = show_endpoint(given)
    if not isinstance(given, str) or "://" not in given:
        raise ValueError(f"endpoint must look like scheme://..., for example tcp://head:29400, not {shown}")
    scheme, _, rest = text.partition("://")
    if not _SCHEME.fullmatch(scheme):
        raise ValueError(f"endpoint {shown} must begin with a scheme of small letters, for example tcp://")
    place, question, query = rest.partition("?")
    if place.encode(errors="ignore").decode() != place:
        raise ValueError(f"endpoint {shown} must be a string that UTF-8 can encode")
    pairs: list[tuple[str, str]] | None = None
    with contextlib.suppress(ValueError):  # It quotes the query, which may hold a secret: do not chain it.
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(question))
    if pairs is None:
        raise ValueError(f"endpoint {shown} has a query that is not name=value&name=value")
    options = dict(pairs)
    if len(options) != len(pairs):
        raise ValueError(f"endpoint {shown} names an option twice")
    if scheme not in DEFAULT_PORTS:
        path = unquote(place)
        if not path or (scheme == "file" and not path.startswith("/")):
            example = "file:///shared/dir" if scheme == "file" else "memory://name"
            raise ValueError(f"endpoint {shown} must name a place, for example {example}")
        if scheme == "file" and "\0" in path:
            raise ValueError(f"endpoint {shown} has a NUL character in its path")
        if "@" in place and scheme not in ("file", "memory"):
            raise ValueError(f"endpoint {shown} must not have a user or password before its place")
        return Endpoint(scheme, path=path, options=options)
    authority = place.removesuffix("/")
    if "/" in authority or "#" in authority or "@" in authority:
        raise ValueError(f"endpoint {shown} must be {scheme}://host:port without a path, user or password")
    hosts = tuple(_parse_address(shown, address, DEFAULT_PORTS[scheme]) for address in authority.split(","))
    if scheme == "tcp" and len(hosts) != 1:
        raise ValueError(f"endpoint {shown} must name one host; only etcd takes a list")
    return Endpoint(scheme, hosts=hosts, options=options)


def _parse_address(shown: str, address: str, default_port: int) -> tuple[str, int]:
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"endpoint {shown} has an IPv6 address without its brackets closed")
        port = rest[1:] if rest else ""
        colon = bool(rest)
    else:
        host, separator, port = address.partition(":")
        colon = bool(separator)
        if ":" in port:
            raise ValueError(f"endpoint {shown}: put an IPv6 address in brackets, for example tcp://[::1]:29400")
    if not host:
        raise ValueError(f"endpoint {shown} names no host")
    if " " in host or not host.isprintable():
        raise ValueError(f"endpoint {shown} has a host with a blank in it")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"endpoint {shown} has a host that is not a valid name") from None
    number = _parse_number(port) if colon else default_port
    if number is None or number > 65535:
        what = f"the port {port!r}" if f":{port}" in shown else "a wrong port"
        raise ValueError(f"endpoint {shown} has {what}; it must be a number from 0 to 65535")
    return host, number


def _parse_number(text: str) -> int | None:
    """Return plain digits as a number; None for anything else, and for more of them than any number here has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
