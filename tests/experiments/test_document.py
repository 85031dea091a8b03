"""docs/reproduction.md is what the generator makes of the present texts and figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import document
from experiments.figures import FIGURES, figures

PAGE = (Path(document.__file__).parents[1] / "docs" / "reproduction.md").read_text()


def test_the_prose_of_the_page_is_that_of_the_texts() -> None:
    with_text = [name for name in FIGURES if (document.TEXTS / f"{name}.md").is_file()]
    names = ["opening", "rule", *with_text, "departures", "closing"]
    assert sorted(names) == sorted(path.stem for path in document.TEXTS.glob("*.md"))
    end = 0
    for name in names:
        text = f"{document.hand_written(name).strip()}\n"
        assert PAGE.count(text) == 1, f"texts/{name}.md"
        assert PAGE.index(text) >= end, f"texts/{name}.md is not in its place"
        end = PAGE.index(text) + len(text)


@pytest.mark.parametrize("name", FIGURES)
def test_the_titles_and_claims_of_the_page_are_those_of_the_figures(name: str) -> None:
    for figure in figures(name, scale="small"):
        section = PAGE[PAGE.index(f'<a id="{figure.key}"></a>') + 1 :].partition("<a id=")[0]
        assert f"## {figure.title}\n\n{figure.source}\n" in PAGE
        for setup in figure.setups:
            assert f"\n| {setup.label} |" in section
        for claim in figure.claims:
            assert f"\n| {claim.text} |" in section
