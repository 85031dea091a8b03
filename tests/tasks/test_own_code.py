"""Functions of the user's own are found, called by the names of their parameters, and explained."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mll_flower.tasks import own_code
from mll_flower.tasks.own_code import call, find, is_reference, needs_code_dir


@pytest.fixture(autouse=True)
def _own_modules() -> Iterator[None]:
    """Forget what a test has imported."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("own_", "_own_")):
            del sys.modules[name]
    own_code._executed.clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("package.module:name", True),
        ("module:Class.method", True),
        ("file.py:name", True),
        ("../some folder/file.py:name", True),
        ("cnn", False),
        ("module:", False),
        (":name", False),
        ("module:two words", False),
        ("a-b:name", False),
        ("folder/file.txt:name", False),
        ("npz:data.npz", False),
        ("hf:mnist", False),
        ("emnist:letters", False),
        ("image-folder:images", False),
    ],
)
def test_what_names_something_in_python(text: str, expected: bool) -> None:
    assert is_reference(text) is expected


def test_modules_and_files_are_found_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").write_text("")
    (tmp_path / "own_package" / "inner.py").write_text("def f():\n    return 'inner'\n")
    (tmp_path / "own_file.py").write_text(
        "from own_package.inner import f as g\n\nclass A:\n    @staticmethod\n    def f():\n"
        "        return g() + ' by file'\n"
    )
    folder = str(tmp_path)
    assert find("model", "own_package.inner:f", folder)() == "inner"
    assert find("model", "own_file.py:A.f", folder)() == "inner by file"
    assert find("model", f"{folder}/own_file.py:A.f")() == "inner by file"
    assert find("model", "os.path:join") is os.path.join
    assert sys.path[-1] == folder  # never before installed modules


def test_a_file_is_executed_once_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "own_file.py"
    path.write_text("def f():\n    return 1\n")
    first = find("model", "own_file.py:f", str(tmp_path))
    assert find("model", "own_file.py:f", str(tmp_path)) is first
    assert not own_code.forget_changed_files()
    path.write_text("def f():\n    return 2\n")
    os.utime(path, ns=(1, 1))
    assert own_code.forget_changed_files()
    assert find("model", "own_file.py:f", str(tmp_path))() == 2


ERRORS = {
    "own_none:f": r"model='own_none:f': no module 'own_none'; modules are looked for in .* and on",
    "own_bad:nothing": r"own_bad has no 'nothing'; it has Net, f$",
    "own_bad:NUMBER": r"is a int: name a function",
    "own_bad.py:nothing": r"own_bad\.py has no 'nothing'; it has Net, f$",
    "none.py:f": r"the file .*none\.py does not exist: check the path",
    "own_import:f": r"own_import raised ModuleNotFoundError: .*'own_missing' \(.*, line 1\)",
    "own_raises:f": r"own_raises raised RuntimeError: no luck \(.*own_raises\.py, line 2\)",
    "own_raises.py:f": r"own_raises\.py raised RuntimeError: no luck \(.*own_raises\.py, line 2\)",
    "own_syntax.py:f": r"own_syntax\.py raised SyntaxError: .*line 1",
    "typing:f": r"another module 'typing' at .*: rename yours, or .* file\.py:name",
}


@pytest.mark.parametrize("reference", ERRORS)
def test_what_is_not_found_is_named_with_the_reason(tmp_path: Path, reference: str) -> None:
    (tmp_path / "own_bad.py").write_text(
        "from os.path import join\nNUMBER = 3\nclass Net: ...\ndef f(): ...\n"
    )
    (tmp_path / "own_import.py").write_text("import own_missing\n")
    (tmp_path / "own_raises.py").write_text("x = 1\nraise RuntimeError('no luck')\n")
    (tmp_path / "own_syntax.py").write_text("def f(:\n")
    (tmp_path / "typing.py").write_text("def f(): ...\n")
    with pytest.raises(ValueError, match=ERRORS[reference]) as error:
        find("model", reference, str(tmp_path))
    assert str(error.value).startswith("model")


def test_a_function_gets_what_it_has_parameters_for(tmp_path: Path) -> None:
    (tmp_path / "own_file.py").write_text(
        "def none(): return ()\n"
        "def one(b): return b\n"
        "def two(b, a, c=3): return a, b, c\n"
        "def rest(*args, a, **other): return args, a, other\n"
        "def other(a, size, depth): ...\n"
        "def raises(a):\n    raise KeyError('x')\n"
    )

    def value(name: str) -> object:
        return call("model", f"own_file.py:{name}", str(tmp_path), a=1, b=2)

    assert value("none") == ()
    assert value("one") == 2
    assert value("two") == (1, 2, 3)
    assert value("rest") == ((), 1, {})
    with pytest.raises(ValueError, match=r"a value for 'size', 'depth': .* called a, b, any"):
        value("other")
    with pytest.raises(ValueError, match=r"raises' raised KeyError: 'x' \(.*own_file\.py, line 7"):
        value("raises")


def test_a_code_dir_is_needed_for_own_functions_and_rows_alone() -> None:
    assert needs_code_dir({"model": "a:b"})
    assert needs_code_dir({"dataset": "a.py:b"})
    assert needs_code_dir({"partition": "rows.json"})
    assert not needs_code_dir({"dataset": "npz:a.npz", "model": "cnn", "partition": "iid"})
