"""Partitions: which worker holds which rows of the training set."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mll_flower.tasks.own_partitions import is_own_partition, own_partition

Rows = NDArray[np.int64]

KNOWN_PARTITIONS = ("iid", "sized", "dirichlet(ALPHA)", "shards", "shards(N)", "by-hub")
_OWN = "own"

GROUP_PERCENTS = (5, 10, 20, 25, 40)
"""Per cent of the data that each group of ``sized`` holds (the paper's first experiment)."""

_STREAM = 0x9A27  # keeps these draws independent of all others that use the run seed


@dataclass(frozen=True)
class PartitionSpec:
    """The name of a partition and its parameter.

    Parameters
    ----------
    name : str
        ``iid``, ``sized``, ``dirichlet``, ``shards`` or ``by-hub``; ``own`` for a function or a
        file of the user's.
    value : float, optional
        alpha of ``dirichlet``, shards per worker of ``shards``; None for the others.
    """

    name: str
    value: float | None = None


def parse_partition(spec: str) -> PartitionSpec:
    """Parse a partition's specification; no data are needed.

    Parameters
    ----------
    spec : str
        ``iid``, ``sized``, ``dirichlet(ALPHA)``, ``shards`` (two per worker), ``shards(N)`` or
        ``by-hub``; or a function or file of the user's, see `own_partition`.

    Returns
    -------
    PartitionSpec
        Its name and parameter.

    Raises
    ------
    ValueError
        If the specification is not known, or its parameter is impossible.
    """
    if is_own_partition(spec):
        return PartitionSpec(_OWN)
    match = re.fullmatch(r"\s*([a-z-]+)\s*(?:\(([^()]*)\))?\s*", spec)
    name, argument = match.groups() if match else (None, None)
    if name in ("iid", "sized", "by-hub") and argument is None:
        return PartitionSpec(name)
    if name == "shards":
        count = 2 if argument is None else int(_number(argument, spec))
        if count < 1 or (argument is not None and count != _number(argument, spec)):
            raise ValueError(f"partition {spec!r}: the shards per worker must be 1, 2, 3, ...")
        return PartitionSpec(name, count)
    if name == "dirichlet":
        if argument is None:
            raise ValueError(f"partition {spec!r} needs its alpha: write e.g. 'dirichlet(0.5)'")
        alpha = _number(argument, spec)
        if alpha <= 0:
            raise ValueError(f"partition {spec!r}: alpha must be above 0")
        return PartitionSpec(name, alpha)
    raise ValueError(
        f"unknown partition {spec!r}: use one of {', '.join(KNOWN_PARTITIONS)}, a function "
        "(module:function or file.py:function), or a .json or .npz file"
    )


def _number(text: str, spec: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"partition {spec!r}: {text!r} is not a finite number")
    return value


def partition(
    spec: str, labels: NDArray[Any], hub_of: NDArray[Any], seed: int, code_dir: str = ""
) -> list[Rows]:
    """Split the rows of a training set among the workers.

    Parameters
    ----------
    spec : str
        ``iid``: shuffled, sizes equal to within one row.
        ``sized``: the workers form five equal groups that hold 5, 10, 20, 25 and 40 % of the data,
        split evenly within a group; in each hub the groups are as even as its size allows.
        ``dirichlet(ALPHA)``: each class is divided in proportions drawn from a symmetric Dirichlet
        distribution; the smaller alpha is, the more the workers differ.
        ``shards(N)``: the rows in the order of their labels are cut into N shards per worker (2 if
        not given), which are dealt at random.
        ``by-hub``: the classes are dealt evenly to the hubs, and the workers of a hub split its
        rows at random; if there are more hubs than classes, several hubs share a class.
        A function or file of the user's: see `own_partition`.
    labels : ndarray
        The label of each row, or the number to predict.
    hub_of : ndarray
        The hub of each worker.
    seed : int
        The run seed; the same seed gives the same partition.
    code_dir : str
        The folder in which functions and files of the user's are looked for.

    Returns
    -------
    list of ndarray
        The rows of each worker, at least one for each. Unless the partition is the user's own,
        they are ascending, disjoint and cover all rows.

    Raises
    ------
    ValueError
        If the specification is not known or leaves a worker without rows.
    """
    parsed = parse_partition(spec)
    labels, hub_of = np.asarray(labels), np.asarray(hub_of)
    workers = len(hub_of)
    if parsed.name == _OWN:
        return own_partition(spec, code_dir, labels, hub_of, seed)
    if parsed.name in ("iid", "sized"):
        labels = np.arange(len(labels))  # the labels do not matter, and may have any shape
    elif labels.ndim > 1 or (labels.dtype.kind == "f" and parsed.name != "shards"):
        raise ValueError(
            f"partition {spec!r} goes by classes, and the targets of this data set are not one "
            "class per row: use iid, sized, or a function or file of your own"
        )
    if labels.ndim != 1 or hub_of.ndim != 1 or workers == 0:
        raise ValueError(
            f"labels has shape {labels.shape} and hub_of {hub_of.shape}: give one label per row "
            "and one hub per worker, with at least one worker"
        )
    if len(labels) < workers:
        raise ValueError(
            f"{len(labels)} rows cannot be split among {workers} workers: use at most "
            f"{len(labels)} workers or a larger dataset"
        )
    source = np.random.SeedSequence((seed, _STREAM))
    rng = np.random.default_rng(source)
    if parsed.name == "iid":
        # Not by Flower's IidPartitioner: it cuts the rows in their given order, takes no seed,
        # and costs each process seconds of imports for what is one permutation.
        parts = _deal(rng.permutation(len(labels)), workers)
    elif parsed.name == "sized":
        parts = _sized(len(labels), hub_of, rng)
    elif parsed.name == "dirichlet":
        assert parsed.value is not None
        parts = _dirichlet(parsed.value, labels, workers, int(source.generate_state(1)[0]))
    elif parsed.name == "shards":
        assert parsed.value is not None
        parts = _shards(int(parsed.value), labels, workers, rng)
    else:
        parts = _by_hub(labels, hub_of, rng)
    _check_not_empty(spec, parts)
    return [np.sort(part).astype(np.int64) for part in parts]


def _deal(rows: Rows, parts: int) -> list[Rows]:
    return list(np.array_split(rows, parts))


def _sized(rows: int, hub_of: NDArray[Any], rng: np.random.Generator) -> list[Rows]:
    workers, groups = len(hub_of), len(GROUP_PERCENTS)
    if workers < groups:
        raise ValueError(
            f"partition 'sized' makes {groups} groups and needs at least {groups} workers, not "
            f"{workers}: add workers or use 'iid'"
        )
    # The workers, hub after hub, are given the groups in turn: two groups differ by at most one
    # worker, both within a hub and in the whole network.
    group_of = np.empty(workers, dtype=np.int64)
    group_of[np.argsort(hub_of, kind="stable")] = np.arange(workers) % groups
    cuts = np.cumsum(GROUP_PERCENTS)[:-1] * rows // 100
    parts: list[Rows] = [np.empty(0, np.int64)] * workers
    for group, held in enumerate(np.split(rng.permutation(rows), cuts)):
        members = np.flatnonzero(group_of == group)
        for worker, part in zip(members, _deal(held, len(members)), strict=True):
            parts[worker] = part
    return parts


def _dirichlet(alpha: float, labels: NDArray[Any], workers: int, seed: int) -> list[Rows]:
    # Imported here, as the import takes seconds and only this partition needs it.
    from datasets import Dataset
    from flwr_datasets.partitioner import DirichletPartitioner

    partitioner = DirichletPartitioner(
        num_partitions=workers,
        partition_by="label",
        alpha=alpha,
        min_partition_size=1,
        shuffle=False,
        seed=seed,
    )
    partitioner.dataset = Dataset.from_dict({"label": labels, "row": np.arange(len(labels))})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns at each draw (of ten) that leaves a part empty
        try:
            return [
                # Only the finished parts are read as NumPy: the partitioner reads labels row by
                # row, which is about four times slower in that format.
                np.asarray(partitioner.load_partition(worker).with_format("numpy")["row"][:])
                for worker in range(workers)
            ]
        except ValueError as error:
            raise ValueError(
                f"partition 'dirichlet({alpha:g})' of {len(labels)} rows left some of the "
                f"{workers} workers without rows in every draw: use a larger alpha, fewer workers, "
                "another seed or a larger dataset"
            ) from error


def _shards(count: int, labels: NDArray[Any], workers: int, rng: np.random.Generator) -> list[Rows]:
    # Not by Flower's ShardPartitioner: it drops the rows that are left over when the number of
    # shards does not divide the number of rows.
    total = count * workers
    if total > len(labels):
        raise ValueError(
            f"partition 'shards({count})' cuts {len(labels)} rows into {total} shards for "
            f"{workers} workers: use fewer shards or workers, or a larger dataset"
        )
    shuffled = rng.permutation(len(labels))
    shards = _deal(shuffled[np.argsort(labels[shuffled], kind="stable")], total)
    order = rng.permutation(total).reshape(workers, count)
    return [np.concatenate([shards[shard] for shard in mine]) for mine in order]


def _by_hub(labels: NDArray[Any], hub_of: NDArray[Any], rng: np.random.Generator) -> list[Rows]:
    classes, hubs = np.unique(labels), np.unique(hub_of)
    sets = min(len(classes), len(hubs))
    set_of_worker = np.searchsorted(hubs, hub_of) % sets
    parts: list[Rows] = [np.empty(0, np.int64)] * len(hub_of)
    for number, own in enumerate(np.array_split(classes, sets)):
        members = np.flatnonzero(set_of_worker == number)
        rows = rng.permutation(np.flatnonzero(np.isin(labels, own)))
        for worker, part in zip(members, _deal(rows, len(members)), strict=True):
            parts[worker] = part
    return parts


def _check_not_empty(spec: str, parts: Sequence[Rows]) -> None:
    empty = [worker for worker, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise ValueError(
            f"partition {spec!r} of {sum(map(len, parts))} rows among {len(parts)} workers leaves "
            f"{len(empty)} of them without rows (the first is worker {empty[0]}): use fewer "
            "workers, another partition or a larger dataset"
        )
