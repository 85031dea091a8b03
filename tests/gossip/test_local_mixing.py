"""Mixing from what a hub knows of its neighbours equals mixing by the whole H."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.algorithm.corrections import smallest_eigenvalue
from mll_flower.algorithm.mixing import check_mixing, mixing_matrix
from mll_flower.gossip import Exchange, Snapshot, local_metropolis, mix_with_neighbours
from tests.support.random_networks import hub_graphs, weights

quick = settings(max_examples=100, deadline=None)


def snap(hub: str, weight: float, degree: int, **arrays: np.ndarray) -> Snapshot:
    return Snapshot("r", 1, hub, weight, degree, arrays)


@quick
@given(st.data(), hub_graphs(min_hubs=2))
def test_columns_are_those_of_the_global_metropolis(data: st.DataObject, graph) -> None:
    w = np.array(data.draw(st.lists(weights, min_size=len(graph), max_size=len(graph))))
    whole = mixing_matrix(graph, w / w.sum())
    snaps = [snap(str(d), float(w[d]), graph.degree[d]) for d in graph]
    H = np.zeros_like(whole)
    for d in graph:
        column = local_metropolis(snaps[d], [snaps[j] for j in graph.neighbors(d)])
        assert sum(column.values()) == pytest.approx(1.0, abs=1e-12)
        for j, h in column.items():
            assert h >= 0
            H[int(j), d] = h
    np.testing.assert_allclose(H, whole, atol=1e-12)
    np.testing.assert_allclose(H * w[None, :], (H * w[None, :]).T, rtol=1e-12)


@quick
@given(st.data(), hub_graphs(min_hubs=2), st.booleans())
def test_hubs_that_know_no_weight_take_and_give_nothing(
    data: st.DataObject, graph, positive: bool
) -> None:
    """Detailed balance holds with weights of zero, and only hubs that have one count in u."""
    size = len(graph)
    known = data.draw(st.lists(weights, min_size=size, max_size=size))
    w = np.array(known) * data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
    snaps = [snap(str(d), float(w[d]), graph.degree[d]) for d in graph]
    H = np.zeros((size, size))
    for d in graph:
        neighbours = [snaps[j] for j in graph.neighbors(d)]
        for j, h in local_metropolis(snaps[d], neighbours, positive).items():
            H[int(j), d] = h
    assert (H >= 0).all()
    np.testing.assert_allclose(H.sum(axis=0), 1.0)
    np.testing.assert_allclose(H * w, (H * w).T, rtol=1e-12)
    for d, j in graph.edges:
        assert H[j, d] > 0 or (w[j] == 0 and w[d] > 0)
        assert H[d, j] > 0 or (w[d] == 0 and w[j] > 0)
    if w.any():
        np.testing.assert_allclose(H @ (w / w.sum()), w / w.sum(), atol=1e-12)


@quick
@given(st.data(), hub_graphs(min_hubs=2))
def test_positive_columns_have_no_eigenvalue_below_minus_a_third(
    data: st.DataObject, graph
) -> None:
    w = np.array(data.draw(st.lists(weights, min_size=len(graph), max_size=len(graph))))
    snaps = [snap(str(d), float(w[d]), graph.degree[d]) for d in graph]
    H = np.zeros((len(graph), len(graph)))
    for d in graph:
        for j, h in local_metropolis(
            snaps[d], [snaps[j] for j in graph.neighbors(d)], True
        ).items():
            H[int(j), d] = h
    check_mixing(H, graph, w / w.sum())
    assert smallest_eigenvalue(H) >= -1 / 3 - 1e-9


@quick
@given(st.data(), hub_graphs(min_hubs=2))
def test_dropped_links_keep_the_averaged_model(data: st.DataObject, graph) -> None:
    w = data.draw(st.lists(weights, min_size=len(graph), max_size=len(graph)))
    dropped = data.draw(st.sets(st.sampled_from(sorted(graph.edges))))
    rng = np.random.default_rng(0)
    z = [rng.normal(size=5) for _ in graph]
    snaps = [snap(str(d), w[d], graph.degree[d], x=z[d]) for d in graph]
    y = []
    for d in graph:
        silent = {j for j in graph.neighbors(d) if tuple(sorted((d, j))) in dropped}
        arrived = {str(j): snaps[j] for j in graph.neighbors(d) if j not in silent}
        mixed, column = mix_with_neighbours(
            snaps[d], Exchange(arrived, {str(j): "cut" for j in silent})
        )
        assert set(column) == {str(d), *arrived}
        y.append(mixed["x"])
    np.testing.assert_allclose(np.average(y, axis=0, weights=w), np.average(z, 0, w), atol=1e-12)


def test_with_a_given_column_the_weight_of_a_silent_hub_goes_to_the_diagonal() -> None:
    own = snap("a", 1.0, 2, x=np.array([0.0]))
    arrived = snap("b", 1.0, 2, x=np.array([10.0]))
    column = {"a": 0.5, "b": 0.2, "c": 0.3}
    mixed, used = mix_with_neighbours(own, Exchange({"b": arrived}, {"c": "dead"}), column)
    assert used == pytest.approx({"a": 0.8, "b": 0.2})
    assert mixed["x"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("column", "message"),
    [({"a": 0.5, "b": 0.4}, "sums to 0.9"), ({"a": 0.5, "b": 0.2, "z": 0.3}, "'z': 0.3")],
)
def test_a_wrong_column_is_an_error(column: dict[str, float], message: str) -> None:
    own, arrived = (snap(hub, 1.0, 1, x=np.zeros(1)) for hub in "ab")
    with pytest.raises(ValueError, match=message):
        mix_with_neighbours(own, Exchange({"b": arrived}, {}), column)


def test_more_neighbours_than_the_degree_is_an_error() -> None:
    with pytest.raises(ValueError, match="degree 1 but 2"):
        local_metropolis(snap("a", 1, 1), [snap("b", 1, 1), snap("c", 1, 1)])


def test_mixing_keeps_dtypes_and_shapes() -> None:
    def arrays(value: float) -> dict[str, np.ndarray]:
        return {
            "half": np.full((2, 2), value, np.float16),
            "count": np.array(int(value), np.int64),
            "none": np.zeros((0, 3), np.float32),
        }

    own, other = snap("a", 1, 1, **arrays(1)), snap("b", 1, 1, **arrays(4))
    mixed, _ = mix_with_neighbours(own, Exchange({"b": other}, {}))
    assert {n: (x.dtype, x.shape) for n, x in mixed.items()} == {
        n: (x.dtype, x.shape) for n, x in own.arrays.items()
    }
    assert (mixed["half"] == 2.5).all()
    assert mixed["count"] == 2  # 2.5 rounds to even
