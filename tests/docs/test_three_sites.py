"""docs/three-sites.md, followed word by word in a fresh environment."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.docs.test_examples import BEFORE, EXAMPLES, difference
from tests.support.deployment import free_ports, running_in

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "three-sites.md").read_text()
HUBS = "abc"
# An untrained model gets one in ten digits right.
FLOOR = 0.8


def blocks() -> list[tuple[str, str]]:
    """Return the page's blocks of code, each with what stands after its opening fence."""
    return re.findall(r"^```(\w[\w ]*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_page_leads_to_the_example() -> None:
    (diff,) = [code for kind, code in blocks() if kind == "diff"]
    assert diff == difference(BEFORE, EXAMPLES / "three-sites") + "\n"


def script(folder: Path) -> str:
    """Return the page as one script for a shell; what it says to change by hand is patched."""
    lines = ["set -e", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT", "hubs="]
    number = 0
    for kind, code in blocks():
        if kind == "diff":
            (folder / "page.diff").write_text(code)
            lines.append(f"patch -p0 -d quickstart < {folder}/page.diff")
        elif kind == "sh":
            lines += code.splitlines()
        elif kind == "sh each":  # each line in a terminal of its own
            for line in code.splitlines():
                number += 1
                lines.append(f"{line} > {folder}/each-{number}.out 2>&1 &")
                if " hub " in line:
                    lines.append('hubs="$hubs $!"')
    lines.append('for hub in $hubs; do wait "$hub"; done')
    return "\n".join(lines) + "\n"


def checkout(folder: Path) -> None:
    """Copy what is in the repository, and nothing else."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def accuracies(text: str) -> list[float]:
    """Return the last accuracy of each run in Flower's output."""
    runs = text.split("Final results:")[1:]
    return [float(re.findall(r"'accuracy': '?([0-9.e+-]+)", run)[-1]) for run in runs]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_page_can_be_followed_word_by_word(tmp_path: Path) -> None:
    folder = tmp_path / "checkout"
    checkout(folder)
    # Ports of this test's own, in place of the defaults, and deadlines for a machine that does
    # much else at the same time. Everything else is the page's.
    ports = free_ports(8)
    changes = {f':{9400 + n}"': f':{ports[n]}"' for n in range(6)}
    changes |= {"deadline = 60 ": "deadline = 600 ", "deadline = 120 ": "deadline = 600 "}
    edits = "".join(f"s/{old}/{new}/;" for old, new in changes.items())
    text = script(tmp_path)
    certs = "mll-flower certs sites/network.toml\n"
    assert text.count(certs) == 1
    text = text.replace(certs, f"sed -i '{edits}' sites/network.toml\n{certs}")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLWR_", "VIRTUAL_ENV", "PYTHON", "MLL_"))
    }
    tools = str(Path(sys.executable).parent)
    paths = [path for path in environment["PATH"].split(os.pathsep) if path != tools]
    environment |= {
        "PATH": os.pathsep.join(paths),
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(ports[6]),
        "FLWR_LOCAL_CONTROL_API_PORT": str(ports[7]),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=2900,
        )
        outputs = "\n".join(
            f"--- {path.name}\n{path.read_text()[-2000:]}" for path in tmp_path.glob("*.out")
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:] + outputs
    finally:
        for process in running_in(tmp_path):  # Flower's local SuperLink stays otherwise
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    fedavg, simulated = accuracies(done.stdout)
    assert min(fedavg, simulated) > FLOOR
    assert "three-sites: 3 hubs, 4 rounds" in done.stdout  # the table of `status`
    for hub in HUBS:
        lines = (folder / "sites" / "state" / f"hub-{hub}" / "rounds.jsonl").read_text()
        rows = [row for row in map(json.loads, lines.splitlines()) if "arrived" in row]
        assert [row["round"] for row in rows] == [1, 2, 3, 4] * 2  # `up`, then three sites
        assert not any(row["silent"] for row in rows)
        for row in rows[3::4]:
            assert row["accuracy"] > FLOOR
            assert abs(row["accuracy"] - simulated) < 0.1
