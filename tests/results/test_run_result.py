"""The results of a run as an object: frames, model, figures, report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from safetensors.numpy import save_file

from mll_flower import RunResult, load_run
from tests.support.run_folders import write_run


@pytest.fixture
def result(tmp_path: Path) -> RunResult:
    path = write_run(tmp_path / "a", rounds=3)
    save_file({"w": np.arange(3, dtype=np.float32)}, path / "model.safetensors")
    return load_run(path)


def test_frames_hold_the_records(result: RunResult) -> None:
    evaluations, rounds = result.evaluations_frame(), result.rounds_frame()
    assert isinstance(evaluations, pandas.DataFrame)
    assert evaluations.to_dict("records") == result.evaluations
    assert rounds.to_dict("records") == result.rounds
    assert rounds.groupby("hub")["distance"].max().tolist() == pytest.approx([0.3, 0.6, 0.9])


def test_the_model_is_a_state_dict(result: RunResult) -> None:
    module = torch.nn.Module()
    module.w = torch.nn.Parameter(torch.zeros(3))
    module.load_state_dict(result.model())
    assert module.w.tolist() == [0, 1, 2]
    assert isinstance(result.model("numpy")["w"], np.ndarray)
    with pytest.raises(ValueError, match="framework='jax': give 'torch' or 'numpy'"):
        result.model("jax")  # type: ignore[arg-type]
    (result.path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors: a run writes it at its end"):
        result.model()


def test_without_torch_and_pandas(result: RunResult) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['pandas'] = None\n"
        "import mll_flower\n"
        f"run = mll_flower.load_run({str(result.path)!r})\n"
        "print(type(run.model()['w']).__name__)\n"
        "try: run.rounds_frame()\n"
        "except ImportError as error: print(error)\n"
        "print(any(name.startswith('matplotlib') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kind, error, drawn = done.stdout.splitlines()
    assert kind == "ndarray"
    assert "pip install pandas" in error
    assert drawn == "False"


def test_figures_show_what_was_asked(result: RunResult) -> None:
    figure = result.plot()
    assert [axes.get_ylabel() for axes in figure.axes] == ["training loss", "test accuracy"]
    assert {axes.get_xlabel() for axes in figure.axes} == {"slot"}
    (line,) = figure.axes[0].lines
    assert line.get_xydata().tolist() == [[e["slot"], e["loss"]] for e in result.evaluations]
    (axes,) = result.plot("bytes", "test_loss").axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("bytes sent", "test loss")
    # A notebook shows it without pyplot.
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="'epochs' is not known: use slots, rounds"):
        result.plot("epochs")
    with pytest.raises(ValueError, match=r"'f1' is not known: use accuracy, .*loss, test_loss"):
        result.plot(y="f1")


def test_the_report_is_written(result: RunResult, tmp_path: Path) -> None:
    assert result.report() == result.path / "report.html"
    out = result.report(tmp_path / "r.html")
    assert out.read_text().startswith("<!doctype html>")


def test_a_notebook_shows_the_summary(result: RunResult) -> None:
    page = result._repr_html_()
    assert "mll-sgd: mlp on digits, 3 hubs (ring), tau = 4, q = 2" in page
    assert "not finished" not in page + repr(result)
    assert "3 kB" in page
    assert str(result.path) in page
