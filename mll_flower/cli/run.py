"""``mll-flower run``: simulate one run, with a progress bar and a summary.

The run itself is `mll_flower.apps.network_run`: in a process of Flower's simulation engine, or
with ``--in-process`` in this one (`mll_flower.apps.launch`).
"""

from __future__ import annotations

import inspect
import json
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from mll_flower.algorithm.network import is_network
from mll_flower.apps.launch import (
    absolute_paths,
    claimed_output,
    run_in_process,
    run_on_flower,
)
from mll_flower.apps.run_notes import run_notes
from mll_flower.config import RunConfig
from mll_flower.extras import EXTRAS, require
from mll_flower.models import checkpoint
from mll_flower.processes.end_requests import EndRequested, end_requests
from mll_flower.processes.ray_cluster import Resources
from mll_flower.results import files
from mll_flower.results.progress import newest_evaluation, read_progress
from mll_flower.results.progress_bar import terminal_bars

console = Console()

# Lines of Flower's log that only describe defaults, which this command overrides.
_UNINFORMATIVE = ("default simulated SuperNodes", "federation size", "federation simulation-config")


def run(
    config: Path | None,
    flwr_home: Path | None,
    in_process: bool,
    actors: int,
    overwrite: bool,
    ray_address: str = "",
    actor_gpus: float = 0.0,
    **values: Any,
) -> None:
    """Simulate a multi-level network of hubs and workers.

    Runs the Flower app of this project on Flower's simulation engine, shows
    its progress and ends with a summary. Nearly all options are keys of the
    run config. Without options, five hubs on a ring, with four workers each,
    learn to recognise digits.
    """
    options = {key.replace("_", "-"): v for key, v in values.items() if v is not None}
    settings = absolute_paths({**_read_config_file(config), **options})
    needed = [name for name in EXTRAS["torch"] if name != "ray" or not in_process]
    # What is wrong with the settings is said first.
    resources = Resources(actors, "", actor_gpus)
    if in_process and ray_address:
        raise ValueError(f"ray-address={ray_address!r} with --in-process: leave one of them out")
    RunConfig.check_given(settings)
    checked = RunConfig.from_run_config(settings)
    require("mll-flower run", *needed)
    if not in_process:
        resources = Resources.found(actors, ray_address, actor_gpus)
    for note in run_notes(checked):
        console.print(f"Note: {note}.", markup=False, soft_wrap=True, highlight=False)
    with (
        end_requests(),
        claimed_output(settings, overwrite, in_process) as claimed,
        terminal_bars(console) as bars,
    ):
        output = Path(claimed["output"])
        bar = _RunProgress(bars, output, RunConfig.from_run_config(claimed).slots)
        try:
            if in_process:
                run_in_process(claimed, on_message=bar.update)
            else:
                bar.show_note("Starting Flower (about 20 s)")
                run_on_flower(claimed, bar.print_log_line, bar.update, flwr_home, resources)
        except EndRequested as request:
            bars.stop()
            console.print(_after_interruption(output), markup=False, soft_wrap=True)
            raise typer.Exit(request.exit_code) from None
        except RuntimeError as failure:
            bars.stop()
            console.print(f"Error: {failure}", style="bold red", markup=False, soft_wrap=True)
            raise typer.Exit(1) from None
        bar.update()
    print_summary(output)


def _after_interruption(output: Path) -> str:
    """Say where the results of an interrupted run are, and how to go on."""
    if not (output / files.ROWS).is_file():
        return "Interrupted before the run began: there are no results."
    where = f"Interrupted. The results so far are in {output}."
    if not (output / checkpoint.FILE).is_file():
        return f"{where} There is no checkpoint to go on from: --checkpoint-every 1 makes more."
    command = ["mll-flower", "resume", str(output)]
    return f"{where} To go on from the last checkpoint:\n{shlex.join(command)}"


