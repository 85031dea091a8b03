"""How long runs take, from the speed of each model on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from mll_flower.config import RunConfig
from mll_flower.processes.answering import Answerer
from mll_flower.sweeps.playing import Speed
from mll_flower.sweeps.runner import Job, players

# Seconds that a message costs apart from its steps, and a run apart from its messages: rough.
_MESSAGE, _START = 0.002, 0.3
# In rounds of at least this many steps, the cost of the round itself hardly counts.
_LONG_ROUND = 8


def estimate(jobs: Sequence[Job], processes: int = 1) -> list[Job]:
    """Return the jobs with estimates of their time, from each model's speed on this machine.

    The speed is measured in all processes at once, since runs that are played at the same time
    compete for caches and memory.
    """
    speeds: dict[tuple[Any, ...], Speed] = {}
    if not jobs:
        return []
    with players(max(1, min(processes, len(jobs)))) as team:
        for job in jobs:
            kind = _kind(job.config)
            if kind not in speeds:
                # A small network: making the partition of a large one can take a minute.
                small: dict[str, Any] = {"hubs": 1, "workers_per_hub": "10", "partition": "iid"}
                small |= {"graph": "complete", "mixing": "auto", "rates": "1", "weights": "equal"}
                speeds[kind] = _measure(team, replace(job.config, **small, tau=kind[-1]))
    return [replace(job, seconds=_seconds(job.config, speeds[_kind(job.config)])) for job in jobs]


def _measure(team: Sequence[Answerer], config: RunConfig) -> Speed:
    """Return the speed of the slowest process."""
    for player in team:
        player.pipe.send(("measure", asdict(config)))
    speeds: list[Speed] = []
    for player in team:
        speed, error = player.answer()
        if error is not None:
            raise ValueError(f"{config.model} on {config.dataset}: {error}")
        speeds.append(speed)
    return replace(speeds[0], step=max(s.step for s in speeds), row=max(s.row for s in speeds))


def _kind(config: RunConfig) -> tuple[Any, ...]:
    """Return what decides the time of a step."""
    tau = min(config.tau, _LONG_ROUND)
    task = (config.model, config.dataset, config.loss, config.code_dir)
    return (
        *task,
        config.engine,
        config.device,
        config.batch_size,
        config.optimiser,
        config.momentum > 0,
        tau,
    )


def _seconds(config: RunConfig, speed: Speed) -> float:
    """Estimate a run's time."""
    steps = float(config.network().p.sum()) * config.slots
    mixing = config.tau * config.q
    every = config.evaluate_every or mixing
    train = min(config.evaluate_limit or speed.train_rows, speed.train_rows)
    evaluations = 1 + config.slots / every
    messages = config.hubs * config.slots / min(mixing, every)
    evaluating = evaluations * (train + speed.test_rows) * speed.row
    return _START + steps * speed.step + messages * _MESSAGE + evaluating


def wall_time(jobs: Sequence[Job], processes: int) -> float:
    """Estimate the seconds until all jobs have ended, on this number of processes."""
    longest = max((job.seconds_left for job in jobs), default=0.0)
    return max(sum(job.seconds_left for job in jobs) / processes, longest)


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:.1f} days"
