"""No worker counts more than the network file allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from mll_flower.deployment.given_weights import given_weight, largest_weight
from tests.support.deployment import example_with


@pytest.mark.parametrize(
    ("top", "config", "expected"),
    [
        ("", "", {"a": None, "c": None}),
        ("", 'weights = "examples"', {"a": None, "c": None}),
        ("", 'weights = "equal"', {"a": 1.0, "c": 1.0}),
        ("", 'weights = "5,2,1,1,7,9"', {"a": 5.0, "b": 1.0, "c": 9.0}),
        ("max-examples = 6\n", "", {"a": 6.0}),
        ("max-examples = 6\n", 'weights = "5,2,1,1,7,9"', {"a": 5.0, "c": 6.0}),
    ],
)
def test_the_largest_weight_of_a_hub(
    tmp_path: Path, top: str, config: str, expected: dict[str, float | None]
) -> None:
    change = ("[run-config]\n", f"{top}[run-config]\n{config}\n")
    network = example_with(tmp_path, change)
    assert {hub: largest_weight(network, hub) for hub in expected} == expected


@pytest.mark.parametrize(
    ("top", "config", "expected"),
    [
        ("", "", {"a": None}),
        ("max-examples = 6\n", "", {"a": None}),
        ("", 'weights = "equal"', {"a": 2.0}),
        ("", 'weights = "5,2,1,1,7,9"', {"a": 7.0, "b": 2.0, "c": 16.0}),
        ("max-examples = 8\n", 'weights = "5,2,1,1,7,9"', {"a": 7.0, "c": 15.0}),
    ],
)
def test_what_a_hub_weighs_before_its_workers_have_reported(
    tmp_path: Path, top: str, config: str, expected: dict[str, float | None]
) -> None:
    change = ("[run-config]\n", f"{top}[run-config]\n{config}\n")
    network = example_with(tmp_path, change)
    assert {hub: given_weight(network, hub) for hub in expected} == expected
