"""What etcd itself says was committed, in order: read from its JSON gateway, behind our own client's back.

A thread watches the whole store from its first revision on, at whichever member answers; what a member that was killed
or frozen did not send is sent by the next one.
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

from rendezvous_async.backends.base import Entry, Token
from rendezvous_async.testing.etcd import EtcdMember

__all__ = ["Chronicle"]

SILENCE = 2.0
"""Seconds without a word after which another member is asked; there is always somebody who writes."""
NAMESPACE = "/rendezvous_async/"


class Chronicle:
    """Every commit of a cluster.

    Args:
        members: Of the cluster.
        take: Called in the thread with what each commit changed, keys in full, value None for what it deleted.

    Attributes:
        written: The value that a commit gave to a key, by key and revision; None if it deleted it.
    """

    def __init__(self, members: Sequence[EtcdMember], take: Callable[[list[Entry]], None]) -> None:
        self.written: dict[tuple[str, int], bytes | None] = {}
        self._members = members
        self._take = take
        self._epoch = ""
        self._next = 1
        self._grown = threading.Condition()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chronicle")

    def __repr__(self) -> str:
        return f"<Chronicle up to revision {self._next - 1}>"

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; blocks until the thread has ended."""
        self._stopped.set()
        self._thread.join()

    def wait_for(self, revision: int, timeout: float = 30.0) -> None:
        """Block until everything up to ``revision`` has been taken."""
        with self._grown:
            assert self._grown.wait_for(lambda: self._next > revision, timeout), f"{self!r}, not {revision}"

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            number += 1
            try:
                self._follow(self._members[number % len(self._members)])
            except (OSError, ValueError):
                self._stopped.wait(0.02)  # down, frozen, or not so far yet: the next one knows

    def _follow(self, member: EtcdMember) -> None:
        everything = base64.b64encode(b"\0").decode()
        create = {"key": everything, "range_end": everything, "start_revision": self._next}
        request = urllib.request.Request(f"{member.url}/v3/watch", json.dumps({"create_request": create}).encode())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=SILENCE) as lines:
            for line in lines:
                result = json.loads(line)["result"]
                commits: dict[int, list[Entry]] = {}
                for event in result.get("events", []):
                    entry = self._read(int(result["header"]["cluster_id"]), event)
                    commits.setdefault(entry.token.revision, []).append(entry)
                for revision in sorted(commits):
                    if revision >= self._next:
                        self._commit(revision, commits[revision])
                if self._stopped.is_set():
                    return

    def _read(self, cluster: int, event: dict[str, Any]) -> Entry:
        pair = event["kv"]
        key = base64.b64decode(pair["key"]).decode()
        value = None if event.get("type") == "DELETE" else base64.b64decode(pair.get("value", ""))
        if key == f"{NAMESPACE}@epoch" and value is not None:
            self._epoch = f"{cluster:x}.{value.decode()}"
        return Entry(key, value, Token(self._epoch, int(pair["mod_revision"])))

    def _commit(self, revision: int, entries: list[Entry]) -> None:
        for entry in entries:
            self.written[entry.key, revision] = entry.value
        self._take(entries)
        with self._grown:
            self._next = revision + 1
            self._grown.notify_all()
