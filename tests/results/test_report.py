"""The HTML report: its content, and its behaviour in a real browser."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.app import app as client_app
from mll_flower.algorithm.graphs import GRAPHS, hub_graph
from mll_flower.algorithm.theory import Problem, bound, gamma
from mll_flower.apps.network_run import run_network
from mll_flower.config import RunConfig
from mll_flower.grids.in_process import InProcessGrid
from mll_flower.results.html_report import render_report, write_report
from mll_flower.results.html_report.data import FRAMES, payload, positions
from mll_flower.results.runs import load_run
from tests.support.chromium import Browser, find_chromium
from tests.support.run_folders import absent, write_run

HOSTILE = "npz:/tmp/</script><script>window.hacked = 1</script>\"'&<!--{title}%s"

with_browser = pytest.mark.skipif(
    find_chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a real run, simulated in this process."""
    output = tmp_path_factory.mktemp("runs") / "real"
    config = RunConfig.from_run_config(
        {"model": "logistic", "slots": 64, "hubs": 3, "q": 2, "output": str(output)}
    ).to_run_config()
    run_network(InProcessGrid(client_app, 3, config), config)
    return output


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def test_the_page_has_the_data_of_the_run(tmp_path: Path) -> None:
    absences = [absent(0, 0, 1), absent(5, 2, 3), absent(4, 2, 3)]
    run = load_run(write_run(tmp_path / "a", rounds=4, q=2, absences=absences))
    data = embedded(render_report(run))
    frames = data["frames"]
    assert frames["slot"] == [0, 4, 8, 12, 16]
    assert frames["round"] == [0, 1, 2, 3, 4]
    assert frames["mixed"] == [False, False, True, False, True]
    assert frames["absent"] == [[], [0], [], [4, 5], []]
    assert frames["distance"][3] == pytest.approx([0.3, 0.6, 0.9])
    assert data["evaluations"]["loss"] == pytest.approx([2, 1, 2 / 3, 0.5, 0.4])
    assert {tuple(e[:2]) for e in data["edges"]} == {(0, 1), (0, 2), (1, 2)}
    assert [w["expected"] for w in data["workers"]] == [8, 8, 16, 16, 16, 16]


def test_values_that_are_not_finite_are_null(tmp_path: Path) -> None:
    losses = [2.0, math.nan, math.inf]
    page = render_report(load_run(write_run(tmp_path / "a", rounds=2, losses=losses)))
    assert embedded(page)["evaluations"]["loss"] == [2.0, None, None]
    assert "NaN" not in re.search(r'id="data">.*?</script>', page, re.S).group()  # type: ignore


def test_a_long_run_is_shown_in_part_and_the_page_says_so(tmp_path: Path) -> None:
    absences = [absent(1, 0, r) for r in (2, 777, 1000)]
    run = load_run(write_run(tmp_path / "a", rounds=1000, q=5, absences=absences))
    frames = payload(run)["frames"]
    assert len(frames["slot"]) == FRAMES + 1
    assert (frames["round"][0], frames["round"][1], frames["round"][-1]) == (0, 1, 1000)
    # What happened between two frames belongs to the later one.
    assert sum(map(len, frames["absent"])) == 3
    assert sum(frames["mixed"]) == 200
    assert f"{FRAMES} of 1000 recorded rounds" in render_report(run)
    short = load_run(write_run(tmp_path / "b", rounds=10))
    assert "recorded rounds" not in render_report(short)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("hubs", [1, 2, 3, 9, 20])
def test_hubs_fill_the_unit_square(name: str, hubs: int) -> None:
    at = np.array(positions(hub_graph(name, hubs, 0)))
    assert len(np.unique(at, axis=0)) == hubs
    for axis in at.T:
        assert (axis.min(), axis.max()) in ((0, 1), (0.5, 0.5))


def test_the_page_counts_y_downwards() -> None:
    # The first row of a grid is at the top.
    assert positions(hub_graph("grid", 4)) == [[0, 0], [1, 0], [0, 1], [1, 1]]


def test_the_theory_is_about_this_network(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "a", hubs=6, rounds=8, tau=4, q=2))
    page = html.unescape(render_report(run))
    terms = bound(run.network, run.zeta, 4, 2, 0.05, Problem(), slots=32)
    assert terms["mixing"] > 0
    for value in (run.zeta, 1 - run.zeta, gamma(run.zeta), *terms.values()):
        assert f">{value:.4g}<" in page
    assert "L = 1, sigma² = 1, beta = 0" in page
    assert "no step size meets it: worker 0 has the rate 0.5 <= 2 - sqrt(2)" in page


