"""A request that arrives in pieces, and its answer; without a socket."""

from __future__ import annotations

import h11
import pytest

from rendezvous_async.page.http import MAX_REQUEST, Document, Exchange

REQUEST = b"GET /a?b HTTP/1.1\r\nHost: here\r\n\r\n"


def exchange(code: int = 200) -> Exchange:
    return Exchange(lambda request: Document(b"body of " + request.target, code=code))


def parts(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body


@pytest.mark.parametrize("size", [1, 2, 7, len(REQUEST)])
def test_pieces_of_any_size(size: int) -> None:
    peer = exchange()
    pieces = [REQUEST[start : start + size] for start in range(0, len(REQUEST), size)]
    answers = [peer.receive(piece) for piece in pieces]
    assert not any(answers[:-1])
    code, headers, body = parts(answers[-1])
    assert (code, body) == (200, b"body of /a?b")
    assert headers["Content-Length"] == str(len(body))
    assert headers["Connection"] == "close"


def test_head_has_the_same_headers_and_no_body() -> None:
    code, headers, body = parts(exchange().receive(REQUEST.replace(b"GET", b"HEAD")))
    assert (code, body) == (200, b"")
    assert headers["Content-Length"] == str(len(b"body of /a?b"))


@pytest.mark.parametrize(("code", "header"), [(401, "WWW-Authenticate"), (405, "Allow")])
def test_a_refusal_says_what_to_do(code: int, header: str) -> None:
    assert header in parts(exchange(code).receive(REQUEST))[1]
    assert header not in parts(exchange().receive(REQUEST))[1]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),  # The begin of a TLS handshake.
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n X: folded\r\nbad\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + MAX_REQUEST * b"x", 431),
        (b"GET /" + MAX_REQUEST * b"x", 431),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_request_gets_its_answer_and_reaches_nobody(request_: bytes, code: int) -> None:
    asked: list[h11.Request] = []

    def answer(request: h11.Request) -> Document:
        asked.append(request)
        return Document(b"")

    status, headers, _ = parts(Exchange(answer).receive(request_))
    assert status == code
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert not asked


def test_an_answer_before_any_request() -> None:
    assert parts(exchange().write(Document(b"full\n", code=503)))[::2] == (503, b"full\n")
