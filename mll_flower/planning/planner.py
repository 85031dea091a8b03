"""Make a plan: from its file to the folder with the answer."""

from __future__ import annotations

import csv
import fcntl
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import tomli_w

from mll_flower.algorithm.any_rate_theory import rate_pull
from mll_flower.config import RunConfig
from mll_flower.planning.candidates import Candidate, Costs, network_of
from mll_flower.planning.deployment_file import write_deployment
from mll_flower.planning.picture import draw_plan
from mll_flower.planning.pilots import Players
from mll_flower.planning.plan_file import Plan
from mll_flower.planning.search import Found, Searcher
from mll_flower.planning.verdict import Row, Verdict, judge_finals
from mll_flower.results import files
from mll_flower.tasks.data import find_published
from mll_flower.timing.clock import FloatArray

REPORT, TABLE, PICTURE, CLOCK, SETTING = (
    "plan.json", "table.csv", "plan.png", "clock.toml", "recommended.toml",
)  # fmt: skip
"""Files of a plan: everything, the table, the picture, the plan's file, and a run's config."""

KEPT = "curves"
"""Folder of the curves that a plan has played, until it has its answer."""

# Keys of the recommended run that are always shown, and those that only pilots need.
_SHOWN = ("graph", "mixing", "tau", "q", "slots", "wait-for-all", "dataset", "partition", "model")
_OF_PILOTS = ("seed", "evaluate-every", "evaluate-limit", "checkpoint-every")
# From this chi^2 on, the reader is told that rates pull the model.
_PULL = 0.05


@dataclass(frozen=True)
class Answer:
    """The answer of a plan.

    Parameters
    ----------
    output : Path
        Its folder.
    verdict : Verdict
        The finalists, best first, and the verdict in words.
    found : Found
        What was tried and why it was dropped.
    metric : str
        Name of the task's metric.
    names : tuple of str
        The regions.
    """

    output: Path
    verdict: Verdict
    found: Found
    metric: str
    names: tuple[str, ...]


@contextmanager
def claimed_folder(output: Path | None, plan: Plan, overwrite: bool) -> Iterator[Path]:
    """Make the folder of a plan; ValueError if it holds another one.

    A plan that was interrupted or killed leaves the folder, and the same plan goes on there. One
    that fails gives the folder back.

    Parameters
    ----------
    output : Path, optional
        The folder; plans/ with the plan's name and the time by default.
    plan : Plan
        The plan.
    overwrite : bool
        Whether a plan that the folder holds is replaced.
    """
    if output is None:
        output = Path("plans") / f"{plan.path.stem}-{datetime.now():%Y%m%d-%H%M%S}"
    if output.is_file():
        raise ValueError(f"output={str(output)!r} is a file: give a folder")
    try:
        output.mkdir(parents=True, exist_ok=True)
        file = (output / CLOCK).open("a+")
    except OSError as error:
        raise ValueError(
            f"output={str(output)!r} cannot be written ({error.strerror}): give another folder"
        ) from None
    with file:
        _take(output, file, plan.path.read_text(), overwrite)
        try:
            yield output.absolute()
        except Exception:
            _remove_plan(output)
            with suppress(OSError):
                output.rmdir()  # stays if it holds anything else
            raise


def _take(output: Path, file: TextIO, text: str, overwrite: bool) -> None:
    """Write the plan's file into the folder, whose plan this process alone then makes."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ValueError(
            f"output={str(output)!r}: another command is making a plan there: give another folder"
        ) from None
    file.seek(0)
    held = file.read()
    unfinished = held == text and not (output / REPORT).exists()
    if held and not overwrite and not unfinished:
        raise ValueError(
            f"output={str(output)!r} holds a plan: give another folder, or --overwrite"
        )
    if overwrite:
        _remove_plan(output, but=CLOCK)
    file.truncate(0)
    file.write(text)
    file.flush()


def _remove_plan(output: Path, but: str = "") -> None:
    for name in ("graphs", "runs", "pilots", KEPT):
        shutil.rmtree(output / name, ignore_errors=True)
    for name in {REPORT, TABLE, PICTURE, SETTING, CLOCK, "network.toml", "mixing.json"} - {but}:
        (output / name).unlink(missing_ok=True)


def make_plan(
    plan: Plan, output: Path, processes: int, say: Callable[[str, int, int], None]
) -> Answer:
    """Search, and write the answer.

    Parameters
    ----------
    plan : Plan
        The plan.
    output : Path
        Its folder, from `claimed_folder`.
    processes : int
        Runs at the same time.
    say : callable
        Told the stage, the runs that are done and the runs of the stage.
    """
    started = time.monotonic()
    find_published(plan.config().dataset, plan.config().data_dir)
    costs, weights, metric = _measure(plan)
    try:
        with Players(processes, output / KEPT) as players:
            searcher = Searcher(plan, output, metric, costs, weights, players, say)
            _try_deployment(plan, output, searcher.found.candidates, costs, weights)
            found = searcher.search()
    finally:
        shutil.rmtree(output / "pilots", ignore_errors=True)
    if not found.finals:
        raise ValueError(
            f"{plan.path}: goal: not one round of any setting fits into the budget; raise hours or "
            "gigabytes"
        )
    verdict = judge_finals(found.finals, plan.goal, searcher.falls)
    best = verdict.rows[0]
    _add_notes(plan, found, best, costs, weights)
    _write_setting(output, searcher, best)
    write_deployment(output, plan, best.candidate, costs, weights, best.rounds)
    measure = metric if plan.goal.measure == "metric" else "loss"
    title = f"{plan.name}: {len(plan.clock.hub_of)} workers in {plan.clock.hubs} regions"
    draw_plan(output / PICTURE, title, verdict, found.finals, plan.goal, measure)
    _write_table(output / TABLE, verdict, metric)
    answer = Answer(output, verdict, found, metric, plan.clock.names)
    report = _report(plan, answer, costs, time.monotonic() - started)
    files.write_json(output / REPORT, report)
    shutil.rmtree(output / KEPT, ignore_errors=True)
    return answer


def _try_deployment(
    plan: Plan, output: Path, candidates: list[Candidate], costs: Costs, weights: FloatArray
) -> None:
    """Say before the search if the regions' names or addresses cannot be those of a deployment."""
    folder = output / "pilots" / "deployment"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        most_hubs = min(candidates, key=lambda candidate: candidate.one_server)
        write_deployment(folder, plan, most_hubs, costs, weights, 1.0)
    except ValueError as error:
        problem = str(error).removeprefix(f"{folder / 'network.toml'}: ")
        raise ValueError(f"{plan.path}: region: {problem}") from None


