"""The writer for TensorBoard: its event files, read back."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

from mll_flower.results.tensorboard import TensorBoardWriter
from tests.support.event_files import scalars


def test_records_become_scalars_over_slots(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path) as writer:
        for slot in (0, 8):
            writer.evaluation(
                {"slot": slot, "round": 1, "loss": 0.5, "mae": slot / 16, "seconds": 3.0}
            )
        rest = {"round": 2, "bytes": 9, "seconds": 3.0}
        writer.round(
            {
                "slot": 8,
                "hub": 3,
                "steps": 7,
                "loss": math.nan,
                "distance": 0.25,
                "absent": 1,
                **rest,
            }
        )
    found = scalars(tmp_path)
    assert found["averaged model/mae"] == [(0, 0.0), (8, 0.5)]
    assert found["averaged model/loss"] == [(0, 0.5), (8, 0.5)]
    assert found["hub 3/distance"] == [(8, 0.25)]
    assert math.isnan(found["hub 3/loss"][0][1])
    assert set(found) == {
        *("averaged model/loss", "averaged model/mae"),
        *(f"hub 3/{name}" for name in ("steps", "loss", "distance", "absent")),
    }


def test_without_the_package_the_remedy_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "from mll_flower.results.tensorboard import TensorBoardWriter\n"
        f"TensorBoardWriter({str(tmp_path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("pip install 'mll-flower[tensorboard]'")


def test_torch_is_not_needed(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from mll_flower import TensorBoardWriter\n"
        f"w = TensorBoardWriter({str(tmp_path)!r}); w.write(1, 'a', {{'b': 2.0, 'c': None}})\n"
        "w.close()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert scalars(tmp_path) == {"a/b": [(1, 2.0)]}
