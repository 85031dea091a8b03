"""Start a simulated run: on Flower's engine, or in this process.

``mll-flower run`` and `mll_flower.simulate` share this. torch, ray and Flower's runtime are loaded
when a run starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mll_flower.config import RunConfig
from mll_flower.processes.ray_cluster import THIS_MACHINE, Resources
from mll_flower.results.output_folder import claim_output, new_output, release_output
from mll_flower.tasks.data import absolute_dataset, find_published, is_published
from mll_flower.tasks.own_code import needs_code_dir
from mll_flower.training.device import check_device
from mll_flower.training.own_work import try_own_work


def absolute_paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with absolute paths, because the processes of a run work in other folders."""
    settings = dict(settings)
    if settings.get("output"):
        settings["output"] = str(Path(settings["output"]).absolute())
    data = settings.get("data-dir") or os.environ.get("MLL_FLOWER_DATA") or "data"
    needed = is_published(str(settings.get("dataset", "")))
    if settings.get("data-dir") or Path(data).is_dir() or needed:
        settings["data-dir"] = str(Path(data).absolute())
    if settings.get("resume"):
        settings["resume"] = str(Path(settings["resume"]).absolute())
    for key in ("graph", "mixing", "clock"):
        value = str(settings.get(key, ""))
        if Path(value).is_file():
            settings[key] = str(Path(value).absolute())
    if "dataset" in settings:
        settings["dataset"] = absolute_dataset(str(settings["dataset"]), Path.cwd())
    if settings.get("code-dir") or needs_code_dir(settings):
        settings["code-dir"] = str(Path(settings.get("code-dir") or "").absolute())
    return settings


@contextmanager
def claimed_output(
    settings: Mapping[str, Any], overwrite: bool, in_process: bool
) -> Iterator[dict[str, Any]]:
    """Check settings, try the user's own functions and claim the output, before anything starts.

    A run that fails before it has written a row gives the folder back.

    Parameters
    ----------
    settings : Mapping
        The run config, with absolute paths.
    overwrite : bool
        Whether a run that the folder holds is removed.
    in_process : bool
        Whether the run is in this process. Then the run itself tries the user's functions, and
        keeps what it has loaded.

    Yields
    ------
    dict
        The settings, with the output folder.
    """
    RunConfig.check_given(settings)
    config = RunConfig.from_run_config(settings)
    if not in_process:
        find_published(config.dataset, config.data_dir)
        try_own_work(config)
    output = Path(config.output) if config.output else new_output()
    config = replace(config, output=str(output))
    claim_output(output, config.to_run_config(), config.resume, overwrite)
    try:
        yield {**settings, "output": str(output)}
    except BaseException:
        release_output(output)
        raise


def run_in_process(values: Mapping[str, Any], **options: Any) -> Path:
    """Run in this process, without Flower's engine; return the folder of the results.

    Parameters
    ----------
    values : Mapping
        The run config.
    **options
        Of `mll_flower.apps.network_run.run_network`.
    """
    from mll_flower.apps.network_run import run_network
    from mll_flower.apps.worker_app import worker_app
    from mll_flower.grids.in_process import InProcessGrid

    checked = RunConfig.from_run_config(values)
    check_device(checked.device)
    config, nodes = checked.to_run_config(), checked.nodes
    return run_network(InProcessGrid(worker_app(), nodes, config), config, **options)


def run_on_flower(
    values: Mapping[str, Any],
    on_line: Callable[[str], None],
    on_idle: Callable[[], None] | None = None,
    home: Path | None = None,
    resources: Resources = THIS_MACHINE,
) -> Path:
    """Run on Flower's simulation engine; return the folder of the results.

    Parameters
    ----------
    values : Mapping
        The run config, with absolute paths and an output folder.
    on_line : callable
        Given each line of the run's log.
    on_idle : callable, optional
        Called about twice a second while the run goes on.
    home : Path, optional
        Flower's home; a temporary one by default.
    resources : Resources
        The processes that train: their number, or the cluster that they belong to.
    """
    from mll_flower.processes.flower_environment import app_directory
    from mll_flower.processes.simulation import run_app, simulation_superlink

    config = RunConfig.from_run_config(values)
    check_device(config.device, resources.gpus, elsewhere=bool(resources.address))
    if not resources.gpus:  # actors may see GPUs that they were not given
        config = replace(config, device="cpu")
    federation = resources.federation(config.nodes)
    with simulation_superlink(home, resources, on_line) as superlink:
        app = app_directory(superlink.home)
        # Every key, because the app that Flower runs may have other defaults in its pyproject.toml.
        run_app(superlink, app, config.to_run_config(), federation, on_line, on_idle)
    return Path(values["output"])
