"""The status page as a person sees and uses it, in Chromium."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
import pytest

import rendezvous_async as library
from rendezvous_async.backends.tcp import TcpServer, serve
from rendezvous_async.page.pages import serve_pages
from rendezvous_async.settings import parse_endpoint
from tests.page.browser import Tab, browser, needs_chromium
from tests.page.crowd import Crowd
from tests.ports import free_port

CSS = (files("rendezvous_async.page") / "assets" / "page.css").read_text()
TEXTS = ("text", "soft", "link", "stuck", "damaged", "waiting", "formed", "quiet")
GROUNDS = ("page", "card", "code")
SHOWN = "[...document.querySelectorAll('#runs > li:not([hidden]) h2')].map(e => e.textContent)"


@asynccontextmanager
async def page(folder: Path) -> AsyncIterator[tuple[Tab, Crowd, TcpServer, str]]:
    """Serve a crowd's page, and open a browser; a page that complains about anything fails."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, dir=folder) as profile:
        async with (
            serve("127.0.0.1", 0) as server,
            serve_pages(server, "127.0.0.1", 0) as url,
            browser(Path(profile)) as tab,
        ):
            yield tab, Crowd(server), server, url
            assert tab.problems == []


def card(run_id: str) -> str:
    """Return JavaScript for the element of a run."""
    return f"[...document.querySelectorAll('#runs h2')].find(e => e.textContent === '{run_id}').closest('details')"


@needs_chromium
async def test_a_run_as_it_changes_and_text_that_stays_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=document.title='owned'>"
    async with page(tmp_path) as (tab, _, server, url), anyio.create_task_group() as group:
        await tab.open(url)
        await tab.until("document.querySelector('h1').textContent === 'No node has joined a run yet'")
        async with library.connect(server.endpoint, run_id="job", nodes="2", node=evil, is_host="false") as rendezvous:
            group.start_soon(rendezvous.join)
            await tab.until("document.querySelector('li.waiting')")
            await tab.run(f"{card('job')}.open = true")
            text = await tab.until("document.querySelector('.body').innerText")
            assert "1 more must join before a round can form" in text
            assert "here now: <img src=x" in text
            assert "round 0 · sizes 2:2 · 1 waiting · waiting since " in text
            async with library.connect(server.endpoint, run_id="job", nodes="2", node="b", is_host="false") as b:
                await b.join()
                await tab.until("document.querySelector('li.formed')")
                await tab.until(
                    "document.querySelector('.headline').textContent.includes('2 of its 2 members hold it')"
                )
                assert await tab.run(f"{card('job')}.open"), "what is open stays open"
                await tab.run("document.querySelector('.nodes').open = true")
                await tab.until("document.querySelectorAll('.nodes table').length === 2")
                assert evil in await tab.run("document.querySelector('.nodes').innerText")
        assert await tab.run("document.querySelectorAll('img').length") == 0
        assert await tab.run("document.title") == "rdzv: runs"
        group.cancel_scope.cancel()


@needs_chromium
async def test_stuck_runs_are_on_top_and_the_headline_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rendezvous_async.runs.STUCK_AFTER", 1.0)
    async with page(tmp_path) as (tab, crowd, _, url):
        for number in range(3):
            crowd.add(f"fine-{number}", 4)
        crowd.add("over", 0, nodes=2, lost=2, closed="done")
        crowd.add("stuck", 1, nodes=2, round=0, last_call=0.01)
        await tab.open(url)
        await tab.until("document.querySelector('h1').textContent.startsWith('1 of 5 runs is stuck, the longest for ')")
        assert await tab.run(SHOWN) == ["stuck", "fine-0", "fine-1", "fine-2", "over"]
        assert await tab.run("document.title") == "(1 stuck) rdzv: runs"
        assert (await tab.run("document.querySelector('.since').textContent")).startswith("for ")
        crowd.add("stuck", 2, nodes=2)
        await tab.until("document.querySelector('h1').textContent === '5 runs, none is stuck'")


