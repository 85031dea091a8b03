"""What is learnt: data sets, their partition among the workers, models, and tasks.

A `Task` joins a data set and a model. Importing this package loads neither torch nor any data
library, so that a run config can be checked without them. Only `Task` needs torch; it is imported
when it is first used.
"""

from typing import TYPE_CHECKING, Any

from mll_flower.tasks.data import Dataset, known_datasets, load_dataset, parse_dataset
from mll_flower.tasks.models import binary_labels, build_model, known_models
from mll_flower.tasks.partitions import (
    KNOWN_PARTITIONS,
    PartitionSpec,
    parse_partition,
    partition,
)

if TYPE_CHECKING:
    from mll_flower.tasks.saved_model import SavedModel, load_model
    from mll_flower.tasks.task import Task

__all__ = [
    "KNOWN_PARTITIONS",
    "Dataset",
    "PartitionSpec",
    "SavedModel",
    "Task",
    "binary_labels",
    "build_model",
    "known_datasets",
    "known_models",
    "load_dataset",
    "load_model",
    "parse_dataset",
    "parse_partition",
    "partition",
]


def __getattr__(name: str) -> Any:
    if name == "Task":
        from mll_flower.tasks.task import Task

        return Task
    if name in ("SavedModel", "load_model"):
        from mll_flower.tasks import saved_model

        return getattr(saved_model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
