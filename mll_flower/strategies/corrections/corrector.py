"""`Corrector`: the corrections of one or more hubs, from round to round and at their mixings.

A strategy calls `prepare` and `begin` at the start of a round, `usable` and `average` with its
replies, and `mix` in place of the plain mixing. `state` and `restore` are for checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore import log
from numpy.typing import NDArray

from mll_flower.algorithm.corrections import Corrections, safe_for_exact_diffusion
from mll_flower.grids.absences import Absence
from mll_flower.models.corrections import (
    Corrected,
    HubState,
    OuterStep,
    mean_steps,
    mixed_in_half,
    rounded,
)
from mll_flower.models.hub_mixing import mix_models
from mll_flower.models.layout import Flat, Layout, Vector
from mll_flower.models.sums import is_finite, sum_records
from mll_flower.strategies.corrections.rates import Rates
from mll_flower.strategies.reports import Absent, Arrival, HubRound
from mll_flower.training.worker_correction import APPLIED, SHIFT

if TYPE_CHECKING:
    from mll_flower.strategies.hub import Hub

State = dict[str, NDArray[np.generic]]


class Corrector:
    """The corrections of a strategy's hubs.

    Parameters
    ----------
    settings : Corrections
        Which are on.
    tau : int, optional
        Slots per round. Without it, replies need not say how many steps their workers took: a
        round counts as one step of each.
    q : int
        Rounds between two mixings.
    rates : Rates, optional
        For ``rate = "inverse"``, where hubs make up for rates.
    step_size : callable, optional
        eta of a round, if it changes during the run. Y(d) and c(i) are else kept times eta, and
        nobody needs to know it.
    worker_key : callable
        Node id -> the number under which a worker's state is kept.
    """

    _needs_word = True  # whether replies must say that their workers took off what they were sent

    def __init__(
        self,
        settings: Corrections,
        tau: int | None,
        q: int,
        rates: Rates | None,
        step_size: Callable[[int], float] | None,
        worker_key: Callable[[int], int],
    ) -> None:
        self.settings = settings
        drift = (settings.rate, settings.hub, settings.worker) != ("none", "none", "none")
        self.counts_steps = tau is not None and drift
        self.tau, self.q = tau or 1, q
        self.rates = rates
        self.worker_key = worker_key
        self.round = 0
        self.states: list[HubState] = []
        self.outer: list[OuterStep] = []
        self._step_size = step_size
        self._sent: list[Flat] = []
        self._steps: dict[int, int] = {}
        self._shifts: dict[int, Flat] = {}
        self._weights: list[float] = []
        self._restored: Mapping[str, NDArray[np.generic]] | None = None
        self._told = False

    def shown(self) -> dict[str, object]:
        """Return the settings that are not the default, by name."""
        default = Corrections().to_keys()
        return {k: v for k, v in self.settings.to_keys().items() if v != default[k]}

    # What a simulation does in another way.

    def step_size(self, hub: int) -> float:
        """Return eta of a hub in the present round; 1 if it never changes."""
        return 1.0 if self._step_size is None else self._step_size(self.round)

    def step_factor(self, node: int) -> float:
        """Return the factor on a worker's step size."""
        return 1.0

    def steps_of(self, metrics: MetricRecord) -> object:
        """Return the steps that a reply reports."""
        return metrics.get("steps") if self.counts_steps else 1

    def drift_steps(self) -> float:
        """Return S(d) if it is the same for all hubs, which inverse rates make it; else 0."""
        return self.tau * self.rates.mean if self.rates is not None else 0.0

    # A round.

    def begin(self, hubs: Sequence[Hub], messages: list[Message]) -> list[Message]:
        """Return the messages of a round, with what workers must know."""
        self._sent = [hub.model for hub in hubs]
        self._shifts = {}
        if self.settings.worker == "none":
            return messages
        for d, hub in enumerate(hubs):
            weights = {self.worker_key(n): float(hub.weight_of(n)) for n in hub.nodes}
            self.states[d].begin(weights)
            for node in hub.nodes:
                eta = self.step_size(d) * self.step_factor(node)
                shift = self.states[d].shift(self.worker_key(node), eta)
                assert shift is not None
                self._shifts[node] = shift
        layout = hubs[0].layout
        return [_with_shift(m, layout, self._shifts[m.metadata.dst_node_id]) for m in messages]

    def usable(
        self, hubs: Sequence[Hub], replies: Iterable[Message], missing: Mapping[int, Absent]
    ) -> tuple[list[Message], dict[int, Absent]]:
        """Return the replies that say what corrections need, and who is missing."""
        good: list[Message] = []
        absent = dict(missing)
        self._steps = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            why = "" if reply.has_error() else self._read_steps(node, reply)
            if why:
                absent[node] = Absent(node, Absence.NO_STEPS, why)
            else:
                good.append(reply)
        if self.rates is not None:
            asked = self._steps.keys() | absent.keys()
            of = [(hub, node) for hub in hubs for node in hub.nodes if node in asked]
            self.rates.count(
                {self.worker_key(n): self._steps.get(n, 0) for _, n in of},
                {self.worker_key(n): float(hub.weight_of(n)) for hub, n in of},
            )
        return good, absent

    def _read_steps(self, node: int, reply: Message) -> str:
        """Note the steps that a reply reports; return why it cannot be used, if so."""
        metrics = next(iter(reply.content.metric_records.values()), MetricRecord())
        steps = self.steps_of(metrics)
        if not isinstance(steps, int) or not 0 <= steps < 1 << 31:
            return (
                f"metric 'steps' is {str(steps)[:60]}: corrections need the number of steps that "
                "the worker took, such as the `taken` of mll_flower.budget"
            )
        if self._shifts and self._needs_word and not metrics.get(APPLIED):
            return (
                f"metric {APPLIED!r} is missing: with worker-correction a ClientApp must use "
                "mll_flower.worker_correction, and say so in its reply"
            )
        self._steps[node] = steps
        return ""

    def average(self, d: int, hub: Hub, result: HubRound) -> None:
        """Correct the average that a hub has just made of its workers' replies."""
        state, sent, eta = self.states[d], self._sent[d], self.step_size(d)
        arrived = {a.node: a for a in result.arrived}
        gone = {a.node for a in result.absent}
        asked = [node for node in hub.nodes if node in arrived or node in gone]
        self._learn_gradients(d, hub, arrived)
        if hub.has_new_model:
            weights = [float(hub.weight_of(node)) for node in asked]
            here = [node in arrived for node in asked]
            steps = [self._steps.get(node, 0) for node in asked]
            z = hub.model
            if self.rates is not None:
                z = self._by_rates(hub, sent, asked, arrived, self.rates)
            taken = self.drift_steps() or mean_steps(weights, steps, here, hub.absent_rule)
            z = state.correct(z, taken, eta)
            if is_finite(z):
                hub.model = z
            else:
                hub.model, hub.has_new_model = sent, False
                log(
                    WARNING,
                    "Round %d, hub %d: its corrected model is not finite: it keeps the "
                    "one of before; use a smaller step size",
                    self.round,
                    d,
                )
        if self.rates is not None:
            # A worker that is absent took no step that counts.
            counted = {n: 0 if n in gone else self._steps[n] for n in asked}
            self.rates.observe({self.worker_key(n): steps for n, steps in counted.items()})

    def _learn_gradients(self, d: int, hub: Hub, arrived: Mapping[int, Arrival]) -> None:
        """Update c(i) of the workers that took steps."""
        for node, arrival in arrived.items():
            if node in self._shifts and self._steps[node]:
                self.states[d].gradients[self.worker_key(node)] = self.states[d].gradient(
                    self._sent[d],
                    hub.layout.flatten(arrival.arrays),
                    self._shifts[node],
                    self._steps[node],
                    self.step_size(d) * self.step_factor(node),
                )

    def _by_rates(
        self,
        hub: Hub,
        sent: Flat,
        asked: Sequence[int],
        arrived: Mapping[int, Arrival],
        rates: Rates,
    ) -> Flat:
        """Return y + tau P * sum over s(i) > 0 of v(i) (x(i) - y) / (s(i) pi(i))."""
        total = sum(hub.weight_of(node) for node in asked)
        records: list[Mapping[str, Array | Vector]] = [hub.layout.arrays(sent)]
        factors = []
        for node in asked:
            if node in arrived and self._steps[node]:
                inverse = rates.inverse_participation(self.worker_key(node))
                share = hub.weight_of(node) / total
                factors.append(self.tau * rates.mean * share * inverse / self._steps[node])
                records.append(arrived[node].arrays)
        z = sum_records(hub.layout, records, [1 - sum(factors), *factors])
        entries = self.states[0].entries
        return entries.changed(hub.model, {dtype: z[dtype] for dtype in entries.sizes})

    # A mixing.

    def safe(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return H, or (I + H) / 2 if exact diffusion would diverge with it, which is said once."""
        if self.settings.hub == "none":
            return matrix
        safe = safe_for_exact_diffusion(matrix)
        if safe is not matrix and not np.array_equal(safe, matrix) and not self._told:
            self._told = True
            log(
                WARNING,
                "hub-correction: H has an eigenvalue below -1/3, with which exact diffusion "
                "diverges, so that the hubs mix with (I + H) / 2",
            )
        return safe

    def mix(
        self, models: Sequence[Flat], matrix: NDArray[np.float64], weights: Sequence[float]
    ) -> list[Flat]:
        """Mix all hubs; ``weights`` are b(d), up to a factor."""
        if self.settings.precision == "half":
            sent = [rounded(model) for model in models]
            triples = zip(models, sent, mix_models(sent, matrix), strict=True)
            mixed = [mixed_in_half(*triple) for triple in triples]
        else:
            mixed = mix_models(models, matrix)
        if self.settings.hub != "none":
            self._follow(weights)
            for d, (state, z, y) in enumerate(zip(self.states, models, mixed, strict=True)):
                state.learn(z, y, 1 / (self.step_size(d) * self.tau * self.q))
        return self.outer_step(mixed)

    def outer_step(self, mixed: list[Flat]) -> list[Flat]:
        """Return the hubs' models after a mixing, with the step that ends it."""
        if not self.outer:
            return mixed
        return [step.take(y) for step, y in zip(self.outer, mixed, strict=True)]

    def _follow(self, weights: Sequence[float]) -> None:
        """Keep the sum of b(d) Y(d) at zero when b has changed."""
        for state, before, now in zip(self.states, self._weights, weights, strict=False):
            if before != now:
                for vector in state.drift.values():
                    vector *= before / now
        self._weights = [float(weight) for weight in weights]

    # From run to run.

    def prepare(self, round: int, hubs: Sequence[Hub]) -> None:
        """Begin a round; before the first one, make the hubs' state, or take what was saved."""
        self.round = round
        if not self.states:
            entries = Corrected(hubs[0].layout)
            self.states = [HubState(self.settings, entries) for _ in hubs]
            if self.settings.outer != "none":
                self.outer = [OuterStep(self.settings, entries, hub.model) for hub in hubs]
        if self._restored is not None:
            self._read(self._restored)
            self._restored = None

    def reset(self) -> None:
        """Forget everything: a run begins from another model."""
        self.states, self.outer, self._weights = [], [], []

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Go on from a saved state at the next round."""
        self.reset()
        self._restored = state

    def state(self) -> State:
        """Return everything that the corrections have learned, as arrays by name."""
        if self._restored is not None:
            return dict(self._restored)
        saved: State = {}
        if self._weights:
            saved["weights"] = np.array(self._weights)
        for d, state in enumerate(self.states):
            if self.settings.hub != "none":
                _put(saved, f"drift/{d}", state.drift)
            for worker, gradient in state.gradients.items():
                _put(saved, f"gradient/{d}/{worker}", gradient)
        for d, step in enumerate(self.outer):
            _put(saved, f"momentum/{d}", step.momentum)
            _put(saved, f"mixed/{d}", step.model)
        return saved | (self.rates.state() if self.rates is not None else {})

    def _read(self, saved: Mapping[str, NDArray[np.generic]]) -> None:
        self._weights = saved["weights"].tolist() if "weights" in saved else []
        for name, vector in saved.items():
            kind, *key = name.split("/")
            if kind not in ("drift", "gradient", "momentum", "mixed"):
                continue
            d, dtype = int(key[0]), key[-1]
            copy = np.array(vector)
            if kind == "drift":
                self.states[d].drift[dtype] = copy
            elif kind == "gradient":
                self.states[d].gradients.setdefault(int(key[1]), {})[dtype] = copy
            elif kind == "momentum":
                self.outer[d].momentum[dtype] = copy
            else:
                self.outer[d].model = {**self.outer[d].model, dtype: copy}
        if self.rates is not None:
            self.rates.restore(saved)


def _put(saved: State, name: str, flat: Flat) -> None:
    for dtype, vector in flat.items():
        saved[f"{name}/{dtype}"] = vector


def _with_shift(message: Message, layout: Layout, shift: Flat) -> Message:
    """Return a message with what its worker takes off its model in each step."""
    arrays = ArrayRecord(
        {
            name: Array(array)
            for name, array in layout.arrays({**layout.empty(), **shift}).items()
            if str(array.dtype) in shift
        }
    )
    content = RecordDict({**message.content, SHIFT: arrays})
    return Message(content, message.metadata.dst_node_id, message.metadata.message_type)
