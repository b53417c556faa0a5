"""A node's life as spans of OpenTelemetry: ``rdzv.join``, ``rdzv.hold`` and ``rdzv.re-form``.

A program that has imported ``opentelemetry.trace`` gets them from every rendezvous; any other never imports it here.

``rdzv.join`` is a call of ``join()``. ``rdzv.hold`` is the time in a round; changes of the world are its events.
``rdzv.re-form`` is the time from the first change that asks for another round to that round, and the joins in it are
its children. A span begins in the context of whoever calls ``join()``.
"""

from __future__ import annotations

from opentelemetry import trace

from rendezvous_async.logs import NODE, ROUND, RUN
from rendezvous_async.node.events import Event, EventKind

__all__ = ["NodeSpans"]

CHANGES = (EventKind.NODES_WAITING, EventKind.MEMBER_LOST, EventKind.RESIZED, EventKind.EVICTED, EventKind.SESSION_LOST)
"""What asks for another round."""
OVER = (EventKind.JOINING, EventKind.EVICTED, EventKind.SESSION_LOST, EventKind.LEFT, EventKind.ENDED)
FINAL = (EventKind.CLOSED, EventKind.LEFT, EventKind.ENDED)
"""After these, nobody waits for another round."""


class NodeSpans:
    """A listener that turns the events of one rendezvous into spans.

    Args:
        run_id: The run.
        node: The node.
        tracer: Where spans begin; by default the program's tracer for this package.
    """

    def __init__(self, run_id: str, node: str, tracer: trace.Tracer | None = None) -> None:
        self._attributes = {RUN: run_id, NODE: node}
        self._tracer = tracer or trace.get_tracer("rendezvous_async")
        self._join: trace.Span | None = None
        self._hold: trace.Span | None = None
        self._re_form: trace.Span | None = None

    def __call__(self, event: Event) -> None:
        """Begin and end spans."""
        kind = event.kind
        if self._hold is not None:
            if kind in CHANGES or kind is EventKind.CLOSED:
                self._hold.add_event(kind.value)
            if (kind in CHANGES or kind is EventKind.JOINING) and self._re_form is None:
                self._re_form = self._begin("rdzv.re-form")
                self._re_form.set_attributes({"rdzv_cause": kind.value, ROUND: event.round})
            if kind in OVER:
                self._hold.set_attribute("rdzv_ended_by", kind.value)
                self._hold.end()
                self._hold = None
        match kind:
            case EventKind.JOINING:
                self._join = self._begin("rdzv.join", self._re_form)
            case EventKind.JOINED:
                for span in (self._join, self._re_form):
                    if span is not None:
                        span.set_attributes({ROUND: event.round, "rdzv_place": event.detail})
                        span.end()
                self._join = self._re_form = None
                self._hold = self._begin("rdzv.hold")
                self._hold.set_attributes({ROUND: event.round, "rdzv_place": event.detail})
            case EventKind.JOIN_FAILED if self._join is not None:
                self._join.set_status(trace.StatusCode.ERROR, event.detail)
                self._join.end()
                self._join = None
            case _:
                pass
        if kind in FINAL and self._re_form is not None:
            self._re_form.set_attribute("rdzv_ended_by", kind.value)
            self._re_form.end()
            self._re_form = None

    def _begin(self, name: str, parent: trace.Span | None = None) -> trace.Span:
        context = None if parent is None else trace.set_span_in_context(parent)
        return self._tracer.start_span(name, context, attributes=self._attributes)