@needs_chromium
async def test_filter_search_and_keyboard(tmp_path: Path) -> None:
    async with page(tmp_path) as (tab, crowd, _, url):
        for name in ("alpha", "beta", "gamma"):
            crowd.add(name, 2)
        crowd.add("delta", 1, nodes=3, round=0)
        await tab.open(url)
        await tab.until("document.querySelectorAll('#runs > li').length === 4")
        await tab.press("/", *"ta")
        await tab.until(f"{SHOWN}.length === 2")
        assert await tab.run(SHOWN) == ["delta", "beta"]
        assert await tab.run("document.getElementById('count').textContent") == "2 runs of 4 shown"
        await tab.press("Escape")
        await tab.until(f"{SHOWN}.length === 4")
        await tab.run("document.querySelector('[data-state=waiting]').focus()")
        await tab.press("Enter")
        await tab.until(f"{SHOWN}.length === 1")
        assert await tab.run("document.activeElement.getAttribute('aria-pressed')") == "true"
        await tab.press("Enter")
        await tab.until(f"{SHOWN}.length === 4")
        for _ in range(20):
            await tab.press("Tab")
            if await tab.run("document.activeElement.tagName === 'SUMMARY'"):
                break
        await tab.press("Enter")
        await tab.until(f"{card('delta')}.open")
        crowd.add("delta", 3)
        await tab.until("document.querySelectorAll('li.formed').length === 4")
        assert await tab.run("document.activeElement.querySelector('h2').textContent") == "delta", "it keeps the focus"


@needs_chromium
async def test_the_command_to_copy(tmp_path: Path) -> None:
    async with page(tmp_path) as (tab, crowd, server, url):
        crowd.add("it's", 1)
        await tab.open(url)
        await tab.until("document.querySelector('#runs details')")
        await tab.run("document.querySelector('#runs details').open = true")
        code = await tab.until("document.querySelector('code')?.textContent")
        assert code == rf"rdzv status {server.endpoint} --run-id 'it'\''s'"
        # Without permission for the clipboard it is selected, and the old way tried.
        await tab.run("document.querySelector('.command button').click()")
        await tab.until(
            "['copied', 'selected; press Ctrl+C to copy'].includes(document.getElementById('said').textContent)"
        )


@needs_chromium
async def test_domains_labels_and_missing_nodes(tmp_path: Path) -> None:
    async with page(tmp_path) as (tab, crowd, _, url):
        crowd.add("job", 30, nodes=16, lost=2, domain="rack")
        await tab.open(url)
        await tab.until("document.querySelector('#runs details')")
        await tab.run("document.querySelector('#runs details').open = true")
        text = await tab.until("document.querySelector('.body')?.innerText")
        assert "domains by the label rack" in text
        assert re.search(r"job-gpu-0000\s+absent\s+0", text)
        await tab.run("document.querySelector('.nodes').open = true")
        await tab.until("document.querySelectorAll('.nodes tbody tr').length > 30")
        folded, whole = await tab.run("[...document.querySelectorAll('.nodes table')].map(e => e.innerText)")
        assert re.search(r"r1\s+8\s+member\s+8-15\s+job-gpu-0008, job-gpu-0015", folded)
        assert "rack=r3, zone=a" in whole


@needs_chromium
async def test_sizes_scaling_and_a_node_without_a_label(tmp_path: Path) -> None:
    job: dict[str, Any] = {"run_id": "job", "nodes": "4:8:4", "domain": "rack", "is_host": False}
    async with (
        page(tmp_path) as (tab, _, server, url),
        anyio.create_task_group() as group,
        library.connect(server.endpoint, **job, node="a", labels={"rack": "r1"}) as a,
        library.connect(server.endpoint, **job, node="b") as b,
    ):
        group.start_soon(a.join)
        group.start_soon(b.join)
        await tab.open(url)
        await tab.until("document.querySelector('li.waiting')")
        await tab.run(f"{card('job')}.open = true")
        await tab.until("document.body.innerText.includes('1 waiting · 1 spare')")
        await a.scale("4:16:4", target=8)
        await tab.until("document.body.innerText.includes('round 0 · sizes 4:16:4 · target 8 · domains by')")
        text = await tab.run("document.querySelector('.body').innerText")
        assert "usable: 2 here, none usable: 1 node without the label rack" in text
        assert "scaled from 4:8:4 to 4:16:4, target 8" in text
        await tab.run("document.querySelector('.nodes').open = true")
        await tab.until("document.querySelector('.nodes').innerText.includes('spare, no label rack')")
        group.cancel_scope.cancel()