def _measure(plan: Plan) -> tuple[Costs, FloatArray, str]:
    """Return what candidates cost, the workers' weights, and the name of the metric."""
    from mll_flower.training.run_engine import check_own_work, run_engine

    config = plan.config()
    check_own_work(config)
    engine = run_engine(config)
    own = int(sum(vector.nbytes for vector in engine.initial().values()))
    network = config.network([engine.examples(i) for i in range(len(plan.clock.hub_of))])
    costs = Costs(plan.clock, plan.clock.model_bytes or own)
    return costs, np.array(network.w), engine.task.metric_name


def _add_notes(plan: Plan, found: Found, best: Row, costs: Costs, weights: FloatArray) -> None:
    for key in ("tau", "q"):
        tried = sorted({getattr(c, key) for c in found.candidates if _alike(c, best.candidate)})
        value = getattr(best.candidate, key)
        if len(tried) > 1 and value in (tried[0], tried[-1]) and value > 1:
            which = "smallest" if value == tried[0] else "largest"
            found.notes.append(
                f"{key} = {value} is the {which} that was tried: give other values in [search]"
            )
    pull = rate_pull(network_of(best.candidate, costs, weights))
    if pull > _PULL and plan.config().partition != "iid":
        found.notes.append(
            f"the workers' rates differ (chi^2 = {pull:.2g}): where data differ too, fast workers "
            "pull the model towards their own (docs/theory.md)"
        )


def _alike(candidate: Candidate, other: Candidate) -> bool:
    return (candidate.graph, candidate.waits) == (other.graph, other.waits)


def _write_setting(output: Path, searcher: Searcher, best: Row) -> None:
    """Write the recommended setting as a config of ``mll-flower run``."""
    rounds = max(1, math.ceil(best.rounds))
    config = searcher.config_of(best.candidate, rounds, 0)
    values = config.to_run_config()
    # The clock sets the workers and their rates; what else is as always needs no line.
    always = {*_SHOWN, *(("hubs", "workers-per-hub") if best.candidate.one_server else ())}
    left_out = {"hubs", "workers-per-hub", "rates", "output", *_OF_PILOTS} - always
    defaults = RunConfig().to_run_config()
    chosen = {
        key: value
        for key, value in values.items()
        if key in always or (key not in left_out and value != defaults[key])
    }
    (output / SETTING).write_text(tomli_w.dumps({**chosen, "clock": str(output / CLOCK)}))


def _write_table(path: Path, verdict: Verdict, metric: str) -> None:
    rows = [table_row(row, metric) for row in verdict.rows]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def table_row(row: Row, metric: str) -> dict[str, Any]:
    """Return a finalist's row of the table, as plain numbers."""
    return {
        **_setting(row.candidate),
        "seeds": row.seeds,
        "reached": row.reached,
        "seconds": row.seconds.mean,
        "seconds_half_width": row.seconds.half,
        "bytes": row.bytes.mean,
        "bytes_half_width": row.bytes.half,
        metric: row.metric.mean,
        f"{metric}_half_width": row.metric.half,
        "rounds": row.rounds,
    }


def _setting(candidate: Candidate) -> dict[str, Any]:
    return {
        "setting": candidate.name,
        "graph": candidate.graph,
        "mixing": candidate.mixing,
        "tau": candidate.tau,
        "q": candidate.q,
        "waits": candidate.waits,
        "zeta": round(candidate.zeta, 6),
    }


def _report(plan: Plan, answer: Answer, costs: Costs, seconds: float) -> dict[str, Any]:
    verdict, found = answer.verdict, answer.found
    edges = {
        c.graph: [[plan.clock.names[i], plan.clock.names[j]] for i, j in c.edges]
        for c in found.candidates
    }
    report: dict[str, Any] = _plain(
        {
            "name": plan.name,
            "goal": asdict(plan.goal),
            "task": plan.task,
            "model_bytes": costs.model_bytes,
            "slot": plan.clock.slot,
            "recommended": _setting(verdict.rows[0].candidate),
            "decided": verdict.decided,
            "decided_by": verdict.decided_by or None,
            "gain_over_waiting": None if verdict.gain is None else asdict(verdict.gain),
            "verdict": verdict.sentences,
            "notes": found.notes,
            "finalists": [
                {
                    **table_row(row, answer.metric),
                    "runs": [asdict(curve) for curve in found.finals[row.candidate]],
                }
                for row in verdict.rows
            ],
            "dropped": [
                {**_setting(c), "why": found.why_not[c]}
                for c in found.candidates
                if c in found.why_not
            ],
            "graphs": edges,
            "runs": found.played,
            "cpu_seconds": round(found.cpu, 1),
            "seconds": round(seconds, 1),
        }
    )
    return report


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: what is not finite becomes null."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