def test_a_run_that_waits_for_all_has_rates_of_one_in_the_theory(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path / "a", wait_for_all=True))
    page = render_report(run)
    assert "so the rates are 1 here" in page
    assert "a small enough step size meets it" in page
    assert "above it" in page


def test_absences_are_counted_by_worker_and_cause(tmp_path: Path) -> None:
    absences = [absent(3, 1, 2), absent(3, 1, 5), absent(3, 1, 6, "raised", "<b>boom</b>")]
    page = render_report(load_run(write_run(tmp_path / "a", absences=absences)))
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", page)]
    assert ["3", "1", "late", "2", "2", "5", "no reply"] in rows
    assert ["3", "1", "raised", "1", "6", "6", "&lt;b&gt;boom&lt;/b&gt;"] in rows
    assert "No worker was absent" in render_report(load_run(write_run(tmp_path / "b")))


def test_the_page_loads_nothing_and_escapes_names(tmp_path: Path) -> None:
    absences = [absent(0, 0, 1, "raised", HOSTILE)]
    path = write_run(tmp_path / "<i>a", dataset=HOSTILE, graph="ring", absences=absences)
    page = render_report(load_run(path))
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert html.escape(HOSTILE) in page
    addresses = set(re.findall(r"(?:https?:)?//[a-z][\w.]*\.[a-z]+[^\s\"'`]*", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\b(src|href)=(?!\"data:,\")|@import|url\(", page)


def test_runs_that_have_not_finished_or_have_diverged_say_so(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=3, losses=[2.0, 1.0, 3.0, math.inf])
    page = render_report(load_run(path))
    assert "This run diverged: its last training loss is not finite." in page
    assert "not finished" not in page
    result = json.loads((path / "metrics.json").read_text())
    for worker in result["workers"]:
        worker["steps"] = None  # as a run that was killed leaves them
    (path / "unfinished.json").write_text(json.dumps(result))
    (path / "metrics.json").unlink()
    page = render_report(load_run(path))
    assert "This run has not finished: it has got to slot 12 of 12." in page


def test_long_values_of_the_config_have_a_row_of_their_own(tmp_path: Path) -> None:
    rates = ",".join(["0.5"] * 60)
    page = render_report(load_run(write_run(tmp_path / "a", rates=rates)))
    shown = rates.replace(",", ",<wbr>")  # where a line may break
    assert f'<div class="long"><dt>rates</dt><dd>{shown}</dd></div>' in page
    assert "<div><dt>tau</dt>" in page


def test_a_report_is_an_html_file(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    assert write_report(path) == path / "report.html"
    assert write_report(path, tmp_path / "x.HTML").is_file()
    with pytest.raises(ValueError, match=r"x.png: a report's name must end in .html"):
        write_report(path, tmp_path / "x.png")


def hub_colours(browser: Browser) -> list[str]:
    found: list[str] = browser.evaluate(
        "[...document.querySelectorAll('.hub')].map((c) => c.getAttribute('fill'))"
    )
    return found


def text_of(browser: Browser, id: str) -> str:
    return str(browser.evaluate(f"document.getElementById('{id}').textContent"))


def open_page(browser: Browser, page: Path, width: int = 1200) -> None:
    browser.set_size(width, 900)
    browser.open(page)
    browser.wait_for("document.documentElement.dataset.ready === 'yes'")


@with_browser
def test_the_page_of_a_real_run(browser: Browser, real_run: Path) -> None:
    assert sorted(p.name for p in (real_run / "plots").iterdir()) == [
        "disagreement.png",
        "graph.png",
        "hubs.png",
        "learning.png",
        "steps.png",
    ]
    page = write_report(real_run)
    run = load_run(real_run)
    open_page(browser, page)
    assert browser.errors == []
    # The maps of labels are images that the page itself has drawn.
    assert [r for r in browser.requests if not r.startswith("data:")] == [page.as_uri()]
    assert browser.evaluate("document.querySelectorAll('.hub').length") == 3
    assert browser.evaluate("document.querySelectorAll('.edge').length") == 3
    assert browser.evaluate("document.querySelectorAll('.worker').length") == 12
    assert browser.evaluate("document.querySelectorAll('#workers rect').length") == 12
    assert browser.evaluate("document.querySelectorAll('#disagreement .curve').length") == 3
    assert f"{run.final('accuracy'):.4g}" in text_of(browser, "accuracy-legend")
    assert "slot 64" in text_of(browser, "moment")
    browser.move_mouse("#workers svg", 0.99 - 20 / 1200)
    last = run.end["workers"][-1]
    browser.wait_for("document.getElementById('workers-legend').textContent.includes('worker 11')")
    assert f"{last['steps']} steps" in text_of(browser, "workers-legend")


@with_browser
def test_labels_and_the_accuracy_of_each_hub(browser: Browser, real_run: Path) -> None:
    run = load_run(real_run)
    open_page(browser, write_report(real_run))
    assert [e["slot"] for e in run.hub_evaluations] == [16, 32, 48, 64]
    assert browser.evaluate("document.querySelectorAll('#hub-accuracy .curve').length") == 3
    value = run.hub_evaluations[-1]["accuracy"][2]
    assert f"hub 2 {value:.4g}" in text_of(browser, "hub-accuracy-legend")
    counts = run.end["labels"]["workers"][4]
    for key, rows in (("hubs", 3), ("workers", 12)):
        size = f"document.querySelector('#labels-{key} image').getAttribute('href').length"
        assert browser.evaluate(size) > 50
        assert browser.evaluate(f"data.labels['{key}'].length") == rows
    browser.evaluate("document.getElementById('labels-workers').focus()")
    for _ in range(5):
        browser.press("ArrowDown")
    assert text_of(browser, "labels-workers-legend").startswith(
        f"worker 4 of hub 1: label 0, {counts[0]} of {sum(counts)} rows"
    )
    page = (real_run / "report.html").read_text()
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", page)]
    assert ["4", "1", *map(str, counts)] in cells
    assert browser.errors == []


@with_browser
def test_the_slider_moves_the_graph_through_time(browser: Browser, tmp_path: Path) -> None:
    absences = [absent(3, 1, 7)]
    open_page(browser, write_report(write_run(tmp_path / "a", rounds=8, absences=absences)))
    # At the end hub 2 has the largest distance of the run, hence the last colour of the scale.
    end = hub_colours(browser)
    assert end[2] == "rgb(231,111,81)"
    assert text_of(browser, "moment") == "slot 32 · round 8 · furthest is hub 2, at 2.4 · hubs mix"
    assert browser.evaluate("document.querySelectorAll('.edge.mixed').length") == 3
    browser.evaluate("document.getElementById('time').focus()")
    browser.press("ArrowLeft")
    assert text_of(browser, "moment") == (
        "slot 28 · round 7 · furthest is hub 2, at 2.1 · 1 absent: worker 3"
    )
    assert browser.evaluate("document.querySelectorAll('.worker.absent').length") == 1
    assert browser.evaluate("document.querySelectorAll('.edge.mixed').length") == 0
    assert hub_colours(browser) != end
    assert "slot 28" in text_of(browser, "loss-legend")
    assert "hub 2 2.1" in text_of(browser, "disagreement-legend")
    browser.press("Home")
    assert hub_colours(browser) == ["rgb(42,157,143)"] * 3
    assert "all hubs start from one model" in text_of(browser, "moment")
    assert browser.errors == []


@with_browser
def test_play_runs_to_the_end_and_pauses(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, write_report(write_run(tmp_path / "a", rounds=60)))
    browser.evaluate(
        "window.seen = new Set(); window.hub = document.getElementById('hub-2');"
        "new MutationObserver(() => seen.add(hub.getAttribute('fill')))"
        ".observe(hub, {attributes: true}); 0"
    )
    for _ in range(2):
        browser.press("Tab")
        if browser.evaluate("document.activeElement.id") == "play":
            break
    assert browser.evaluate("document.activeElement.id") == "play"
    browser.press(" ")
    assert text_of(browser, "play") == "Pause"
    browser.wait_for("+document.getElementById('time').value > 2")
    browser.press(" ")
    assert text_of(browser, "play") == "Play"
    paused_at = browser.evaluate("document.getElementById('time').value")
    browser.evaluate("new Promise((done) => setTimeout(done, 400))")
    assert browser.evaluate("document.getElementById('time').value") == paused_at
    browser.press(" ")
    browser.wait_for("document.getElementById('play').textContent === 'Play'")
    assert browser.evaluate("document.getElementById('time').value") == "60"
    assert browser.evaluate("seen.size") > 20
    assert browser.errors == []


@with_browser
def test_legends_show_the_values_at_the_pointer(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, write_report(write_run(tmp_path / "a", rounds=8)))
    browser.move_mouse("#loss svg", 0.1)
    browser.wait_for("document.getElementById('loss-legend').textContent.startsWith('slot 0')")
    assert text_of(browser, "loss-legend") == "slot 0training loss 2test loss 2.2"
    browser.evaluate("document.getElementById('accuracy').focus()")
    browser.press("ArrowLeft")
    assert text_of(browser, "accuracy-legend") == "slot 28accuracy 0.7778"
    browser.evaluate(
        "axis.value = 'bytes'; axis.dispatchEvent(new Event('change')); accuracy.blur(); 0"
    )
    assert text_of(browser, "accuracy-legend") == "bytes sent 8000accuracy 0.8889"
    assert "bytes sent" in text_of(browser, "disagreement")
    assert browser.errors == []


@with_browser
@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"hubs": 1, "graph": "complete", "rounds": 1},
        {"evaluations": False},
        {"rounds": 3, "losses": [math.nan] * 4},
        {"hubs": 30, "workers_per_hub": 7, "graph": "path"},
        {"hubs": 2, "workers_per_hub": 60, "graph": "path"},
        {"dataset": HOSTILE, "absences": [absent(0, 0, 1, "raised", HOSTILE + "x" * 300)]},
    ],
    ids=["plain", "one hub", "no evaluation", "diverged", "thirty hubs", "many workers", "hostile"],
)
def test_every_page_fits_a_phone(browser: Browser, tmp_path: Path, setting: dict[str, Any]) -> None:
    open_page(browser, write_report(write_run(tmp_path / ("a" * 80), **setting)), width=390)
    browser.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    wide = browser.evaluate(
        "[...document.querySelectorAll('main *, header *')].filter((e) => e.scrollWidth > "
        "e.clientWidth + 1 && e.clientWidth && getComputedStyle(e).overflowX !== 'visible')"
        ".map((e) => e.tagName)"
    )
    assert [tag for tag in wide if tag not in ("THEAD", "SELECT")] == []
    assert browser.errors == []
    assert browser.evaluate("window.hacked === undefined")
    if setting == {"evaluations": False}:
        assert text_of(browser, "loss-legend") == "No evaluation was recorded."
    browser.set_size(1200, 900)
    browser.wait_for("document.querySelector('#graph svg').viewBox.baseVal.width > 700")
    assert browser.evaluate("document.documentElement.scrollWidth") == 1200
    assert browser.errors == []


