"""The example with containers: what can be checked without a container runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from mll_flower.cli import app
from mll_flower.deployment.network_file import load_network

FOLDER = Path(__file__).parents[2] / "examples/deployment"
NETWORK = load_network(FOLDER / "containers.toml")


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"])


def test_every_hub_and_worker_has_a_service(services: dict[str, dict[str, Any]]) -> None:
    expected = {f"hub-{hub.id}" for hub in NETWORK.hubs}
    expected |= {f"worker-{hub.id}-{n}" for hub in NETWORK.hubs for n in range(hub.workers)}
    assert set(services) == expected


def test_hubs_are_reached_under_the_names_of_their_services(services: dict[str, Any]) -> None:
    for hub in NETWORK.hubs:
        assert hub.superlink == f"hub-{hub.id}:9400"
        assert f"hub-{hub.id}" in services


def test_the_commands_are_commands_of_ours(services: dict[str, dict[str, Any]]) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    for name, service in services.items():
        kind, network, *options = service["command"]
        command = group.commands[kind]
        context = command.make_context(kind, [network, *options])
        values = context.params
        assert str(values["network"]) == "network.toml"
        if kind == "hub":
            assert name == f"hub-{values['id']}"
            assert any(str(v).endswith(":/srv/mll/state") for v in service["volumes"])
        else:
            assert name == f"worker-{values['hub']}-{values['number']}"


def test_the_image_is_built_from_the_checkout(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        build = service["build"]
        context = (FOLDER / build["context"]).resolve()
        assert (context / "pyproject.toml").is_file()
        assert (context / build["dockerfile"]).is_file()
    lines = (FOLDER / "Containerfile").read_text().splitlines()
    steps = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert steps == [
        *("FROM", "ARG", "COPY", "RUN", "RUN", "USER", "WORKDIR", "ENTRYPOINT", "CMD"),
    ]
