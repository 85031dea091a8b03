"""The folder of a run while it is played, and how a later process goes on with what it finds.

A run is played into a part: a folder with the run's name, the number of the process and ``.part``,
which gets the run's name when the run has ended. The process holds a lock on a file in it. If the
process dies, however that happens, the lock is free, and whoever plays the run next takes the
folder over, with its checkpoint.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from mll_flower.models.checkpoint import FILE as CHECKPOINT
from mll_flower.results.progress import read_progress

_LOCK = "playing.lock"


def part_folder(folder: Path, process: int | None) -> Path:
    """Return the folder of a run while a process is playing it."""
    return folder.with_name(f"{folder.name}.{process}.part")


@contextmanager
def claimed_part(folder: Path) -> Iterator[Path]:
    """Make this process's part of a run, or take over an abandoned one; end with the run's name.

    Parameters
    ----------
    folder : Path
        The folder of the run.

    Yields
    ------
    Path
        The part. It holds a checkpoint if an earlier process has come so far. If the block raises,
        a part with a checkpoint stays for the next attempt.
    """
    part = part_folder(folder, os.getpid())
    lock = _take_over(folder, part)
    if lock is None:
        lock = _new_part(part)
    try:
        yield part
        (part / _LOCK).unlink()
        (part / CHECKPOINT).unlink(missing_ok=True)
        try:
            part.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            shutil.rmtree(part)  # another command was faster; its numbers are the same
    except BaseException:
        remove_unless_begun(part)
        raise
    finally:
        os.close(lock)


def share_begun(folder: Path) -> float:
    """Return the share of a run that an abandoned part of it has done already."""
    shares = [0.0]
    for part in _parts(folder):
        if (part / CHECKPOINT).is_file() and (lock := _try_to_lock(part)) is not None:
            os.close(lock)
            shares.append(share_done(part))
    return max(shares)


def share_done(part: Path) -> float:
    """Return the share of its slots that a run in this folder has done."""
    now = read_progress(part)
    return float(min(now.get("slot", 0) / now["total"], 1.0)) if now else 0.0


def remove_unless_begun(part: Path) -> None:
    """Remove a part, unless it has a checkpoint to go on from."""
    if not (part / CHECKPOINT).is_file():
        shutil.rmtree(part, ignore_errors=True)


def clear_part(part: Path) -> None:
    """Remove all that a part holds, but keep it claimed."""
    for path in part.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != _LOCK:
            path.unlink()


def _take_over(folder: Path, part: Path) -> int | None:
    """Rename an abandoned part that has a checkpoint, and return its lock; remove all others."""
    taken: int | None = None
    for other in sorted(_parts(folder), key=share_done, reverse=True):
        lock = _try_to_lock(other)
        if lock is None:
            if _is_litter(other):
                shutil.rmtree(other, ignore_errors=True)
            continue
        if taken is None and (other / CHECKPOINT).is_file():
            if other != part:
                shutil.rmtree(part, ignore_errors=True)  # of a dead process with our number
                other.rename(part)
            taken = lock
        else:
            shutil.rmtree(other, ignore_errors=True)
            os.close(lock)
    return taken


def _is_litter(part: Path) -> bool:
    """Whether a dead process left a part without a lock, as earlier versions did."""
    with suppress(OSError):
        old = time.time() - part.stat().st_mtime > 60  # a new one gets its lock at once
        process = part.name.split(".")[-2]
        alone = process.isdigit() and not psutil.pid_exists(int(process))
        return old and alone and not (part / _LOCK).exists()
    return False


def _new_part(part: Path) -> int:
    """Make a part and return its lock, which nobody else can get before us."""
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    new = part / f"{_LOCK}.new"
    lock = os.open(new, os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    new.rename(part / _LOCK)
    return lock


def _parts(folder: Path) -> list[Path]:
    """Return the parts of a run, those of living processes included."""
    if not folder.parent.is_dir():
        return []
    return [p for p in folder.parent.iterdir() if p.match(f"{folder.name}.*.part") and p.is_dir()]


def _try_to_lock(part: Path) -> int | None:
    """Lock a part; None if another process holds it or it has just been removed or renamed."""
    with suppress(OSError):
        lock = os.open(part / _LOCK, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.stat(part / _LOCK), os.fstat(lock)):
                return lock
        except OSError:
            pass
        os.close(lock)
    return None
