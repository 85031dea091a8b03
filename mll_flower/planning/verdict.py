"""The verdict: means and intervals of the finalists, the recommended one, and what is not decided.

Intervals are 95 % confidence intervals of the mean over seeds, by Student's t. Whether one finalist
is better than another is judged by the difference seed by seed, since all play the same seeds. This
is looked at up to five times (`mll_flower.planning.search` adds seeds while nothing is decided), so
that interval has 99 %: then all looks together are wrong in at most 5 % of cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mll_flower.planning.candidates import Candidate
from mll_flower.planning.pilots import Curve
from mll_flower.planning.plan_file import Goal
from mll_flower.results.formatting import format_bytes, format_duration
from mll_flower.sweeps.verdicts import interval

# Confidence of an interval that decides.
_LEVEL = 0.99


@dataclass(frozen=True)
class Interval:
    """A mean, and the half-width of its confidence interval; not a number with one value."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float], level: float = 0.95) -> Interval:
        """Return the interval of some values."""
        data = np.asarray(values, dtype=np.float64)
        return cls(float(data.mean()), interval(data, level))

    @property
    def positive(self) -> bool:
        """Whether all its values are above 0; not if the half-width is unknown."""
        return self.mean - self.half > 0


@dataclass(frozen=True)
class Row:
    """A finalist in the table.

    Parameters
    ----------
    candidate : Candidate
        The setting.
    reached, seeds : int
        Runs that reached the target, of so many; 0 without a target.
    seconds, bytes : Interval
        At the target, or at the end where it was not reached.
    value, metric : Interval
        The goal's measure, and the metric, at the end of the runs.
    rounds : float
        Mean number of rounds.
    """

    candidate: Candidate
    reached: int
    seeds: int
    seconds: Interval
    bytes: Interval
    value: Interval
    metric: Interval
    rounds: float

    @property
    def all_reached(self) -> bool:
        """Whether every run reached the target."""
        return self.reached == self.seeds


@dataclass(frozen=True)
class Verdict:
    """What the finals say.

    Parameters
    ----------
    rows : list of Row
        Best first; the first is recommended.
    decided_by : {"goal", "traffic", ""}
        What makes the first better than the second, beyond chance: the goal, or if times to the
        target do not differ the bytes; empty if nothing does.
    gain : Interval, optional
        With a target: how many times longer the best finalist that waits takes than the best one
        that does not, seed by seed. Without one: how much better the latter's measure is.
    sentences : list of str
        The verdict in words.
    """

    rows: list[Row]
    decided_by: str
    gain: Interval | None
    sentences: list[str] = field(default_factory=list)

    @property
    def decided(self) -> bool:
        """Whether the first is better than the second, beyond chance."""
        return bool(self.decided_by)


def judge_finals(finals: dict[Candidate, list[Curve]], goal: Goal, falls: bool) -> Verdict:
    """Rank the finalists.

    Parameters
    ----------
    finals : dict
        Finalist -> its curves, of the same seeds in the same order; some may have more of them.
    goal : Goal
        What is wanted.
    falls : bool
        Whether a lower value of the goal's measure is better.
    """
    has_target = goal.target is not None
    rows = [_row(candidate, curves) for candidate, curves in finals.items()]
    rows.sort(key=lambda row: _rank(row, has_target, falls))
    decided_by = ""
    if len(rows) == 1 or _differ(rows[0], rows[1], finals, has_target, falls):
        decided_by = "goal"
    elif has_target and rows[0].all_reached and rows[1].all_reached:
        less, more = sorted(rows[:2], key=lambda row: row.bytes.mean)
        if _send_less(less, more, finals):
            rows[:2], decided_by = [less, more], "traffic"
    gain = _gain(rows, finals, has_target, falls)
    apart = _apart(rows, finals) if has_target else None
    sentences = _sentences(rows, decided_by, gain, apart, goal)
    return Verdict(rows, decided_by, gain, sentences)


def _row(candidate: Candidate, curves: list[Curve]) -> Row:
    return Row(
        candidate=candidate,
        reached=sum(curve.reached for curve in curves),
        seeds=len(curves),
        seconds=Interval.of([curve.seconds[-1] for curve in curves]),
        bytes=Interval.of([curve.bytes[-1] for curve in curves]),
        value=Interval.of([curve.values[-1] for curve in curves]),
        metric=Interval.of([curve.metrics[-1] for curve in curves]),
        rounds=float(np.mean([curve.rounds[-1] for curve in curves])),
    )


def _rank(row: Row, has_target: bool, falls: bool) -> tuple[float, ...]:
    value = row.value.mean if falls else -row.value.mean
    value = math.inf if math.isnan(value) else value
    if has_target and row.reached:
        return (1 - row.reached / row.seeds, row.seconds.mean, row.bytes.mean)
    return (1, value, row.bytes.mean)


