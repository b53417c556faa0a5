"""What a secret and TLS files are called by each kind of endpoint."""

from __future__ import annotations

import pytest

from rendezvous_async.backends.access import access_options


def test_each_kind_has_its_own_names() -> None:
    files = {"tls_ca": "ca", "tls_cert": "cert", "tls_key": None}
    assert access_options("tcp", secret="a:b", **files) == {"secret": "a:b", "tls_ca": "ca", "tls_cert": "cert"}
    assert access_options("etcds", secret="me:a:b", **files) == {
        "user": "me",
        "password": "a:b",
        "ca": "ca",
        "cert": "cert",
        "key": "cert",
    }
    assert access_options("etcds", tls_cert="cert", tls_key="key") == {"cert": "cert", "key": "key"}
    assert access_options("file", **dict.fromkeys(files)) == {}


def test_what_is_of_no_use_is_an_error_that_does_not_tell_the_secret() -> None:
    with pytest.raises(ValueError, match="user:password") as caught:
        access_options("etcd", secret="hush")
    assert "hush" not in str(caught.value)
    with pytest.raises(ValueError, match="leave out tls_ca"):
        access_options("file", tls_ca="ca")
    with pytest.raises(ValueError, match="leave out secret"):
        access_options("memory", secret="hush")
