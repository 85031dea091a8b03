"""``python -m benchmarks``: all tables of docs/performance.md, one benchmark after another.

Takes about half an hour on two cores that are otherwise idle.
"""

from __future__ import annotations

from benchmarks import averaging, deployment, gossip, rates, scaling, simulation
from benchmarks.report import options


def main() -> None:
    """Run every benchmark that has a table on the page."""
    choice = options("All tables of docs/performance.md.", repeats=5, data=True).parse_args()
    common = ["--docs", str(choice.docs), *(["--quick"] if choice.quick else [])]
    repeated = [*common, "--repeats", str(choice.repeats)]
    data = ["--data-dir", choice.data_dir]
    averaging.main([*common])
    rates.main([*repeated, *data])
    simulation.main([*repeated, *data, "--paper"])
    scaling.main([*common, *data])
    gossip.main([*common])
    deployment.main([*common])


if __name__ == "__main__":
    main()
