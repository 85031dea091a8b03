"""The keys of a network file that say how far hubs believe workers and neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mll_flower.deployment.network_file import NetworkFile, NetworkFileError, load_network
from mll_flower.deployment.trust import _OPTIONS, Trust
from mll_flower.strategies.robust import ROBUST, robust_strategy

FILE = """
name = "trial"
tau = 8
q = 2
slot = 0.5
rounds = 10
{keys}
[[hub]]
id = "a"
superlink = "127.0.0.1:9092"
gossip = "127.0.0.1:9093"
workers = {workers}
"""


def read(tmp_path: Path, keys: str, workers: int = 7) -> NetworkFile:
    (tmp_path / "network.toml").write_text(FILE.format(keys=keys, workers=workers))
    return load_network(tmp_path / "network.toml")


def test_nothing_is_limited_by_default(tmp_path: Path) -> None:
    assert read(tmp_path, "").trust == Trust()
    assert Trust().reply_limits == {}


def test_all_keys(tmp_path: Path) -> None:
    keys = """
max-examples = 5000
max-update-norm = "5x"
max_metrics = 20
max-reply-bytes = 1_000_000
max-neighbour-norm = 3.5
inner-strategy = { name = "multikrum", num-malicious-nodes = 2, num_nodes_to_select = 3 }
"""
    assert read(tmp_path, keys).trust == Trust(
        max_examples=5000,
        max_update_norm="5x",
        max_metrics=20,
        max_reply_bytes=1_000_000,
        max_neighbour_norm=3.5,
        inner_strategy="multikrum",
        inner_options={"num_malicious_nodes": 2, "num_nodes_to_select": 3},
    )


@pytest.mark.parametrize("name", ROBUST)
def test_each_robust_strategy_can_be_named(tmp_path: Path, name: str) -> None:
    trust = read(tmp_path, f'inner-strategy = "{name}"').trust
    assert (trust.inner_strategy, trust.inner_options) == (name, {})
    # Every option that the file may give is an argument of the strategy.
    values: dict[str, Any] = {"beta": 0.1, "num-malicious-nodes": 1, "num-nodes-to-select": 2}
    options = {key.replace("-", "_"): values[key] for key in _OPTIONS[name]}
    make = robust_strategy(name, **options)
    assert {key: getattr(make(0), key) for key in options} == options
    assert make(0) is not make(1)
    assert _OPTIONS.keys() == ROBUST.keys()


MISTAKES = {
    "max-examples = 0": "max-examples: 0; use a positive number",
    "max-examples = inf": "max-examples: inf; use a positive number",
    'max-examples = "all"': "max-examples: 'all'; use a positive number",
    "max-update-norm = -1": 'max-update-norm: -1; give a positive number.*"5x"',
    'max-neighbour-norm = "5"': "max-neighbour-norm: '5'; give a positive number",
    "max-neighbour-norm = true": "max-neighbour-norm: True; give a positive number",
    "max-metrics = 0": "max-metrics: 0; use a whole number of at least 1",
    "max-reply-bytes = 1.5": "max-reply-bytes: 1.5; use a whole number",
    'inner-strategy = "fedadam"': "inner-strategy: 'fedadam'; use one of fedmedian, fedtrimmedavg",
    "inner-strategy = 3": 'inner-strategy: 3; write "fedmedian", or',
    "inner-strategy = { name = [] }": r"inner-strategy: \[\]; use one of",
    'inner-strategy = { name = "krum", beta = 1 }': "inner-strategy: beta: unknown option; those "
    "of krum are: num-malicious-nodes",
    'inner-strategy = { name = "fedtrimmedavg", beta = 0.5 }': "beta: 0.5; use a number from 0",
    'inner-strategy = { name = "krum", num-malicious-nodes = -1 }': "-1; use a whole number",
    'inner-strategy = { name = "bulyan", num-malicious-nodes = 2 }': "bulyan with 2 malicious "
    "workers needs 11 workers, and hub a has 7; give the hub more workers",
}


@pytest.mark.parametrize("keys", MISTAKES)
def test_a_mistake_is_named_with_its_remedy(tmp_path: Path, keys: str) -> None:
    with pytest.raises(NetworkFileError, match=MISTAKES[keys]):
        read(tmp_path, keys)
