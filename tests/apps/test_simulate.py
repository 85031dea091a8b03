"""`mll_flower.simulate`: the run of the command, from Python."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mll_flower
from mll_flower.apps.simulate import _run_config
from mll_flower.config import RunConfig
from tests.support.event_files import scalars
from tests.support.simulated import Results, play, settings_of

Record = dict[str, Any]
SETTINGS: dict[str, Any] = {
    key.replace("-", "_"): value for key, value in settings_of({"pool": "hub"}).items()
}


def simulate(output: Path, **more: Any) -> mll_flower.RunResult:
    return mll_flower.simulate(output=output, progress=False, **{**SETTINGS, **more})


def test_the_numbers_are_those_of_the_app(tmp_path: Path) -> None:
    result = simulate(tmp_path / "a")
    app = play(tmp_path / "b", pool="hub")
    assert Results(result.path).same_model(app)
    assert Results(result.path).timeless == app.timeless
    assert result.finished
    assert result.config["workers-per-hub"] == "2,3,1"
    assert not (result.path / "unfinished.json").exists()


def test_hooks_get_the_records_of_the_result(tmp_path: Path) -> None:
    rounds: list[Record] = []
    evaluations: list[Record] = []
    seen_on_disk = []

    def on_evaluation(record: Record) -> None:
        evaluations.append(record)
        rows = (tmp_path / "a" / "metrics.csv").read_text().splitlines()
        seen_on_disk.append(sum(",all," in row for row in rows))

    result = simulate(tmp_path / "a", on_round=rounds.append, on_evaluation=on_evaluation)
    assert rounds == result.rounds
    assert [(r["round"], r["hub"]) for r in rounds] == [(r, d) for r in (2, 4) for d in range(3)]
    assert evaluations == result.evaluations
    assert [e["slot"] for e in evaluations] == [0, 8, 16]
    assert seen_on_disk == [1, 2, 3]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
@pytest.mark.parametrize("hook", ["on_round", "on_evaluation"])
def test_a_run_that_is_stopped_leaves_what_it_has(
    tmp_path: Path, error: type[BaseException], hook: str
) -> None:
    def stop(record: Record) -> None:
        if record["slot"] == 8:
            raise error("enough")

    with pytest.raises(error, match="enough") as raised:
        simulate(tmp_path / "a", slots=64, tensorboard=True, **{hook: stop})
    assert raised.value.__notes__ == [
        f"The results so far: mll_flower.load_run({str(tmp_path / 'a')!r})"
    ]
    result = mll_flower.load_run(tmp_path / "a")
    assert not result.finished
    assert "not finished" in repr(result)
    assert "has not finished" in result._repr_html_()
    assert [r["slot"] for r in result.rounds] == [8, 8, 8]
    evaluations = 1 if hook == "on_round" else 2
    assert len(result.evaluations) == evaluations
    assert (result.summary["slot"], result.summary["rounds"]) == (8, 2)
    assert len(scalars(tmp_path / "a" / "tensorboard")["averaged model/loss"]) == evaluations
    # The model is the averaged one after two rounds, as in a run that ends there.
    whole = simulate(tmp_path / "b", slots=8)
    model, expected = result.model("numpy"), whole.model("numpy")
    assert all(np.array_equal(model[name], expected[name]) for name in expected)
    assert whole.summary["steps"] == result.summary["steps"]
    saved = json.loads((tmp_path / "a" / "unfinished.json").read_text())
    assert sum(worker["steps"] for worker in saved["workers"]) == whole.summary["steps"]
    assert saved["summary"]["rounds"] == 2


def test_an_output_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    first = simulate(tmp_path / "a")
    first.report()
    with pytest.raises(ValueError, match="holds a run: give another folder"):
        simulate(tmp_path / "a", seed=6)
    assert mll_flower.load_run(tmp_path / "a").config["seed"] == 5
    second = simulate(tmp_path / "a", seed=6, overwrite=True)
    assert second.config["seed"] == 6
    assert not (second.path / "report.html").exists()


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    def stop(record: Record) -> None:
        if record["slot"] == 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(tmp_path / "a", slots=32, checkpoint_every=1, on_evaluation=stop)
    seen: list[Record] = []
    again = simulate(tmp_path / "a", slots=32, resume=tmp_path / "a", on_evaluation=seen.append)
    assert [e["slot"] for e in again.evaluations] == [0, 8, 16, 24, 32]
    assert [e["slot"] for e in seen] == [24, 32]
    assert again.finished
    assert Results(again.path).same_model(Results(simulate(tmp_path / "b", slots=32).path))


def test_a_run_that_cannot_go_on_keeps_its_end(tmp_path: Path) -> None:
    first = simulate(tmp_path / "a", checkpoint_every=0)
    files = {path.name: path.read_bytes() for path in first.path.iterdir()}
    with pytest.raises(ValueError, match="stopped before the first one"):
        simulate(tmp_path / "a", resume=tmp_path / "a")
    assert {path.name: path.read_bytes() for path in first.path.iterdir()} == files


def test_the_default_output_is_a_new_folder_in_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [mll_flower.simulate(progress=False, **SETTINGS).path for _ in range(2)]
    assert len(set(paths)) == 2
    assert all(path.parent == tmp_path / "runs" for path in paths)


def test_a_bad_value_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for settings, message in (
        ({"hubs": 0}, "hubs=0: there must be at least one"),
        ({"backend": "ray"}, "backend='ray': give 'in-process' or 'flower'"),
        ({"dataset": "npz:nothing.npz"}, "nothing.npz' does not exist"),
    ):
        with pytest.raises(ValueError, match=message):
            mll_flower.simulate(progress=False, **{**SETTINGS, **settings})
    for name, near in (("hub", "'hubs'"), ("learning_rat", "'learning_rate'"), ("x", "--help")):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}': .*{near}"):
            mll_flower.simulate(**{name: 3})
    # The data are read after the folder is claimed.
    np.savez(tmp_path / "odd.npz", x_train=np.zeros((9, 2)))
    with pytest.raises(ValueError, match="has no y_train"):
        mll_flower.simulate(progress=False, output="a", dataset="npz:odd.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["odd.npz"]


def function_of_a_module() -> None:
    """Stands for a model or a data set of the user."""


def test_values_of_python_become_values_of_the_run_config(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "rates": np.array([0.5, 1.0]),
        "workers_per_hub": (2, 3),
        "seed": np.int64(3),
        "data_dir": Path("x"),
        "wait-for-all": True,
        "model": function_of_a_module,
    }
    assert _run_config(given, "flower") == {
        "rates": "0.5,1.0",
        "workers-per-hub": "2,3",
        "seed": 3,
        "data-dir": "x",
        "wait-for-all": True,
        "model": f"{__name__}:function_of_a_module",
    }
    with pytest.raises(ValueError, match=r"model=.*is not at the top level of a module"):
        _run_config({"model": lambda: None}, "in-process")

    def of_a_notebook() -> None:
        pass

    of_a_notebook.__module__, of_a_notebook.__qualname__ = "__main__", "of_a_notebook"
    monkeypatch.setattr(sys.modules["__main__"], "of_a_notebook", of_a_notebook, raising=False)
    assert _run_config({"model": of_a_notebook}, "in-process")["model"] == "__main__:of_a_notebook"
    with pytest.raises(ValueError, match="other processes cannot import"):
        _run_config({"model": of_a_notebook}, "flower")


def test_editors_see_every_key() -> None:
    parameters = inspect.signature(mll_flower.simulate).parameters
    defaults = RunConfig()
    for key in defaults.to_run_config():
        name = key.replace("-", "_")
        assert parameters[name].default == getattr(defaults, name)
    assert parameters["backend"].default == "in-process"


def test_torch_keeps_its_threads(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        simulate(tmp_path / "a", model="mlp", slots=8)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_terminal_gets_a_bar_and_no_other_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mll_flower.simulate(output=tmp_path / "a", **SETTINGS)
    out, err = capfd.readouterr()
    assert out == ""
    assert "16/16 loss" in " ".join(err.split())
    assert "INFO" not in err
    simulate(tmp_path / "b")
    assert capfd.readouterr() == ("", "")


def test_tensorboard_has_every_record(tmp_path: Path) -> None:
    result = simulate(tmp_path / "a", tensorboard=True)
    found = scalars(result.path / "tensorboard")
    for name in ("loss", "test_loss", "accuracy"):
        expected = [(e["slot"], pytest.approx(e[name], rel=1e-6)) for e in result.evaluations]
        assert found[f"averaged model/{name}"] == expected
    mine = [r for r in result.rounds if r["hub"] == 2]
    expected = [(r["slot"], pytest.approx(r["distance"], rel=1e-6)) for r in mine]
    assert found["hub 2/distance"] == expected


@pytest.mark.slow
def test_on_flowers_engine(tmp_path: Path) -> None:
    rounds: list[Record] = []
    evaluations: list[Record] = []
    result = simulate(
        tmp_path / "a",
        backend="flower",
        actors=2,
        on_round=rounds.append,
        on_evaluation=evaluations.append,
    )
    assert rounds == result.rounds
    assert [e["loss"] for e in evaluations] == pytest.approx(
        [e["loss"] for e in result.evaluations]
    )
    assert Results(result.path).same_model(Results(simulate(tmp_path / "b").path))

    def stop(record: Record) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        simulate(tmp_path / "c", backend="flower", slots=4096, on_round=stop)
    assert not mll_flower.load_run(tmp_path / "c").finished
