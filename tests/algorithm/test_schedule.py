"""The simulated clock: when rounds start and end, and after which of them hubs mix."""

from __future__ import annotations

import numpy as np

from mll_flower.algorithm.coins import slots_until
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import Round, check_periods, rounds


def test_deadline_rounds_last_tau_slots() -> None:
    network = HubNetwork.build(hubs=3, workers_per_hub=2, rates=0.3)
    found = list(rounds(network, tau=8, q=3, slots=59, seed=1))
    assert [r.number for r in found] == [1, 2, 3, 4, 5, 6, 7]
    assert [r.slot for r in found] == [8, 16, 24, 32, 40, 48, 56]
    assert [r.mixes for r in found] == [False, False, True, False, False, True, False]
    for r in found:
        np.testing.assert_array_equal(r.start, [r.slot - 8] * 3)
        np.testing.assert_array_equal(r.end, [r.slot] * 3)


def test_a_round_that_ends_with_the_last_slot_counts() -> None:
    network = HubNetwork.build(hubs=2)
    assert len(list(rounds(network, tau=8, q=1, slots=16, seed=1))) == 2
    assert len(list(rounds(network, tau=8, q=1, slots=15, seed=1))) == 1


def test_wait_for_all_rounds_last_until_the_slowest_worker_is_done() -> None:
    network = HubNetwork.build(
        workers_per_hub=[2, 1, 3], graph="path", rates=[0.5, 1, 1, 0.2, 0.9, 0.7]
    )
    tau, q, seed = 5, 3, 11
    now = [0, 0, 0]
    found = list(rounds(network, tau, q, slots=400, seed=seed, wait_for_all=True))
    assert len(found) > 6
    for number, r in enumerate(found, start=1):
        end = []
        for hub in range(3):
            longest = max(
                slots_until(seed, int(i), number, tau, network.p[i]) for i in network.members(hub)
            )
            end.append(now[hub] + longest)
        assert isinstance(r, Round)
        assert (r.number, r.mixes) == (number, number % q == 0)
        np.testing.assert_array_equal(r.start, now)
        np.testing.assert_array_equal(r.end, end)
        # Between mixings hubs keep their own pace; at a mixing all wait for the slowest.
        now = [max(end)] * 3 if r.mixes else end
    assert any(len(set(r.start.tolist())) > 1 for r in found)
    assert found[-1].slot <= 400


def test_wait_for_all_at_full_rate_takes_the_slots_of_deadline_rounds() -> None:
    network = HubNetwork.build(hubs=2, workers_per_hub=3, rates=1.0)
    waiting = [r.slot for r in rounds(network, 4, 2, 40, seed=1, wait_for_all=True)]
    assert waiting == [r.slot for r in rounds(network, 4, 2, 40, seed=1)]


def test_check_periods_accepts_numpy_integers() -> None:
    check_periods(np.int64(3), 1)
