"""Where actors start: on this machine, or on a Ray cluster that exists."""

from __future__ import annotations

import socket

import pytest

from mll_flower.processes.flower_environment import free_port
from mll_flower.processes.ray_cluster import Resources


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_ray_is_told_the_cpus_of_this_machine_and_never_those_of_a_cluster() -> None:
    alone = Resources.found(actors=3)
    assert alone.federation(5)["init-args-num-cpus"] == 3
    assert Resources().federation(5)["init-args-num-cpus"] >= 1
    assert "RAY_ADDRESS" not in alone.environment({"RAY_ADDRESS": "elsewhere:1"})
    cluster = Resources.found(address="auto", gpus=0.25)
    assert cluster.federation(5) == {
        "num-supernodes": 5,
        "client-resources-num-cpus": 1,
        "client-resources-num-gpus": 0.25,
        "init-args-log-to-driver": False,
    }
    assert cluster.environment({"RAY_TMPDIR": "/tmp/x"}) == {"RAY_ADDRESS": "auto"}


def test_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert Resources.found().address == address


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"actors": -1}, "actors=-1: give a number of processes"),
        ({"gpus": -0.5}, "actor-gpus=-0.5: give a share"),
        ({"address": "head"}, "give host:port of the head node"),
        ({"address": "ray://127.0.0.1:10001"}, "give host:port of the head node"),
        ({"address": f"127.0.0.1:{free_port()}"}, "no Ray cluster answers there"),
        ({"address": "auto", "actors": 2}, "actors=2 with the Ray cluster auto"),
    ],
)
def test_what_cannot_be_right_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Resources.found(**values)  # type: ignore[arg-type]
