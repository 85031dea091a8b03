"""A run records and draws which labels its hubs hold, and how their models do."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.simulated import config_of, engine, play, replay, task_and_shards


def test_labels_and_hub_models_are_recorded_and_drawn(tmp_path):
    settings = {"partition": "by-hub", "model": "mlp", "slots": 12}  # ends between two mixings
    run = play(tmp_path, plots=True, **settings)
    config = config_of(**settings)
    task, shards = task_and_shards(config)
    counts = [np.bincount(task.data.y_train[rows], minlength=10).tolist() for rows in shards]
    labels = run.report["labels"]
    assert labels["workers"] == counts
    assert labels["hubs"][0] == (np.array(counts[0]) + counts[1]).tolist()
    assert len(labels["hubs"]) == 3
    hubs = run.report["hub_models"]
    assert [hub["hub"] for hub in hubs] == [0, 1, 2]
    assert {hub["rows"] for hub in hubs} == {360}
    models, _ = replay(config)[-1]
    for hub, model in zip(hubs, models, strict=True):
        loss, accuracy = engine(config).evaluate(model, "test")
        assert (hub["test_loss"], hub["accuracy"]) == pytest.approx((loss, accuracy), abs=1e-6)
    assert (tmp_path / "plots" / "hubs.png").stat().st_size > 5000
