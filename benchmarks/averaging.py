"""Averaging ten models, against Flower's own function.

Run with ``python -m benchmarks.averaging``. Ours is timed on flat models, which is how hubs keep,
mix and simulate them, and from the records of messages to a record, as Flower's does; each with
NumPy alone and, where this machine can compile, with compiled sums. All give the same bits, which
is checked before anything is timed. Integers (BatchNorm's counters), whose averages Flower
leaves as fractions, are rounded before the comparison.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from functools import partial
from typing import TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from benchmarks import report
from benchmarks.report import Spread, number, ratios, verdict
from mll_flower.models import sums
from mll_flower.models._compiled_sums import compiled_summer
from mll_flower.models.layout import Flat, Layout
from mll_flower.models.subnetwork_average import absent_factors
from mll_flower.models.sums import sum_models, sum_records
from mll_flower.native.machine_code import why_unavailable
from mll_flower.tasks.models import build_model
from mll_flower.training.torch_trainer import numpy_state

# Model, shape of its input, and the factor by which ours must be faster than Flower's function.
CASES = (("cnn", (1, 28, 28), 10.0), ("resnet18", (3, 32, 32), 3.0))
KEY = "num-examples"
Result = TypeVar("Result")


def replies(model: str, shape: tuple[int, ...], count: int) -> list[RecordDict]:
    """Make replies as workers send them, each a model with its weight."""
    start = numpy_state(build_model(model, shape, 10, seed=0))
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        arrays = ArrayRecord()
        for name, array in start.items():
            noise = 100 * rng.standard_normal(array.shape)
            arrays[name] = Array(np.asarray(noise + np.float64(array)).astype(array.dtype))
        weight = int(rng.integers(100, 1000))
        made.append(RecordDict({"arrays": arrays, "metrics": MetricRecord({KEY: weight})}))
    return made


def average_records(layout: Layout, records: list[RecordDict]) -> ArrayRecord:
    """Average the replies' models as a hub does."""
    weights = [cast(MetricRecord, record["metrics"])[KEY] for record in records]
    models = [cast(ArrayRecord, record["arrays"]) for record in records]
    factors, _ = absent_factors(cast(list[float], weights), [True] * len(weights))
    return layout.record(sum_records(layout, models, factors))


def average_flat(models: list[Flat], weights: list[float]) -> Flat:
    """Average models that are flat already."""
    factors, _ = absent_factors(weights, [True] * len(weights))
    return sum_models(models, factors)


def check_same(mine: ArrayRecord, theirs: ArrayRecord) -> None:
    """Raise AssertionError unless both averages are the same to the bit."""
    for name, array in mine.items():
        value, other = array.numpy(), theirs[name].numpy()
        if value.dtype.kind != "f":
            other = np.rint(other).astype(value.dtype)
        assert value.dtype == other.dtype, f"{name}: {value.dtype}, {other.dtype}"
        assert value.tobytes() == other.tobytes(), f"{name} differs"


def with_numpy(action: Callable[[], Result]) -> Result:
    """Run an action as if nothing could be compiled; return its result."""
    names = vars(sums)
    names["compiled_summer"] = lambda dtype: None
    try:
        return action()
    finally:
        names["compiled_summer"] = compiled_summer


def milliseconds(action: Callable[[], object], calls: int) -> float:
    """Return the time of the fastest of several calls, the least disturbed one."""
    return 1e3 * min(timeit.repeat(action, number=1, repeat=calls))


def main(arguments: list[str] | None = None) -> None:
    """Measure and write the table."""
    parser = report.options("Averaging ten models.", repeats=15)
    parser.add_argument("--models", type=int, default=10, help="number of models")
    choice = parser.parse_args(arguments)
    if choice.quick:
        choice.repeats = 1
    compiled = compiled_summer(np.dtype(np.float32)) is not None
    if not compiled:
        print(f"NumPy alone is measured: {why_unavailable()}")
    rows = []
    plotted: dict[str, Spread] = {}
    for model, shape, bound in CASES[: 1 if choice.quick else None]:
        records = replies(model, shape, choice.models)
        arrays = [next(iter(record.array_records.values())) for record in records]
        weights = [cast(float, record.metric_records["metrics"][KEY]) for record in records]
        layout = Layout.of(arrays[0])
        models = [layout.flatten(array) for array in arrays]
        size = sum(v.size for v in models[0].values())
        theirs = aggregate_arrayrecords(records, KEY)
        from_records = partial(average_records, layout, records)
        from_flat = partial(average_flat, models, weights)
        actions: dict[str, Callable[[], object]] = {
            "Flower": partial(aggregate_arrayrecords, records, KEY),
            "ours, records, NumPy": partial(with_numpy, from_records),
            "ours, flat, NumPy": partial(with_numpy, from_flat),
        }
        check_same(with_numpy(from_records), theirs)
        check_same(layout.record(with_numpy(from_flat)), theirs)
        if compiled:
            actions |= {"ours, records": from_records, "ours, flat": from_flat}
            check_same(from_records(), theirs)
            check_same(layout.record(from_flat()), theirs)
        calls = max(2, 5_000_000 // size)
        found = report.interleave(
            {name: partial(milliseconds, action, calls) for name, action in actions.items()},
            choice.repeats,
            "ms",
        )
        for name, times in found.items():
            row = [f"{model}, {size:,} parameters", name, Spread.of(times).text()]
            if name == "Flower":
                rows.append([*row, "", ""])
                continue
            share = ratios(times, found["Flower"])
            holds = f"{verdict(share, 1 / bound).partition(' ')[0]} (at least {number(bound)})"
            rows.append([*row, ratios(found["Flower"], times).text(), holds])
        plotted |= {f"{model}, {name}": Spread.of(v) for name, v in found.items()}
    plot = report.plot_path(choice.docs, "averaging")
    report.bars(plot, plotted, f"milliseconds to average {choice.models} models (log)", log=True)
    text = report.table(["model", "", "ms", "times as fast as Flower", "holds"], rows)
    text += f"\n\nMedian (range) of {choice.repeats} repetitions, each the fastest of several "
    text += "calls; same bits in every case.\n\n"
    report.write(choice.docs, "averaging", text + f"![averaging](figures/{plot.name})")


if __name__ == "__main__":
    main()
