"""A hub's column of an H from a file, checked against the network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mll_flower.deployment.mixing_column import mixing_column
from mll_flower.deployment.network_file import NetworkFileError
from tests.support.deployment import example_with


def test_a_column_of_h_from_a_file(tmp_path: Path) -> None:
    h = np.array([[0.5, 0.25, 0], [0.5, 0.5, 0.25], [0, 0.25, 0.75]])
    np.savetxt(tmp_path / "H.txt", h)
    from_file = ('mixing = "metropolis"', 'mixing = "H.txt"')
    network = example_with(tmp_path, from_file)
    with pytest.raises(NetworkFileError, match='set weights = "equal"'):
        mixing_column(network, "b")
    network = example_with(tmp_path, from_file, ("[run-config]", '[run-config]\nweights = "equal"'))
    with pytest.raises(ValueError, match="detailed balance"):
        mixing_column(network, "b")
    h[:, 0] = [0.75, 0.25, 0]
    np.savetxt(tmp_path / "H.txt", h)
    assert mixing_column(network, "b") == {"a": 0.25, "b": 0.5, "c": 0.25}
    assert mixing_column(network, "c") == {"b": 0.25, "c": 0.75}


def test_metropolis_needs_no_column(tmp_path: Path) -> None:
    assert mixing_column(example_with(tmp_path), "b") is None
