"""Partitions: what holds for all of them, and what each one promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mll_flower.tasks.partitions import (
    KNOWN_PARTITIONS,
    PartitionSpec,
    parse_partition,
    partition,
)


def labels_of(rows: int, classes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, rows)


def hubs(*sizes: int) -> np.ndarray:
    return np.repeat(np.arange(len(sizes)), sizes)


def assert_covers(parts: list[np.ndarray], rows: int, workers: int) -> None:
    assert len(parts) == workers
    assert all(len(part) > 0 and part.dtype == np.int64 for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(rows))


@settings(deadline=None, max_examples=60)
@given(
    spec=st.sampled_from(["iid", "sized", "shards", "shards(1)", "shards(3)", "by-hub"]),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=9),
    classes=st.integers(2, 12),
    extra=st.integers(0, 50),
    seed=st.integers(0, 2**32),
)
def test_every_row_has_one_worker_and_depends_on_the_seed(
    spec: str, sizes: list[int], classes: int, extra: int, seed: int
) -> None:
    hub_of = np.random.default_rng(seed).permutation(hubs(*sizes))
    workers = len(hub_of)
    if spec == "sized" and workers < 5:
        return
    rows = 40 * classes * workers + extra  # enough rows for every worker in every partition
    labels = labels_of(rows, classes, seed)
    parts = partition(spec, labels, hub_of, seed)
    assert_covers(parts, rows, workers)
    again = partition(spec, labels, hub_of, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    if spec == "iid":
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    # With by-hub, a hub's only worker may hold all rows of its classes, whatever the seed is.
    if workers > 1 and (spec != "by-hub" or max(sizes) > 1):
        # Several seeds, as two may cut alike: with two workers of one shard each, half of them do.
        others = (partition(spec, labels, hub_of, seed + n) for n in range(1, 30))
        assert any(
            not np.array_equal(a, b) for other in others for a, b in zip(parts, other, strict=True)
        )


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**32), alpha=st.sampled_from([0.3, 1.0, 100.0]))
def test_dirichlet_covers_all_rows_and_depends_on_the_seed(seed: int, alpha: float) -> None:
    labels, hub_of = labels_of(2000, 10), hubs(4, 4)
    parts = partition(f"dirichlet({alpha})", labels, hub_of, seed)
    assert_covers(parts, 2000, 8)
    again = partition(f"dirichlet({alpha})", labels, hub_of, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    other = partition(f"dirichlet({alpha})", labels, hub_of, seed + 1)
    assert not all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))


def test_a_smaller_alpha_makes_workers_differ_more() -> None:
    labels, hub_of = labels_of(5000, 10), hubs(5, 5)

    def largest_class_share(spec: str) -> float:
        parts = partition(spec, labels, hub_of, 1)
        return float(np.mean([np.bincount(labels[p]).max() / len(p) for p in parts]))

    shares = [largest_class_share(f"dirichlet({alpha})") for alpha in (0.1, 1, 1000)]
    assert shares[0] > shares[1] + 0.1
    assert shares[1] > shares[2] + 0.1
    assert shares[2] < 0.2


def test_dirichlet_that_leaves_a_worker_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"100 rows left some of the 50 workers .* larger alpha"):
        partition("dirichlet(0.001)", labels_of(100, 2), hubs(50), 0)


def test_sized_at_the_scale_of_the_paper() -> None:
    hub_of = hubs(*[10] * 10)
    parts = partition("sized", labels_of(60_000, 10), hub_of, 0)
    assert_covers(parts, 60_000, 100)
    sizes, counts = np.unique([len(p) for p in parts], return_counts=True)
    # 5, 10, 20, 25 and 40 % of 60,000 rows, each among 20 workers
    np.testing.assert_array_equal(sizes, [150, 300, 600, 750, 1200])
    np.testing.assert_array_equal(counts, [20] * 5)
    for hub in range(10):
        mine = sorted(len(parts[i]) for i in np.flatnonzero(hub_of == hub))
        assert mine == sorted([150, 300, 600, 750, 1200] * 2)


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=8).filter(lambda s: sum(s) >= 5))
def test_sized_mixes_its_groups_in_every_hub(sizes: list[int]) -> None:
    hub_of = hubs(*sizes)
    workers = len(hub_of)
    rows = 100 * workers * 60
    parts = partition("sized", np.zeros(rows, int), hub_of, 3)
    # The size of a part tells its group: the rows of a group over its number of workers.
    members = [len(range(g, workers, 5)) for g in range(5)]
    per_worker = [rows * p / 100 / m for p, m in zip((5, 10, 20, 25, 40), members, strict=True)]
    group_of = np.array([int(np.argmin(np.abs(np.array(per_worker) - len(p)))) for p in parts])
    np.testing.assert_array_equal(np.bincount(group_of, minlength=5), members)
    for worker, group in enumerate(group_of):
        assert abs(len(parts[worker]) - per_worker[group]) < 1
    for hub in range(len(sizes)):
        mix = np.bincount(group_of[hub_of == hub], minlength=5)
        assert mix.max() - mix.min() <= 1


def test_sized_needs_five_workers_and_rows_for_each() -> None:
    with pytest.raises(ValueError, match="at least 5 workers, not 4"):
        partition("sized", np.zeros(1000, int), hubs(2, 2), 0)
    with pytest.raises(ValueError, match="leaves 2 of them without rows"):
        partition("sized", np.zeros(60, int), hubs(25), 0)


def test_shards_give_each_worker_few_classes() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 200))
    parts = partition("shards", labels, hubs(5, 5), 0)  # 20 shards of 100 rows: one class each
    assert [len(p) for p in parts] == [200] * 10
    assert all(len(np.unique(labels[p])) <= 2 for p in parts)
    parts = partition("shards(5)", labels, hubs(5, 5), 0)
    assert max(len(np.unique(labels[p])) for p in parts) > 2
    with pytest.raises(ValueError, match="60 rows into 100 shards for 10 workers"):
        partition("shards(10)", labels_of(60, 3), hubs(10), 0)


def test_by_hub_gives_each_hub_its_own_classes() -> None:
    labels, hub_of = labels_of(5000, 10), hubs(3, 2, 4)
    parts = partition("by-hub", labels, hub_of, 0)
    seen = [
        set(labels[np.concatenate([parts[i] for i in np.flatnonzero(hub_of == hub)])])
        for hub in range(3)
    ]
    assert seen == [{0, 1, 2, 3}, {4, 5, 6}, {7, 8, 9}]
    for hub in range(3):
        mine = [parts[i] for i in np.flatnonzero(hub_of == hub)]
        assert max(map(len, mine)) - min(map(len, mine)) <= 1
        assert all(set(labels[part]) == seen[hub] for part in mine)


def test_hubs_share_classes_if_there_are_more_hubs_than_classes() -> None:
    labels, hub_of = labels_of(3000, 3), hubs(*[2] * 7)
    parts = partition("by-hub", labels, hub_of, 0)
    assert_covers(parts, 3000, 14)
    for worker, part in enumerate(parts):
        assert set(labels[part]) == {hub_of[worker] % 3}


def test_too_few_rows_or_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="9 rows cannot be split among 10 workers"):
        partition("iid", labels_of(9, 2), hubs(10), 0)
    with pytest.raises(ValueError, match="leaves 1 of them without rows"):
        # the second hub has one class, whose only row is to serve two workers
        partition("by-hub", np.array([0] * 9 + [1]), hubs(2, 2), 0)
    with pytest.raises(ValueError, match="at least one worker"):
        partition("iid", labels_of(9, 2), np.empty(0, int), 0)


def test_known_specs_are_parsed() -> None:
    assert parse_partition("iid") == PartitionSpec("iid")
    assert parse_partition("shards") == PartitionSpec("shards", 2)
    assert parse_partition("shards(4)") == PartitionSpec("shards", 4)
    assert parse_partition(" dirichlet( 0.1 ) ") == PartitionSpec("dirichlet", 0.1)
    for spec in KNOWN_PARTITIONS:
        parse_partition(spec.replace("ALPHA", "1e-2").replace("N", "3"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("idd", "unknown partition 'idd': use one of iid, sized"),
        ("", "unknown partition"),
        ("iid(3)", "unknown partition"),
        ("dirichlet", "needs its alpha"),
        ("dirichlet()", "'' is not a finite number"),
        ("dirichlet(0)", "above 0"),
        ("dirichlet(-1)", "above 0"),
        ("dirichlet(nan)", "not a finite number"),
        ("dirichlet(inf)", "not a finite number"),
        ("shards(0)", "must be 1, 2, 3"),
        ("shards(1.5)", "must be 1, 2, 3"),
        ("shards(two)", "not a finite number"),
    ],
)
def test_impossible_specs_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_partition(spec)
    with pytest.raises(ValueError, match=message):
        partition(spec, labels_of(100, 2), hubs(5), 0)
