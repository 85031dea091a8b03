"""What a run does that its settings do not show is said before it starts."""

from __future__ import annotations

import pytest

from mll_flower.apps.run_notes import run_notes
from mll_flower.config import RunConfig


def notes(**settings) -> list[str]:
    values = {key.replace("_", "-"): value for key, value in settings.items()}
    return run_notes(RunConfig.from_run_config(values))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"slots": 100, "q": 2}, ["slots=100: the run ends at slot 96, after 12 rounds"]),
        ({"slots": 10}, ["ends at slot 8, after 1 round (", "the hubs never mix: a mixing comes"]),
        ({"slots": 16}, ["the hubs never mix"]),
        ({"slots": 16, "hubs": 1}, []),
        ({"wait_for_all": True, "rates": "0.5", "slots": 200, "q": 1}, ["waits until each worker"]),
        ({"model": "logistic"}, ["model=logistic has two labels: the lower half"]),
        ({"preset": "fedavg", "rates": "1"}, ["preset fedavg sets: one hub with all workers, q=1"]),
    ],
    ids=str,
)
def test_what_is_said(settings, expected):
    said = notes(**settings)
    assert len(said) == len(expected)
    for part, note in zip(expected, said, strict=True):
        assert part in note
