"""Averages of the metrics in replies, which never end a run: what cannot be averaged is left out.

Flower's FedAvg raises an error if replies have different metrics. Here the metrics that all
replies share are averaged, and a warning names the others.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import WARNING

from flwr.app import MetricRecord, RecordDict
from flwr.supercore import log

from mll_flower.strategies.reply_limits import MAX_WEIGHT

MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]


def average_metrics(
    contents: list[RecordDict], key: str, average: MetricsFunction, equal_weights: bool
) -> MetricRecord | None:
    """Average the metrics of replies.

    Parameters
    ----------
    contents : list of RecordDict
        The contents of the replies.
    key : str
        The metric that holds the weight of a reply.
    average : callable
        What averages, as in Flower's ``FedAvg``.
    equal_weights : bool
        Whether all replies weigh the same, whatever ``key`` says.

    Returns
    -------
    MetricRecord or None
        The averages; None if no reply has metrics that can be averaged.
    """
    if equal_weights:
        contents = [_with_weight_one(content, key) for content in contents]
    weighed = [content for content in contents if usable_weight(content, key) is not None]
    if not weighed:
        return None
    if len(weighed) < len(contents):
        count = len(contents) - len(weighed)
        log(WARNING, "%d replies have no metric %r: their metrics are not averaged", count, key)
    if not sum(usable_weight(content, key) or 0.0 for content in weighed):
        log(WARNING, "Metrics are not averaged, because %r is 0 in every reply", key)
        return None
    kinds = [metric_kinds(content) for content in weighed]
    common = set.intersection(*kinds)
    different = sorted({name for name, _ in set.union(*kinds) - common})
    if not different:
        return average(weighed, key)
    log(WARNING, "Metrics that are not the same in all replies are not averaged: %s", different)
    names = {name for name, _ in common}
    return average([_only(c, names) for c in weighed], key) if names - {key} else None


def _metrics(content: RecordDict) -> MetricRecord:
    return next(iter(content.metric_records.values()))


def usable_weight(content: RecordDict, key: str) -> float | None:
    """Return the weight of a reply; None if it has none that can be used."""
    if len(content.metric_records) != 1:
        return None
    weight = _metrics(content).get(key)
    usable = isinstance(weight, (int, float)) and 0 <= weight <= MAX_WEIGHT
    return weight if usable else None  # type: ignore[return-value]


def metric_kinds(content: RecordDict) -> set[tuple[str, int | None]]:
    """Return the names of a reply's metrics, each with its length if it is a list."""
    return {(k, len(v) if isinstance(v, list) else None) for k, v in _metrics(content).items()}


def _only(content: RecordDict, names: set[str]) -> RecordDict:
    """Return a reply's content with these metrics alone."""
    metrics = {
        key: MetricRecord({name: value for name, value in record.items() if name in names})
        for key, record in content.metric_records.items()
    }
    return RecordDict({**content, **metrics})


def _with_weight_one(content: RecordDict, key: str) -> RecordDict:
    """Return a reply's content with 1 as the weight in its metrics."""
    metrics = {k: MetricRecord({**m, key: 1}) for k, m in content.metric_records.items()}
    return RecordDict({**content, **metrics})
