"""What can be chosen about warm workers, as command-line words for their processes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

START_METHODS = ("fork", "spawn")
"""How a process begins: as a copy of one that has imported everything, or from nothing."""

PRELOAD = ("numpy", "torch")
"""What is imported before the first message; what is not installed is left out."""

PRELOAD_VARIABLE = "MLL_FLOWER_PRELOAD"
"""Environment variable that tells a ClientApp's process what to import."""


@dataclass(frozen=True)
class WarmSettings:
    """How ClientApps are run.

    Parameters
    ----------
    cold : bool
        As Flower does it: a new process for every message. The rest is of no effect then.
    start_method : str
        ``fork``, or ``spawn`` for an app that uses a GPU before its first message.
    preload : tuple[str, ...]
        Modules to import before the first message. None that an app brings along.
    max_memory : float, optional
        Gigabytes that a ClientApp's process may use; above, it is ended with an error reply.
    parallel : int
        Messages of different runs that are worked on at the same time.
    """

    cold: bool = False
    start_method: str = START_METHODS[0]
    preload: tuple[str, ...] = PRELOAD
    max_memory: float | None = None
    parallel: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        if self.start_method not in START_METHODS:
            raise ValueError(
                f"start_method={self.start_method!r}: choose one of {', '.join(START_METHODS)}"
            )
        if bad := [name for name in self.preload if not _is_module_name(name)]:
            raise ValueError(
                f"preload: {bad[0]!r} is not a module's name: write names with commas between "
                "them, such as numpy,torch"
            )
        if self.max_memory is not None and not 0 < self.max_memory < float("inf"):
            raise ValueError(f"max_memory={self.max_memory:g}: give gigabytes above 0")
        if self.parallel < 1:
            raise ValueError(f"parallel={self.parallel}: give at least 1 message at a time")

    def words(self) -> list[str]:
        """Return these settings as words of a command line, with ``--`` at the end."""
        words = ["--start-method", self.start_method, "--preload", ",".join(self.preload)]
        words += ["--parallel", str(self.parallel)]
        if self.max_memory is not None:
            words += ["--max-memory", repr(self.max_memory)]
        return [*(["--cold"] if self.cold else words), "--"]

    @classmethod
    def from_words(cls, words: Sequence[str]) -> tuple[WarmSettings, list[str]]:
        """Return the settings that `words` has made, and the words that follow them."""
        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.add_argument("--cold", action="store_true")
        parser.add_argument("--start-method", default=cls.start_method)
        parser.add_argument("--preload", default=",".join(cls.preload))
        parser.add_argument("--max-memory", type=float, default=None)
        parser.add_argument("--parallel", type=int, default=cls.parallel)
        place = list(words).index("--")
        given = parser.parse_args(words[:place])
        preload = module_names(given.preload)
        settings = cls(given.cold, given.start_method, preload, given.max_memory, given.parallel)
        return settings, list(words[place + 1 :])


def module_names(text: str) -> tuple[str, ...]:
    """Return the names in a text that has commas between them."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _is_module_name(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
