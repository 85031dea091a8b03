"""The live page in a real browser, against runs that go on while it is open."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mll_flower.watching.opening import open_source
from mll_flower.watching.run_source import RunSource
from mll_flower.watching.server import serve
from mll_flower.watching.sweep_source import FILE
from tests.support.chromium import Browser, find_chromium
from tests.support.faulty_workers import Fault, faulty
from tests.support.run_folders import write_run
from tests.support.simulated import play

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"
)

HOSTILE = "</script><img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as chromium:
        chromium.set_size(1200, 900)
        yield chromium


class SteppedRun:
    """A real run in a thread of this process, which waits after each message until it may go on."""

    def __init__(self, output: Path, **settings: Any) -> None:
        self._may_go = threading.Semaphore(0)
        self._thread = threading.Thread(
            target=play, args=(output,), kwargs={"on_message": self._wait, **settings}
        )

    def _wait(self) -> None:
        assert self._may_go.acquire(timeout=60)

    def __enter__(self) -> SteppedRun:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go(1000)
        self._thread.join()

    def go(self, messages: int = 1) -> None:
        self._may_go.release(messages)


def text(browser: Browser, selector: str) -> str:
    return str(browser.evaluate(f"document.querySelector('{selector}').textContent"))


def wait_for_text(browser: Browser, selector: str, part: str) -> None:
    found = f"document.querySelector({json.dumps(selector)}).textContent"
    browser.wait_for(f"{found}.includes({json.dumps(part)})")


def hub_colours(browser: Browser) -> list[str]:
    script = "[...document.querySelectorAll('.hub')].map((c) => c.getAttribute('fill'))"
    return list(browser.evaluate(script))


def points(browser: Browser, id: str) -> int:
    path = f"document.querySelector('#{id} .curve')?.getAttribute('d') ?? ''"
    return str(browser.evaluate(path)).count("M") + str(browser.evaluate(path)).count("L")


def test_a_run_from_before_its_start_to_its_end(browser: Browser, tmp_path: Path) -> None:
    output = tmp_path / "live"
    source = RunSource(output)
    source.pause = 0.05
    settings = {"slots": 32, "evaluate_every": 4}  # rounds of 4 slots, a mixing after every two
    fault = faulty(Fault.RAISES, lambda i, r: i == 3 and r == 3)
    with serve(source, "127.0.0.1", 0, "live") as server:
        browser.open(server.url)
        browser.wait_for("document.documentElement.dataset.ready === 'yes'")
        assert "No run has begun" in text(browser, "#status")
        assert (
            browser.evaluate("document.querySelectorAll('main section:not([hidden])').length") == 0
        )
        with SteppedRun(output, **settings, **fault) as run:
            run.go(2)
            wait_for_text(browser, "#moment", "round 2")
            assert browser.evaluate("document.querySelectorAll('.hub').length") == 3
            assert "Running: slot 8 of 32, round 2" in text(browser, "#status")
            grown, colours = points(browser, "loss"), hub_colours(browser)
            assert grown == 3
            assert "No worker was absent" in text(browser, "[data-part=absences]")
            run.go()
            wait_for_text(browser, "#moment", "1 absent: worker 3")
            assert browser.evaluate("document.querySelectorAll('.worker.absent').length") == 1
            wait_for_text(browser, "[data-part=absences]", "the worker's battery is flat")
            assert points(browser, "loss") == points(browser, "accuracy") == grown + 1
            assert hub_colours(browser) != colours
            # Whoever looks at an earlier round keeps looking at it.
            browser.evaluate("document.getElementById('time').focus()")
            browser.press("ArrowLeft")
            assert "round 2" in text(browser, "#moment")
            run.go()
            wait_for_text(browser, "#status", "round 4")
            assert "round 2" in text(browser, "#moment")
            assert points(browser, "disagreement") == 5
        wait_for_text(browser, "#status", "Finished: slot 32 of 32, round 8")
        assert browser.evaluate("document.documentElement.dataset.phase") == "finished"
        browser.wait_for("document.querySelectorAll('#workers rect').length === 6")
        assert browser.evaluate("document.getElementById('progress').value") == 32
        assert points(browser, "loss") == 9
        asked = {r for r in browser.requests if not r.startswith("data:")}
        assert asked == {server.url, f"{server.url}events"}
        assert browser.errors == []
    # Without its server the page keeps what it has, and says so.
    wait_for_text(browser, "#trouble", "does not answer")
    assert points(browser, "loss") == 9


def test_thousands_of_points_and_a_narrow_window(browser: Browser, tmp_path: Path) -> None:
    path = write_run(tmp_path / "long", hubs=12, rounds=6000, q=5)
    with serve(open_source(path), "127.0.0.1", 0, "long") as server:
        browser.set_size(390, 800)
        browser.open(server.url)
        browser.wait_for("document.querySelectorAll('#disagreement .curve').length === 12")
        assert 200 < points(browser, "disagreement") <= 402
        assert 500 < points(browser, "loss") <= 1001
        wait_for_text(browser, "#moment", "round 6000")
        assert browser.evaluate("document.documentElement.scrollWidth") == 390
        browser.set_size(1200, 900)
        assert browser.errors == []


def test_names_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", dataset=HOSTILE, graph="ring", model=HOSTILE)
    with serve(open_source(path), "127.0.0.1", 0, HOSTILE) as server:
        browser.open(server.url)
        browser.wait_for("document.querySelectorAll('.hub').length === 3")
        assert HOSTILE in text(browser, "#subtitle")
        assert HOSTILE in text(browser, "[data-part=config]")
        assert browser.evaluate("document.querySelectorAll('main img').length") == 0
        assert browser.evaluate("window.hacked === undefined")
        assert browser.errors == []


def test_a_sweep(browser: Browser, tmp_path: Path) -> None:
    runs: list[dict[str, Any]] = []
    for n, slope in enumerate((1.0, 0.5)):
        losses = [slope * 2 / (1 + r) for r in range(9)]
        write_run(tmp_path / "runs" / str(n), losses=losses)
        entry = {"label": f"tau {n}", "seed": n, "folder": f"runs/{n}", "state": "finished"}
        runs.append(entry)
    runs.append({"label": HOSTILE, "folder": "runs/2", "state": "waiting"})
    runs.append({"label": "outside", "folder": "../elsewhere", "state": "failed", "error": "boom"})
    write_run(tmp_path.parent / "elsewhere")
    state = {"title": "my sweep", "state": "running", "seconds_left": 90, "runs": runs}
    (tmp_path / FILE).write_text(json.dumps(state))
    with serve(open_source(tmp_path), "127.0.0.1", 0, "sweep") as server:
        browser.open(server.url)
        browser.wait_for("document.querySelectorAll('#loss .curve').length === 2")
        assert text(browser, "#status") == (
            "Running: 2 finished, 1 waiting, 1 failed; about 1 min 30 s left"
        )
        assert "tau 1, seed 1 0.1111" in text(browser, "#loss-legend")
        assert (
            browser.evaluate("document.querySelectorAll('[data-part=runs] tbody tr').length") == 4
        )
        assert "boom" in text(browser, "[data-part=runs]")
        # A run begins, and the sweep ends.
        write_run(tmp_path / "runs" / "2")
        runs[2]["state"] = "finished"
        (tmp_path / FILE).write_text(json.dumps({**state, "state": "finished"}))
        browser.wait_for("document.querySelectorAll('#loss .curve').length === 3")
        wait_for_text(browser, "#status", "Finished: 3 finished, 1 failed")
        assert browser.evaluate("window.hacked === undefined")
        assert browser.errors == []
