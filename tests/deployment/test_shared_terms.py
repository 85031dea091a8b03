"""What hubs must agree on: what is named, and what may differ from site to site."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mll_flower.algorithm.corrections import Corrections
from mll_flower.config import RunConfig
from mll_flower.deployment.network_file import NetworkFile
from mll_flower.deployment.shared_terms import layout_term, shared_terms
from mll_flower.gossip.agreement import differences
from mll_flower.models.layout import Layout
from tests.support.deployment import example_with


@pytest.fixture
def network(tmp_path: Path) -> NetworkFile:
    return example_with(tmp_path)


def compare(one: NetworkFile, other: NetworkFile) -> str:
    return differences(shared_terms(one), shared_terms(other))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tau": 99}, "tau is "),
        ({"q": 99}, "q is "),
        ({"slot": 99.0}, "slot is "),
        ({"absent": "renormalise"}, "absent is 'keep' here and 'renormalise' there"),
        ({"corrections": Corrections(hub="exact-diffusion")}, "hub-correction is 'none' here"),
        ({"corrections": Corrections(precision="half")}, "gossip-precision is 'full' here"),
        ({"run_config": {"learning-rate": 0.9}}, "learning-rate is "),
        ({"run_config": {"model": "mlp"}}, "model is "),
        ({"run_config": {"seed": 77}}, "seed is "),
    ],
)
def test_what_is_named(network: NetworkFile, changes: dict[str, object], named: str) -> None:
    base = replace(network, run_config={})
    assert named in compare(base, replace(base, **changes))


def test_what_may_differ(network: NetworkFile) -> None:
    base = replace(network, run_config={"dataset": "npz:/here.npz"})
    own = {"dataset": "npz:/there.npz", "data-dir": "/there", "node-timeout": 9.0}
    others = {"rounds": 999, "hubs": network.hubs[:2], "edges": (), "round_deadline": 1e3}
    assert compare(base, replace(base, run_config=own, **others)) == ""
    # A default that is written out is no difference, nor is the other way to write a key.
    default = {"learning_rate": RunConfig().learning_rate, "dataset": "npz:/here.npz"}
    assert compare(base, replace(base, run_config=default)) == ""


def test_settings_of_an_app_of_one_s_own(network: NetworkFile) -> None:
    one, other = (replace(network, run_config={"depth": depth}) for depth in (3, 4))
    assert compare(one, other) == "depth is 3 here and 4 there"


def test_a_mixing_matrix_is_compared_by_its_file(network: NetworkFile, tmp_path: Path) -> None:
    files = [tmp_path / "here.txt", tmp_path / "there.txt", tmp_path / "other.txt"]
    for path, text in zip(files, ("1 0", "1 0", "0 1"), strict=True):
        path.write_text(text)
    here, there, other = (replace(network, mixing=path) for path in files)
    assert compare(here, there) == ""
    assert "mixing is 'the file " in compare(here, other)
    assert "mixing is 'metropolis' here" in compare(network, here)


def test_layouts_as_terms() -> None:
    one = Layout.of({"w": np.zeros((3, 4), np.float32), "b": np.zeros(3, np.float32)})
    same = Layout.of({"w": np.ones((3, 4), np.float32), "b": np.ones(3, np.float32)})
    other = Layout.of({"w": np.zeros((4, 3), np.float32), "b": np.zeros(3, np.float32)})
    assert layout_term(one) == layout_term(same)
    assert layout_term(one).startswith("2 arrays, 15 entries, ")
    assert layout_term(one) != layout_term(other)
