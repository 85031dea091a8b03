"""Compiled code is kept in a private folder, whole or not at all, and is never mistaken."""

from __future__ import annotations

import ctypes
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mll_flower.native import machine_code
from mll_flower.native.machine_code import AVX2, load, this_cpu, why_unavailable

if why_unavailable() is not None:
    pytest.skip(f"nothing can be compiled here: {why_unavailable()}", allow_module_level=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of compiled code, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mll-flower" / "compiled"


class Doubler:
    """Writes a function that doubles a number, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, module: Any) -> None:
        from mll_flower.native.vector_code import LONG, Kernel

        self.written += 1
        k = Kernel(module, "double", [("number", LONG)], returns=LONG)
        k.done(k.builder.add(k.arguments["number"], k.arguments["number"]))

    def load(self, about: str = "doubler", **options: Any) -> Callable[[int], int]:
        library = load(self.write, about, __name__, **options)
        return library.function("double", ctypes.c_int64, ctypes.c_int64)


def test_what_was_compiled_once_is_loaded(folder: Path) -> None:
    doubler = Doubler()
    first, second = doubler.load(), doubler.load()
    assert (first(21), second(-4), doubler.written) == (42, -8, 1)
    [file] = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_function_keeps_its_code_in_memory(folder: Path) -> None:
    functions = [Doubler().load(str(number)) for number in range(5)]
    assert [f(number) for number, f in enumerate(functions)] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("change", ["about", "cpu", "llvmlite", "source"])
def test_other_code_another_cpu_or_compiler_is_compiled_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    doubler = Doubler()
    doubler.load()
    if change == "llvmlite":
        monkeypatch.setattr("llvmlite.__version__", "0.1")
    if change == "source":
        monkeypatch.setattr(machine_code, "_digest", lambda name: "changed")
    options = {"about": {"about": "another"}, "cpu": {"cpu": AVX2}}.get(change, {})
    assert doubler.load(**options)(3) == 6
    assert doubler.written == 2


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 5000])
def test_a_damaged_file_is_compiled_anew(folder: Path, content: bytes) -> None:
    doubler = Doubler()
    doubler.load()
    [file] = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:32] + content)
    assert doubler.load()(5) == 10
    assert doubler.written == 2
    assert file.read_bytes() == whole


def test_without_a_folder_the_code_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    doubler = Doubler()
    assert (doubler.load()(2), doubler.load()(3), doubler.written) == (4, 6, 2)


def test_a_folder_that_others_can_write_is_closed(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    Doubler().load()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("how", ["link", "link above", "owner"])
def test_a_folder_of_someone_else_is_not_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if how == "link above":
        folder.parent.symlink_to(elsewhere)
    elif how == "link":
        folder.parent.mkdir()
        folder.symlink_to(elsewhere)
    else:
        monkeypatch.setattr("os.getuid", lambda: 12345)
    assert Doubler().load()(1) == 2
    assert list(elsewhere.iterdir()) == []
    assert list(folder.parent.glob("*/*")) == []


def test_a_full_disk_does_not_matter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, target: Path) -> Path:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    assert Doubler().load()(8) == 16
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ({"avx2": True, "fma": True}, None),
        ({"avx2": True, "fma": False}, "the CPU has no fma"),
        ({}, "the CPU has no fma and no avx2"),
    ],
)
def test_a_cpu_must_have_fused_multiply_add(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], reason: str | None
) -> None:
    monkeypatch.setattr(machine_code, "_host_features", lambda: features)
    assert why_unavailable.__wrapped__() == reason


def test_other_processors_and_a_missing_llvmlite_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("platform.machine", lambda: "aarch64")
        assert why_unavailable.__wrapped__() == "the CPU (aarch64) is not an x86-64"
    monkeypatch.setattr(machine_code, "find_spec", lambda name: None)
    assert why_unavailable.__wrapped__() == "llvmlite is not installed"


def test_registers_of_this_cpu() -> None:
    assert this_cpu().vectors in (8, 32)
    assert "+fma" in this_cpu().features.split(",")