@needs_chromium
async def test_a_thousand_nodes_are_not_drawn_again_for_one(tmp_path: Path) -> None:
    async with page(tmp_path) as (tab, crowd, _, url):
        crowd.add("big", 1000)
        for number in range(100):
            crowd.add(f"run-{number}", 4)
        await tab.open(url)
        await tab.until("document.querySelectorAll('#runs > li').length === 101")
        await tab.run(f"{card('big')}.open = true")
        await tab.until("document.querySelector('.nodes')")
        await tab.run("document.querySelector('.nodes').open = true")
        await tab.until("document.querySelectorAll('.nodes tbody tr').length === 1001")
        await tab.run(
            "added = 0; new MutationObserver(changes => { for (const change of changes)"
            " added += change.addedNodes.length; }).observe(document.body, {childList: true, subtree: true})"
        )
        crowd.add("big", 999, lost=1, round=2)
        await tab.until("document.querySelector('.nodes td.absent')")
        assert await tab.run("added") < 100, "rows that say the same stay"


@needs_chromium
@pytest.mark.parametrize("width", [390, 1280, 2560])
async def test_nothing_sticks_out(width: int, tmp_path: Path) -> None:
    async with page(tmp_path) as (tab, crowd, _, url):
        crowd.add("x" * 200, 70, lost=3, domain="rack")
        crowd.add("short", 1, nodes=2, round=0)
        await tab.open(url, width)
        await tab.until("document.querySelectorAll('#runs > li').length === 2")
        await tab.run("document.querySelectorAll('#runs details').forEach(e => e.open = true)")
        await tab.until("document.querySelectorAll('.nodes').length === 2")
        await tab.run("document.querySelectorAll('.nodes').forEach(e => e.open = true)")
        await tab.until("document.querySelectorAll('.nodes tbody tr').length > 70")
        assert await tab.run("document.documentElement.scrollWidth") <= width
        targets = "[...document.querySelectorAll('button, input, #runs summary')]"
        heights = f"{targets}.map(e => e.offsetParent && e.offsetHeight)"
        assert min(filter(None, await tab.run(heights))) >= 20


@needs_chromium
async def test_what_a_screen_reader_is_told(tmp_path: Path) -> None:
    async with page(tmp_path) as (tab, crowd, _, url):
        crowd.add("job", 2, lost=1)
        await tab.open(url)
        await tab.until("document.querySelector('#runs details')")
        await tab.run("document.querySelector('#runs details').open = true")
        await tab.until("document.querySelector('.command button')")
        await tab.call("Accessibility.enable")
        tree = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
        named: dict[str, list[str]] = {}
        for node in tree:
            if not node.get("ignored") and "role" in node:
                named.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
        assert "Search" in named["searchbox"][0]
        assert [name for name in named["button"] if not name] == []
        assert any(name.startswith("Copy the command rdzv status tcp://") for name in named["button"])
        assert "1 waiting" in named["button"]
        assert "Runs" in named["list"]
        assert named["table"] == ["Nodes of run job that need attention"]
        assert named["columnheader"] == ["Node", "Role", "Rank"]
        assert len(named["status"]) == 3


@needs_chromium
async def test_a_server_that_goes_and_comes_back(tmp_path: Path) -> None:
    port = free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, dir=tmp_path) as profile:
        async with browser(Path(profile)) as tab:
            async with serve("127.0.0.1", 0) as server, serve_pages(server, "127.0.0.1", port) as url:
                Crowd(server).add("before", 1)
                await tab.open(url)
                await tab.until("document.querySelector('#runs details')")
                assert parse_endpoint(server.endpoint).hosts[0][0] in await tab.run("server.textContent")
            await tab.until("server.className === 'lost'")
            assert "no connection to the server since " in await tab.run("server.textContent")
            assert await tab.run(SHOWN) == ["before"]
            async with serve("127.0.0.1", 0) as server, serve_pages(server, "127.0.0.1", port):
                Crowd(server).add("after", 1)
                await tab.until(f"JSON.stringify({SHOWN}) === '[\"after\"]'")
                assert await tab.run("server.className") == ""


def colours() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield both sets of colours."""
    light, _, dark = CSS.partition("@media (prefers-color-scheme: dark)")
    for name, text in (("light", light), ("dark", dark.partition("* {")[0])):
        yield name, dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", text))


def luminance(colour: str) -> float:
    """Return the relative luminance, as the Web Content Accessibility Guidelines define it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("name", "colours"), list(colours()))
def test_contrast_is_enough(name: str, colours: dict[str, str]) -> None:
    for text in TEXTS:
        for ground in GROUNDS:
            light, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
            contrast = (light + 0.05) / (dark + 0.05)
            assert contrast >= 4.5, f"{name}: {text} on {ground} has a contrast of {contrast:.2f}"


def test_all_colours_are_those_that_are_checked() -> None:
    assert set(re.findall(r"(?:color|background|outline): var\(--(\w+)\)", CSS)) <= {*TEXTS, *GROUNDS, "edge"}
