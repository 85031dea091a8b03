"""The logs of the sites on this machine: the last lines, and new ones as they are written.

A site is a hub or a worker. Each writes Flower's output to a log file in its state folder when it
is started by ``mll-flower up`` or with ``--quiet``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

from mll_flower.deployment.hub_state import SUPERLINK_LOG, SUPERNODE_LOG

_LONGEST_LINE = 1 << 20  # bytes that are waited for before a line without an end is shown


@dataclass(frozen=True)
class LogLine:
    """One line of a site's log.

    Parameters
    ----------
    site : str
        The site: ``hub-lyon``, ``worker-lyon-0``.
    text : str
        The line, without its end.
    """

    site: str
    text: str


class SiteLog:
    """The log file of one site.

    Parameters
    ----------
    site : str
        The site, which is also the name of its state folder.
    path : Path
        The file.
    """

    def __init__(self, site: str, path: Path) -> None:
        self.site, self.path = site, path
        self._position = 0

    def last(self, lines: int) -> list[LogLine]:
        """Return the last lines, and remember where the file ends."""
        kept: deque[LogLine] = deque(maxlen=lines)
        kept.extend(self.new())
        return list(kept)

    def new(self) -> list[LogLine]:
        """Return the lines that were added since the last call; all of a file that was replaced."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._position:
                    self._position = 0
                file.seek(self._position)
                text = file.read()
        except OSError:
            return []
        end = text.rfind(b"\n") + 1
        if not end and len(text) > _LONGEST_LINE:
            end = len(text)
        self._position += end
        whole = text[:end].decode(errors="replace")
        return [LogLine(self.site, line) for line in whole.splitlines()]


def site_logs(state: Path, site: str | None = None) -> list[SiteLog]:
    """Return the logs in a state folder.

    Parameters
    ----------
    state : Path
        Where the sites of this machine keep their state.
    site : str, optional
        Only this one, by its name (``hub-lyon``, ``worker-lyon-0``) or a part of it.
    """
    found = [
        SiteLog(path.parent.name, path)
        for name in (SUPERLINK_LOG, SUPERNODE_LOG)
        for path in sorted(state.glob(f"*/{name}"))
    ]
    if not found:
        raise ValueError(
            f"no logs in {state}: sites write them when they are started with `mll-flower up` or "
            "with --quiet; others write to their terminal or to the journal"
        )
    chosen = [log for log in found if site is None or site in log.site]
    if not chosen:
        names = ", ".join(log.site for log in found)
        raise ValueError(f"site={site!r} has no log in {state}: the ones here are {names}")
    return chosen
