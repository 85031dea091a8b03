"""Rounds that give no model: floats are cast, zero weighs nothing, and the rest is loud."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from flwr.client.mod import secaggplus_mod
from flwr.serverapp.strategy import FedAvg, FedMedian

from mll_flower import GossipingHubStrategy, MultiLevelStrategy, RoundReport
from mll_flower.gossip import InProcessBoard, InProcessGossip
from tests.support.flower_grid import Nodes, client_app, run, unpack


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]


# --- Another floating-point dtype ---


@pytest.mark.parametrize("inner", [None, FedAvg(), FedMedian()])
@pytest.mark.parametrize("model", ["float16", "float32", "float64"])
@pytest.mark.parametrize("reply", ["float16", "float32", "float64", ">f4"])
def test_floats_of_another_dtype_are_cast_to_the_models(model: str, reply: str, inner) -> None:
    def train(partition, arrays, config):
        return {"x": (arrays["x"] + partition).astype(reply)}, {"num-examples": 1}

    reports: list[RoundReport] = []
    strategy = MultiLevelStrategy(
        hubs=1, inner_strategy=inner, fraction_evaluate=0.0, on_round=reports.append
    )
    with Nodes(client_app(train), 3) as nodes:
        result = run(strategy, nodes, {"x": np.zeros(3, model)}, 2)
    assert not any(hub.absent for report in reports for hub in report.hubs)
    assert result.arrays["x"].dtype == model
    assert unpack(result.arrays)["x"].tolist() == pytest.approx([2.0] * 3, abs=0.01)


def test_a_number_that_does_not_fit_the_models_dtype_is_not_finite() -> None:
    def train(partition, arrays, config):
        return {"x": np.full(2, 1e300 if partition else 1.0)}, {"num-examples": 1}

    reports: list[RoundReport] = []
    strategy = MultiLevelStrategy(hubs=1, fraction_evaluate=0.0, on_round=reports.append)
    with Nodes(client_app(train), 2) as nodes:
        run(strategy, nodes, {"x": np.zeros(2, np.float32)}, 1)
    assert [absent.cause for absent in reports[0].hubs[0].absent] == ["not-finite"]


# --- A weight of zero ---


def weighs(*weights: int):
    def train(partition, arrays, config):
        return {"x": arrays["x"] + partition + 1}, {"num-examples": weights[partition], "loss": 1.0}

    return client_app(train)


@pytest.mark.parametrize("absent", ["keep", "renormalise"])
@pytest.mark.parametrize("inner", [None, FedAvg()])
def test_zero_examples_weigh_nothing_as_in_fedavg(absent: str, inner) -> None:
    reports: list[RoundReport] = []
    strategy = MultiLevelStrategy(
        hubs=1,
        absent=absent,
        inner_strategy=inner,
        fraction_evaluate=0.0,
        on_round=reports.append,
    )
    with Nodes(weighs(3, 0, 1), 3) as nodes:
        ours = run(strategy, nodes, {"x": np.zeros(2)}, 2)
        theirs = run(FedAvg(fraction_evaluate=0.0), nodes, {"x": np.zeros(2)}, 2)
    assert unpack(ours.arrays)["x"].tobytes() == unpack(theirs.arrays)["x"].tobytes()
    assert unpack(ours.arrays)["x"].tolist() == [2 * (3 * 1 + 1 * 3) / 4] * 2
    assert not reports[0].hubs[0].absent


@pytest.mark.parametrize("inner", [None, FedAvg()])
def test_a_hub_in_which_all_weigh_nothing_keeps_its_model_and_counts_as_one_worker(inner) -> None:
    # Hub 0 has the workers 0 and 2 (4 and 2 examples), hub 1 the workers 1 and 3 (none).
    strategy = MultiLevelStrategy(hubs=2, q=9, inner_strategy=inner, fraction_evaluate=0.0)
    with Nodes(weighs(4, 0, 2, 0), 4) as nodes:
        result = run(strategy, nodes, {"x": np.zeros(2)}, 1)
    own = (4 * 1 + 2 * 3) / 6
    hub_models = [unpack(m)["x"].tolist() for m in strategy.hub_models()]
    np.testing.assert_allclose(hub_models, [[own] * 2, [0.0] * 2])
    mean = 6 / 4  # of the four known weights
    np.testing.assert_allclose(strategy.shares(), [6 / (6 + mean), mean / (6 + mean)])
    np.testing.assert_allclose(unpack(result.arrays)["x"], own * 6 / (6 + mean))
    strategy.mixing_matrix()  # all shares are positive, so H exists


def test_a_hub_keeps_its_last_positive_weight() -> None:
    def train(partition, arrays, config):
        weight = 5 if config["round"] == 1 else 0
        return {"x": arrays["x"] + 1}, {"num-examples": weight if partition else 5}

    strategy = MultiLevelStrategy(hubs=2, q=9, fraction_evaluate=0.0)
    with Nodes(client_app(train), 2) as nodes:
        run(strategy, nodes, {"x": np.zeros(2)}, 2)
    assert [unpack(m)["x"].tolist() for m in strategy.hub_models()] == [[2, 2], [1, 1]]
    np.testing.assert_allclose(strategy.shares(), [0.5, 0.5])


def test_a_run_in_which_all_weigh_nothing_fails() -> None:
    strategy = MultiLevelStrategy(hubs=2, fraction_evaluate=0.0)
    with (
        Nodes(weighs(0, 0, 0, 0), 4) as nodes,
        pytest.raises(RuntimeError, match="none of the 2 rounds"),
    ):
        run(strategy, nodes, {"x": np.zeros(2)}, 2)


# --- Rounds in which nobody was usable ---


def broken(partition, arrays, config):
    raise RuntimeError("the GPU is on fire")


def test_a_run_without_any_usable_reply_fails_and_says_why(caplog) -> None:
    strategy = MultiLevelStrategy(hubs=2, fraction_evaluate=0.0)
    with (
        Nodes(client_app(broken), 4) as nodes,
        pytest.raises(RuntimeError, match=r"(?s)none of the 2 rounds.*4 raised.*GPU is on fire"),
    ):
        run(strategy, nodes, {"x": np.zeros(2)}, 2)
    told = errors(caplog)
    assert len(told) == 2
    assert "Round 1: no hub got a new model" in told[0]


def test_one_usable_round_is_enough_but_the_others_are_errors(caplog) -> None:
    def train(partition, arrays, config):
        if config["round"] != 2:
            raise RuntimeError("not now")
        return {"x": arrays["x"] + 1}, {"num-examples": 1}

    with Nodes(client_app(train), 4) as nodes:
        result = run(
            MultiLevelStrategy(hubs=2, fraction_evaluate=0.0), nodes, {"x": np.zeros(2)}, 3
        )
    assert unpack(result.arrays)["x"].tolist() == [1, 1]
    assert [text.partition(":")[0] for text in errors(caplog)] == ["Round 1", "Round 3"]


def test_secure_aggregation_is_named_as_the_cause() -> None:
    app = client_app(lambda p, a, c: (a, {"num-examples": 1}), mods=[secaggplus_mod])
    with (
        Nodes(app, 2) as nodes,
        pytest.raises(RuntimeError, match=r"(?s)Secure aggregation.*not supported"),
    ):
        run(MultiLevelStrategy(hubs=1, fraction_evaluate=0.0), nodes, {"x": np.zeros(2)}, 1)


def test_a_run_without_training_rounds_does_not_fail() -> None:
    with Nodes(weighs(1, 1), 2) as nodes:
        strategy = MultiLevelStrategy(hubs=1, fraction_train=0.0, fraction_evaluate=0.0)
        run(strategy, nodes, {"x": np.zeros(2)}, 2)
        run(MultiLevelStrategy(hubs=1, fraction_evaluate=0.0), nodes, {"x": np.zeros(2)}, 0)


# --- One hub of a deployment ---


def lonely_hub(neighbours: list[str], board: InProcessBoard, name: str = "a", seconds: float = 0.3):
    link = InProcessGossip(board, name, neighbours, "run")
    return GossipingHubStrategy(
        link, gossip_deadline=seconds, neighbour_timeout=seconds, fraction_evaluate=0.0
    )


def test_a_gossiping_hub_without_workers_and_neighbours_fails(caplog) -> None:
    with (
        Nodes(client_app(broken), 2) as nodes,
        pytest.raises(RuntimeError, match="none of the 2 rounds"),
    ):
        run(lonely_hub(["b"], InProcessBoard()), nodes, {"x": np.zeros(2)}, 2)
    assert len(errors(caplog)) == 2


def test_a_gossiping_hub_without_workers_learns_from_its_neighbours(caplog) -> None:
    board = InProcessBoard()
    alone, other = lonely_hub(["b"], board, "a", 60), lonely_hub(["a"], board, "b", 60)
    with (
        Nodes(client_app(broken), 2) as bad,
        Nodes(weighs(1, 1), 2) as good,
        ThreadPoolExecutor(2) as threads,
    ):
        runs = [
            threads.submit(run, strategy, nodes, {"x": np.zeros(2)}, 1)
            for strategy, nodes in ((alone, bad), (other, good))
        ]
        result, _ = (future.result(60) for future in runs)
    assert unpack(result.arrays)["x"].tolist() == [0.75, 0.75]  # half of the neighbour's 1.5
    assert len(errors(caplog)) == 1


def test_a_gossiping_hub_that_has_come_back_may_end_without_workers() -> None:
    strategy = lonely_hub([], InProcessBoard())
    strategy.restore(7, [{"float64": np.full(2, 3.0)}])
    with Nodes(client_app(broken), 2) as nodes:
        result = run(strategy, nodes, {"x": np.zeros(2)}, 1)
    assert unpack(result.arrays)["x"].tolist() == [3, 3]


def test_a_gossiping_hub_that_has_come_back_goes_on_without_any_worker() -> None:
    strategy = lonely_hub([], InProcessBoard())
    strategy.restore(7, [{"float64": np.full(2, 3.0)}])
    strategy._begun = True  # as a deployed hub, which has waited for its workers
    with Nodes(client_app(broken), 0) as nodes:
        result = run(strategy, nodes, {"x": np.zeros(2)}, 2)
    assert unpack(result.arrays)["x"].tolist() == [3, 3]
    assert strategy.round == 9
