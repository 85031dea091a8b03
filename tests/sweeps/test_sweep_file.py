"""A sweep's file: which set-ups and claims it gives, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mll_flower.sweeps.setups import Claim
from mll_flower.sweeps.sweep_file import parse_sweep, read_sweep

EXAMPLE = Path(__file__).parents[2] / "examples" / "sweeps" / "periods.toml"


def test_the_example() -> None:
    sweep = read_sweep(EXAMPLE)
    assert [setup.name for setup in sweep.setups] == [
        "tau=4, q=1",
        "tau=4, q=4",
        "tau=8, q=1",
        "tau=8, q=4",
        "waiting",
    ]
    assert sweep.seeds == (0, 1, 2)
    configs = {setup.name: setup.config(2) for setup in sweep.setups}
    assert (configs["tau=4, q=1"].tau, configs["tau=4, q=1"].q) == (4, 1)
    # The preset of a set-up replaces what [settings] give.
    waiting = configs["waiting"]
    assert (waiting.q, waiting.graph, waiting.wait_for_all, waiting.seed) == (
        1,
        "complete",
        True,
        2,
    )
    assert len(sweep.configs()) == 15
    first, second = sweep.claims
    assert first.text == "tau=8, q=1: the training loss is lower than with tau=8, q=4."
    assert (second.kind, second.metric, second.names) == (
        "higher",
        "accuracy",
        ("tau=8, q=4", "waiting"),
    )


def test_settings_alone_are_one_setup_and_seeds_may_be_a_list() -> None:
    sweep = parse_sweep({"settings": {"tau": 4, "q": 2}, "seeds": [3, 5]}, "name")
    (setup,) = sweep.setups
    assert [config.seed for config in sweep.configs()] == [3, 5]
    assert (sweep.title, setup.config(3).tau) == ("name", 4)


def test_kinds_of_claims() -> None:
    names = [{"name": name, "tau": tau} for name, tau in (("a", 4), ("b", 8), ("c", 16))]
    claims: list[dict[str, Any]] = [
        {"first": "a", "is": "above", "measure": "accuracy", "bound": 0.9},
        {"first": "a", "second": "b", "is": "nearer", "target": "c"},
        {"first": ["a", "b"], "second": "c", "is": "similar", "text": "Alike."},
    ]
    sweep = parse_sweep({"setup": names, "claim": claims}, "")
    assert sweep.claims[0] == Claim(
        "a: the test metric is above 0.9.", "above", ("a",), (), "accuracy", "", 0.9
    )
    assert sweep.claims[1].names == ("a", "b", "c")
    assert (sweep.claims[2].left, sweep.claims[2].text) == (("a", "b"), "Alike.")


TWO = [{"name": "a"}, {"name": "b", "tau": 4}]


def test_a_claim_about_the_mean_over_the_run() -> None:
    (claim,) = parse_sweep(
        {"setup": TWO, "claim": [{"first": "a", "second": "b", "value": "mean"}]}, ""
    ).claims
    assert claim.value == "mean"
    assert claim.text == "a: the mean training loss over the run is lower than with b."


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"grids": {}}, "the file: 'grids' is not a part of a sweep; known are title, seeds"),
        ({"settings": {"taus": 4}}, r"\[settings\]: 'taus' is not a key of the run config"),
        ({"settings": {"tau": [4, 8]}}, r"tau=\[4, 8\]: give one value.*\[grid\]"),
        ({"settings": {"tau": "many"}}, "tau='many': give a whole number"),
        ({"settings": {"seed": 1}}, "seed cannot be set in a sweep: give seeds"),
        ({"settings": {"output": "x"}}, "output cannot be set in a sweep: .*--out"),
        ({"settings": 4}, r"settings=4: it must be a table, \[settings\]"),
        ({"grid": {"tau": 4}}, r"\[grid\] tau=4: give a list"),
        ({"grid": {"tau": []}}, r"tau=\[\]: give a list"),
        ({"grid": {"tau": [4, 4]}}, "a value is there twice"),
        ({"grid": {"tau": [4, [8]]}}, r"tau=\[8\]: give one value"),
        ({"grid": {"tau": [4, 0]}}, "set-up 'tau=0': .*tau"),
        ({"grid": {"tau": [8, 12]}, "settings": {"evaluate-every": 32}}, "set-up 'tau=12'.*32"),
        ({"grid": {"preset": ["fedavg"], "q": [4]}}, "preset='fedavg', which sets q=1"),
        ({"setup": [{"tau": 4}]}, "number 1 has no name"),
        ({"setup": [{"name": "a"}, {"name": "a"}]}, "two set-ups are called 'a'"),
        ({"setup": {"name": "a"}}, r"it must be a list of tables, \[\[setup\]\]"),
        ({"seeds": 0}, "seeds=0: give a number of seeds"),
        ({"seeds": [1, 1]}, "different seeds"),
        ({"seeds": True}, "seeds=True"),
        ({"setup": TWO, "claim": [{"first": "a"}]}, "second is missing: name a set-up"),
        ({"setup": TWO, "claim": [{"first": "x", "second": "b"}]}, "first='x' is no set-up.*'a'"),
        (
            {"setup": TWO, "claim": [{"first": "a", "secnd": "b"}]},
            "'secnd' is not a key of a claim",
        ),
        (
            {"setup": TWO, "claim": [{"first": "a", "second": "b", "measure": "speed"}]},
            "measure='speed' is not known: use loss, accuracy, distance",
        ),
        (
            {"setup": TWO, "claim": [{"first": "a", "second": "b", "is": "best"}]},
            "is='best' is not known: use lower, higher",
        ),
        ({"setup": TWO, "claim": [{"first": "a", "is": "above"}]}, "needs bound = NUMBER"),
        (
            {"setup": TWO, "claim": [{"first": "a", "second": "b", "bound": 1}]},
            "bound=1 says nothing with is='lower'",
        ),
        (
            {"setup": TWO, "claim": [{"first": "a", "second": "b", "is": "similar"}]},
            "first='a': give a list of set-ups",
        ),
    ],
)
def test_errors_name_the_place_and_the_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_sweep(values, "name")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist: check the path"):
        read_sweep(tmp_path / "none.toml")
    path = tmp_path / "bad.toml"
    path.write_text("tau = = 4")
    with pytest.raises(ValueError, match=r"bad\.toml cannot be read"):
        read_sweep(path)
    path.write_text("[settings]\ntau = 0\n")
    with pytest.raises(ValueError, match=r"bad.toml: set-up 'settings': .*tau=0"):
        read_sweep(path)
