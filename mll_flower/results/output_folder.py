"""A run's output folder: claimed before anything is written, so that no two runs share one.

The claim is the run's config.json, created only if it does not exist, which the file system does
in one step: of two runs that start at the same moment, one gets the folder.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from mll_flower.models.checkpoint import FILE as CHECKPOINT
from mll_flower.results import files

# What a run leaves besides its config. A resumed run goes on from the first four.
_CONTINUED = (CHECKPOINT, files.ROWS, files.EVENTS, files.PROGRESS)
_ENDED = (files.METRICS, files.UNFINISHED, files.MODEL, files.REPORT, files.PLOTS)


def new_output() -> Path:
    """Make the folder of a run that names none: runs/ and the time, numbered where it exists."""
    start = Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}"
    start.parent.mkdir(exist_ok=True)
    number = 1
    while True:
        folder = start if number == 1 else start.with_name(f"{start.name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder.absolute()


def claim_output(
    output: Path,
    config: Mapping[str, Any],
    resume: str = "",
    overwrite: bool = False,
    strict: bool = True,
) -> None:
    """Claim a folder for a run, or raise.

    Parameters
    ----------
    output : Path
        The folder; made if it does not exist.
    config : Mapping
        The run config, which becomes config.json.
    resume : str
        The checkpoint or run that this run continues. A run that continues in its own folder
        needs no claim.
    overwrite : bool
        Whether a run that the folder holds is removed. Files of other names stay.
    strict : bool
        If False, a claim with this very config that no run has used yet is taken over: a command
        claims the folder, and the app that it starts writes into it.

    Raises
    ------
    ValueError
        If the folder holds a run.
    """
    place = output / files.CONFIG
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / f".{files.CONFIG}.{os.getpid()}").touch()
        (output / f".{files.CONFIG}.{os.getpid()}").unlink()
    except OSError as error:
        raise ValueError(
            f"output={str(output)!r} cannot be written ({error.strerror}): give another folder"
        ) from None
    if resume and place.is_file() and _folder_of(resume) == output.resolve():
        return
    if overwrite:
        _remove(output, (*_CONTINUED, *_ENDED, files.TENSORBOARD, files.CONFIG))
    refusal = ValueError(
        f"output={str(output)!r} holds a run: give another folder, replace that run with "
        "overwrite, or continue it with resume"
    )
    if (output / files.ROWS).exists():
        raise refusal
    try:
        with place.open("x") as file:
            json.dump(dict(config), file)
    except FileExistsError:
        if strict or not _holds(place, config):
            raise refusal from None


def remove_end(output: Path) -> None:
    """Remove the end of a run that now goes on from its checkpoint: it will have another one."""
    _remove(output, _ENDED)


def release_output(output: Path) -> None:
    """Give a claim back if the run has written nothing: it failed before it began."""
    if (output / files.ROWS).exists():
        return
    with suppress(OSError):
        (output / files.CONFIG).unlink(missing_ok=True)
        output.rmdir()  # stays if it holds anything else


def _folder_of(resume: str) -> Path:
    path = Path(resume).resolve()
    return path if path.is_dir() else path.parent


def _holds(place: Path, config: Mapping[str, Any]) -> bool:
    """Return whether this config is the claim; what was "auto" may since have been decided."""
    try:
        claim = dict(json.loads(place.read_text()))
    except (OSError, ValueError):
        return False
    for key in ("engine", "device"):
        if claim.get(key) == "auto":
            claim[key] = config.get(key)
    return claim == dict(config)


def _remove(output: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = output / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
