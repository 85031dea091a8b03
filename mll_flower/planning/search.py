"""The search: scouts find the scale of time, pilots halve the field, finals compare what is left.

If the finals do not decide between the two best settings, these get more seeds.

Candidates that wait and candidates that do not are two fields, each with finalists of its own, so
that the gain over waiting is measured and not guessed. In the finals all play the same seeds, which
no pilot has played: the luck by which a candidate got there does not count again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mll_flower.algorithm.network import HubNetwork
from mll_flower.algorithm.schedule import rounds as scheduled_rounds
from mll_flower.config import RunConfig
from mll_flower.planning.candidates import Candidate, Costs, all_candidates, network_of
from mll_flower.planning.pilots import Curve, Job, Players, with_output
from mll_flower.planning.plan_file import Plan, lower_is_better
from mll_flower.planning.pruning import first_and_best, judge, prune
from mll_flower.planning.verdict import judge_finals
from mll_flower.timing.clock import FloatArray

# Each rung: the part of the time to the target (or of the budget), the seeds, and the part of the
# field that goes on.
_RUNGS = ((0.25, 1, 1 / 2), (0.5, 2, 1 / 3))
# Finalists of those that do not wait, and of those that do.
_FINALISTS = {False: 4, True: 2}
_SCOUTS = 2
# How much longer than the scouts needed a final may take, if nothing else limits it.
_PATIENCE = 3.0
# Evaluations of a run, at most.
_EVALUATIONS = 100
# Training rows on which the loss is measured: no choice depends on it.
_TRAIN_ROWS = 200
# How many times as many seeds the two best finalists may get.
_MORE_SEEDS = 16
# The first seed of the finals.
_FINAL_SEED = 1000


@dataclass
class Found:
    """What the search has found.

    Parameters
    ----------
    candidates : list of Candidate
        All of them.
    why_not : dict
        Candidate -> why it is not a finalist.
    finals : dict
        Finalist -> its curves, one per seed.
    seconds : dict
        Whether it waits -> the seconds that finals of this kind had, at most.
    notes : list of str
        What the reader must know.
    cpu : float
        Seconds of processor time of all runs.
    played : int
        Number of runs.
    """

    candidates: list[Candidate]
    why_not: dict[Candidate, str] = field(default_factory=dict)
    finals: dict[Candidate, list[Curve]] = field(default_factory=dict)
    seconds: dict[bool, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cpu: float = 0.0
    played: int = 0


Say = Callable[[str, int, int], None]
"""``say(stage, runs done, runs of the stage)``."""


class Searcher:
    """Plays the candidates of a plan.

    Parameters
    ----------
    plan : Plan
        The plan.
    output : Path
        Its folder: graphs/ and the finals' runs/ go there.
    metric : str
        Name of the task's metric.
    costs : Costs
        What candidates cost.
    weights : ndarray
        The workers' weights.
    players : Players
        Who plays.
    say : callable
        Told how far the search has got.
    """

    def __init__(
        self,
        plan: Plan,
        output: Path,
        metric: str,
        costs: Costs,
        weights: FloatArray,
        players: Players,
        say: Say,
    ) -> None:
        self.plan, self.output, self.costs, self.weights = plan, output, costs, weights
        self.players, self.say = players, say
        self.falls = lower_is_better(plan.goal, metric)
        self._number, self._slots_played = itertools.count(), 0
        b = np.bincount(plan.clock.hub_of, weights=weights) / weights.sum()
        self.found = Found(all_candidates(plan, costs, b))

    def search(self) -> Found:
        """Find the finalists and play the finals."""
        finalists = []
        for waits in sorted(set(self.plan.search.waiting)):
            group = [c for c in self.found.candidates if c.waits == waits]
            finalists += self._halve(self._prune(group), waits)
        jobs = [
            self._job(c, self.found.seconds[c.waits], _FINAL_SEED + seed, keep=True)
            for c in finalists
            for seed in range(self.plan.search.seeds)
        ]
        curves = iter(self._play("finals", [job for job in jobs if job is not None]))
        for candidate in finalists:
            self.found.finals[candidate] = list(itertools.islice(curves, self.plan.search.seeds))
        if finalists:
            self._go_on()
        return self.found

    def _go_on(self) -> None:
        """Give the two best finalists more seeds while nothing decides between them.

        At most four times, and at most as many slots as the search has played so far: a count, not
        a time, so that the answer is the same on every machine.
        """
        finals, before = self.found.finals, self._slots_played
        most = self.plan.search.seeds * _MORE_SEEDS
        while True:
            verdict = judge_finals(finals, self.plan.goal, self.falls)
            pair = [row.candidate for row in verdict.rows[:2]]
            counts = [len(finals[candidate]) for candidate in pair]
            if verdict.decided_by == "goal" or max(counts) < 2:
                return
            wanted = max(counts) * (2 if min(counts) == max(counts) else 1)
            jobs: dict[tuple[Candidate, int], Job | None] = {
                (c, seed): self._job(c, self.found.seconds[c.waits], _FINAL_SEED + seed, keep=True)
                for c, count in zip(pair, counts, strict=True)
                for seed in range(count, wanted)
            }
            each = max(np.mean([curve.rounds[-1] * c.tau for curve in finals[c]]) for c in pair)
            if wanted > most or self._slots_played - before + each * len(jobs) > before:
                return
            curves = self._play("more seeds", [job for job in jobs.values() if job is not None])
            for (candidate, _), curve in zip(jobs, curves, strict=True):
                finals[candidate].append(curve)

    def _prune(self, group: list[Candidate]) -> list[Candidate]:
        judged = [judge(candidate, self.costs, self.weights) for candidate in group]
        goal, search = self.plan.goal, self.plan.search
        left, why = prune(judged, search.most, bytes_count=goal.bytes is not None)
        self.found.why_not.update(why)
        return left

    def _halve(self, field: list[Candidate], waits: bool) -> list[Candidate]:
        """Play shorter runs than the finals, and drop those that are behind."""
        goal, kind = self.plan.goal, "waiting" if waits else "not waiting"
        full = self._full_seconds(field, waits)
        goes_on = full
        if goal.target is not None:
            goes_on = full * _PATIENCE if goal.seconds is None else goal.seconds
        self.found.seconds[waits] = goes_on
        for part, seeds, kept in _RUNGS:
            most = max(_FINALISTS[waits], math.ceil(kept * len(field)))
            if len(field) <= most:
                continue
            jobs = [self._job(c, full, seed, part) for c in field for seed in range(seeds)]
            curves = iter(self._play(f"pilots, {kind}", [job for job in jobs if job is not None]))
            # A candidate without a round in this time has no job, and is behind all others.
            played = [
                [next(curves) for _ in range(seeds) if job is not None]
                for job, _ in zip(jobs[::seeds], field, strict=True)
            ]
            order = sorted(range(len(field)), key=lambda i: self._behind(played[i]))
            when = f"{part:.0%} of the time"
            stays = first_and_best([field[place] for place in order], most)
            for place in (place for place in order if field[place] not in stays):
                value = self._mean_value(played[place])
                self.found.why_not[field[place]] = (
                    f"pilots: {value:.4g} after {when}"
                    if played[place]
                    else f"pilots: no round ends within {when}"
                )
            field = stays
        finalists = first_and_best(field, _FINALISTS[waits])
        finalists = [c for c in finalists if self._job(c, goes_on, 0) is not None]
        for candidate in field:
            if candidate not in finalists:
                self.found.why_not[candidate] = "pilots: others were ahead"
        return finalists

    def _full_seconds(self, field: list[Candidate], waits: bool) -> float:
        """Return the time that pilots are parts of: the budget, or what the scouts needed."""
        goal, longest = self.plan.goal, self.plan.search.longest_slots
        if goal.target is None and goal.seconds is None:
            return math.inf  # the bytes end every run
        ends = [self._longest_seconds(candidate) for candidate in field]
        limit = goal.seconds if goal.seconds is not None else max(ends)
        if goal.target is None:
            if goal.seconds is not None and min(ends) < goal.seconds and goal.bytes is None:
                limit = min(ends)
                self._note(
                    f"runs of longest-slots = {longest} end after {limit:.4g} s, before the budget "
                    "of time: candidates are compared there"
                )
            return limit
        scouts = [self._job(candidate, limit, 0) for candidate in field[:_SCOUTS]]
        curves = self._play("scouts", [job for job in scouts if job is not None])
        reached = [curve.seconds[-1] for curve in curves if curve.reached]
        if not reached:
            kind = "wait" if waits else "do not wait"
            self._note(
                f"the scouts that {kind} did not reach the target; raise longest-slots (now "
                f"{longest}) or the budget, lower the target, or try another learning rate"
            )
        return min(reached or [curve.seconds[-1] for curve in curves] or [limit])

    def _longest_seconds(self, candidate: Candidate) -> float:
        goal, longest = self.plan.goal, self.plan.search.longest_slots
        rounds = self.costs.rounds_within(candidate, None, goal.bytes, longest)
        return next(itertools.islice(self.costs.ends(candidate), max(rounds, 1) - 1, None))

    def _note(self, text: str) -> None:
        if text not in self.found.notes:
            self.found.notes.append(text)

    def _behind(self, curves: list[Curve]) -> tuple[float, float, float]:
        """Return a key that sorts the best candidates first."""
        if not curves:
            return (1.0, math.inf, math.inf)
        missed = sum(not curve.reached for curve in curves) / len(curves)
        value = self._mean_value(curves)
        if math.isnan(value):
            return (2.0, math.inf, math.inf)
        seconds = float(np.mean([curve.seconds[-1] for curve in curves])) if missed < 1 else 0.0
        return (missed, seconds, value if self.falls else -value)

    @staticmethod
    def _mean_value(curves: list[Curve]) -> float:
        return float(np.mean([curve.values[-1] for curve in curves])) if curves else math.nan

    def _play(self, stage: str, jobs: Sequence[Job]) -> list[Curve]:
        done = 0

        def count(curve: Curve) -> None:
            nonlocal done
            done += 1
            self.found.cpu += curve.cpu
            self.found.played += 1
            self.say(stage, done, len(jobs))

        self.say(stage, 0, len(jobs))
        curves = self.players.play_all(jobs, count)
        self._slots_played += sum(
            curve.rounds[-1] * job.config.tau for job, curve in zip(jobs, curves, strict=True)
        )
        return curves

    def _job(
        self, candidate: Candidate, seconds: float, seed: int, part: float = 1.0, keep: bool = False
    ) -> Job | None:
        """Return the run of a candidate that ends within a part of a time and of the bytes.

        None if not one round does.
        """
        goal, search = self.plan.goal, self.plan.search
        # A final may be longer than a scout; only the time and the bytes end it.
        longest = round(search.longest_slots * (_PATIENCE if keep else 1))
        limit = None if goal.bytes is None else part * goal.bytes
        rounds = self.costs.rounds_within(candidate, part * seconds, limit, longest)
        if candidate.waits and rounds > candidate.q:
            rounds -= rounds % candidate.q
        if rounds < 1:
            return None
        folder = "runs" if keep else "pilots"
        name = candidate.name.replace(" ", "-").replace("=", "")
        name = f"{name}-seed{seed}" if keep else str(next(self._number))
        job = Job(
            config=self.config_of(candidate, rounds, seed),
            target=goal.target,
            measure=goal.measure,
            falls=self.falls,
            keep=keep,
        )
        return with_output(job, self.output / folder / name)

    def config_of(self, candidate: Candidate, rounds: int, seed: int) -> RunConfig:
        """Return the run config of a candidate with so many rounds."""
        values: dict[str, object] = {
            "mixing": candidate.mixing,
            "tau": candidate.tau,
            "q": candidate.q,
            "wait_for_all": candidate.waits,
            "seed": seed,
            "graph": str(self._graph_file(candidate)),
            "slots": self._slots(candidate, rounds),
            "evaluate_every": candidate.tau * math.ceil(rounds / _EVALUATIONS),
            "evaluate_limit": _TRAIN_ROWS,
            "checkpoint_every": 0,
        }
        if candidate.one_server:
            workers = len(self.plan.clock.hub_of)
            values.update(hubs=1, workers_per_hub=str(workers), graph="complete", mixing="auto")
        return self.plan.config(**values)

    def _slots(self, candidate: Candidate, rounds: int) -> int:
        if not candidate.waits:
            return rounds * candidate.tau
        clock = self.costs.clock_of(candidate)
        network = network_of(candidate, self.costs, self.weights)
        schedule = scheduled_rounds(
            *(network, candidate.tau, candidate.q, 1 << 60, 0, True), clock.slots_until
        )
        return next(itertools.islice(schedule, rounds - 1, None)).slot

    def _graph_file(self, candidate: Candidate) -> Path:
        """Write the network of a graph, for runs and for ``mll-flower network``."""
        path = self.output / "graphs" / f"{candidate.graph}.toml"
        if not path.exists() and not candidate.one_server:
            path.parent.mkdir(parents=True, exist_ok=True)
            graph = candidate.hub_graph(self.plan.clock.hubs)
            clock = self.plan.clock
            HubNetwork(graph, clock.hub_of.copy(), self.weights.copy(), clock.rates()).save(path)
        return path
