"""docs/simulation.md says of every key and preset what the code says."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from mll_flower.config import RunConfig
from mll_flower.presets import PRESETS, preset_sets

PAGE = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()


@pytest.mark.parametrize("field", fields(RunConfig), ids=lambda field: field.name)
def test_every_key_has_its_default_and_its_help(field):
    value = str(field.default).lower() if isinstance(field.default, bool) else field.default
    default = f"`{value}`" if value != "" else ""
    help = field.metadata["help"] if field.name != "preset" else "Algorithm: see [presets]"
    assert f"| `{field.name.replace('_', '-')}` | {default} | {help}" in PAGE


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_what_it_sets(preset):
    assert f"| `{preset}` | {preset_sets(preset) or 'nothing: all keys as given'} |" in PAGE
