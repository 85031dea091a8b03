"""What a run does differently from what its settings may be read as: said before and after it."""

from __future__ import annotations

from mll_flower.config import RunConfig
from mll_flower.presets import preset_sets


def run_notes(config: RunConfig) -> list[str]:
    """Return one sentence for each thing about a run that its settings do not show.

    Parameters
    ----------
    config : RunConfig
        The run, with its preset applied.
    """
    notes = []
    if preset_sets(config.preset):
        notes.append(f"preset {config.preset} sets: {preset_sets(config.preset)}")
    schedule = config.schedule()
    end, rounds = schedule[-1].slot, f"{len(schedule)} round{'s' * (len(schedule) > 1)}"
    if end < config.slots:
        why = (
            f"a round waits until each worker has taken tau={config.tau} steps"
            if config.wait_for_all
            else f"a round takes tau={config.tau} slots"
        )
        notes.append(
            f"slots={config.slots}: the run ends at slot {end}, after {rounds} ({why}; only whole "
            "rounds are run)"
        )
    if config.hubs > 1 and not any(r.mixes for r in schedule):
        notes.append(
            f"the hubs never mix: a mixing comes after q={config.q} rounds, and this run has "
            f"{len(schedule)}; give more slots, or a smaller tau or q"
        )
    if config.model == "logistic":
        notes.append(
            "model=logistic has two labels: the lower half of the classes is 0, the upper half 1 "
            "(of ten digits: 0-4 against 5-9); loss and accuracy are those of the two"
        )
    return notes
