"""`simulate`: a simulated run from Python or a notebook, with hooks and a progress bar."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mll_flower.apps.launch import (
    absolute_paths,
    claimed_output,
    run_in_process,
    run_on_flower,
)
from mll_flower.apps.load_run import load_run
from mll_flower.config import RunConfig
from mll_flower.models.checkpoint import load_checkpoint
from mll_flower.processes.ray_cluster import Resources
from mll_flower.results import files
from mll_flower.results.progress_bar import RunProgress, progress_bar
from mll_flower.results.recorder import Hook
from mll_flower.results.run_result import RunResult


def simulate(
    *,
    backend: Literal["in-process", "flower"] = "in-process",
    on_evaluation: Hook | None = None,
    on_round: Hook | None = None,
    progress: bool = True,
    plots: bool = False,
    overwrite: bool = False,
    actors: int = 0,
    actor_gpus: float = 0.0,
    **settings: Any,
) -> RunResult:
    """Simulate a multi-level network of hubs and workers, as ``mll-flower run`` does.

    Parameters
    ----------
    backend : {"in-process", "flower"}
        Where it runs: in this process, which starts at once, or in the processes of Flower's
        simulation engine, which use all cores. The numbers are the same.
    on_evaluation, on_round : callable, optional
        Called with each record of `RunResult.evaluations` and `RunResult.rounds` when it is
        written. A hook that raises ends the run, and `simulate` raises its exception.
    progress : bool
        Whether to show a progress bar.
    plots : bool
        Whether to draw the plots of the run into its folder, as the command does.
    overwrite : bool
        Whether an output folder that holds a run is replaced.
    actors : int
        With ``backend="flower"``: processes that train; 0: one per core. If the environment
        variable RAY_ADDRESS names a Ray cluster, that decides.
    actor_gpus : float
        With ``backend="flower"``: share of a GPU that each of these processes takes.
    **settings
        Keys of the run config, with underscores: ``hubs=5, tau=8, rates=[0.5, 1, 1, 1]``.
        ``mll-flower run --help`` explains them. Lists, arrays and paths are taken as they are; a
        function at the top level of a module or a notebook stands for ``module:function``.

    Returns
    -------
    RunResult
        The results, which are also on disk, in ``output`` or in runs/ and the time.

    Raises
    ------
    TypeError, ValueError
        For a name that is no key and for a value that does not fit, before anything starts.
    KeyboardInterrupt
        When it is interrupted. The results so far are on disk, and `mll_flower.load_run` reads
        them.
    """
    if backend not in ("in-process", "flower"):
        raise ValueError(f"backend={backend!r}: give 'in-process' or 'flower'")
    find = Resources.found if backend == "flower" else Resources
    resources = find(actors, gpus=actor_gpus)
    values = absolute_paths(_run_config(settings, backend))
    if any(callable(value) for value in settings.values()):
        _forget_functions()
    claim = claimed_output(values, overwrite, backend == "in-process")
    with claim as claimed, _stopped_run_is_named(claimed["output"]):
        slots = RunConfig.from_run_config(claimed).schedule()[-1].slot
        with _hooks(slots, progress, on_round, on_evaluation) as (round_hook, evaluation_hook):
            if backend == "flower":
                _run_on_flower(claimed, round_hook, evaluation_hook, resources)
            else:
                with _torch_threads_kept():
                    run_in_process(
                        claimed,
                        plots=plots,
                        on_round=round_hook,
                        on_evaluation=evaluation_hook,
                        lines=False,
                    )
    return load_run(claimed["output"])


def _run_config(settings: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """Return keyword arguments under the names and with the types of the run config."""
    known = {field.name for field in fields(RunConfig)}
    values = {}
    for given, value in settings.items():
        name = given.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else "mll-flower run --help lists the keys"
            raise TypeError(f"simulate() got an unexpected keyword argument {given!r}: {hint}")
        values[name.replace("_", "-")] = _plain(name, value, backend)
    return values


def _plain(name: str, value: Any, backend: str) -> Any:
    if callable(value):
        return _reference(name, value, backend)
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple, np.ndarray)):
        return ",".join(str(part) for part in np.asarray(value).ravel().tolist())
    return value


def _reference(name: str, function: Callable[..., Any], backend: str) -> str:
    """Return ``module:function``, by which the run finds a function of the user."""
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if getattr(sys.modules.get(str(module)), path, None) is not function:
        raise ValueError(
            f"{name}={function!r} is not at the top level of a module or a notebook: define it "
            "there with def, so that the run can find it"
        )
    if backend == "flower" and module == "__main__":
        raise ValueError(
            f"{name}={path}: other processes cannot import a function of a notebook or a script: "
            "put it into a module, or use backend='in-process'"
        )
    return f"{module}:{path}"


def _forget_functions() -> None:
    """Free what was made with functions that a notebook may since have defined anew."""
    from mll_flower.training.run_engine import forget_engines

    forget_engines()


@contextmanager
def _hooks(
    slots: int, progress: bool, on_round: Hook | None, on_evaluation: Hook | None
) -> Iterator[tuple[Hook, Hook]]:
    """Yield the hooks of a run: those of the progress bar, then those that were given."""
    if not progress:
        yield on_round or _ignore, on_evaluation or _ignore
        return
    bar = progress_bar()
    shown = RunProgress(bar, slots)

    def both(first: Hook, second: Hook | None) -> Hook:
        def call(record: dict[str, Any]) -> None:
            first(record)
            if second is not None:
                second(record)

        return call

    try:
        yield both(shown.round, on_round), both(shown.evaluation, on_evaluation)
    except BaseException as error:
        bar.close(f"stopped: {type(error).__name__}")
        raise
    shown.close()


def _ignore(record: dict[str, Any]) -> None:
    pass


def _run_on_flower(
    values: Mapping[str, Any], on_round: Hook, on_evaluation: Hook, resources: Resources
) -> None:
    from mll_flower.results.following import RowFollower

    resume = values.get("resume")
    earlier = load_checkpoint(resume).extra["rows"] if resume else 0
    rows = RowFollower(Path(values["output"]), on_round, on_evaluation, earlier)
    run_on_flower(values, lambda line: None, rows.look, resources=resources)
    rows.look()


@contextmanager
def _torch_threads_kept() -> Iterator[None]:
    """Restore torch's number of threads, which training sets to 1 for the whole process."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _stopped_run_is_named(output: str) -> Iterator[None]:
    """Say in an exception where the results so far are, if there are any."""
    try:
        yield
    except BaseException as error:
        if (Path(output) / files.ROWS).is_file():
            error.add_note(f"The results so far: mll_flower.load_run({output!r})")
        raise


def _signature() -> inspect.Signature:
    """Return the signature with every key, so that notebooks and editors complete them."""
    own = list(inspect.signature(simulate).parameters.values())[:-1]
    keys = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=type(field.default),
        )
        for field in fields(RunConfig)
    ]
    return inspect.Signature([*keys, *own], return_annotation=RunResult)


simulate.__signature__ = _signature()  # type: ignore[attr-defined]
