"""Which graphs the links allow, what candidates cost, and what theory drops."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from mll_flower.planning.candidates import Candidate, Costs, possible_graphs
from mll_flower.planning.plan_file import GRAPHS
from mll_flower.planning.pruning import first_and_best, judge, prune
from mll_flower.timing.clock import Clock


def clock(exchange: np.ndarray, workers: int = 2, slow: float = 1.0) -> Clock:
    """Hubs with these seconds between them, two workers each, the second with slow steps."""
    hubs = len(exchange)
    return Clock(
        names=tuple("abcdefghij"[:hubs]),
        hub_of=np.repeat(np.arange(hubs), workers),
        slot=1.0,
        step_seconds=np.tile([1.0, slow], hubs)[None],
        latency=np.full(hubs * workers, 2.0),
        per_byte=np.zeros(hubs * workers),
        link_latency=exchange,
        link_per_byte=np.where(np.isfinite(exchange), 0.0, np.inf),
        hub_per_byte=np.zeros(hubs),
    )


def seconds(pairs: dict[tuple[int, int], float], hubs: int, other: float = np.inf) -> np.ndarray:
    matrix = np.full((hubs, hubs), other)
    np.fill_diagonal(matrix, np.inf)
    for (i, j), value in pairs.items():
        matrix[i, j] = matrix[j, i] = value
    return matrix


def test_graphs_where_every_link_exists() -> None:
    # All links take 9 s, but for those of the ring 0 - 2 - 1 - 3 - 0.
    fast = {(0, 2): 1.0, (1, 2): 1.0, (1, 3): 1.0, (0, 3): 2.0}
    graphs = possible_graphs(Costs(clock(seconds(fast, 4, 9.0)), 1), GRAPHS)
    assert set(graphs) == {"complete", "ring", "star", "tree", "one-server"}
    assert set(graphs["ring"]) == set(fast)
    assert set(graphs["tree"]) == {(0, 2), (1, 2), (1, 3)}
    assert graphs["one-server"] == ()
    # "links" would be the complete graph again.
    assert len(graphs["complete"]) == 6


def test_graphs_where_links_are_missing() -> None:
    graphs = possible_graphs(Costs(clock(seconds({(0, 1): 1, (1, 2): 1, (2, 3): 1}, 4)), 1), GRAPHS)
    # A path: no ring, no star, and the tree is all there is.
    assert set(graphs) == {"links", "one-server"}
    star = seconds({(1, 0): 1, (1, 2): 1, (1, 3): 1, (0, 2): 5}, 4)
    graphs = possible_graphs(Costs(clock(star), 1), GRAPHS)
    assert set(graphs["star"]) == {(0, 1), (1, 2), (1, 3)}
    assert "ring" not in graphs
    assert "complete" not in graphs


def test_a_ring_of_many_hubs() -> None:
    hubs = 10
    ring = {(i, (i + 1) % hubs): 1.0 for i in range(hubs)}
    graphs = possible_graphs(Costs(clock(seconds(ring, hubs, 5.0)), 1), ("ring",))
    assert nx.is_isomorphic(nx.Graph(graphs["ring"]), nx.cycle_graph(hubs))
    assert {frozenset(edge) for edge in graphs["ring"]} == {frozenset(edge) for edge in ring}


def test_rounds_and_bytes_within_a_budget() -> None:
    costs = Costs(clock(seconds({(0, 1): 3.0}, 2)), 10)
    candidate = Candidate("links", ((0, 1),), "metropolis", 4, 2, False)
    # Rounds of 4 + 2 s; the mixing takes 3 s: they end at 6, 15, 21, 30, ...
    assert costs.rounds_within(candidate, 20.9, None, 1000) == 2
    assert costs.rounds_within(candidate, 21.0, None, 1000) == 3
    assert costs.rounds_within(candidate, 5.0, None, 1000) == 0
    assert costs.rounds_within(candidate, None, None, 17) == 4
    # Eight models per round, two per mixing, of 10 bytes each.
    assert [costs.bytes_after(candidate, n) for n in (1, 2, 3)] == [80, 180, 260]
    assert costs.rounds_within(candidate, None, 259.0, 1000) == 2
    assert costs.seconds_per_slot(candidate) == pytest.approx(15 / 8)


def test_theory_drops_what_is_slower_and_mixes_worse() -> None:
    exchange = seconds({}, 4, 1.0)
    costs, weights = Costs(clock(exchange, slow=4.0), 1), np.ones(8)
    complete = tuple((i, j) for i in range(4) for j in range(i + 1, 4))
    good = Candidate("complete", complete, "metropolis", 4, 1, False, zeta=0.0)
    # The same time and drift, with hubs that agree less: worse, whatever the problem.
    worse = Candidate("complete", complete, "metropolis", 4, 1, False, zeta=0.6)
    # Longer rounds save time and drift more: neither is better for sure.
    longer = Candidate("complete", complete, "metropolis", 8, 1, False, zeta=0.0)
    judged = [judge(candidate, costs, weights) for candidate in (good, worse, longer)]
    # Steps per second: 5 of 8 workers' steps per slot; a round of 4 + 2 s and 1 s of mixing.
    assert judged[0].seconds_per_step == pytest.approx(7 / 4 / (5 / 8))
    left, why = prune(judged, most=9, bytes_count=False)
    assert set(left) == {good, longer}
    assert "better in every term" in why[worse]
    left, why = prune(judged, most=1, bytes_count=False)
    assert len(left) == 1


def test_the_best_of_each_graph_stays() -> None:
    a, b, c = (
        Candidate(g, (), "metropolis", t, 1, False) for g, t in (("x", 1), ("x", 2), ("y", 1))
    )
    assert first_and_best([a, b, c], 2) == [a, c]
    assert first_and_best([a, b, c], 3) == [a, b, c]
    assert first_and_best([a, b, c], 1) == [a]
