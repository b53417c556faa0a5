"""One typed struct holds a scheme's options: what is read into it, from values and from text, and what it shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

import pytest

from rendezvous_async.backends.options import (
    BackendOptions,
    FilePath,
    Flag,
    Seconds,
    SecretText,
    Text,
    one_of_type,
    read_options,
)
from rendezvous_async.settings import Endpoint, parse_endpoint


class Odd:
    """What no text stands for."""


class Mine(BackendOptions, frozen=True, kw_only=True):
    """A scheme's options, of every kind."""

    instead: ClassVar[Mapping[str, str]] = {"lock": "latch="}

    wait: Seconds = 1.0
    latch: Flag = False
    label: Text | None = None
    file: FilePath | None = None
    password: SecretText | None = None
    odd: Annotated[Odd, one_of_type(Odd, "an")] | None = None
    size: int = 3
    sizes: tuple[int, ...] | None = None

    def validate(self, endpoint: Endpoint) -> None:
        if self.latch and self.label is None:
            raise ValueError(f"latch needs a label at {endpoint}")


def read(query: str = "", **given: object) -> Mine:
    return read_options(Mine, parse_endpoint(f"mine://here{query}"), given, ["label_of_another"])


def test_what_is_not_given_is_the_default() -> None:
    assert read(wait=None) == Mine() == Mine(namespace="rendezvous_async", wait=1.0, size=3)


def test_text_of_a_query_becomes_a_value() -> None:
    asked = read("?wait=2.5&latch=Yes&label=a&file=/f&size=7&namespace=/team/")
    assert asked == Mine(wait=2.5, latch=True, label="a", file="/f", size=7, namespace="/team/")


def test_values_stay_what_they_are() -> None:
    odd = Odd()
    asked = read(wait=2, latch=True, label="a", password=b"x", odd=odd, sizes=(1, 2))
    assert asked == Mine(wait=2.0, latch=True, label="a", password=b"x", odd=odd, sizes=(1, 2))


@pytest.mark.parametrize(
    ("query", "given", "text"),
    [
        ("?latch=maybe", {}, "latch must be true or false, not 'maybe'"),
        ("?wait=0", {}, "wait must be a positive, finite number of seconds, not 0.0"),
        ("?label=", {}, "label must be a non-empty string, not ''"),
        ("?file=", {}, "file must be a path, not ''"),
        ("?file=a%00b", {}, "file must be a path without NUL characters, not 'a\\x00b'"),
        ("", {"file": "\ud800"}, "file must be a path that can be encoded, not '\\ud800'"),
        ("", {"label": "\ud800"}, "label must be a string that UTF-8 can encode, not '\\ud800'"),
        ("", {"password": "\ud800"}, "password must be a string that UTF-8 can encode"),
        ("?password=", {}, "password must not be empty"),
        ("?odd=1", {}, "odd must be an Odd, not '1'"),
        ("?size=many", {}, "size is invalid: Expected `int`, got `str`, not 'many'"),
        ("", {"size": 2.5}, "size is invalid: Expected `int`, got `float`, not 2.5"),
        ("?size=1", {"size": 2}, "option 'size' is given both in the endpoint 'mine://here' and as a keyword"),
        ("", {"siez": 2}, "mine:// takes no option 'siez'; did you mean 'size'? it knows namespace, wait, latch,"),
        ("", {"label_of_anothr": 2}, "mine:// takes no option 'label_of_anothr'; did you mean 'label_of_another'?"),
        ("?lock=1", {}, "mine:// takes no option 'lock'; use latch=; it knows namespace"),
        ("", {"latch": True}, "latch needs a label at mine://here"),
    ],
)
def test_what_is_wrong_says_so(query: str, given: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        read(query, **given)


def test_no_secret_is_shown() -> None:
    asked = read("?password=hunter2&label=a")
    assert repr(asked) == "Mine(namespace='rendezvous_async', wait=1.0, latch=False, label='a', password=..., size=3)"
    for wrong in (5, ["hunter2"]):
        with pytest.raises(ValueError) as caught:
            read(password=wrong)
        assert "hunter2" not in str(caught.value)
