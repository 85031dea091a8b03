"""Makes watching.png, the picture of docs/watching.md: the live page of a run that goes on.

From the root of the repository, where Chromium is installed:

    python -m docs.figures.make_watching
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mll_flower import simulate
from mll_flower.watching.opening import open_source
from mll_flower.watching.server import serve
from tests.support.chromium import Browser

PICTURE = Path(__file__).with_name("watching.png")
SETTINGS: dict[str, Any] = {
    "hubs": 6,
    "workers_per_hub": 5,
    "rates": "hub:1,1,0.8,0.6,0.4,0.2",
    "partition": "dirichlet(0.3)",
    "slots": 2048,
    "evaluate_every": 32,
}


class Taken(BaseException):
    """The picture is taken: the run may end."""


def main() -> None:
    """Run until slot 1024, and take the picture there."""
    with TemporaryDirectory() as folder:
        output, profile = Path(folder) / "first", Path(folder) / "chromium"
        profile.mkdir()

        def take(evaluation: dict[str, Any]) -> None:
            if evaluation["slot"] < 1024:
                return
            with (
                serve(open_source(output), "127.0.0.1", 0, "first") as server,
                Browser(profile) as browser,
            ):
                browser.set_size(1000, 1450)
                browser.open(server.url)
                browser.wait_for("document.querySelectorAll('.hub').length === 6")
                browser.screenshot(PICTURE, whole=False)
            raise Taken

        try:
            simulate(**SETTINGS, output=output, on_evaluation=take, progress=False)
        except Taken:
            print(PICTURE)


if __name__ == "__main__":
    main()
