"""``python -m benchmarks``: all tables of docs/performance.md, one benchmark after another.

On two cores that are otherwise idle, the longest takes about 20 minutes.
"""

from __future__ import annotations

from benchmarks import (
    averaging,
    deployment,
    first_run,
    gossip,
    gradients,
    large_models,
    rates,
    scaling,
    simulation,
    steps,
)
from benchmarks.report import options


def main() -> None:
    """Run every benchmark that has a table on the page."""
    parser = options("All tables of docs/performance.md.", repeats=5, data=True)
    parser.add_argument("--pfl-python", default="", help="a Python that has pfl, for its row")
    choice = parser.parse_args()
    common = ["--docs", str(choice.docs), *(["--quick"] if choice.quick else [])]
    repeated = [*common, "--repeats", str(choice.repeats)]
    data = ["--data-dir", choice.data_dir]
    averaging.main([*common])
    large_models.main([*common])
    steps.main([*common, "--pfl-python", choice.pfl_python])
    gradients.main([*common, *data])
    first_run.main([*common])
    rates.main([*repeated, *data])
    simulation.main([*repeated, *data, "--paper"])
    scaling.main([*common, *data])
    gossip.main([*common])
    deployment.main([*common])


if __name__ == "__main__":
    main()
