"""The Grafana dashboard and the alert rules in ``docs/`` use only metrics, labels and values that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import rendezvous_async as rdzv
from rendezvous_async.backends.tcp import serve, wire
from rendezvous_async.page.metrics import Metrics
from rendezvous_async.page.overview import Overview
from rendezvous_async.telemetry.metrics import NodeMetrics

DOCS = Path(__file__).parents[2] / "docs"
METRIC = re.compile(r"\b(rdzv_\w+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'(\w+)(=~|=)"([^"]*)"')
OF_SCRAPES = {"instance", "job"}
FIXED = {"state", "cause", "role", "request", "change"}
"""Labels whose every value is there from the start."""

Known = dict[str, dict[str, set[str]]]


async def known_metrics(directory: Path) -> Known:
    """Return every metric of a server and of a node, with its labels and their values."""
    registry = CollectorRegistry()
    async with serve("127.0.0.1", 0, data_dir=directory) as server:
        metrics = Metrics(Overview(server))
        server.counts.refused[wire.REFUSED_LIMIT] += 1
        async with rdzv.connect(server.endpoint, run_id="job", nodes=1, is_host=False) as rendezvous:
            NodeMetrics(registry).follow(rendezvous)
            await rendezvous.join()
            rendezvous._who.events.emit(rdzv.EventKind.STALLED, detail="1.0 s")
            families = [*text_string_to_metric_families(metrics.text().decode()), *registry.collect()]
    known: Known = {}
    for family in families:
        for sample in family.samples:
            labels = known.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return known


def problems_of(expression: str, known: Known) -> Iterator[str]:
    """Yield what a PromQL expression names that does not exist."""
    used = METRIC.findall(expression)
    if not used:
        yield f"no metric in {expression}"
    for name, selector in used:
        if name not in known:
            yield f"no metric {name}"
            continue
        for label, how, value in LABEL.findall(selector):
            if label in OF_SCRAPES:
                continue
            if label not in known[name]:
                yield f"{name} has no label {label}"
            elif label in FIXED and not set(value.split("|") if how == "=~" else [value]) <= known[name][label]:
                yield f"{name} has no {label} {value}"
    for labels in re.findall(r"\bby \(([^)]*)\)", expression):
        everywhere = OF_SCRAPES.union(*(known.get(name, {}) for name, _ in used))
        yield from (f"no label {label}" for label in re.findall(r"\w+", labels) if label not in everywhere)


def alerts() -> list[dict[str, Any]]:
    rules = yaml.safe_load((DOCS / "prometheus-alerts.yaml").read_text())
    return [rule for group in rules["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DOCS / "grafana-dashboard.json").read_text())["panels"]
    return found


async def test_they_use_only_what_exists(tmp_path: Path) -> None:
    known = await known_metrics(tmp_path)
    expressions = [rule["expr"] for rule in alerts()]
    expressions += [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    assert len(expressions) > 30
    found = {expression: [*problems_of(expression, known)] for expression in expressions}
    assert {expression: problems for expression, problems in found.items() if problems} == {}


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("rdzv_conections > 3", "no metric rdzv_conections"),
        ('rdzv_runs{stat="stuck"}', "rdzv_runs has no label stat"),
        ('rdzv_runs{state="happy"}', "rdzv_runs has no state happy"),
        ('rdzv_sessions_ended_total{cause=~"silent|bored"}', "rdzv_sessions_ended_total has no cause silent|bored"),
        ("sum by (instance, why) (rdzv_runs)", "no label why"),
        ("up", "no metric in up"),
    ],
)
async def test_what_does_not_exist_is_found(expression: str, problem: str, tmp_path: Path) -> None:
    assert [*problems_of(expression, await known_metrics(tmp_path))] == [problem]


def test_alerts_are_whole() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names))
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]


def test_panels_do_not_overlap_and_fit() -> None:
    places: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & places, panel["title"]
        places |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())
