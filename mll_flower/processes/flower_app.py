"""Write the built-in Flower app as a folder that ``flwr run`` takes.

The folder holds the library as it is installed, the thin apps beside it, and a pyproject.toml
whose run config is made from the keys of `RunConfig`. Flower sends exactly this folder to every
node and imports it before anything that is installed there: all nodes of a run work with the same
code. Flower names its copies by a hash of their contents, so an older copy is never taken for a
newer one.
"""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import tomli_w
from packaging.requirements import Requirement

from mll_flower.config import DEPLOYMENT_KEYS, RunConfig

APPS = ("server_app", "client_app", "hub_app")
"""The thin apps: top-level packages of the Flower app."""

_PROJECT = "mll-flower"
_PACKAGE = Path(__file__).resolve().parents[1]
# In a wheel the apps are inside the library; in a checkout they are beside it.
_BUNDLED = "bundled_apps"
# Of the keys that are not settings of a run; those that are not here are empty texts.
_DEPLOYMENT_DEFAULTS: dict[str, Any] = {"role": "network", "insecure": False}


def write_app(folder: Path) -> None:
    """Write the app into a folder that does not exist yet."""
    source = apps_folder()
    folder.mkdir(parents=True)
    ignore = shutil.ignore_patterns("__pycache__", _BUNDLED)
    shutil.copytree(_PACKAGE, folder / _PACKAGE.name, ignore=ignore)
    for name in APPS:
        shutil.copytree(source / name, folder / name, ignore=ignore)
    (folder / "pyproject.toml").write_text(tomli_w.dumps(_project()), encoding="utf-8")


def apps_folder() -> Path:
    """Find the folder of the thin apps."""
    for folder in (_PACKAGE / _BUNDLED, _PACKAGE.parent):
        if all((folder / name / "app.py").is_file() for name in APPS):
            return folder
    raise ValueError(
        f"the Flower app is not complete: {', '.join(APPS)} are neither in {_PACKAGE / _BUNDLED} "
        f"nor in {_PACKAGE.parent}; install {_PROJECT} again"
    )


def app_config() -> dict[str, Any]:
    """Return every key of the app's run config with its default."""
    own = {key: _DEPLOYMENT_DEFAULTS.get(key, "") for key in sorted(DEPLOYMENT_KEYS)}
    return {**own, **RunConfig().to_run_config()}


def _project() -> dict[str, Any]:
    """Return the contents of the app's pyproject.toml."""
    about = metadata.metadata(_PROJECT)
    return {
        "project": {
            "name": _PROJECT,
            "version": about["Version"],
            "description": about["Summary"],
            "license": "Apache-2.0",
            "requires-python": about["Requires-Python"],
            "dependencies": _dependencies(),
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": _PROJECT,
                    "components": {
                        "serverapp": "server_app.app:app",
                        "clientapp": "client_app.app:app",
                    },
                    "config": app_config(),
                }
            }
        },
    }


def _dependencies() -> list[str]:
    """Return what the app needs: the library's own requirements and those of its extra torch.

    Not the library itself: it is in the folder.
    """
    found: dict[str, Requirement] = {}
    for text in metadata.requires(_PROJECT) or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": "torch"}):
            requirement.marker = None
            # Flower takes one entry per package; the extra asks for more of flwr.
            same = found.setdefault(requirement.name, requirement)
            same.extras |= requirement.extras
            same.specifier &= requirement.specifier
    return [str(requirement) for requirement in found.values()]
