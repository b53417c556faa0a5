"""What holds for a run now, and how it is changed while the run goes on. Pure: ``admin`` writes what comes out of here.

The head has the sizes and the target that hold now, the fingerprint of what nodes bring (its ``origin``), and a count
of the changes (its ``generation``). So nodes that were started with the old sizes still match, and take what holds now
from the head. Each change is one rewrite of the head, fenced by the head that it was made from.
"""

from __future__ import annotations

import msgspec

from rendezvous_async.core.shape import Shape
from rendezvous_async.core.state import Head, Phase
from rendezvous_async.settings import settings_for
from rendezvous_async.sizes import parse_sizes
from rendezvous_async.texts import quoted

__all__ = ["Spec", "let_in", "rescaled", "spec_of"]


class Spec(msgspec.Struct, frozen=True):
    """What holds for a run now.

    Attributes:
        nodes: The sizes that a world may have, as ``connect`` takes them.
        target: The size that no world exceeds; None leaves it to ``nodes``.
        generation: How often this was changed while the run was going on.
    """

    nodes: str
    target: int | None = None
    generation: int = 0

    def __str__(self) -> str:
        return self.nodes if self.target is None else f"{self.nodes}, target {self.target}"


def spec_of(head: Head) -> Spec:
    """Return what holds now."""
    return Spec(str(head.settings.sizes), head.target or None, head.generation)


def rescaled(head: Head, nodes: int | str | tuple[int, int] | list[int] | None, target: int | None) -> Head:
    """Return the head with other sizes or another target; the same head if nothing changes.

    Args:
        head: What holds so far.
        nodes: The sizes, as ``connect`` takes them; None keeps them. New sizes drop the old target.
        target: The size that no world exceeds; 0 removes the target.

    Raises:
        ValueError: Neither is given, or no world can have these sizes or that target.
    """
    if nodes is None and target is None:
        raise ValueError("say what is to change: nodes=, target= or both")
    if target is not None and (type(target) is not int or target < 0):
        raise ValueError(f"target must be a count of nodes, or 0 for none, not {quoted(target)}")
    old = head.settings
    sizes = old.sizes if nodes is None else parse_sizes(nodes)
    settings = settings_for(sizes, old.ranks, old.last_call, old.regroup, old.domain, old.per_domain, old.grow_seconds)
    target = target or 0
    if (settings, target) == (old, head.target):
        return head
    Shape(sizes, old.domain, old.per_domain, target or None)  # Raises if no world can have that size.
    return msgspec.structs.replace(
        head,
        settings=settings,
        target=target,
        origin=head.fingerprint,
        generation=head.generation + 1,
        waiting=head.returned,  # The coordinator counts the newcomers again: no member restarts for the old count.
        held_back=0,
        uncounted=head.phase is Phase.FORMED,
    ).requiring_its_features()


def let_in(head: Head) -> Head:
    """Return the head with the newcomers let in that are held back; the same head if there are none.

    After the run was scaled nobody knows yet whether there are any: then the coordinator lets in whom it counts next.
    """
    might_hold_back = head.uncounted and head.settings.grow_seconds > 0
    if head.phase is not Phase.FORMED or head.let_in or not (head.held_back or might_hold_back):
        return head
    return msgspec.structs.replace(head, waiting=head.waiting + head.held_back, held_back=0, let_in=True)
