"""The last rounds of a hub, which its operator may ask for with the hub's status.

Only the operator: why a worker was absent is no business of other sites.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

KEPT = 2000
"""Rounds that are kept."""

BYTES = 40_000
"""Bytes of the rounds in one answer, at most; `mll_flower.gossip.wire` limits the whole."""


class RecentRounds:
    """Keeps the last rounds, as texts, and gives them in answers of a limited size."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, str]] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a row; ``round`` is its number. A round that is played again takes its place."""
        number = int(row["round"])
        with self._lock:
            while self._rows and self._rows[-1][0] >= number:
                self._rows.pop()
            self._rows.append((number, json.dumps(dict(row))))

    def after(self, number: int) -> list[dict[str, Any]]:
        """Return the rows of the rounds after this one, oldest first, as many as fit."""
        with self._lock:
            rows = [text for n, text in self._rows if n > number]
        found, size = [], 0
        for text in rows:
            size += len(text)
            if size > BYTES:
                break
            found.append(json.loads(text))
        return found