def print_summary(output: Path) -> None:
    """Print the results of a run that has ended, and the names of its files."""
    report = json.loads((output / files.METRICS).read_text())
    summary, config = report["summary"], report["config"]
    table = Table(title=f"{config['preset']} on {report['data']}", show_header=False)
    first, metric = report["evaluations"][0], report.get("metric", "accuracy")
    rows = [
        ("network", f"{config['hubs']} hubs, {len(report['workers'])} workers, {config['graph']}"),
        ("mixing", f"tau {config['tau']}, q {config['q']}, zeta {report['network']['zeta']:.4f}"),
        ("slots, rounds", f"{summary['slot']}, {summary['rounds']}"),
        ("steps taken", f"{summary['steps']:,}"),
        ("training loss", f"{first['loss']:.4f} -> {summary['loss']:.4f}"),
        (f"test {metric}", f"{first[metric]:.4f} -> {summary[metric]:.4f}"),
        ("absences", str(summary["absent"])),
        ("bytes sent", f"{summary['bytes'] / 1e6:,.1f} MB"),
        ("time on the clock" if config.get("clock") else "time", f"{summary['seconds']:.1f} s"),
    ]
    rows += [("note", note) for note in run_notes(RunConfig.read(config))]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(f"Results: [bold]{output}[/bold]", soft_wrap=True)
    for plot in sorted((output / files.PLOTS).glob("*.png")):
        console.print(f"  {files.PLOTS}/{plot.name}")


class _RunProgress:
    """The progress bar of a run, kept up to date from the file that the run writes.

    Parameters
    ----------
    bars : Progress
        Where the bar is shown.
    output : Path
        The run's folder.
    slots : int
        Slots of the run; replaced by the number that the run itself reports.
    """

    def __init__(self, bars: Progress, output: Path, slots: int) -> None:
        self.bars, self.output = bars, output
        self.task = bars.add_task("starting", total=slots, note="")

    def update(self) -> None:
        """Show how far the run has got."""
        progress = read_progress(self.output)
        if progress is not None:
            self.bars.update(
                self.task,
                completed=progress.get("slot", 0),
                total=progress["total"],
                description="slots",
                note=newest_evaluation(progress),
            )

    def show_note(self, note: str) -> None:
        """Show a text beside the bar."""
        self.bars.update(self.task, note=note)

    def print_log_line(self, line: str) -> None:
        """Print a line of the run's log above the bar, unless it is uninformative."""
        text = Text.from_ansi(line)
        plain = text.plain.strip()
        if not plain or plain.endswith("INFO :") or any(part in plain for part in _UNINFORMATIVE):
            return
        self.bars.console.print(text, soft_wrap=True)


def _read_config_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    if not path.is_file():
        raise ValueError(f"config file {path} does not exist: check the path")
    try:
        text = path.read_text()
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ValueError(f"config file {path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(
            f"config file {path} holds a {type(data).__name__}: it must be an object with keys of "
            'the run config, such as {"hubs": 5, "tau": 8}'
        )
    if is_network(data):
        return RunConfig.network_values(path)
    return data


def run_command() -> Callable[..., None]:
    """Return `run` as a command with one option per key of the run config."""
    own = [
        _option(
            "config",
            Path | None,
            None,
            "A TOML or JSON file with keys of the run config, or a network that "
            "`mll-flower network --save` has written.",
        ),
        _option("flwr_home", Path | None, None, "Flower's home; default: a temporary one."),
        _option(
            "in_process", bool, False, "Run in this process, without Flower's engine; same numbers."
        ),
        _option("actors", int, 0, "Processes that train; 0: one per core."),
        _option(
            "ray_address",
            str,
            "",
            "Run on all nodes of the Ray cluster with this head: host:port, or auto; default: "
            "RAY_ADDRESS.",
        ),
        _option("actor_gpus", float, 0.0, "Share of a GPU that each process that trains takes."),
        _option("overwrite", bool, False, "Replace the run that the output folder holds."),
    ]
    kinds = {bool: bool | None, int: int | None, float: float | None, str: str | None}
    keys = [
        _option(
            field.name,
            kinds[type(field.default)],
            None,
            f"{field.metadata['help']} (default: {field.default!r})".replace(" (default: '')", ""),
        )
        for field in fields(RunConfig)
    ]

    def command(**values: Any) -> None:
        run(**values)

    command.__doc__ = run.__doc__
    command.__name__ = "run"
    command.__signature__ = inspect.Signature(own + keys)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in own + keys}
    return command


def _option(name: str, kind: Any, default: Any, help: str) -> inspect.Parameter:
    flag = f"--{name.replace('_', '-')}"
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer.Option(flag, help=help, show_default=False)],
    )
