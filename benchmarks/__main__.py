"""All figures of docs/performance.md, one benchmark after another: ``python -m benchmarks``.

About half an hour on two cores that have nothing else to do.
"""

from __future__ import annotations

from benchmarks import averaging, gossip, rates, scaling, simulation
from benchmarks.report import options


def main() -> None:
    """Run every benchmark that the page has a table of."""
    parser = options("All tables of docs/performance.md.", repeats=5)
    parser.add_argument("--data-dir", default="", help="MNIST is used if it is here")
    choice = parser.parse_args()
    common = ["--docs", str(choice.docs), *(["--quick"] if choice.quick else [])]
    often = [*common, "--repeats", str(choice.repeats)]
    data = ["--data-dir", choice.data_dir]
    averaging.main([*common])
    rates.main([*often, *data])
    simulation.main([*often, *data, "--paper"])
    scaling.main([*common, *data])
    gossip.main([*common])


if __name__ == "__main__":
    main()
