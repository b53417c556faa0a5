"""The options of an endpoint: one typed struct for each scheme, parsed and checked when they are given.

A scheme's struct derives from ``BackendOptions``. The type of each field says how a value, which may be text from a
query, is parsed: ``Seconds``, ``Flag``, ``Text``, ``FilePath``, ``SecretText``, or ``Annotated`` with a function that
takes name and value, and returns the parsed value or raises ``ValueError``. ``connect`` and ``open_backend`` parse
options before anything is sent, so a mistyped option fails at once.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from rendezvous_async.backends.names import DEFAULT_NAMESPACE, check_name
from rendezvous_async.settings import Endpoint, check_encodable, parse_seconds
from rendezvous_async.texts import quoted

__all__ = [
    "BackendOptions",
    "FilePath",
    "Flag",
    "Seconds",
    "SecretText",
    "Text",
    "encoded_secret",
    "one_of_type",
    "read_options",
]

MAX_NAMESPACE_LENGTH = 256
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}

Parse: TypeAlias = Callable[[str, object], object]
"""Parses the value of an option, given as a value or as text; raises ``ValueError``."""


def parse_flag(name: str, value: object) -> bool:
    """Parse a boolean, or a word for one."""
    known = _WORDS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(known, bool):
        raise ValueError(f"{name} must be true or false, not {quoted(value)}")
    return known


def parse_path(name: str, value: object) -> str | os.PathLike[str]:
    """Parse a path."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"{name} must be a path, not {quoted(value)}")
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be a path that can be encoded, not {quoted(value)}") from None
    if b"\0" in encoded:
        raise ValueError(f"{name} must be a path without NUL characters, not {quoted(value)}")
    return value


def parse_secret(name: str, value: object) -> str | bytes:
    """Parse a secret; errors do not show it."""
    if not isinstance(value, str | bytes):
        raise ValueError(f"{name} must be a string or bytes, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must not be empty")
    try:
        encoded_secret(value)
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be a string that UTF-8 can encode") from None
    return value


def encoded_secret(secret: str | bytes) -> bytes:
    """Return the bytes of a secret; those that are not text, from an environment for example, stay as they are."""
    return secret.encode("utf-8", "surrogateescape") if isinstance(secret, str) else secret


def parse_text(name: str, value: object) -> str:
    """Parse a text with something other than slashes in it."""
    if not isinstance(value, str) or not value.strip("/"):
        raise ValueError(f"{name} must be a non-empty string, not {quoted(value)}")
    return check_encodable(name, value)


def parse_namespace(name: str, value: object) -> str:
    """Parse a namespace; slashes around it do not matter."""
    text = parse_text(name, value)
    if len(text) > MAX_NAMESPACE_LENGTH:
        raise ValueError(
            f"{name} must have at most {MAX_NAMESPACE_LENGTH} characters, not {len(text)}: {text[:32]!r}..."
        )
    try:
        check_name(text.strip("/"))
    except ValueError:
        raise ValueError(
            f"{name} must have segments of printable characters between single slashes, not {quoted(text)}"
        ) from None
    return text


def one_of_type(kind: type, article: str = "a") -> Parse:
    """Return a parser for an option that takes only values of this type, and no text."""

    def parse(name: str, value: object) -> object:
        if not isinstance(value, kind):
            raise ValueError(f"{name} must be {article} {kind.__qualname__}, not {quoted(value)}")
        return value

    return parse


Seconds: TypeAlias = Annotated[float, parse_seconds]
Flag: TypeAlias = Annotated[bool, parse_flag]
Text: TypeAlias = Annotated[str, parse_text]
FilePath: TypeAlias = Annotated[str | os.PathLike[str], parse_path]
SecretText: TypeAlias = Annotated[str | bytes, parse_secret]


class BackendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every scheme.

    Attributes:
        instead: For options that this scheme does not have, what to use instead.
        namespace: The prefix of all keys.
    """

    instead: ClassVar[Mapping[str, str]] = {}

    namespace: Annotated[str, parse_namespace] = DEFAULT_NAMESPACE

    def __repr__(self) -> str:
        parsers = _parsers_of(type(self))
        shown = [
            f"{name}={'...' if parsers[name] is parse_secret else repr(value)}"
            for name, value in msgspec.structs.asdict(self).items()
            if value is not None
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def validate(self, endpoint: Endpoint) -> None:
        """Raise ``ValueError`` if the options contradict each other or the endpoint."""


O = TypeVar("O", bound=BackendOptions)  # noqa: E741 - as in Options


def read_options(kind: type[O], endpoint: Endpoint, given: Mapping[str, Any], others: Iterable[str] = ()) -> O:
    """Parse the options of an endpoint: those in its query and those given as keywords.

    Args:
        kind: The scheme's struct.
        endpoint: The endpoint, with its query.
        given: The keywords; None means not given.
        others: Further names to suggest when an option is mistyped.

    Raises:
        ValueError: An option is unknown, has a wrong value, or is given twice.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    for name in sorted(asked.keys() & endpoint.options.keys()):
        raise ValueError(f"option {name!r} is given both in the endpoint {str(endpoint)!r} and as a keyword")
    parsers = _parsers_of(kind)
    read: dict[str, Any] = {}
    for name, value in (asked | endpoint.options).items():
        if name not in parsers:
            meant = _meant(kind, name, [*parsers, *others])
            raise ValueError(f"{endpoint.scheme}:// takes no option {name!r}; {meant}it knows {', '.join(parsers)}")
        read[name] = parsers[name](name, value)
    options = kind(**read)
    options.validate(endpoint)
    return options


def parse_option(kind: type[BackendOptions], name: str, value: object) -> object:
    """Parse one option."""
    return _parsers_of(kind)[name](name, value)


@lru_cache
def _parsers_of(kind: type[BackendOptions]) -> dict[str, Parse]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: _parser_in(hints[name]) for name in kind.__struct_fields__}


def _parser_in(hint: Any) -> Parse:
    """Return the parser that a field is annotated with; without one, a conversion to its type."""
    if get_origin(hint) is Annotated:
        parse: Parse = hint.__metadata__[0]
        return parse
    for part in get_args(hint):
        if get_origin(part) is Annotated:
            return _parser_in(part)

    def convert(name: str, value: object) -> object:
        try:
            return msgspec.convert(value, hint, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"{name} is invalid: {error}, not {quoted(value)}") from None

    return convert


def _meant(kind: type[BackendOptions], name: str, names: list[str]) -> str:
    """Return a hint for an unknown option; none if connect() itself takes an argument of that name."""
    if name in kind.instead:
        return f"use {kind.instead[name]}; "
    close = [] if name in names else difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}? " if close else ""
