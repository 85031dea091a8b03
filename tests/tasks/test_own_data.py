"""Data of the user's own: functions, torch data sets, image folders, Hugging Face folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from mll_flower.tasks.data import absolute_dataset, load_dataset
from mll_flower.tasks.dataset import Dataset

HEAD = "import numpy as np\nimport torch\nfrom torch.utils.data import TensorDataset\n"
ROWS = "x, y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])\n"


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Dataset]:
    """Load what a function ``load`` with this body gives."""

    def load_from(body: str) -> Dataset:
        (tmp_path / "own.py").write_text(HEAD + ROWS + body)
        from mll_flower.tasks import own_code

        own_code._executed.clear()
        return load_dataset("own.py:load", "some/folder", code_dir=str(tmp_path))

    return load_from


PAIRS = """
class Pairs:
    def __init__(self, rows): self.rows = rows
    def __len__(self): return len(self.rows)
    def __getitem__(self, row):
        return torch.tensor(x[self.rows[row]]), int(y[self.rows[row]])
def load(): return Pairs(range(4)), Pairs(range(4, 6))
"""


@pytest.mark.parametrize(
    "body",
    [
        "def load(): return x[:4], y[:4], x[4:], y[4:]",
        "def load(): return [torch.tensor(a) for a in (x[:4], y[:4], x[4:], y[4:])]",
        "def load(): return (x[:4], y[:4]), (x[4:], y[4:])",
        "def load():\n    a, b = torch.tensor(x), torch.tensor(y)\n"
        "    return TensorDataset(a[:4], b[:4]), TensorDataset(a[4:], b[4:])",
        "def load(data_dir):\n    assert data_dir == 'some/folder'\n"
        "    return x[:4], y[:4, None], x[4:], y[4:, None]",
        PAIRS,
    ],
    ids=["arrays", "tensors", "pairs", "tensor data sets", "data_dir", "map-style"],
)
def test_every_form_of_a_data_set_gives_the_same_rows(load, body: str) -> None:
    data = load(body)
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    np.testing.assert_array_equal(np.concatenate([data.x_train, data.x_test]), x)
    assert data.y_train.tolist() == [0, 1, 2, 0]
    assert data.y_test.tolist() == [1, 2]
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert (data.classes, data.outputs, data.regression) == (3, 3, False)
    assert data.label == "own.py:load"


def test_examples_keep_their_shape_and_pixels_become_images(load) -> None:
    sequences = load("def load(): return x.reshape(2, 3, 2), y[:2], x.reshape(2, 3, 2), y[:2]")
    assert sequences.input_shape == (3, 2)
    tokens = load("def load(): return y.reshape(2, 3), y[:2], y.reshape(2, 3), y[:2]")
    assert tokens.x_train.dtype == np.int64
    pixels = load("z = np.full((6, 4, 5, 3), 255, np.uint8)\ndef load(): return z, y, z, y")
    assert pixels.input_shape == (3, 4, 5)
    assert pixels.x_train.max() == 1.0


def test_the_largest_class_may_be_missing(load, tmp_path: Path) -> None:
    load("def load(): return x, y, x, y")
    data = load_dataset("own.py:load", code_dir=str(tmp_path), classes=5)
    assert (data.classes, data.outputs) == (5, 5)
    with pytest.raises(ValueError, match=r"labels run from 0 to 2; .* from 0 to 1"):
        load_dataset("own.py:load", code_dir=str(tmp_path), classes=2)
    load("def load(): return x, x, x, x")
    with pytest.raises(ValueError, match="5 classes and floating-point targets"):
        load_dataset("own.py:load", code_dir=str(tmp_path), classes=5)


def test_floating_point_targets_are_numbers_to_predict(load) -> None:
    one = load("def load(): return x, y / 2, x, y / 2")
    assert (one.regression, one.classes, one.outputs, one.y_train.dtype) == (True, 0, 1, np.float32)
    two = load("def load(): return x, x, x, x")
    assert (two.regression, two.outputs) == (True, 2)
    assert load("def load(): return x, y, x, y").classes == 3
    pixelwise = load(
        "z = y.reshape(6, 1, 1) * np.ones((1, 2, 2), int)\ndef load(): return x, z, x, z"
    )
    assert (pixelwise.y_train.shape, pixelwise.classes) == ((6, 2, 2), 3)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def load(): return x", "dataset='own.py:load' gives a ndarray: give .x_train, y_train"),
        ("def load(): return x, y, x", "gives a tuple of 3"),
        ("def load(): return {'train': x}", "gives a dict with the keys train"),
        ("def load(): return x, y, x, ['a'] * 6", "y_test has shape .6,. and dtype <U1"),
        ("def load(): return x, y, [[1], [1, 2]], y", "x_test has shape .. and dtype object"),
        ("def load(): return x, y[:3], x, y", r"y has shape \(3,\).* for 6 rows"),
        ("def load(): return x, y, x[:, :1], y", r"shape \(2,\) and test examples \(1,\)"),
        ("def load(): return x, y / 2, x, y", "dtypes float32 and int64"),
        ("def load(): return x[:0], y[:0], x, y", "at least one row"),
        ("def load(): return x, y, x, y - 1", "labels run from -1 to 2"),
        ("def load(): return iter(x), iter(y)", "train is a .*iterator: .*map-style"),
        ("class D(list): ...\ndef load(): return D([{'x': 1}] * 3), D([])", "row 0 is a dict with"),
        (
            "rows = [(np.zeros(3), 1), (np.zeros(4), 1), (np.zeros(3), 1)]\n"
            "def load(): return rows, rows",
            r"train: row 1 has shape \(4,\) and row 0 \(3,\): all must have one shape",
        ),
        ("def load(): return 1 / 0", r"raised ZeroDivisionError: .* \(.*own\.py, line 5\)"),
        ("def load(path): return x, y, x, y", "needs a value for 'path'"),
    ],
)
def test_what_cannot_be_a_data_set_is_explained(load, body: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(body)


# --- Image folders ---


def write_images(folder: Path, mode: str = "RGB", size: tuple[int, int] = (5, 4)) -> None:
    """Write one image per class and split, whose red value says which it is."""
    for number, place in enumerate(("train/cat", "train/dog", "test/cat", "test/dog")):
        (folder / place).mkdir(parents=True)
        Image.new(mode, size, (number * 50, 7, 9)).save(folder / place / "a.png")


def test_an_image_folder(tmp_path: Path) -> None:
    write_images(tmp_path / "pets")
    data = load_dataset(f"image-folder:{tmp_path}/pets")
    assert (data.x_train.shape, data.classes, data.label) == ((2, 3, 4, 5), 2, "pets")
    assert data.y_train.tolist() == data.y_test.tolist() == [0, 1]
    np.testing.assert_allclose(data.x_test[:, 0, 0, 0] * 255, [100, 150], rtol=1e-6)
    assert absolute_dataset("image-folder:pets", tmp_path) == f"image-folder:{tmp_path}/pets"


def test_an_image_folder_that_cannot_be_used_is_explained(tmp_path: Path) -> None:
    name = f"image-folder:{tmp_path}"
    with pytest.raises(ValueError, match="train does not exist: put images into train/CLASS/"):
        load_dataset(name)
    write_images(tmp_path)
    Image.new("RGB", (6, 4)).save(tmp_path / "test" / "dog" / "b.png")
    with pytest.raises(ValueError, match=r"dog/b\.png has 6x4 pixels and .*a\.png 5x4: resize"):
        load_dataset(name)
    (tmp_path / "test" / "dog" / "b.png").unlink()
    (tmp_path / "train" / "dog").rename(tmp_path / "train" / "cow")
    with pytest.raises(ValueError, match="train/ has the classes cat, cow and test/ cat, dog"):
        load_dataset(name)
    (tmp_path / "train" / "bird").mkdir()
    with pytest.raises(ValueError, match="bird"):
        load_dataset(name)


# --- Hugging Face ---


def save(folder: Path, columns: dict[str, list[object]], **splits: int) -> str:
    """Save a data set with these numbers of rows per split; return its name."""
    made = {
        split: datasets.Dataset.from_dict({k: v[:rows] for k, v in columns.items()})
        for split, rows in splits.items()
    }
    datasets.DatasetDict(made).save_to_disk(str(folder))
    return f"hf:{folder}"


def test_a_tabular_data_set_of_hugging_face(tmp_path: Path) -> None:
    columns = {"a": [1, 2, 3], "b": [0.5, 0.25, 1.0], "c": [[1, 2]] * 3, "label": [2, 0, 1]}
    name = save(tmp_path / "table", columns, train=3, validation=2)
    data = load_dataset(name)
    np.testing.assert_array_equal(data.x_train[0], [1, 0.5, 1, 2])
    assert data.y_train.tolist() == [2, 0, 1]
    assert (len(data.x_test), data.classes, data.label) == (2, 3, "table")
    chosen = load_dataset(f"{name}#x=b+a,y=b,test=train")
    np.testing.assert_array_equal(chosen.x_train[1], [0.25, 2])
    assert chosen.regression
    assert len(chosen.x_test) == 3


def test_classes_with_names_and_a_folder_of_csv_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "flowers"
    folder.mkdir()
    (folder / "train.csv").write_text("length,width,class\n1,2,rose\n3,4,lily\n5,6,rose\n")
    (folder / "test.csv").write_text("length,width,class\n1,2,lily\n")
    data = load_dataset(absolute_dataset("hf:flowers", tmp_path))
    assert data.y_train.tolist() == [1, 0, 1]
    assert data.y_test.tolist() == [0]
    assert data.x_train.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_images_of_hugging_face(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "id": datasets.Value("string"),
            "picture": datasets.Image(),
            "kind": datasets.ClassLabel(names=["a", "b", "c"]),
        }
    )
    images = [Image.new("L", (5, 4), 50 * i) for i in range(3)]
    rows = {"id": ["x", "y", "z"], "picture": images, "kind": [0, 1, 1]}
    made = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict(train=made, test=made).save_to_disk(str(tmp_path / "grey"))
    data = load_dataset(f"hf:{tmp_path}/grey")
    assert (data.x_train.shape, data.classes) == ((3, 1, 4, 5), 3)
    np.testing.assert_allclose(data.x_train[:, 0, 0, 0] * 255, [0, 50, 100], rtol=1e-6)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"a": [1, 2], "b": [1, 2]}, "", r"targets is not clear; .*#y=COLUMN.*a \(int64\), b"),
        ({"a": ["x", "y"], "label": [0, 1]}, "", r"examples is not clear.*a \(string\), label"),
        ({"a": ["x", "y"], "label": [0, 1]}, "#x=a", "column 'a' holds <U1: examples must be"),
        ({"a": [1, 2], "label": [0, 1]}, "#y=b", r"no column 'b'; it has a \(int64\), label"),
        ({"a": [1, 2], "label": [0, 1]}, "#test=dev", "splits train, test and no 'dev'"),
        ({"a": [[1], [1, 2]], "label": [0, 1]}, "", "row 1 has shape"),
        ({"a": [1, 2], "label": ["p", "q"]}, "#train=test,test=train", "that train lacks: .'q'"),
    ],
    ids=str,
)
def test_unclear_columns_are_explained(
    tmp_path: Path, columns: dict[str, list[object]], options: str, message: str
) -> None:
    name = save(tmp_path / "table", columns, train=2, test=1)
    with pytest.raises(ValueError, match=message):
        load_dataset(name + options)


def test_a_data_set_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the folder .*none does not exist"):
        load_dataset(f"hf:{tmp_path}/none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"could not be loaded \(.*give a folder that holds it"):
        load_dataset(f"hf:{tmp_path}/empty")
    assert absolute_dataset("hf:org/name#y=a", tmp_path) == "hf:org/name#y=a"
    (tmp_path / "name").mkdir()
    assert absolute_dataset("hf:name#y=a", tmp_path) == f"hf:{tmp_path}/name#y=a"
