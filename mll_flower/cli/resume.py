"""``mll-flower resume``: go on with a run that was interrupted, or make an ended one longer."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from mll_flower.cli.run import run as start
from mll_flower.models import checkpoint
from mll_flower.results import files


def resume(
    run: Annotated[Path, typer.Argument(help="The folder of the run.")],
    slots: Annotated[
        int | None,
        typer.Option(help="Slots of the whole run, if it is to be longer than it was."),
    ] = None,
    in_process: Annotated[
        bool,
        typer.Option(
            "--in-process", help="Run in this process, without Flower's engine; same numbers."
        ),
    ] = False,
    actors: Annotated[int, typer.Option(help="Processes that train; 0: one per core.")] = 0,
    actor_gpus: Annotated[
        float, typer.Option(help="Share of a GPU that each process that trains takes.")
    ] = 0.0,
    flwr_home: Annotated[
        Path | None, typer.Option(help="Flower's home; default: a temporary one.")
    ] = None,
) -> None:
    """Go on with a run from its last checkpoint, with all its settings, in its own folder.

    RUN is the folder of the run. It ends with the numbers that it would have had without the
    interruption. With --slots, a run that has ended goes on to a later end.
    """
    config = run / files.CONFIG
    if not config.is_file():
        raise ValueError(f"{run} holds no run: give the folder that mll-flower run wrote")
    if not (run / checkpoint.FILE).is_file():
        command = ["mll-flower", "run", "--config", str(config), "--overwrite"]
        raise ValueError(
            f"{run} has no checkpoint: the run was made with checkpoint-every=0, or it stopped "
            f"before the first one. To start it again: {shlex.join(command)}"
        )
    if (run / files.METRICS).is_file() and slots is None:
        raise ValueError(f"{run} has ended: give more --slots to make it longer")
    folder = str(run.absolute())
    values: dict[str, Any] = {"resume": folder, "output": folder, "slots": slots}
    start(config, flwr_home, in_process, actors, False, actor_gpus=actor_gpus, **values)