def _differ(
    best: Row, other: Row, finals: dict[Candidate, list[Curve]], has_target: bool, falls: bool
) -> bool:
    pairs = list(zip(finals[best.candidate], finals[other.candidate], strict=False))
    if has_target and best.reached:
        # The time of one that did not arrive everywhere is at least what it says.
        behind = [b.seconds[-1] - a.seconds[-1] for a, b in pairs]
    else:
        behind = [(b.values[-1] - a.values[-1]) * (1 if falls else -1) for a, b in pairs]
    return Interval.of(behind, _LEVEL).positive and (best.all_reached or not best.reached)


def _send_less(less: Row, more: Row, finals: dict[Candidate, list[Curve]]) -> bool:
    pairs = zip(finals[less.candidate], finals[more.candidate], strict=False)
    return Interval.of([b.bytes[-1] - a.bytes[-1] for a, b in pairs], _LEVEL).positive


def _gain(
    rows: list[Row], finals: dict[Candidate, list[Curve]], has_target: bool, falls: bool
) -> Interval | None:
    kinds = [[row for row in rows if row.candidate.waits == waits] for waits in (False, True)]
    if not all(kinds):
        return None
    ours, theirs = (finals[kind[0].candidate] for kind in kinds)
    if has_target:
        if not kinds[0][0].all_reached:
            return None
        ratios = [b.seconds[-1] / a.seconds[-1] for a, b in zip(ours, theirs, strict=False)]
        return Interval.of(ratios)
    sign = -1 if falls else 1
    return Interval.of(
        [sign * (a.values[-1] - b.values[-1]) for a, b in zip(ours, theirs, strict=False)]
    )


def _apart(rows: list[Row], finals: dict[Candidate, list[Curve]]) -> Interval | None:
    """Return by how many percent the second is slower than the first, seed by seed."""
    if len(rows) < 2 or not (rows[0].all_reached and rows[1].all_reached):
        return None
    pairs = zip(*(finals[row.candidate] for row in rows[:2]), strict=False)
    return Interval.of([100 * (b.seconds[-1] / a.seconds[-1] - 1) for a, b in pairs])


def _sentences(
    rows: list[Row], decided_by: str, gain: Interval | None, apart: Interval | None, goal: Goal
) -> list[str]:
    best, has_target = rows[0], goal.target is not None
    found = [f"Recommended: {best.candidate.name}, {_what(best, has_target)}."]
    if has_target and not best.all_reached:
        found.append(
            f"Only {best.reached} of its {best.seeds} runs reached the target: give more time, or "
            "lower the target."
        )
    if len(rows) > 1:
        found.append(_runner_up(best, rows[1], decided_by, apart, has_target))
    waiting = next((row for row in rows if row.candidate.waits), None)
    if gain is not None and waiting is not None:
        found.append(_over_waiting(waiting, gain, has_target))
    return found


def _what(row: Row, has_target: bool) -> str:
    metric = f"{row.metric.mean:.4g}{_half(row.metric.half)}"
    if has_target and row.reached:
        seconds = f"{format_duration(row.seconds.mean)} to the target"
        return f"{seconds}, {format_bytes(row.bytes.mean)}"
    return f"{metric} at the end, {format_bytes(row.bytes.mean)}"


def _half(half: float) -> str:
    return "" if math.isnan(half) else f" ± {half:.2g}"


def _runner_up(
    best: Row, second: Row, decided_by: str, apart: Interval | None, has_target: bool
) -> str:
    text = f"Runner-up: {second.candidate.name}, {_what(second, has_target)}"
    costs = []
    if has_target and best.reached and second.reached:
        costs.append(f"{_percent(second.seconds.mean, best.seconds.mean)} time")
    costs.append(f"{_percent(second.bytes.mean, best.bytes.mean)} traffic")
    text += f" ({', '.join(costs)})."
    if not decided_by:
        why = "there is one seed only" if best.seeds < 2 else "the difference may be chance"
        text += f" The data do not decide between the two: {why}."
    if apart is not None and best.seeds > 1:
        text += f" Seed by seed it takes {apart.mean:.3g} ± {apart.half:.2g} % longer."
    if decided_by == "traffic":
        text += " The times do not differ beyond chance; the traffic decides."
    return text


def _percent(value: float, base: float) -> str:
    change = 100 * (value / base - 1)
    return f"{abs(change):.0f} % {'more' if change >= 0 else 'less'}"


def _over_waiting(waiting: Row, gain: Interval, has_target: bool) -> str:
    name, half = waiting.candidate.name, _half(gain.half)
    if not has_target:
        return f"Over waiting ({name}) the best without waiting gains {gain.mean:.3g}{half}."
    least = "" if waiting.all_reached else "at least "
    text = f"Waiting ({name}) takes {least}{gain.mean:.3g}{half} times as long to the target"
    if gain.mean < 1:
        text += ": here waiting is the faster way"
    return text + "."
