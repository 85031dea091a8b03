"""Compile LLVM code for this CPU, and keep the result on disk: `load`.

Compiling the steps of a network takes about a second, loading them from disk some milliseconds.
The folder is private (`mll_flower.caches`). A file is written under another name and
renamed, so that a reader sees all of it or nothing, and begins with a checksum. Without such a
folder (no home, read-only, owned by someone else) every process compiles in memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mll_flower.caches import private_folder

if TYPE_CHECKING:
    import llvmlite.ir as ir

_CHECKSUM = 32  # bytes of it before the code


@dataclass(frozen=True)
class Cpu:
    """A kind of CPU to compile for.

    Parameters
    ----------
    name : str
        As LLVM calls it.
    features : str
        LLVM's list of its features; empty: those that come with the name.
    vectors : int
        Registers that hold a vector of sixteen numbers; with AVX2 a vector takes two registers.
    """

    name: str
    features: str
    vectors: int


AVX2 = Cpu("haswell", "", 8)
"""Any CPU with AVX2 and fused multiply-add."""


class Library:
    """Compiled functions.

    Parameters
    ----------
    code : bytes
        An object file.
    cpu : Cpu
        What it was compiled for.
    """

    def __init__(self, code: bytes, cpu: Cpu) -> None:
        import llvmlite.binding as llvm

        # The linker keeps the functions in memory as long as the engine lives.
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target(cpu))
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def function(self, name: str, returns: Any, *arguments: Any) -> Callable[..., Any]:
        """Return a function, given the ctypes of its result and arguments; it frees the GIL."""
        address = self._engine.get_function_address(name)
        function = ctypes.CFUNCTYPE(returns, *arguments)(address)

        def call(*values: Any) -> Any:
            return function(*values)

        call.library = self  # type: ignore[attr-defined]  # a function keeps its code alive
        return call


@cache
def why_unavailable() -> str | None:
    """Return why nothing can be compiled for this machine; None if it can."""
    if find_spec("llvmlite") is None:
        return "llvmlite is not installed"
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"the CPU ({platform.machine()}) is not an x86-64"
    try:
        features = _host_features()
    except (ImportError, OSError, RuntimeError) as error:
        return f"llvmlite does not work here: {error}"
    missing = [name for name in ("fma", "avx2") if not features.get(name)]
    return f"the CPU has no {' and no '.join(missing)}" if missing else None


@cache
def this_cpu() -> Cpu:
    """Return the CPU of this machine."""
    import llvmlite.binding as llvm

    features = _host_features()
    # On some CPUs LLVM prefers two 256-bit registers to one of 512 bits.
    text = ",".join(
        f"{'+' if present and name != 'prefer-256-bit' else '-'}{name}"
        for name, present in sorted({**features, "prefer-256-bit": False}.items())
    )
    wide = features.get("avx512f") and features.get("avx512vl")
    return Cpu(llvm.get_host_cpu_name(), text, 32 if wide else AVX2.vectors)


def load(
    write: Callable[[ir.Module], None], about: str, source: str, cpu: Cpu | None = None
) -> Library:
    """Compile some functions, or load them if they were compiled before.

    Parameters
    ----------
    write : callable
        Writes the functions into a module of LLVM's.
    about : str
        Everything that decides what ``write`` writes, besides its source code and the CPU.
    source : str
        Name of the module or package with that source code; any change to it compiles anew.
    cpu : Cpu, optional
        What to compile for; default: this machine.

    Returns
    -------
    Library
        The functions.
    """
    cpu = cpu or this_cpu()
    folder = private_folder("compiled")
    path = folder / f"{_key(about, source, cpu)}.o" if folder else None
    code = _read(path) if path else None
    if code is None:
        code = _compile(write, cpu)
        if path:
            _save(path, code)
    return Library(code, cpu)


def _key(about: str, source: str, cpu: Cpu) -> str:
    import llvmlite

    parts = [llvmlite.__version__, cpu.name, cpu.features, str(cpu.vectors), about]
    parts += [_digest(source), _digest(__package__ or "")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


@cache
def _digest(name: str) -> str:
    """Return a digest of the source code of a module, or of all modules of a package."""
    digest = hashlib.sha256()
    path = Path(str(import_module(name).__file__))
    for file in sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else [path]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _compile(write: Callable[[ir.Module], None], cpu: Cpu) -> bytes:
    import llvmlite.binding as llvm
    import llvmlite.ir as ir

    module = ir.Module("mll-flower")
    module.triple = llvm.get_process_triple()
    write(module)
    machine = _target(cpu)
    compiled = llvm.parse_assembly(str(module))
    compiled.verify()
    # The code is vectors already, and unrolled where that pays.
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(compiled, passes)
    code: bytes = machine.emit_object(compiled)
    return code


def _target(cpu: Cpu) -> Any:
    """Return a new target of LLVM's; a library takes it over, so that each needs its own."""
    import llvmlite.binding as llvm

    _host_features()  # has initialised LLVM
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu.name, features=cpu.features, opt=2, jit=True)


@cache
def _host_features() -> Mapping[str, bool]:
    import llvmlite.binding as llvm

    with suppress(RuntimeError):  # newer versions initialise themselves, and say so
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return dict(llvm.get_host_cpu_features())


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    code = content[_CHECKSUM:]
    return code if hashlib.sha256(code).digest() == content[:_CHECKSUM] else None


def _save(path: Path, code: bytes) -> None:
    part = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            part = Path(file.name)
            file.write(hashlib.sha256(code).digest() + code)
        part.replace(path)
    except OSError:  # a full or read-only disk: the code is in memory all the same
        if part is not None:
            with suppress(OSError):
                part.unlink()
