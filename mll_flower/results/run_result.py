"""The results of a run as an object for Python and notebooks: records, frames, model, plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mll_flower.results import files
from mll_flower.results.formatting import format_bytes, format_duration, format_number
from mll_flower.results.runs import Run, metric_name

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class RunResult:
    """What a run has left: `mll_flower.simulate` and `mll_flower.load_run` return it.

    Parameters
    ----------
    path : Path
        The folder of the run.
    finished : bool
        Whether the run reached its end. The results of one that did not are those so far.
    config : dict
        The run config, under its own names (with hyphens).
    evaluations : list of dict
        The evaluations, oldest first: of the averaged model, or of a deployed hub's own.
    rounds : list of dict
        A record for each hub and recorded round, oldest first.
    summary : dict
        The last values and the totals: slot, rounds, steps, loss, accuracy, bytes, seconds, ...
    title : str
        What the run is, in a few words.
    """

    path: Path
    finished: bool
    config: dict[str, Any]
    evaluations: list[Record]
    rounds: list[Record]
    summary: dict[str, Any]
    title: str

    @classmethod
    def from_run(cls, run: Run) -> RunResult:
        """Return the results of a simulated run."""
        config = run.config
        return cls(
            path=run.path.absolute(),
            finished=run.finished,
            config=config,
            evaluations=run.evaluations,
            rounds=[asdict(row) for row in run.hub_rows],
            summary=run.summary,
            title=f"{config['preset']}: {config['model']} on {config['dataset']}, "
            f"{config['hubs']} hubs ({Path(config['graph']).name}), tau = {config['tau']}, "
            f"q = {config['q']}",
        )

    def evaluations_frame(self) -> pandas.DataFrame:
        """Return the evaluations as a pandas DataFrame, one row each."""
        return _frame(self.evaluations)

    def rounds_frame(self) -> pandas.DataFrame:
        """Return the rounds as a pandas DataFrame, one row per hub and recorded round."""
        return _frame(self.rounds)

    def model(self, framework: Literal["torch", "numpy"] | None = None) -> dict[str, Any]:
        """Return the trained model as a state_dict, for ``module.load_state_dict``.

        Parameters
        ----------
        framework : {"torch", "numpy"}, optional
            The type of its values; by default torch tensors if torch is installed, else NumPy
            arrays.

        Raises
        ------
        ValueError
            If the run has not left a model: it is still going on, or was killed.
        """
        if framework not in (None, "torch", "numpy"):
            raise ValueError(f"framework={framework!r}: give 'torch' or 'numpy'")
        from safetensors.numpy import load_file

        path = self.path / files.MODEL
        if not path.is_file():
            raise ValueError(
                f"{self.path} has no {files.MODEL}: a run writes it at its end, or when it is "
                "interrupted"
            )
        arrays: dict[str, Any] = load_file(path)
        if framework == "numpy":
            return arrays
        try:
            import torch
        except ImportError:
            if framework == "torch":
                raise
            return arrays
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def plot(self, x: str | None = None, y: str | Sequence[str] | None = None) -> Figure:
        """Draw curves over the evaluations; a notebook shows the figure that is returned.

        Parameters
        ----------
        x : str, optional
            What they are drawn over: slots, rounds, steps, bytes or seconds. By default slots, or
            rounds for a deployed hub.
        y : str or sequence of str, optional
            Names of values of an evaluation, one panel each; by default the training loss and the
            metric, such as the accuracy.
        """
        from mll_flower.results.plots import curves_figure

        first = self.evaluations[0] if self.evaluations else {"slot": 0}
        if y is None:
            y = ("loss", metric_name(first))
        names = (y,) if isinstance(y, str) else tuple(y)
        if x is None:
            x = "slots" if "slot" in first else "rounds"
        return curves_figure(self.evaluations, x, names, self.title)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the HTML report; return its file, report.html in the run's folder by default."""
        if not (self.path / files.ROWS).is_file():
            raise ValueError(
                f"{self.path} is a hub of a deployment: the report is one of simulated runs"
            )
        from mll_flower.results.html_report import write_report

        return write_report(self.path, out)

    def __repr__(self) -> str:
        state = "" if self.finished else ", not finished"
        return f"RunResult({str(self.path)!r}, {len(self.evaluations)} evaluations{state})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the last values and where the files are."""
        shown = {name: format_number(value) for name, value in self.summary.items() if value}
        if self.summary.get("bytes"):
            shown["bytes"] = format_bytes(self.summary["bytes"])
        for name in ("seconds", "seconds_evaluating"):
            if name in shown:
                shown[name] = format_duration(self.summary[name])
        rows = "".join(
            f"<tr><th style='text-align: left'>{escape(name.replace('_', ' '))}</th>"
            f"<td>{escape(value)}</td></tr>"
            for name, value in shown.items()
        )
        state = "" if self.finished else "<p><strong>This run has not finished.</strong></p>"
        return (
            f"<p><strong>{escape(self.title)}</strong></p>{state}<table>{rows}</table>"
            f"<p><code>{escape(str(self.path))}</code></p>"
        )


def _frame(records: list[Record]) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError:
        raise ImportError(
            "a DataFrame needs the package pandas: pip install pandas; evaluations and rounds are "
            "lists of dicts without it"
        ) from None
    return pandas.DataFrame(records)
