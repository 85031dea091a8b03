"""Looks at a source again and again, and keeps what is new for all browsers that listen."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from dataclasses import dataclass
from typing import Any

from mll_flower.watching.source import Source, View


@dataclass(frozen=True)
class News:
    """What is sent: the data that stay, under their hash, and the rest with its number."""

    version: int
    shape: str
    still: str
    view: dict[str, Any]
    made: float


class Watch:
    """Looks at a source again and again, and keeps its newest view for all who listen.

    Parameters
    ----------
    source : Source
        What is watched.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._changed = threading.Condition()
        self._news: News | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="watch", daemon=True)

    def start(self) -> None:
        """Look once, so that what is wrong is said at once; then go on in the background."""
        view = self.source.look()
        if view is not None:
            self._publish(view)
        self._thread.start()

    def stop(self) -> None:
        """End the looking, and all streams."""
        self._over.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    @property
    def over(self) -> bool:
        """Whether it was stopped."""
        return self._over.is_set()

    def newest(self, after: int, seconds: float) -> News | None:
        """Return the news after a version; wait for them so long at most, else return None."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.over or (self._news is not None and self._news.version > after),
                seconds,
            )
            news = self._news
        return news if news is not None and news.version > after and not self.over else None

    def _keep_looking(self) -> None:
        lasted = 0.0
        # A source that takes long to read, a run with very many hubs, is read less often: the run
        # needs the processor more.
        while not self._over.wait(max(self.source.pause, 5 * lasted)):
            started = time.monotonic()
            try:
                view = self.source.look()
            except (ValueError, OSError, KeyError, TypeError) as error:
                # Whatever is there cannot be read now; it may be again at the next look.
                self._publish_trouble(str(error) or type(error).__name__)
            else:
                if view is not None:
                    self._publish(view)
            lasted = time.monotonic() - started

    def _publish(self, view: View) -> None:
        still = dump(view.still)
        shape = hashlib.sha256(still.encode()).hexdigest()[:16]
        values = {**vars(view), "moving": {**view.moving, "shape": shape}}
        del values["still"]
        self._set(shape, still, values)

    def _publish_trouble(self, why: str) -> None:
        before = self._news
        values = dict(before.view if before else vars(View(title=self.source.kind)))
        values.pop("still", None)
        age = values["age"] + (time.monotonic() - before.made if before else 0.0)
        shape, still = (before.shape, before.still) if before else ("", "{}")
        self._set(shape, still, {**values, "trouble": why, "age": age})

    def _set(self, shape: str, still: str, view: dict[str, Any]) -> None:
        with self._changed:
            before = self._news
            version = 1 if before is None else before.version + 1
            if before is not None and before.shape == shape and _same(before.view, view):
                return
            self._news = News(version, shape, still, view, time.monotonic())
            self._changed.notify_all()


def _same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether two views differ in nothing but their age."""
    return {**before, "age": 0} == {**now, "age": 0}


def dump(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
