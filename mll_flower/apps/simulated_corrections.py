"""Corrections in a simulated run: longer steps by known rates, on nodes of either kind.

A simulation knows the rates, so that workers take steps of size eta P / p(i) and hubs need not make
up for them. A node that hosts a whole hub (``pool = "hub"``) carries out the corrections of its
rounds itself: it gets Y(d) and c(i) with the message, and c(i) comes back with the reply. With one
worker per node, the hub does all that, as in a deployment. The bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord
from flwr.supercore import log

from mll_flower.algorithm.corrections import mean_rate, step_factors
from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import Round
from mll_flower.config import RunConfig
from mll_flower.models.corrections import Corrected, HubState
from mll_flower.models.layout import Layout
from mll_flower.strategies.corrections.corrector import Corrector
from mll_flower.strategies.hub import Hub
from mll_flower.strategies.multi_level import MultiLevelStrategy
from mll_flower.strategies.reports import HubRound
from mll_flower.training.corrected_rounds import HostedHub, HostedWorker, RoundCorrection
from mll_flower.training.worker_correction import worker_correction

_GRADIENTS = "worker-gradients"
# Steps per round below which a worker's mean gradient is little more than that of one batch.
_FEW_STEPS = 2


class SimulatedCorrector(Corrector):
    """The corrections of a simulated run.

    Parameters
    ----------
    config : RunConfig
        The run.
    network : HubNetwork
        The network, with its true weights.
    strategy : MultiLevelStrategy
        Whose hubs they are of.
    learning_rate : callable
        eta of a hub in a round.
    rounds_of : callable
        The rounds that a message covers.
    """

    _needs_word = False

    def __init__(
        self,
        config: RunConfig,
        network: HubNetwork,
        strategy: MultiLevelStrategy,
        learning_rate: Callable[[int, Round], float],
        rounds_of: Callable[[int], list[Round]],
    ) -> None:
        settings = config.corrections
        super().__init__(settings, config.tau, config.q, None, None, strategy.worker_of.__getitem__)
        self._network, self._hosts_hubs = network, config.pool == "hub"
        self._learning_rate, self._rounds_of = learning_rate, rounds_of
        self._factors = step_factors(network, settings)
        inverse = settings.rate != "none"
        self._drift_steps = config.tau * mean_rate(network, settings) if inverse else 0.0
        self._tell_of_cap()
        self._tell_of_few_steps(config.tau)

    def _tell_of_cap(self) -> None:
        capped = (self._factors == self.settings.rate_cap).sum()
        if self.settings.rate != "none" and capped:
            log(
                WARNING,
                "rate-correction: %d workers would need steps longer than rate-cap=%g times the "
                "step size, so that they count for less than their shares",
                capped,
                self.settings.rate_cap,
            )

    def _tell_of_few_steps(self, tau: int) -> None:
        few = (self._network.p * tau < _FEW_STEPS).sum()
        if self.settings.worker != "none" and few:
            log(
                WARNING,
                "worker-correction: %d workers take less than %d steps per round on average, so "
                "that the gradients they correct by are those of single batches: small batches of "
                "a neural network may diverge. If they do, use a larger tau or batch-size, or "
                "leave this correction off",
                few,
                _FEW_STEPS,
            )

    def step_size(self, hub: int) -> float:
        """See `Corrector.step_size`: that of the last round of the message."""
        return self._learning_rate(hub, self._rounds_of(self.round)[-1])

    def step_factor(self, node: int) -> float:
        """See `Corrector.step_factor`."""
        return float(self._factors[self.worker_key(node)])

    def steps_of(self, metrics: MetricRecord) -> object:
        """See `Corrector.steps_of`."""
        steps: Any = metrics["steps"]
        return sum(steps)

    def drift_steps(self) -> float:
        """See `Corrector.drift_steps`."""
        return self._drift_steps

    def request(self, place: int) -> Mapping[str, Any]:
        """Return what a message must say about corrections to a node."""
        if not self._hosts_hubs:
            return {"step-factors": [float(self._factors[place])]}
        members = self._network.members(place).tolist()
        request: dict[str, Any] = {
            "step-factors": [float(self._factors[i]) for i in members],
            "drift-steps": self._drift_steps,
        }
        state = self.states[place]
        if self.settings.hub != "none":
            request["hub-drift"] = state.entries.to_bytes([state.drift])
        if state.gradients:
            request[_GRADIENTS] = state.entries.to_bytes([state.gradients[i] for i in members])
        return request

    def begin(self, hubs: Sequence[Hub], messages: list[Message]) -> list[Message]:
        """See `Corrector.begin`; a node that hosts a hub has been told everything already."""
        return messages if self._hosts_hubs else super().begin(hubs, messages)

    def average(self, d: int, hub: Hub, result: HubRound) -> None:
        """See `Corrector.average`; a node that hosts a hub has done that."""
        if not self._hosts_hubs:
            super().average(d, hub, result)
            return
        for arrival in result.arrived:
            record = arrival.message.content.config_records.get("corrections")
            if record is not None:
                members, state = self._network.members(d).tolist(), self.states[d]
                data: Any = record[_GRADIENTS]
                gradients = state.entries.from_bytes(data, len(members))
                state.gradients = dict(zip(members, gradients, strict=True))


def correction_of(
    config: RunConfig, message: Message, layout: Layout, workers: Sequence[int]
) -> RoundCorrection | None:
    """Return what a simulated node does differently, by what a message says; None for nothing."""
    request: Any = message.content.config_records["config"]
    if "step-factors" not in request:
        return None
    factors = [float(factor) for factor in request["step-factors"]]
    if config.pool == "worker":
        return HostedWorker(factors[0], worker_correction(message).flat())
    state = HubState(config.corrections, Corrected(layout))
    if "hub-drift" in request:
        (state.drift,) = state.entries.from_bytes(request["hub-drift"], 1)
    if _GRADIENTS in request:
        gradients = state.entries.from_bytes(request[_GRADIENTS], len(workers))
        state.gradients = dict(zip(workers, gradients, strict=True))
    weights = [float(w) for w in request["weights"]]
    steps = float(request["drift-steps"])
    return HostedHub(state, workers, weights, factors, steps, config.absent_rule)


def reply_of(correction: RoundCorrection | None) -> dict[str, ConfigRecord]:
    """Return what a simulated node replies about corrections."""
    if not isinstance(correction, HostedHub) or not correction.state.gradients:
        return {}
    state = correction.state
    return {
        "corrections": ConfigRecord(
            {_GRADIENTS: state.entries.to_bytes(list(state.gradients.values()))}
        )
    }
