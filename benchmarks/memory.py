"""Memory of one process, and of all processes of a Flower run over time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

_PAGE = 4096

SIMULATION = "simulation process: ServerApp, hub models, messages, evaluation"
ACTORS = "actors, which train"
FLOWERS = "Flower: SuperLink, SuperExec, `flwr run`"
RAYS = "Ray: dashboard, agents, monitors, raylet, processes in reserve"
# Parts of command lines, and the group of the processes that have them. Others are Ray's.
_GROUPS = (
    ("flwr-simulation", SIMULATION),
    ("ClientAppActor", ACTORS),
    ("flower-super", FLOWERS),
    ("flwr run", FLOWERS),
)


def resident() -> float:
    """Return the megabytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1e6


def peak() -> float:
    """Return the megabytes of this process at its peak.

    The peak that getrusage gives is never below that of the process that started this one.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("/proc/self/status has no VmHWM")


def processes_of(home: Path) -> list[Path]:
    """Find the processes that were started with this Flower home."""
    variable = f"FLWR_HOME={home}\0".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if variable in (process / "environ").read_bytes():
                found.append(process)
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def megabytes(process: Path) -> float:
    """Return the megabytes of a process; shared memory is divided among its users (PSS)."""
    try:
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6  # the kernel's kB has 1,024 bytes
    except OSError:
        pass
    return 0.0


def group(process: Path) -> str:
    """Return what a process of a run through Flower is there for: one of the constants above."""
    try:
        command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        command = ""
    return next((name for part, name in _GROUPS if part in command), RAYS)


class Sampler:
    """Context manager that samples the memory of a Flower run.

    Parameters
    ----------
    home : Path
        The run's Flower home, which identifies its processes.
    every : float
        Seconds between two samples.
    """

    def __init__(self, home: Path, every: float = 1.0) -> None:
        self.home, self.every = home, every
        self.samples: list[tuple[float, float]] = []
        """Seconds since the epoch, and megabytes of all processes at that time."""
        self.at_peak: dict[str, list[float]] = {}
        """The megabytes of each process at the largest sample, by `group`."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def peak(self) -> float:
        """The largest sample, in megabytes."""
        return max((size for _, size in self.samples), default=0.0)

    def _watch(self) -> None:
        while not self._over.wait(self.every):
            sizes = {process: megabytes(process) for process in processes_of(self.home)}
            total = sum(sizes.values())
            if total > self.peak:
                self.at_peak = {}
                for process, size in sizes.items():
                    self.at_peak.setdefault(group(process), []).append(size)
            self.samples.append((time.time(), total))
