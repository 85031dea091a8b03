"""Corrections in the strategies, on Flower's own grid: they equal the readable algorithm."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedMedian

from mll_flower import (
    Corrections,
    GossipingHubStrategy,
    HubNetwork,
    MultiLevelStrategy,
    mixing_matrix,
    worker_correction,
)
from mll_flower.algorithm.corrected_reference import CorrectedHistory, corrected_mll_sgd
from mll_flower.gossip import InProcessBoard, InProcessGossip
from mll_flower.strategies.corrections.gossip import PATIENCE, Link
from mll_flower.strategies.corrections.rates import CUTOFF, MeasuredRates
from tests.support.arrays import record
from tests.support.flower_grid import Nodes, client_app, run, unpack

TAU, Q, ROUNDS, ETA = 3, 2, 8, 0.1
TARGETS = np.random.default_rng(5).normal(size=(8, 6))
P = np.linspace(0.3, 1.0, 8)
COINS = np.random.default_rng(2).random((TAU * ROUNDS, 8)) < P


def network(graph: str = "path", p: Any = P) -> HubNetwork:
    return HubNetwork.build(
        workers_per_hub=[2, 1, 2, 3], graph=graph, weights=np.arange(1.0, 9.0), rates=p
    )


def gradient(worker: int, slot: int, x: np.ndarray) -> np.ndarray:
    return x - TARGETS[worker] + 0.01 * slot


def app(first: int = 0, applies: bool = True) -> ClientApp:
    """A worker that takes the steps that its coins give it, and opts in to worker correction."""
    made = ClientApp()

    @made.train()
    def train(message: Message, context: Context) -> Message:
        worker = int(context.node_config["partition-id"])
        config, correction = message.content["config"], worker_correction(message)
        model = {"x": unpack(message.content["arrays"])["x"].copy()}
        before = (int(config["round"]) - 1) * TAU
        slots = [k for k in range(before, before + TAU) if COINS[k, worker]]
        for slot in correction.pace(slots, model):
            model["x"] -= ETA * gradient(worker, slot + 1, model["x"])
        metrics = {"num-examples": worker + 1.0, "steps": len(slots)}
        if applies:
            metrics |= correction.metrics
        content = {"arrays": record(model), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(content), reply_to=message)

    return made


def expected(settings: Corrections, graph: str = "path", H: Any = None) -> CorrectedHistory:
    net = network(graph)
    H = mixing_matrix(net.graph, net.b, "metropolis") if H is None else H
    given = (gradient, net, H, TAU, Q, ETA, COINS, np.zeros(6), settings)
    return corrected_mll_sgd(*given, rate_in_hub=True)


def together(settings: Corrections, graph: str = "path", **more: Any) -> MultiLevelStrategy:
    return MultiLevelStrategy(
        network(graph),
        mixing="metropolis",
        tau=TAU,
        q=Q,
        corrections=settings,
        fraction_evaluate=0.0,
        **more,
    )


CASES = [
    Corrections(rate="inverse"),
    Corrections(rate="inverse", rate_cap=1.5, mean_rate=0.5),
    Corrections(hub="exact-diffusion"),
    Corrections(hub="exact-diffusion", rate="inverse"),
    Corrections(worker="mtgc"),
    Corrections(worker="mtgc", hub="exact-diffusion", outer="slowmo"),
    Corrections(outer="slowmo", outer_rate=0.8),
    Corrections(precision="half"),
    Corrections("inverse", 100, 0, "exact-diffusion", "mtgc", "slowmo", 0.9, 0.2, "half"),
]


def hubs_of(strategy: Any) -> np.ndarray:
    return np.array([hub.model["float64"] for hub in strategy.hubs])


@pytest.mark.parametrize("settings", CASES, ids=str)
def test_all_hubs_on_one_grid(settings: Corrections) -> None:
    strategy = together(settings)
    with Nodes(app(), 8) as nodes:
        run(strategy, nodes, {"x": np.zeros(6)}, ROUNDS)
    history = expected(settings)
    np.testing.assert_allclose(hubs_of(strategy), history.hubs[-1], rtol=0, atol=1e-10)
    assert np.abs(history.hubs[-1] - expected(Corrections()).hubs[-1]).max() > 1e-5


def test_a_known_step_size_gives_the_same() -> None:
    settings = Corrections(hub="exact-diffusion", worker="mtgc")
    strategies = [together(settings), together(settings, step_size=lambda round: ETA)]
    with Nodes(app(), 8) as nodes:
        for strategy in strategies:
            run(strategy, nodes, {"x": np.zeros(6)}, ROUNDS)
    np.testing.assert_allclose(hubs_of(strategies[0]), hubs_of(strategies[1]), atol=1e-12)
    drift = strategies[1].corrector.states[0].drift["float64"]
    np.testing.assert_allclose(drift, expected(settings).hub_drift[-1][0], atol=1e-10)


def test_a_run_continues_with_every_correction_to_the_bit() -> None:
    settings = CASES[-1]
    with Nodes(app(), 8) as nodes:
        whole, first, second = (together(settings) for _ in range(3))
        run(whole, nodes, {"x": np.zeros(6)}, 7)
        run(first, nodes, {"x": np.zeros(6)}, 3)
        saved = {name: array.copy() for name, array in first.correction_state().items()}
        second.restore(first.round, first.hub_models(), saved)
        run(second, nodes, {"x": np.zeros(6)}, 4)
    assert hubs_of(second).tobytes() == hubs_of(whole).tobytes()


def test_without_tau_a_client_app_needs_no_change() -> None:
    """Hub correction counts a round as one step, and replies need not report any."""

    def train(partition, arrays, config):
        goal = TARGETS[partition]
        return {"x": arrays["x"] + 0.1 * (goal - arrays["x"])}, {"num-examples": 1}

    plain, corrected = (
        MultiLevelStrategy(hubs=4, graph="path", fraction_evaluate=0.0, corrections=settings)
        for settings in (None, Corrections(hub="exact-diffusion"))
    )
    with Nodes(client_app(train), 8) as nodes:
        for strategy in (plain, corrected):
            run(strategy, nodes, {"x": np.zeros(6)}, 80)
    spread = [np.ptp(hubs_of(strategy), axis=0).max() for strategy in (plain, corrected)]
    assert spread[0] > 0.1
    assert spread[1] < 1e-2
    np.testing.assert_allclose(hubs_of(corrected)[0], TARGETS.mean(axis=0), atol=0.01)


def test_replies_without_steps_are_absent() -> None:
    def train(partition, arrays, config):
        return {"x": arrays["x"] + 1}, {"num-examples": 1}

    reports = []
    strategy = together(Corrections(hub="exact-diffusion"), on_round=reports.append)
    with Nodes(client_app(train), 8) as nodes, pytest.raises(RuntimeError):
        run(strategy, nodes, {"x": np.zeros(6)}, 1)
    absent = reports[0].hubs[0].absent
    assert {str(a.cause) for a in absent} == {"no-steps"}
    assert "mll_flower.budget" in absent[0].why


def test_an_outer_step_needs_no_steps_in_replies() -> None:
    def train(partition, arrays, config):
        return {"x": arrays["x"] + 1}, {"num-examples": 1}

    strategy = together(Corrections(outer="slowmo", outer_rate=2.0, outer_momentum=0.0))
    with Nodes(client_app(train), 8) as nodes:
        run(strategy, nodes, {"x": np.zeros(6)}, 2)
    np.testing.assert_allclose(hubs_of(strategy), 4.0)


def test_workers_must_say_that_they_are_corrected() -> None:
    reports = []
    strategy = together(Corrections(worker="mtgc"), on_round=reports.append)
    with Nodes(app(applies=False), 8) as nodes, pytest.raises(RuntimeError):
        run(strategy, nodes, {"x": np.zeros(6)}, 1)
    assert "mll_flower.worker_correction" in reports[0].hubs[0].absent[0].why


def test_the_sum_of_corrections_survives_workers_that_leave() -> None:
    seen = []

    def after(report) -> None:
        states = strategy.corrector.states
        weights = [hub.weight for hub in strategy.hubs]
        drifts = np.array([state.drift["float64"] for state in states])
        seen.append((weights, drifts.copy()))
        if report.number == 3:
            nodes.leave(7)

    strategy = MultiLevelStrategy(
        hubs=3,
        graph="path",
        tau=TAU,
        corrections=Corrections(hub="exact-diffusion"),
        fraction_evaluate=0.0,
        on_round=after,
    )
    with Nodes(app(), 8) as nodes:
        run(strategy, nodes, {"x": np.zeros(6)}, 4)
    assert seen[-1][0] != seen[-2][0]
    for weights, drifts in seen[1:]:
        assert np.abs(drifts).max() > 0.01
        assert np.abs(weights @ drifts).max() < 1e-12


def test_h_with_a_small_eigenvalue_is_replaced_and_that_is_said(caplog) -> None:
    graph = nx.complete_bipartite_graph(5, 5)
    strategy = MultiLevelStrategy(
        hubs=10,
        graph=graph,
        corrections=Corrections(hub="exact-diffusion"),
        fraction_evaluate=0.0,
    )
    still = client_app(lambda partition, arrays, config: (arrays, {"num-examples": 1}))
    with Nodes(still, 10) as nodes, caplog.at_level(logging.WARNING):
        run(strategy, nodes, {"x": np.zeros(6)}, 2)
    assert np.linalg.eigvalsh(strategy.mixing_matrix())[0] > -1e-9
    assert caplog.text.count("the hubs mix with (I + H) / 2") == 1


@pytest.mark.parametrize(
    ("settings", "more", "named"),
    [
        (Corrections(rate="inverse"), {"tau": None}, "rate-correction without tau"),
        (Corrections(worker="mtgc"), {"tau": None}, "worker-correction without tau"),
        (Corrections(rate="inverse"), {"absent": "renormalise"}, "absent='renormalise'"),
        (Corrections(worker="mtgc"), {"inner_strategy": FedMedian()}, "with inner_strategy"),
        ("inverse", {}, "give mll_flower.Corrections"),
    ],
    ids=str,
)
def test_what_cannot_be_together_is_refused(settings, more, named) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        MultiLevelStrategy(hubs=2, corrections=settings, **{"tau": 3, **more})


def test_measured_rates_are_mean_intervals_with_a_cutoff() -> None:
    rates = MeasuredRates(tau=4)
    for round in range(1000):
        steps = {0: 4, 1: 2 if round % 4 == 3 else 0, 2: 0}
        rates.count(steps, {0: 1.0, 1: 2.0, 2: 1.0})
        rates.observe(steps)
    assert rates.inverse_participation(0) == 1
    assert rates.inverse_participation(1) == 4
    assert rates.inverse_participation(2) == CUTOFF
    assert rates.mean == pytest.approx(0.25 * 1 + 0.5 * 0.125)
    again = MeasuredRates(tau=4)
    again.restore(rates.state())
    assert again.mean == rates.mean
    assert again.inverse_participation(1) == 4
    assert MeasuredRates(4).inverse_participation(7) == MeasuredRates(4).mean == 1


def test_measured_rates_bring_u_back_to_the_objective() -> None:
    """Without a network, rates are measured; the steps are small, and so is the bias left."""
    p = np.array([0.2, 1.0, 0.2, 1.0])
    coins = np.random.default_rng(3).random((4 * 160, 4)) < p

    def train(worker, arrays, config):
        x, before = arrays["x"], (int(config["round"]) - 1) * 4
        taken = int(coins[before : before + 4, worker].sum())
        for _ in range(taken):
            x = x - 0.03 * (x - TARGETS[worker])
        return {"x": x}, {"num-examples": 1, "steps": taken}

    found = []
    with Nodes(client_app(train), 4) as nodes:
        for settings in (None, Corrections(rate="inverse")):
            strategy = MultiLevelStrategy(
                hubs=2, tau=4, corrections=settings, fraction_evaluate=0.0
            )
            models: list[np.ndarray] = []
            run(
                strategy,
                nodes,
                {"x": np.zeros(6)},
                160,
                evaluate_fn=lambda r, a, models=models: models.append(unpack(a)["x"]) or None,
            )
            found.append(np.linalg.norm(np.mean(models[80:], axis=0) - TARGETS[:4].mean(axis=0)))
    assert found[0] > 0.4
    assert found[1] < 0.15


# --- Hubs that gossip ---


def gossiping(settings: Corrections, board: InProcessBoard, neighbours: list[list[str]]) -> list:
    return [
        GossipingHubStrategy(
            InProcessGossip(board, str(d), near, "run"),
            tau=TAU,
            q=Q,
            gossip_deadline=60,
            corrections=settings,
            fraction_evaluate=0.0,
            min_available_nodes=1,
        )
        for d, near in enumerate(neighbours)
    ]


def play(strategies: list, rounds: int, stack: ExitStack, start: Any = None) -> None:
    """Run hubs on grids of their own, in threads; their workers are those of `network`."""
    first = [0, 2, 3, 5, 8]
    with ThreadPoolExecutor(4) as threads:
        runs = []
        for d, strategy in enumerate(strategies):
            config = partial(lambda low, k: {"partition-id": low + k}, first[d])
            grid = stack.enter_context(Nodes(app(), first[d + 1] - first[d], config))
            runs.append(threads.submit(run, strategy, grid, {"x": np.zeros(6)}, rounds))
        for future in runs:
            future.result(120)


PATH = [["1"], ["0", "2"], ["1", "3"], ["2"]]


@pytest.mark.parametrize(
    "settings",
    [
        Corrections(hub="exact-diffusion"),
        Corrections(hub="exact-diffusion", worker="mtgc", outer="slowmo"),
        Corrections(precision="half"),
    ],
    ids=str,
)
def test_hubs_that_gossip(settings: Corrections) -> None:
    board = InProcessBoard()
    strategies = gossiping(settings, board, PATH)
    with ExitStack() as stack:
        play(strategies, ROUNDS, stack)
    history = expected(settings)
    found = np.concatenate([hubs_of(strategy) for strategy in strategies])
    np.testing.assert_allclose(found, history.hubs[-1], rtol=0, atol=1e-10)
    if settings.hub != "none":
        flows = sum(link.flow["float64"] for s in strategies for link in s.corrector.links.values())
        assert np.abs(flows).max() < 1e-12


def test_a_hub_that_gossips_needs_the_mean_rate() -> None:
    with pytest.raises(ValueError, match="needs mean-rate"):
        gossiping(Corrections(rate="inverse"), InProcessBoard(), PATH)


def test_hubs_on_a_star_halve_their_links() -> None:
    """Each hub keeps at least a third of its own model, whatever the weights."""
    settings = Corrections(hub="exact-diffusion")
    strategies = gossiping(settings, InProcessBoard(), [["1", "2", "3"], ["0"], ["0"], ["0"]])
    with ExitStack() as stack:
        play(strategies, ROUNDS, stack)
    net = network("star")
    H = mixing_matrix(net.graph, net.b, "metropolis")
    history = expected(settings, "star", (np.eye(4) + H) / 2)
    found = np.concatenate([hubs_of(strategy) for strategy in strategies])
    np.testing.assert_allclose(found, history.hubs[-1], rtol=0, atol=1e-10)


def test_a_hub_that_comes_back_with_nothing_begins_anew_at_both_ends() -> None:
    settings = Corrections(hub="exact-diffusion")
    board = InProcessBoard()
    strategies = gossiping(settings, board, PATH)
    with ExitStack() as stack:
        play(strategies, 4, stack)
        lost = strategies[1].corrector
        lost.links = {}
        for strategy in strategies:
            models, state = strategy.hub_models(), strategy.correction_state()
            strategy.restore(strategy.round, models, state)
        play(strategies, 2, stack)
    links = {
        (d, j): link for d, s in enumerate(strategies) for j, link in s.corrector.links.items()
    }
    assert links[1, "0"].uses == links[0, "1"].uses == 1
    assert links[2, "3"].uses == links[3, "2"].uses == 3
    flows = sum(link.flow["float64"] for link in links.values())
    assert np.abs(flows).max() < 1e-12
    assert np.abs(links[2, "3"].flow["float64"]).max() > 0.01


def test_the_flow_of_a_link_that_stays_silent_is_forgotten() -> None:
    corrector = gossiping(Corrections(hub="exact-diffusion"), InProcessBoard(), PATH)[0].corrector
    corrector.links["1"] = Link({"float64": np.ones(6)}, 5)
    for _ in range(PATIENCE - 1):
        corrector._miss("1")
    assert corrector.links["1"].uses == 5
    corrector._miss("1")
    assert not corrector.links
