"""Memory of a process, and of all the processes of a Flower run, over time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

_PAGE = 4096


def resident() -> float:
    """Megabytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1e6


def peak() -> float:
    """Megabytes of this process at its peak (getrusage's go back to the process's parent)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("/proc/self/status has no VmHWM")


def processes_of(home: Path) -> list[Path]:
    """Find the processes that were started with this Flower home."""
    word = f"FLWR_HOME={home}\0".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if word in (process / "environ").read_bytes():
                found.append(process)
        except OSError:  # it has ended, or is not ours
            continue
    return found


def megabytes(process: Path) -> float:
    """Megabytes of a process; memory that it shares with others is shared out (PSS)."""
    try:
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1e3
    except OSError:
        pass
    return 0.0


class Sampler:
    """Watches the memory of a Flower run; a context manager.

    Parameters
    ----------
    home : Path
        The run's Flower home, by which its processes are known.
    every : float
        Seconds between two samples.
    """

    def __init__(self, home: Path, every: float = 1.0) -> None:
        self.home, self.every = home, every
        self.samples: list[tuple[float, float]] = []
        """Time (since the epoch) and megabytes of all processes."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    @property
    def peak(self) -> float:
        """The most megabytes seen."""
        return max((size for _, size in self.samples), default=0.0)

    def _watch(self) -> None:
        while not self._over.wait(self.every):
            total = sum(megabytes(process) for process in processes_of(self.home))
            self.samples.append((time.time(), total))
