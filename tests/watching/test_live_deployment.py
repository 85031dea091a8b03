"""The live page of a deployment of real hubs and workers, in a real browser."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from mll_flower.watching.opening import open_source
from mll_flower.watching.server import serve
from tests.support.chromium import Browser, find_chromium
from tests.support.deployment import Deployment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed"),
]


def curve(browser: Browser, id: str) -> int:
    paths = browser.evaluate(
        f"[...document.querySelectorAll('#{id} .curve')].map((c) => c.getAttribute('d'))"
    )
    return max((path.count("M") + path.count("L") for path in paths), default=0)


def wait_for(browser: Browser, trial: Deployment, script: str) -> None:
    trial.wait(script, lambda: bool(browser.evaluate(script)))


def includes(selector: str, part: str) -> str:
    return f"document.querySelector('{selector}').textContent.includes({json.dumps(part)})"


def test_two_hubs_from_start_to_end(tmp_path: Path) -> None:
    profile = tmp_path / "chromium"
    profile.mkdir()
    with (
        Deployment(
            tmp_path,
            {"paris": 2, "lyon": 2},
            edges=[("paris", "lyon")],
            run_config={"model": "logistic", "node-timeout": 120.0},
            tau=10,
            q=1,
            slot=0.05,
            rounds=20,
            round_deadline=12.0,
            gossip_deadline=15.0,
        ) as trial,
        serve(open_source(trial.path), "127.0.0.1", 0, "trial") as server,
        Browser(profile) as browser,
    ):
        browser.open(server.url)
        wait_for(browser, trial, includes("#status", "No hub answers yet"))
        trial.start_all()
        # Both hubs answer, and their curves grow.
        wait_for(browser, trial, includes("#status", "Running: round"))
        wait_for(browser, trial, "data && data.frames.round.length > 3")
        seen = curve(browser, "loss")
        colours = "[...document.querySelectorAll('.hub')].map((c) => c.getAttribute('fill')).join()"
        before = browser.evaluate(colours)
        wait_for(browser, trial, f"{colours} !== {json.dumps(before)}")
        trial.wait("curves grow", lambda: curve(browser, "loss") > seen)
        assert curve(browser, "disagreement") > 2
        assert "rounds per minute" in browser.evaluate("document.body.textContent")
        # The number of a worker is known once it has replied.
        wait_for(browser, trial, includes("[data-part=tiles]", "4 of 4"))
        # A worker is killed: it is absent, and the page says who and why.
        trial.signal("worker-lyon-1", signal.SIGKILL)
        # (On a busy machine others may be late as well.)
        wait_for(browser, trial, "document.querySelectorAll('.worker.absent').length > 0")
        wait_for(browser, trial, includes("[data-part=absences] tbody", "lyon"))
        # A hub is killed: it does not answer, and its neighbour mixes without it.
        trial.signal("hub-lyon", signal.SIGKILL)
        wait_for(browser, trial, includes("#status", "no answer from lyon"))
        assert browser.evaluate("document.querySelectorAll('.hub.down').length") == 1
        wait_for(browser, trial, "document.querySelectorAll('.edge.silent').length === 1")
        # It comes back, goes on, and both come to the end.
        trial.hub("lyon")
        trial.worker("lyon", 1)
        wait_for(browser, trial, "document.querySelectorAll('.hub.down').length === 0")
        trial.wait_finished(["paris", "lyon"], 400)
        wait_for(browser, trial, includes("#status", "Finished: round"))
        assert browser.evaluate("document.documentElement.dataset.phase") == "finished"
        assert browser.errors == []
        browser.set_size(1200, 2400)
        browser.screenshot(tmp_path / "deployment.png")
