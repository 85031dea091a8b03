"""The built-in Flower app as a folder, and as the bundle that Flower makes of it."""

from __future__ import annotations

import io
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate

from mll_flower.processes import flower_app as module
from mll_flower.processes.flower_app import app_config, apps_folder, write_app

ROOT = Path(__file__).parents[2]
CHECKOUT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent") / "app"
    write_app(folder)
    return folder


def test_flower_accepts_it_without_a_warning(app: Path) -> None:
    _, warnings = load_and_validate(app / "pyproject.toml")
    assert warnings == []


def test_flower_accepts_the_checkout_too() -> None:
    _, warnings = load_and_validate(ROOT / "pyproject.toml")
    assert warnings == []


def test_the_bundle_holds_the_library_and_the_apps(app: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as archive:
        bundled = {name for name in archive.namelist() if name.endswith(".py")}
    here = {
        str(path.relative_to(ROOT))
        for package in ("mll_flower", "server_app", "client_app", "hub_app")
        for path in (ROOT / package).rglob("*.py")
    }
    assert bundled == here


def test_its_run_config_is_that_of_the_checkout() -> None:
    table = CHECKOUT["tool"]["flwr"]["app"]["config"]
    assert app_config() == table
    assert {key: type(value) for key, value in app_config().items()} == {
        key: type(value) for key, value in table.items()
    }


def test_its_apps_and_dependencies_are_those_of_the_checkout(app: Path) -> None:
    project = tomllib.loads((app / "pyproject.toml").read_text())
    own, theirs = (p["tool"]["flwr"]["app"] for p in (project, CHECKOUT))
    assert own["components"] == theirs["components"]
    assert project["project"]["license"] == CHECKOUT["project"]["license"]
    names = [
        text.partition(">")[0].partition("<")[0] for text in project["project"]["dependencies"]
    ]
    assert {"flwr[simulation]", "torch", "numpy", "scikit-learn"} <= set(names)
    assert "flwr" not in names  # Flower takes one entry per package
    assert not {"pytest", "numba", "mll-flower"} & set(names)


def test_apps_that_are_not_there_are_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PACKAGE", tmp_path / "mll_flower")
    monkeypatch.chdir(ROOT)  # where apps of these names exist
    with pytest.raises(ValueError, match=r"the Flower app is not complete: .* install mll-flower"):
        apps_folder()
