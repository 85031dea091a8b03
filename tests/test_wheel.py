"""The project as its wheel installs it: real commands, with no checkout in sight."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.support.deployment import free_ports
from tests.support.wheel import Installed, build_wheel

pytestmark = pytest.mark.timeout(400)

TINY = {
    "hubs": 2,
    "workers-per-hub": 1,
    "tau": 2,
    "q": 1,
    "slots": 4,
    "model": "logistic",
    "evaluate-limit": 100,
}
OPTIONS = [text for key, value in TINY.items() for text in (f"--{key}", str(value))]
OFFLINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed.make(tmp_path_factory.mktemp("installed") / "venv", wheel)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a Flower project of its own, whose apps must not be touched."""
    for name in ("server_app", "client_app", "hub_app"):
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "app.py"):
            (tmp_path / name / file).write_text('raise RuntimeError("the app of the user")\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n')
    return tmp_path


def test_the_wheel_installs_one_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"mll_flower"}
    assert "mll_flower/bundled_apps/server_app/app.py" in names
    assert "mll_flower/py.typed" in names


def test_commands_without_a_run_in_an_empty_folder(installed: Installed, tmp_path: Path) -> None:
    where = installed.run("python", "-c", "import mll_flower as m; print(m.__file__)", cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(installed.folder)
    port = free_ports(1)[0]
    network = tmp_path / "network.toml"
    arguments = ["--hubs", 2, "--workers", 1, "--base-port", port, "-o", network]
    installed.run("mll-flower", "example-network", *arguments, cwd=tmp_path)
    installed.run("mll-flower", "certs", network, cwd=tmp_path)
    answer = installed.run("mll-flower", "status", network, "--json", cwd=tmp_path)
    assert len(json.loads(answer.stdout)) == 2


def test_a_run_through_flower_beside_an_app_of_the_user(
    installed: Installed, project: Path
) -> None:
    installed.run("mll-flower", "run", *OPTIONS, "--output", "flower", "--actors", 1, cwd=project)
    installed.run("mll-flower", "run", *OPTIONS, "--output", "here", "--in-process", cwd=project)
    # The arrays and not the files: safetensors writes the metadata in any order.
    flower, here = (load_file(project / run / "model.safetensors") for run in ("flower", "here"))
    assert flower.keys() == here.keys()
    assert all(flower[name].tobytes() == here[name].tobytes() for name in here)
    table = installed.run("mll-flower", "compare", "flower", "here", cwd=project, COLUMNS="120")
    assert "flower" in table.stdout
    installed.run("mll-flower", "report", "flower", cwd=project)
    assert (project / "flower" / "report.html").is_file()


@pytest.mark.slow
def test_a_sweep_in_a_folder_without_a_checkout(installed: Installed, tmp_path: Path) -> None:
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in TINY.items())
    (tmp_path / "grid.toml").write_text(f"seeds = 2\n[settings]\n{settings}\n[grid]\nq = [1, 2]\n")
    said = installed.run("mll-flower", "sweep", "grid.toml", cwd=tmp_path, COLUMNS="120")
    assert "2 set-ups, seeds 0, 1: 4 runs, 4 to play" in said.stdout
    assert (tmp_path / "runs" / "sweeps" / "grid" / "curves.png").is_file()


@pytest.mark.slow
def test_flower_s_own_command_runs_the_app_that_was_written(
    installed: Installed, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("home")
    said = installed.run("mll-flower", "app", "the-app", cwd=project)
    assert "flwr run the-app" in said.stdout
    again = installed.run("mll-flower", "app", "the-app", cwd=project, check=False)
    assert again.returncode == 2
    assert "the-app exists; nothing was written" in again.stderr
    code = (
        "import sys; from pathlib import Path\n"
        "from mll_flower.processes.simulation import run_app, simulation_superlink\n"
        "with simulation_superlink(Path(sys.argv[1])) as link:\n"
        "    config = {'output': sys.argv[2], 'hubs': 2, 'slots': 16, 'model': 'logistic'}\n"
        "    config['tau'], config['q'] = 4, 2\n"
        "    run_app(link, Path('the-app'), config, {'num-supernodes': 2}, print)\n"
    )
    output = project / "out"
    installed.run("python", "-c", code, home, output, cwd=project, **OFFLINE)
    assert (output / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_deployment_beside_an_app_of_the_user(installed: Installed, project: Path) -> None:
    text = installed.run("mll-flower", "example-network", "--hubs", 2, "--workers", 1, cwd=project)
    ports = free_ports(4)
    changed = text.stdout
    for old, new in zip((9400, 9401, 9402, 9403), ports, strict=True):
        changed = changed.replace(f":{old}", f":{new}")
    (project / "network.toml").write_text(changed.replace("rounds = 6", "rounds = 2"))
    installed.run("mll-flower", "certs", "network.toml", cwd=project)
    installed.run("mll-flower", "up", "network.toml", cwd=project)
    assert len(list((project / "state").glob("hub-*/model.safetensors"))) == 2
