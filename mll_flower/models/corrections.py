"""What one hub keeps for the corrections that go past the paper, and its arithmetic.

The readable version is `mll_flower.algorithm.corrected_reference`; what each correction is for is
told in `mll_flower.algorithm.corrections`. Here are the vectors: Y(d), how the hub's gradient
differs from the network's, and c(i), the gradient of each worker. A hub on a Flower grid uses this
code on the replies of its workers (`mll_flower.strategies.corrections`); a simulated node that
hosts a whole hub uses it on workers that it trains itself (`mll_flower.training.corrected_rounds`),
with the same bits.

Corrections are for what gradients move. Integers, and BatchNorm's running mean and variance, which
are known by their names, are averaged and mixed as always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mll_flower.algorithm.corrections import Corrections
from mll_flower.models.layout import Flat, Layout
from mll_flower.models.subnetwork_average import AbsentRule, absent_factors

_STATISTICS = ("running_mean", "running_var")
_LARGEST_HALF = float(np.finfo(np.float16).max)


class Corrected:
    """Which entries of a model corrections change.

    Parameters
    ----------
    layout : Layout
        The model's layout.
    """

    def __init__(self, layout: Layout) -> None:
        self.sizes = {
            dtype: vector.size
            for dtype, vector in layout.empty().items()
            if vector.dtype.kind in "fc"
        }
        self._kept = [
            (place.dtype, place.slice)
            for place in layout.places
            if place.dtype in self.sizes and place.name.endswith(_STATISTICS)
        ]

    def zeros(self) -> Flat:
        """Return a vector of zeros per floating-point dtype."""
        return {dtype: np.zeros(size, dtype) for dtype, size in self.sizes.items()}

    def difference(self, a: Flat, b: Flat) -> Flat:
        """Return a - b, with zeros where corrections change nothing."""
        result = {dtype: a[dtype] - b[dtype] for dtype in self.sizes}
        for dtype, part in self._kept:
            result[dtype][part] = 0
        return result

    def changed(self, model: Flat, corrected: Flat) -> Flat:
        """Return ``corrected``, with the entries of ``model`` where corrections change nothing."""
        for dtype, part in self._kept:
            corrected[dtype][part] = model[dtype][part]
        return {**model, **corrected}

    def to_bytes(self, flats: Sequence[Flat]) -> bytes:
        """Return vectors as bytes."""
        return b"".join(flat[dtype].tobytes() for flat in flats for dtype in self.sizes)

    def from_bytes(self, data: bytes, count: int) -> list[Flat]:
        """Read so many sets of vectors back."""
        flats, start = [], 0
        for _ in range(count):
            flat: Flat = {}
            for dtype, size in self.sizes.items():
                flat[dtype] = np.frombuffer(data, dtype, size, start).copy()
                start += flat[dtype].nbytes
            flats.append(flat)
        return flats


class HubState:
    """Y(d) and c(i) of one hub, and what they do in its rounds.

    Parameters
    ----------
    settings : Corrections
        Which corrections are on.
    entries : Corrected
        Which entries of the model they change.

    Attributes
    ----------
    drift : Flat
        Y(d). With step sizes given as 1, it is kept times the true one.
    gradients : dict
        c(i) by worker.
    """

    def __init__(self, settings: Corrections, entries: Corrected) -> None:
        self.settings = settings
        self.entries = entries
        self.drift = entries.zeros()
        self.gradients: dict[int, Flat] = {}
        self._mean: Flat = {}

    def begin(self, weights: Mapping[int, float]) -> None:
        """Begin a round, given the weights of all of the hub's workers, in their order."""
        if self.settings.worker == "none":
            return
        total = sum(weights.values()) or 1.0  # all may weigh nothing
        self._mean = self.entries.zeros()
        for worker, weight in weights.items():
            gradient = self.gradients.setdefault(worker, self.entries.zeros())
            for dtype, mean in self._mean.items():
                mean += gradient[dtype] * (weight / total)

    def shift(self, worker: int, step_size: float) -> Flat | None:
        """Return what a worker takes off its model after each step: eta (z(i) + Y(d))."""
        if self.settings.worker == "none":
            return None
        own = self.gradients[worker]
        return {
            dtype: (mean - own[dtype] + self.drift[dtype]) * step_size
            for dtype, mean in self._mean.items()
        }

    def gradient(
        self, sent: Flat, trained: Flat, shift: Flat, steps: int, step_size: float
    ) -> Flat:
        """Return c(i), given the models before and after a worker's steps."""
        moved = self.entries.difference(sent, trained)
        for dtype, vector in moved.items():
            vector *= 1 / (step_size * steps)
            vector -= shift[dtype] * (1 / step_size)
        return moved

    def correct(self, average: Flat, steps: float, step_size: float) -> Flat:
        """Return z(d) = average - eta S(d) Y(d), unless the workers' steps hold Y(d) already."""
        if self.settings.hub == "none" or self.settings.worker != "none":
            return average
        factor = step_size * steps
        return {
            dtype: vector - self.drift[dtype] * factor if dtype in self.drift else vector
            for dtype, vector in average.items()
        }

    def learn(self, before: Flat, mixed: Flat, factor: float) -> None:
        """Add to Y(d) by how far a mixing moved the hub: factor is 1 / (eta tau q)."""
        for dtype, vector in self.entries.difference(before, mixed).items():
            self.drift[dtype] += vector * factor


