"""Settings of warm workers: checked, and the same again from their words."""

from __future__ import annotations

import pytest

from mll_flower.processes.warm.settings import WarmSettings, module_names


@pytest.mark.parametrize(
    "settings",
    [
        WarmSettings(),
        WarmSettings(cold=True),
        WarmSettings(False, "spawn", ("numpy", "scipy.linalg"), 0.1, 3),
        WarmSettings(preload=()),
    ],
)
def test_words_say_everything(settings: WarmSettings) -> None:
    rest = ["--cold", "--", "--preload", "x"]
    assert WarmSettings.from_words([*settings.words(), *rest]) == (settings, rest)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"start_method": "thread"}, "start_method='thread': choose one of fork, spawn"),
        ({"preload": ("numpy", "a b")}, "'a b' is not a module's name"),
        ({"max_memory": 0.0}, "max_memory=0: give gigabytes above 0"),
        ({"max_memory": float("nan")}, "max_memory=nan"),
        ({"parallel": 0}, "parallel=0: give at least 1"),
    ],
)
def test_bad_values_are_named(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WarmSettings(**values)


def test_names_of_modules() -> None:
    assert module_names("numpy, torch,") == ("numpy", "torch")
    assert module_names("") == ()