@with_browser
def test_an_unfinished_run_and_huge_values(browser: Browser, tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", rounds=2, losses=[2.0, 4.022e29, 4.022e29])
    result = json.loads((path / "metrics.json").read_text())
    for worker in result["workers"]:
        worker["steps"] = None
    (path / "unfinished.json").write_text(json.dumps(result))
    (path / "metrics.json").unlink()
    open_page(browser, write_report(path))
    assert browser.errors == []
    assert "training loss 4.022e+29" in text_of(browser, "loss-legend")
    browser.move_mouse("#workers svg", 0.5)
    browser.wait_for("document.getElementById('workers-legend').textContent.includes('rate')")
    assert "unknown steps" in text_of(browser, "workers-legend")


@with_browser
def test_hubs_have_names_and_their_values_keep_clear_of_edges(
    browser: Browser, tmp_path: Path
) -> None:
    open_page(browser, write_report(write_run(tmp_path / "many", hubs=40, graph="ring")))
    assert browser.evaluate("document.querySelectorAll('.hub-name').length") == 40
    crossed = """(() => {
      const inside = (b, x, y) => x > b.x && x < b.x + b.width && y > b.y && y < b.y + b.height;
      let count = 0;
      for (const text of document.querySelectorAll('.hub-value')) {
        const box = text.getBBox();
        for (const edge of document.querySelectorAll('.edge')) {
          const at = (t) => edge.getPointAtLength(edge.getTotalLength() * t);
          for (let t = 0; t <= 1; t += 0.01) if (inside(box, at(t).x, at(t).y)) { count++; break; }
        }
      }
      return [document.querySelectorAll('.hub-value').length, count];
    })()"""
    for hubs, graph in ((5, "path"), (8, "path"), (5, "ring"), (5, "star")):
        page = write_report(write_run(tmp_path / f"{graph}{hubs}", hubs=hubs, graph=graph))
        open_page(browser, page)
        assert browser.evaluate(crossed) == [hubs, 0], (hubs, graph)


@with_browser
def test_a_hostile_name_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, write_report(write_run(tmp_path / "a", dataset=HOSTILE)))
    assert browser.evaluate("document.body.innerText").count(HOSTILE) == 3
    assert browser.evaluate("window.hacked === undefined")


@with_browser
def test_light_and_dark(browser: Browser, tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "a"))
    brightness = []
    for dark in (False, True):
        browser.prefer_dark(dark)
        open_page(browser, page)
        colours = browser.evaluate(
            "[getComputedStyle(document.body)].map((s) => [s.color, s.backgroundColor])[0]"
        )
        brightness.append([sum(map(int, re.findall(r"\d+", colour))) for colour in colours])
    browser.prefer_dark(False)
    (ink, paper), (dark_ink, dark_paper) = brightness
    assert paper - ink > 400
    assert dark_ink - dark_paper > 400