class OuterStep:
    """The step with momentum that ends a mixing of one hub (``outer = "slowmo"``).

    Parameters
    ----------
    settings, entries
        As in `HubState`.
    start : Flat
        The hub's model after the mixing before, or at the start of the run.
    """

    def __init__(self, settings: Corrections, entries: Corrected, start: Flat) -> None:
        self._settings, self._entries = settings, entries
        self.model = start
        self.momentum = entries.zeros()

    def take(self, mixed: Flat) -> Flat:
        """Return the hub's model: y(d) = y' - alpha m(d)."""
        moved = self._entries.difference(self.model, mixed)
        stepped: Flat = {}
        for dtype, momentum in self.momentum.items():
            momentum *= self._settings.outer_momentum
            momentum += moved[dtype]
            stepped[dtype] = self.model[dtype] - momentum * self._settings.outer_rate
        self.model = self._entries.changed(mixed, stepped)
        return self.model


def mean_steps(
    weights: Sequence[float], steps: Sequence[int], arrived: Sequence[bool], rule: AbsentRule
) -> float:
    """Return S(d) = sum of v(i) s(i), over those who arrived.

    Parameters
    ----------
    weights, steps, arrived
        Of each worker that the hub asked: weight, steps, and whether its model was averaged.
    rule : {"keep", "renormalise"}
        What becomes of the shares of absent workers.
    """
    factors, _ = absent_factors(weights, arrived, rule)
    taken = [s for s, here in zip(steps, arrived, strict=True) if here]
    return sum(v * s for v, s in zip(factors, taken, strict=True))


def half(model: Flat) -> Flat:
    """Return a model with its floating-point numbers in half precision; none becomes infinite."""
    return {
        dtype: np.clip(vector, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
        if vector.dtype.kind == "f"
        else vector
        for dtype, vector in model.items()
    }


def rounded(model: Flat) -> Flat:
    """Return a model rounded to half precision, in its own dtypes."""
    return {dtype: vector.astype(dtype) for dtype, vector in half(model).items()}


def mixed_in_half(model: Flat, sent: Flat, mixed: Flat) -> Flat:
    """Return y(d) = z(d) + sum over j of H[j, d] Q(z(j)) - Q(z(d)), for rounded models Q(z).

    Parameters
    ----------
    model, sent : Flat
        z(d) and Q(z(d)).
    mixed : Flat
        The sum over j of H[j, d] Q(z(j)).
    """
    return {
        dtype: vector + (mixed[dtype] - sent[dtype]) if vector.dtype.kind == "f" else mixed[dtype]
        for dtype, vector in model.items()
    }
