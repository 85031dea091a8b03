"""A trained model on disk: what its file says about its use, and how to use it.

The metadata of a run's model.safetensors are texts, JSON where they are more than one word.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mll_flower.tasks.data import is_own_function
from mll_flower.tasks.dataset import prepare_examples
from mll_flower.tasks.models import build_model
from mll_flower.tasks.own_code import is_reference
from mll_flower.tasks.own_models import build_own_model
from mll_flower.tasks.published import PUBLISHED

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mll_flower.tasks.task import Task

FILE = "model.safetensors"


def model_metadata(task: Task) -> dict[str, str]:
    """Return what the file of a trained model says about it.

    Parameters
    ----------
    task : Task
        What it was trained for.

    Returns
    -------
    dict
        ``model``, ``dataset``; ``input-shape`` and ``input-dtype`` of one example; ``examples``,
        which says how raw examples become the model's input, with ``divide-by``, ``mean`` and
        ``std`` (per channel) where they apply; ``classes`` (0 in regression), ``outputs``, and
        ``labels``, which says what the outputs mean; ``code-dir`` of a model of the user's own.
    """
    data = task.data
    full = "emnist:letters" if data.name == "emnist" else data.name
    about: dict[str, Any] = {"input-shape": list(data.input_shape), "classes": data.classes}
    about["outputs"] = 1 if task.model == "logistic" else data.outputs
    if full == "digits":
        about |= {"divide-by": 16, "examples": "pixels from 0 to 16, divided by 16"}
    elif full in PUBLISHED:
        about["examples"] = "uint8 pixels, upright, divided by 255"
        if task.model != "logistic":
            about |= {"mean": PUBLISHED[full].mean, "std": PUBLISHED[full].std}
            about["examples"] += ", minus mean, over std, per channel"
    elif is_own_function(full):
        about |= {"as-given": True, "examples": "uint8 pixels divided by 255, others as given"}
    else:
        about["examples"] = "uint8 pixels divided by 255, other numbers as they are"
    if data.regression:
        about["labels"] = "the outputs are the predicted numbers"
    elif task.model == "logistic":
        about["labels"] = "an output above 0 is the upper half of the classes, else the lower"
    else:
        about["labels"] = "the largest output is the class, from 0"
    if is_reference(task.model):
        about["code-dir"] = task.code_dir
    return {
        "model": task.model,
        "dataset": data.label,
        "input-dtype": str(data.x_train.dtype),
        **{key: v if isinstance(v, str) else json.dumps(v) for key, v in about.items()},
    }


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A trained model, ready for use.

    Parameters
    ----------
    module : Module
        The model, in evaluation mode.
    metadata : dict
        What its file says about it, as `model_metadata` has written it.
    """

    module: nn.Module
    metadata: dict[str, str]

    def prepare(self, examples: ArrayLike) -> Tensor:
        """Turn raw examples, such as uint8 images, into what the model was trained on."""
        import torch

        about = {key: self.metadata.get(key) for key in ("divide-by", "mean", "std", "as-given")}
        x = np.asarray(examples)
        if about["divide-by"]:
            x = x / json.loads(about["divide-by"])
        x = prepare_examples(self.metadata["dataset"], x, bool(about["as-given"]))
        if about["mean"] and about["std"]:
            x -= np.asarray(json.loads(about["mean"]), np.float32)[:, None, None]
            x /= np.asarray(json.loads(about["std"]), np.float32)[:, None, None]
        shape = tuple(json.loads(self.metadata["input-shape"]))
        if x.shape[1:] != shape:
            raise ValueError(f"examples of shape {x.shape[1:]}: the model takes {shape}")
        return torch.from_numpy(x)

    def predict(self, examples: ArrayLike) -> NDArray[Any]:
        """Return the class of each raw example, or the predicted numbers in regression.

        ``logistic`` has two classes: 0 for the lower half of the data set's, 1 for the upper.
        """
        import torch

        with torch.inference_mode():
            output = self.module(self.prepare(examples))
        if self.metadata["classes"] == "0":
            return np.asarray(output)
        if self.metadata["model"] == "logistic":
            return np.asarray(output[:, 0] > 0).astype(np.int64)
        return np.asarray(output.argmax(dim=1))


def load_model(path: str | Path) -> SavedModel:
    """Load the trained model of a run.

    Parameters
    ----------
    path : str or Path
        The run's folder, or the file model.safetensors.

    Raises
    ------
    ValueError
        If there is none, or its file does not say how to build it.
    """
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file

    path = Path(path)
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise ValueError(f"{path} does not exist: give the folder of a run that has left a model")
    with safe_open(path, framework="numpy") as file:
        about = dict(file.metadata() or {})
    if "input-shape" not in about:
        raise ValueError(f"{path} does not say how to use it: it is the model of an older run")
    shape, outputs = tuple(json.loads(about["input-shape"])), int(about["outputs"])
    if is_reference(about["model"]):
        example = torch.zeros((2, *shape), dtype=getattr(torch, about["input-dtype"]))
        module = build_own_model(about["model"], about["code-dir"], example, outputs, 0)
    else:
        regression = about["classes"] == "0"
        module = build_model(about["model"], shape, int(about["classes"]) or outputs, 0, regression)
    module.load_state_dict(load_file(path))
    return SavedModel(module.eval(), about)
