"""An environment in which this project is installed from its wheel, and no checkout is near."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """Build the wheel of the checkout into a folder; return its path."""
    built = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return Path(next(iter(built)))


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel, and with the tests' own environment for the rest."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, wheel: Path) -> Installed:
        """Make the environment and install the wheel in it."""
        venv.create(folder, with_pip=False)
        made = cls(folder)
        # A path in a .pth file is used, but the .pth files there are not read: the editable
        # installation of the checkout stays out of sight.
        theirs = sysconfig.get_paths()["purelib"]
        (made.packages / "everything-else.pth").write_text(theirs + "\n")
        command = [sys.executable, "-m", "pip", "--python", str(made.python), "install"]
        command += ["--no-deps", "--no-index", "--ignore-installed", "--quiet", str(wheel)]
        subprocess.run(command, check=True)
        for script in Path(sysconfig.get_paths()["scripts"]).glob("fl*"):
            made._copy_script(script)
        return made

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "lib" / version / "site-packages"

    def run(
        self, *command: object, cwd: Path, check: bool = True, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the environment's commands in a folder; return what it printed."""
        name, *arguments = map(str, command)
        hidden = {"PYTHONPATH", "VIRTUAL_ENV", "FLWR_HOME"}
        done = subprocess.run(
            [self.folder / "bin" / name, *arguments],
            cwd=cwd,
            env={**{k: v for k, v in os.environ.items() if k not in hidden}, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def _copy_script(self, script: Path) -> None:
        _, _, rest = script.read_text().partition("\n")
        copy = self.folder / "bin" / script.name
        copy.write_text(f"#!{self.python}\n{rest}")
        shutil.copymode(script, copy)
