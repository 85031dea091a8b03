"""What the commands that run hubs and workers say: lines for people, or JSON for programs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Literal

from rich.console import Console
from rich.text import Text

LogFormat = Literal["text", "json"]

_STYLES = {"info": "", "warning": "bold yellow", "error": "red"}


class Announcer:
    """Prints what happens at a site.

    Parameters
    ----------
    console : Console
        Where lines for people go.
    format : {"text", "json"}
        ``json`` prints one object per line, with ``time``, ``level``, ``site`` and ``message``.
    site : str
        The hub, the worker or the network that speaks.
    """

    def __init__(self, console: Console, format: LogFormat, site: str) -> None:
        self._console, self._format, self._site = console, format, site

    def say(self, text: str) -> None:
        """Say what happens."""
        self._write("info", text)

    def warn(self, text: str) -> None:
        """Say what the operator should look at."""
        self._write("warning", text)

    def fail(self, text: str) -> None:
        """Say what has failed."""
        self._write("error", text)

    def _write(self, level: str, text: str) -> None:
        now = datetime.now(UTC)
        if self._format == "json":
            entry = {
                "time": now.isoformat(timespec="milliseconds"),
                "level": level,
                "site": self._site,
                "message": text,
            }
            print(json.dumps(entry), flush=True)
            return
        # No markup: paths and messages may hold square brackets.
        clock = (now.astimezone().strftime("%H:%M:%S"), "dim")
        self._console.print(Text.assemble(clock, " ", (text, _STYLES[level])), soft_wrap=True)
