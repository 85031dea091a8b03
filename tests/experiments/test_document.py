"""docs/reproduction.md is what the generator makes of the kept results, texts and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import document
from experiments.figures import FIGURES, figures
from experiments.inplace import departures
from mll_flower.sweeps.verdicts import HOLDS, OPEN

DOCS = Path(document.__file__).parents[1] / "docs"
KEPT = document.load(document.RESULTS)


def test_the_page_is_made_from_the_kept_results() -> None:
    assert (DOCS / "reproduction.md").read_text() == document.render(
        document.selected(KEPT), departures()
    )


def test_every_text_is_used() -> None:
    with_text = [name for name in FIGURES if (document.TEXTS / f"{name}.md").is_file()]
    names = ["opening", "rule", *with_text, "departures", "closing"]
    assert sorted(names) == sorted(path.stem for path in document.TEXTS.glob("*.md"))


@pytest.mark.parametrize("summary", KEPT, ids=lambda s: f"{s['figure']}-{s['model']}-{s['scale']}")
def test_titles_and_claims_of_kept_results_are_those_of_the_figures(
    summary: dict[str, Any],
) -> None:
    (figure,) = figures(summary["figure"], summary["model"], summary["scale"])
    assert (summary["title"], summary["source"]) == (figure.title, figure.source)
    assert [s["label"] for s in summary["setups"]] == [s.label for s in figure.setups]
    assert [v["claim"] for v in summary["verdicts"]] == [c.text for c in figure.claims]
    assert summary["planned"] >= len(summary["seeds"])


def result(scale: str, seeds: int, model: str = "cnn") -> dict[str, Any]:
    return {"figure": "hubs", "model": model, "scale": scale, "seeds": list(range(seeds))} | {
        "verdicts": ["a verdict"]
    }


def test_the_small_scale_is_shown_until_the_papers_has_verdicts() -> None:
    small, one, three = result("small", 5), result("paper", 1), result("paper", 3)
    other = result("small", 5, "logistic")
    assert document.selected([other, small, three]) == [other, three]
    shown = document.selected([other, small, one])
    assert shown == [other, small, {**one, "verdicts": []}]
    # Alone, one seed is shown as it is: some claims are about a single run.
    assert document.selected([one]) == [one]


def test_one_seed_at_the_papers_scale_stands_beside_the_small_one() -> None:
    small = next(s for s in KEPT if s["scale"] == "small")
    paper = {**small, "scale": "paper", "seeds": [1], "planned": 3, "minutes": 1234.5}
    text = document.render(document.selected([small, paper]), [])
    before, _, section = text.partition(f'<a id="{small["figure"]}-{small["model"]}-paper"></a>')
    assert "| paper | 1 of 3 | – | – | – |" in before
    assert small["verdicts"][0]["claim"] in before
    words = " ".join(section.split())
    assert "seed 1 (3 are planned); 1,234 minutes of one core." in words
    assert "no verdicts at this scale yet" in words
    assert small["verdicts"][0]["claim"] not in section


def test_the_papers_claims_are_counted_apart_from_those_beyond_it() -> None:
    kept = {s["figure"]: s for s in KEPT if s["model"] == "logistic" and s["scale"] == "small"}
    papers, beyond = kept["tau-q"], kept["non-iid"]
    holds = {**beyond, "verdicts": [{**v, "verdict": HOLDS} for v in beyond["verdicts"]]}
    open_ones = {**papers, "verdicts": [{**v, "verdict": OPEN} for v in papers["verdicts"]]}
    text = " ".join(document.render([open_ones, holds], []).split())
    n, m = len(papers["verdicts"]), len(beyond["verdicts"])
    assert f"The paper's claims: {n}, of which 0 hold, 0 do not hold and {n} are not" in text
    assert f"Claims beyond the paper: {m}, of which {m} hold, 0 do not hold and 0 are" in text


def test_a_table_says_how_much_of_a_distance_is_closed() -> None:
    row = {"label": "with", "target": "IID", "metric": "accuracy"}
    row |= {"before": [0.1, 0.01], "after": [0.025, 0.002], "share": [0.75, 0.02]}
    unknown = {**row, "label": "equal from the start", "share": [None, None]}
    noise = {**row, "label": "noise", "before": [0.01, 0.02], "share": [-6.5, 10.5]}
    text = document.render([{**KEPT[0], "closed": [row, unknown, noise]}], [])
    assert "| with | accuracy of IID | 0.1000 ± 0.0100 | 0.0250 ± 0.0020 | 75 % ± 2 % |" in text
    assert "| equal from the start |" in text
    assert "| noise | accuracy of IID |" in text
    assert "-650 %" not in text
    assert "| not finite |" in text


@pytest.mark.parametrize(
    ("value", "rule", "other"),
    [
        ("mean", "Claims are about the mean over all slots up to 32,000.", "By the values at"),
        ("last", "Compared at slot 32,000.", "By the means over all slots"),
    ],
)
def test_what_the_other_rule_says_is_told_too(value: str, rule: str, other: str) -> None:
    summary = {**KEPT[0], "value": value, "slot": 32000, "other_rule": [HOLDS, OPEN, OPEN]}
    text = " ".join(document.render([summary], []).split())
    assert f"{rule} {other}" in text
    assert "of these claims 1 holds, 0 do not hold and 2 are not resolved." in text
    one_seed = document.render([{**summary, "seeds": [0]}], [])
    assert other not in one_seed
