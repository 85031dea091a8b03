"""What warm workers touch in Flower is there, and a Flower that differs is noticed."""

from __future__ import annotations

import sys
import types

import pytest

from mll_flower.processes.warm import flower_internals
from mll_flower.processes.warm.flower_internals import TOUCHED, Touched, differences, warning


@pytest.mark.parametrize("touched", TOUCHED, ids=lambda one: f"{one.module}.{one.name}")
def test_flower_has_what_is_touched(touched: Touched) -> None:
    assert differences([touched]) == []


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with a function that uses one global name of two."""
    code = "import time, os\ndef loop(state, send):\n    state.box = 1\n    return time.sleep\n"
    made = types.ModuleType("another_flower")
    exec(code, made.__dict__)
    monkeypatch.setitem(sys.modules, "another_flower", made)
    return "another_flower"


@pytest.mark.parametrize(
    ("touched", "difference"),
    [
        (("loop", "state send"), None),
        (("time", None, "loop"), None),
        (("loop", None, None, "box"), None),
        (("loop", None, None, "box tray"), "another_flower.loop does not set tray"),
        (("loop", "state"), "another_flower.loop takes state send"),
        (("gone",), "another_flower.gone: module 'another_flower' has no attribute 'gone'"),
        (("loop.gone",), "another_flower.loop.gone: 'function' object has no attribute 'gone'"),
        (("os", None, "loop"), "another_flower.loop does not use os"),
        (("time", None, "gone"), "another_flower.time: module 'another_flower' has no"),
    ],
)
def test_what_differs_is_named(module: str, touched: tuple, difference: str | None) -> None:
    found = differences([Touched(module, *touched)])
    assert len(found) == (difference is not None)
    for text in found:
        assert text.startswith(difference)
        assert text in warning(found)


def test_a_module_that_is_gone_is_named() -> None:
    [text] = differences([Touched("flwr.no_such_module", "x")])
    assert text.startswith("flwr.no_such_module.x: No module named")


def test_everything_is_looked_at_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_internals, "TOUCHED", (Touched("flwr", "no_such_name"),))
    assert len(differences()) == 1
