"""Every benchmark runs, and writes its table and plots to the given page; no speed is tested."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from benchmarks import (
    averaging,
    deployment,
    first_run,
    gossip,
    gradients,
    large_models,
    rates,
    report,
    scaling,
    simulation,
    steps,
)
from benchmarks.loops import step_operations
from benchmarks.memory import ACTORS, FLOWERS, RAYS, Sampler
from benchmarks.report import cores
from mll_flower.deployment.hub_state import SUPERNODE_LOG
from tests.support.deployment import running_in
from tests.support.supernode import wait_for

NO_DATA = ["--data-dir", "no such folder"]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return tmp_path / "docs" / "performance.md"


def check(docs: Path, section: str, *expected: str) -> None:
    """Check that a section stands in the page once, with these texts and its plots."""
    page = docs.read_text()
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    assert page.count(begin) == page.count(end) == 1
    text = page[page.index(begin) : page.index(end)]
    for part in expected:
        assert part in text
    assert "nan" not in text
    for link in text.split("](")[1:]:
        assert (docs.parent / link.partition(")")[0]).stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("model", simulation.MODELS)
def test_simulation(docs: Path, model: str) -> None:
    simulation.main(["--quick", "--no-flower", "--models", model, "--docs", str(docs), *NO_DATA])
    check(docs, f"simulation-{model}", simulation.AUTHORS, simulation.LIMIT, "random images")


@pytest.mark.slow
def test_simulation_through_flower(docs: Path) -> None:
    simulation.main(["--quick", "--paper", "--models", "logistic", "--docs", str(docs), *NO_DATA])
    check(docs, "simulation-logistic", simulation.OURS, simulation.FEDAVG)
    check(docs, "paper-run", "| slots | 64 |", "| worker-steps | 256 |")


def test_rates(docs: Path) -> None:
    rates.main(["--quick", "--models", "logistic", "--docs", str(docs), *NO_DATA])
    check(docs, "rates", "logistic, tau = 4, q = 1")


def test_averaging(docs: Path) -> None:
    averaging.main(["--quick", "--docs", str(docs)])
    check(docs, "averaging", "| cnn, 104,390 parameters | ours, records |")


def test_steps(docs: Path) -> None:
    steps.main(["--quick", "--docs", str(docs)])
    check(docs, "steps", steps.COMPILED, steps.AUTOGRAD, steps.AUTHORS, "to load from disk")
    check(docs, "steps", steps.PEAK)


def test_gradients(docs: Path) -> None:
    gradients.main(["--quick", "--docs", str(docs), *NO_DATA])
    check(docs, "gradients", "LeNet as a class, 32x32x3: after 5 steps", "Of 40 batches", "random")
    check(docs, "gradients", "at most 1e-05: yes")


def errors_in(compiled: list[float], autograd: list[float]) -> gradients.Errors:
    return gradients.Errors(np.zeros(len(compiled)), np.array(compiled), np.array(autograd))


def test_batches_in_which_either_code_is_off_are_counted() -> None:
    text = gradients.compare_counts([errors_in([1, 1, 0], [1, 0, 0]), errors_in([0], [1])])
    assert "Of 4 batches, compiled code is off by more than 1e-05 in 2 and autograd in 2" in text
    assert "in 1 of them both are. By a sign test over the 2 others the two do not differ" in text


def test_code_that_is_off_more_often_is_told() -> None:
    text = gradients.compare_counts([errors_in([1] * 20, [0] * 20)])
    assert "compiled code is off by more than 1e-05 in 20 and autograd in 0" in text
    assert "the two differ (p = 0.00)" in text


def test_the_error_of_a_gradient_is_that_of_its_worst_tensor() -> None:
    exact = [np.array([1.0, -4.0]), np.array([0.5])]
    assert gradients.worst([np.array([1.0, -4.2]), np.array([0.51])], exact) == pytest.approx(0.05)


def test_first_run(docs: Path) -> None:
    first_run.main(["--quick", "--docs", str(docs)])
    check(docs, "first-run", f"| {first_run.NEW} |", f"| {first_run.AGAIN} |", "no slower")


def test_large_models(docs: Path) -> None:
    large_models.main(["--quick", "--docs", str(docs)])
    check(docs, "large-models", "| FedAvg |", "| 4 hubs, complete graph |")


def test_averages_that_differ_are_found() -> None:
    one = ArrayRecord({"w": Array(np.ones(3, np.float32))})
    averaging.check_same(one, one)
    other = ArrayRecord({"w": Array(np.array([1, 1, np.nextafter(np.float32(1), 2)], np.float32))})
    with pytest.raises(AssertionError, match="w differs"):
        averaging.check_same(one, other)


def test_gossip(docs: Path) -> None:
    gossip.main(["--quick", "--docs", str(docs)])
    check(docs, "gossip", "CNN, 110 thousand, 2 hubs")


@pytest.mark.slow
def test_deployment(docs: Path) -> None:
    deployment.main(["--quick", "--docs", str(docs)])
    check(docs, "deployment", f"| {deployment.STOCK} |", f"| {deployment.WARM} |", "times the CPU")


@pytest.mark.slow
def test_a_killed_benchmark_leaves_nothing_behind(docs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    benchmark = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.deployment", "--quick", "--docs", str(docs)],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
    )
    try:
        # Workers are the last that a network starts.
        wait_for(lambda: len(list(folder.rglob(SUPERNODE_LOG))) == 2, timeout=120)
        assert running_in(folder)
    finally:
        benchmark.kill()
        benchmark.wait()
    wait_for(lambda: not running_in(folder) and not list(folder.glob("mll-flower-*")))


def test_scaling(docs: Path) -> None:
    scaling.main(["--quick", "--no-flower", "--docs", str(docs), *NO_DATA])
    check(docs, "scaling", "8 workers, in process", "ms per worker")
    check(docs, "large", "cnn, p = 0.1: 8 workers, 4 hubs, in process")
    check(docs, "rounds", "50 rounds")


@pytest.mark.slow
def test_scaling_through_flower(docs: Path) -> None:
    scaling.main(["--quick", "--docs", str(docs), *NO_DATA])
    check(docs, "scaling", "8 workers, flwr run", f"| {ACTORS} | {cores()} |", f"| {RAYS} |")
    check(docs, "rounds", scaling.FLOWER)


def test_a_section_is_replaced_in_its_place(docs: Path) -> None:
    report.write(docs, "one", "first")
    report.write(docs, "two", "second")
    docs.write_text("# Head\n\n" + docs.read_text() + "\nTail\n")
    report.write(docs, "one", "third")
    page = docs.read_text()
    assert page.startswith("# Head\n\n<!-- one: begin -->\nthird\n")
    assert page.endswith("\nTail\n")
    assert "first" not in page
    assert "second" in page


def test_prose_of_a_section_is_wrapped_and_tables_are_not(docs: Path) -> None:
    sentence, row = "- " + "word " * 30, "| " + "cell | " * 30
    report.write(docs, "one", f"{sentence}\n{row}")
    page = docs.read_text()
    assert row.strip() in page
    assert f"- {' '.join(['word'] * 19)}\n  word" in page


def test_the_page_has_the_labels_of_the_benchmarks() -> None:
    page = report.DOCS.read_text()
    for model in simulation.MODELS:
        section = page.partition(f"<!-- simulation-{model}: begin -->")[2].partition("<!--")[0]
        labels = re.findall(r"^\| ([^|]+) \| \d", section, re.MULTILINE)
        assert labels == [
            *(simulation.AUTHORS, simulation.ONE_THREAD, simulation.REDRAWN, simulation.BARE),
            simulation.ENGINE,
            *([simulation.AUTOGRAD] if model == "cnn" else []),
            *(simulation.OURS, simulation.FEDAVG, simulation.LIMIT, simulation.PEAK),
        ]


def test_ratios_are_taken_per_repetition() -> None:
    ratio = report.ratios([1.0, 4.0, 30.0], [2.0, 4.0, 20.0])
    assert (ratio.median, ratio.low, ratio.high) == (1.0, 0.5, 1.5)
    assert report.verdict(ratio, 1.0) == "yes (at most 1.00)"
    assert report.verdict(ratio, 0.9).startswith("**no**")


def test_operations_of_a_step_of_the_cnn() -> None:
    # Digits have 8x8 pixels: products of both convolutions and both linear layers.
    first, second = 64 * 10 * 25, 16 * 20 * 250
    third, fourth = 80 * 100, 100 * 10
    expected = 2 * 32 * (2 * first + 3 * (second + third + fourth))
    assert step_operations({"dataset": "digits", "model": "cnn", "batch-size": 32}) == expected


def test_processes_of_a_run_are_told_apart(tmp_path: Path) -> None:
    marked = {**os.environ, "FLWR_HOME": str(tmp_path)}
    wait = "import sys; print(flush=True); sys.stdin.read()"
    commands = {"ray::ClientAppActor": ACTORS, "flower-superlink": FLOWERS, "raylet": RAYS}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", wait, name],
            env=marked,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in commands
    ]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        with Sampler(tmp_path, every=0.01) as sampler:
            wait_for(lambda: len(sampler.samples) > 2)
    finally:
        for process in started:
            process.communicate()
    assert {name: len(sizes) for name, sizes in sampler.at_peak.items()} == dict.fromkeys(
        commands.values(), 1
    )
    assert sum(map(sum, sampler.at_peak.values())) == pytest.approx(sampler.peak)


def test_the_peak_is_that_of_the_process_itself() -> None:
    # That of getrusage would be at least the parent's, which holds 300 MB for this test.
    held = np.ones(300_000_000, np.uint8)
    code = "from benchmarks.memory import peak; print(peak())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert held.all()
    assert 3 < float(run.stdout) < 200
