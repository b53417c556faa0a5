"""What etcd itself says was committed, in order: read from its JSON gateway, not through this library's client.

A thread watches from the first revision on, at whichever member answers; what a member that was killed or frozen did
not send is sent by the next one.
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

__all__ = ["EtcdHistory"]

RETRY_AFTER = 0.02


class EtcdHistory:
    """Every commit under a namespace, each handed over once.

    Args:
        members: The members of the cluster.
        namespace: What to follow, with its slashes.
        take: Called in the thread with the revision of a commit and what it changed: keys in full, in their order,
            with value None for what it deleted.
        silence: Seconds without a word after which another member is asked.

    Attributes:
        epoch: The epoch of the history, as the backend names it; None until it is known.
    """

    def __init__(
        self,
        members: Sequence[EtcdMember],
        namespace: str,
        take: Callable[[int, tuple[Entry, ...]], None],
        silence: float,
    ) -> None:
        self.epoch: str | None = None
        self._members = members
        self._namespace = namespace
        self._take = take
        self._silence = silence
        self._next = 1
        self._grown = threading.Condition()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="etcd history", daemon=True)

    def __repr__(self) -> str:
        return f"<EtcdHistory {self._namespace} up to revision {self._next - 1}>"

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; blocks until the thread has ended, which takes no longer than a silence."""
        self._stopped.set()
        self._thread.join(2 * self._silence)

    def wait_for(self, revision: int, timeout: float = 30.0) -> None:
        """Block until everything up to ``revision`` has been taken."""
        with self._grown:
            assert self._grown.wait_for(lambda: self._next > revision, timeout), f"{self!r}, not {revision}"

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(RETRY_AFTER):
            number += 1
            try:
                self._watch(self._members[number % len(self._members)])
            except (OSError, ValueError):
                continue  # this member is down, frozen or behind; the next one knows

    def _watch(self, member: EtcdMember) -> None:
        first = self._namespace.encode()
        create = {
            "key": base64.b64encode(first).decode(),
            "range_end": base64.b64encode(first[:-1] + bytes([first[-1] + 1])).decode(),
            "start_revision": self._next,
        }
        request = urllib.request.Request(f"{member.url}/v3/watch", json.dumps({"create_request": create}).encode())
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=self._silence) as lines:
            for line in lines:
                if self._stopped.is_set():
                    return
                answer = json.loads(line)
                if "result" not in answer:
                    raise ValueError(f"etcd refused to be watched: {answer}")
                self._hear(int(answer["result"]["header"]["cluster_id"]), answer["result"].get("events", []))

    def _hear(self, cluster: int, events: Sequence[dict[str, Any]]) -> None:
        commits: dict[int, dict[str, Entry]] = {}
        for event in events:
            pair = event["kv"]
            key, revision = base64.b64decode(pair["key"]).decode(), int(pair["mod_revision"])
            value = None if event.get("type") == "DELETE" else base64.b64decode(pair.get("value", ""))
            if key == f"{self._namespace}@epoch" and value is not None:
                self.epoch = f"{cluster:x}.{value.decode()}"
            commits.setdefault(revision, {})[key] = Entry(key, value, Token(self.epoch or "", revision))
        for revision, entries in sorted(commits.items()):
            if revision >= self._next:
                self._take(revision, tuple(entries[key] for key in sorted(entries)))
                with self._grown:
                    self._next = revision + 1
                    self._grown.notify_all()
