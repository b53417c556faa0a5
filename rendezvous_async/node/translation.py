"""The core's values in the backend's words, and back. Nothing is decided here."""

from __future__ import annotations

from rendezvous_async.backends.base import Condition, Delete, Entry, Listing, Put, Token, Write
from rendezvous_async.core.arrival import Standing, standing_at
from rendezvous_async.core.state import COORDINATOR, STATE, Stamp
from rendezvous_async.core.transaction import Row, Save, Seen, Transaction
from rendezvous_async.node.view import View

__all__ = ["causes_of", "conditions_of", "rows_of", "seen_by", "stamp_at", "stamp_of", "standing_by", "writes_of"]


def writes_of(transaction: Transaction, session: str) -> list[Write]:
    """Return what to write; what is leased is bound to this session."""
    return [
        Put(write.key, write.value, session if write.leased else None)
        if isinstance(write, Save)
        else Delete(write.name)
        for write in transaction.writes
    ]


def conditions_of(transaction: Transaction) -> list[Condition]:
    """Return on which conditions."""
    return [Condition(key, None if stamp is None else Token(*stamp)) for key, stamp in transaction.when.items()]


def stamp_of(token: Token) -> Stamp:
    """Return a token as the core knows it."""
    return token.epoch, token.revision


def stamp_at(entry: Entry | None) -> Stamp | None:
    """Return the stamp of an entry; None if there is none."""
    return None if entry is None else stamp_of(entry.token)


def rows_of(listing: Listing) -> list[Row]:
    """Return entries as the core reads them."""
    return [(entry.key, entry.value, entry.token.revision) for entry in listing.entries]


def causes_of(listing: Listing) -> dict[str, str]:
    """Return why entries are gone, or were before they came again, by key, for those of which it is known."""
    return {entry.key: entry.cause for entry in listing.entries if entry.cause}


def seen_by(view: View) -> Seen:
    """Return what a node sees of head and post."""
    return Seen(view.head, stamp_at(view.entry(STATE)), stamp_at(view.entry(COORDINATOR)), view.since)


def standing_by(view: View) -> Standing | None:
    """Return what a node sees at its own key."""
    entry = view.record
    return None if entry is None else standing_at(entry.key, entry.value, stamp_of(entry.token), entry.session)
