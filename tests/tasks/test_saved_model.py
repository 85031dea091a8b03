"""A trained model on disk says how to use it, and is used in a few lines."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open
from sklearn.datasets import load_digits

from mll_flower.tasks import Task, load_model
from mll_flower.tasks.published import PUBLISHED
from mll_flower.tasks.saved_model import SavedModel, model_metadata
from tests.support.simulated import play


def metadata(folder) -> dict[str, str]:
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        return file.metadata()


@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_raw_digits_are_recognised_as_in_the_run(tmp_path, model):
    run = play(tmp_path, model=model, slots=64, learning_rate=0.2, tau=8, rates="1")
    about = metadata(tmp_path)
    assert json.loads(about["input-shape"]) == [1, 8, 8]
    assert (about["classes"], about["divide-by"]) == ("10", "16")
    images, y = load_digits(return_X_y=True)
    saved = load_model(tmp_path)
    predicted = saved.predict(images.reshape(-1, 8, 8))
    right = predicted == (y // 5 if model == "logistic" else y)
    test = np.argsort(y, kind="stable")[::5]
    assert right[test].mean() == pytest.approx(run.report["summary"]["accuracy"], abs=1e-6)
    with pytest.raises(ValueError, match=r"shape \(1, 4, 4\): the model takes \(1, 8, 8\)"):
        saved.predict(np.zeros((2, 4, 4)))


def test_a_published_set_names_its_normalisation():
    rng = np.random.default_rng(0)
    task = Task.load(dataset="digits", model="cnn")
    object.__setattr__(task.data, "name", "mnist")
    about = model_metadata(task)
    assert json.loads(about["mean"]) == list(PUBLISHED["mnist"].mean)
    pixels = rng.integers(0, 256, (3, 8, 8), dtype=np.uint8)
    prepared = SavedModel(task.new_model(), about).prepare(pixels).numpy()
    assert prepared[:, 0] == pytest.approx((pixels / 255 - 0.1307) / 0.3081, abs=1e-5)


def test_a_folder_without_a_model_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="does not exist: give the folder of a run"):
        load_model(tmp_path)
