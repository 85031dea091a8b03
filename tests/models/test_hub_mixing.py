"""Mixing in one place: H transposed times the averages, all hubs from the same z."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.algorithm.mixing import mixing_matrix
from mll_flower.algorithm.network import HubNetwork
from mll_flower.models.hub_mixing import mix_models
from mll_flower.models.layout import Flat
from tests.support.random_networks import networks


@given(network=networks(min_hubs=2), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_mix_is_h_transposed_times_the_averages(network: HubNetwork, seed: int) -> None:
    H = mixing_matrix(network.graph, network.b)
    z = np.random.default_rng(seed).normal(size=(network.hubs, 5))
    y = np.array([flat["float64"] for flat in mix_models([{"float64": row} for row in z], H)])
    np.testing.assert_allclose(y, H.T @ z, rtol=0, atol=1e-13)
    np.testing.assert_allclose(network.b @ y, network.b @ z, rtol=0, atol=1e-12)


def test_mix_reads_every_model_before_it_writes_one() -> None:
    H = np.full((2, 2), 0.5)
    models = [{"float64": np.array([0.0])}, {"float64": np.array([4.0])}]
    assert [float(y["float64"][0]) for y in mix_models(models, H)] == [2.0, 2.0]
    assert [float(z["float64"][0]) for z in models] == [0.0, 4.0]


@pytest.mark.parametrize("graph", ["path", "star", "complete"])
def test_mixing_in_place_gives_the_same_bits(graph: str) -> None:
    network = HubNetwork.build(4, 1, graph=graph, weights=[1.0, 2.0, 3.0, 4.0])
    H = mixing_matrix(network.graph, network.b)
    rng = np.random.default_rng(0)
    size = 2 * 2**17 + 3  # three blocks

    def models() -> list[Flat]:
        return [{"float32": row.copy(), "int64": np.arange(3) * k} for k, row in enumerate(rows)]

    rows = rng.normal(size=(4, size)).astype(np.float32)
    spare = models()
    apart, in_place = mix_models(models(), H), mix_models(spare, H, overwrite=True)
    for y, again in zip(apart, in_place, strict=True):
        assert {k: v.tobytes() for k, v in y.items()} == {k: v.tobytes() for k, v in again.items()}
    if graph != "complete":
        assert all(y is z for y, z in zip(in_place, spare, strict=True))


def test_hubs_that_mix_alike_share_one_model() -> None:
    models = [{"float64": np.array([float(k)])} for k in range(3)]
    first, *others = mix_models(models, np.tile([[0.2], [0.3], [0.5]], 3))
    assert all(other is first for other in others)
    assert first["float64"][0] == pytest.approx(1.3)
