"""A node's life as spans, in OpenTelemetry's own exporter."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from rendezvous_async import Rendezvous, RendezvousTimeoutError, Timeouts
from rendezvous_async.telemetry.spans import NodeSpans
from tests.meeting import Meeting, in_virtual_time, together


class Recorder:
    """Records the spans of one node."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        rendezvous.listen(NodeSpans(rendezvous.run_id, rendezvous.node, self.tracer))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


def facts(span: ReadableSpan) -> dict[str, object]:
    return {name.removeprefix("rdzv_"): value for name, value in (span.attributes or {}).items()}


@in_virtual_time
async def test_a_join_a_loss_and_a_rejoin() -> None:
    async with Meeting() as meeting:
        async with meeting.node("a", "1:2") as a:
            recorder = Recorder(a)
            b = await meeting.enter("b", "1:2")
            worlds = await together(a, b)
            await b.leave()
            await worlds[0].changed()
            await a.join()
        first, second = recorder.named("rdzv.join")
        (re_form,) = recorder.named("rdzv.re-form")
        held, held_again = recorder.named("rdzv.hold")
        place = f"rank {worlds[0].rank} of 2"
        assert facts(first) == {"run": "job", "node": "a", "round": 1, "place": place}
        assert facts(held) == {"run": "job", "node": "a", "round": 1, "place": place, "ended_by": "joining"}
        assert [event.name for event in held.events] == ["member_lost"]
        assert facts(second) == {"run": "job", "node": "a", "round": 2, "place": "rank 0 of 1"}
        cause = {"cause": "member_lost"}
        assert facts(re_form) == {"run": "job", "node": "a", "round": 2, "place": "rank 0 of 1", **cause}
        assert facts(held_again)["ended_by"] == "ended"
        assert first.parent is None
        assert second.parent is not None
        assert re_form.context is not None
        assert second.parent.span_id == re_form.context.span_id
        assert all(span.status.status_code is StatusCode.UNSET for span in recorder.spans)


@in_virtual_time
async def test_a_join_that_fails_and_a_span_around_it() -> None:
    async with Meeting() as meeting:
        a = await meeting.enter("a", "2", timeouts=Timeouts(join=5))
        recorder = Recorder(a)
        with recorder.tracer.start_as_current_span("outside") as outside, pytest.raises(RendezvousTimeoutError):
            await a.join()
        (join,) = recorder.named("rdzv.join")
        assert join.status.status_code is StatusCode.ERROR
        assert "no round with node a formed within 5 s" in (join.status.description or "")
        assert join.parent == outside.get_span_context()
        assert [span.name for span in recorder.spans] == ["rdzv.join", "outside"]


@in_virtual_time
async def test_a_node_that_leaves_waits_for_no_other_round() -> None:
    async with Meeting() as meeting:
        a, b = await meeting.enter_all("ab", "1:2")
        recorder = Recorder(a)
        worlds = await together(a, b)
        await b.leave()
        await worlds[0].changed()
        await a.leave()
        assert {span.name: facts(span).get("ended_by") for span in recorder.spans} == {
            "rdzv.join": None,
            "rdzv.hold": "left",
            "rdzv.re-form": "left",
        }


MEET = """
import sys
{setup}
import anyio
import rendezvous_async as rdzv

async def main():
    async with rdzv.connect("memory://spans", run_id="job", nodes=1, node="a") as rendezvous:
        await rendezvous.join()

anyio.run(main)
{check}
"""
SETUP = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
"""


@pytest.mark.parametrize(
    ("setup", "check", "said"),
    [
        (SETUP, "print(*(span.name for span in exporter.get_finished_spans()))", "rdzv.join rdzv.hold"),
        ("", "print({'opentelemetry', 'prometheus_client'} & set(sys.modules))", "set()"),
    ],
    ids=["a program that has it", "any other"],
)
def test_spans_are_there_by_themselves_and_nothing_is_imported_otherwise(setup: str, check: str, said: str) -> None:
    code = MEET.format(setup=setup, check=check)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == said
