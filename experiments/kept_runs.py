"""Runs that the repository keeps: long ones need not be played again to draw or extend a figure.

A kept run is a zip file with the name of the run's folder. It holds the files that `load_run`
reads, without the names of folders on the machine that played the run. The name follows from the
run's config and the version of the code that decides its numbers: one of another version is not
used.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.figures import Figure
from mll_flower.results import files
from mll_flower.sweeps.cache import is_finished, run_folder
from mll_flower.sweeps.parts import claimed_part, clear_part

KEPT = Path(__file__).with_name("results") / "runs"

# What `load_run` reads of a finished run.
_FILES = (files.CONFIG, files.ROWS, files.METRICS)
# Keys of a run config that name folders of one machine.
_FOLDERS = ("data-dir", "output")
# The same run gives the same bytes: a zip file has a date for each of its files, this one for all.
_DATE = (1980, 1, 1, 0, 0, 0)


def keep(figures: Sequence[Figure], out: Path, kept: Path = KEPT) -> int:
    """Keep the figures' finished runs; return how many were not kept yet.

    Parameters
    ----------
    figures : Sequence[Figure]
        The figures.
    out : Path
        Folder in which their runs were played.
    kept : Path
        Folder of the kept runs.
    """
    new = 0
    for folder in _folders(figures, out):
        target = _kept_file(kept, folder)
        if is_finished(folder) and not target.is_file():
            kept.mkdir(parents=True, exist_ok=True)
            _pack(folder, target)
            new += 1
    return new


def restore(figures: Sequence[Figure], out: Path, kept: Path = KEPT) -> int:
    """Unpack the kept runs of figures, as if they had been played there; return their number.

    A run that the folder already has stays as it is.

    Parameters
    ----------
    figures, out, kept
        As in `keep`.
    """
    restored = 0
    for folder in _folders(figures, out):
        source = _kept_file(kept, folder)
        if source.is_file() and not is_finished(folder):
            with claimed_part(folder) as part:
                clear_part(part)
                _unpack(source, part)
            restored += 1
    return restored


def _folders(figures: Sequence[Figure], out: Path) -> list[Path]:
    """Return the folders of the figures' runs, each once: figures may share runs."""
    folders = [run_folder(out, config) for figure in figures for config in figure.configs()]
    return list(dict.fromkeys(folders))


def _kept_file(kept: Path, folder: Path) -> Path:
    return kept / f"{folder.name}.zip"


def _pack(folder: Path, target: Path) -> None:
    part = target.with_name(target.name + ".part")
    with zipfile.ZipFile(part, "w") as archive:
        for name in _FILES:
            text = (folder / name).read_text()
            if name.endswith(".json"):
                text = json.dumps(_without_folders(json.loads(text)), separators=(",", ":"))
            entry = zipfile.ZipInfo(name, _DATE)
            archive.writestr(entry, text, compress_type=zipfile.ZIP_LZMA)
    part.replace(target)


def _unpack(source: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(source) as archive:
            for name in _FILES:
                (folder / name).write_bytes(archive.read(name))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(
            f"{source} is not a kept run ({error}): get it again with git, or remove it to have "
            "the run played"
        ) from None


def _without_folders(value: dict[str, Any]) -> dict[str, Any]:
    """Blank the names of folders, in a run config and in results that contain one."""
    if "config" in value:
        value = {**value, "config": _without_folders(value["config"])}
    return {key: "" if key in _FOLDERS else entry for key, entry in value.items()}
