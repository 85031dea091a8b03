"""A hub's SuperLink: Flower's own, but on its public port it answers workers only.

Run as ``python -m mll_flower.processes.guarded_superlink --listen HOST:PORT`` with the arguments of
``flower-superlink``, whose ``--host`` and ``--port`` are then the private address, on loopback.
Flower is not changed; its application is served on two sockets, behind the filter of
`mll_flower.processes.fleet_filter`. Flower itself knows only the private address: should it start
its server in another way one day, nothing of it can be reached from outside. Before that happens,
`check_flower` refuses to start.

On the private address it shows a certificate of its own
(`mll_flower.processes.private_certificate`), so that a hub goes on when that of the network has
ended.

Files that the SuperLink and the processes in it write are readable by their owner only, and the
tokens of its tasks are in no command line (`mll_flower.processes.guarded_superexec`).
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import socket
import sys
from collections.abc import Sequence
from logging import INFO
from pathlib import Path
from types import ModuleType
from typing import Any

from mll_flower.processes.descriptors import raise_descriptor_limit
from mll_flower.processes.superlink_cleaning import shrink

SUPERLINK_MODULE = "flwr.superlink.cli.flower_superlink"
_GRPC_SWITCHES = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")


class UnknownFlower(RuntimeError):
    """A Flower whose SuperLink works in another way than the guard expects."""


def main(arguments: Sequence[str]) -> None:
    """Run the SuperLink until it is ended.

    Parameters
    ----------
    arguments : Sequence[str]
        ``--listen``, any number of ``--worker-key``, and the arguments of ``flower-superlink``.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--listen", required=True, help="host:port that workers reach")
    parser.add_argument("--worker-key", action="append", type=Path, help="a worker's public key")
    parser.add_argument("--private-certificate", type=Path, help="shown on the private address")
    parser.add_argument("--private-key", type=Path, help="its key")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--database", required=True, type=Path)
    own, others = parser.parse_known_args(arguments)
    os.umask(0o077)
    raise_descriptor_limit()
    host, _, port = own.listen.rpartition(":")
    # Before the long imports, so that nothing else takes the ports meanwhile.
    sockets = [_bind(own.host, own.port), _bind(host.strip("[]"), int(port))]
    shrink(own.database)
    superlink = check_flower()
    private_pair = (own.private_certificate, own.private_key) if own.private_key else None
    _guard(superlink, (own.host, own.port), sockets, own.worker_key, private_pair)
    given = ["--host", own.host, "--port", str(own.port), "--database", str(own.database)]
    sys.argv = ["flower-superlink", *given, *others]
    superlink.flower_superlink()


def check_flower() -> ModuleType:
    """Return Flower's module that starts a SuperLink; `UnknownFlower` if it has changed."""
    switches = [name for name in _GRPC_SWITCHES if os.environ.get(name) == "1"]
    if switches:
        raise UnknownFlower(
            f"{switches[0]}=1: with it, Flower serves its interfaces on further ports, open to "
            "anyone; remove it from the environment"
        )
    try:
        superlink = importlib.import_module(SUPERLINK_MODULE)
        importlib.import_module("mll_flower.processes.guarded_superexec").check_flower()
        runs = superlink.flower_superlink.__code__.co_names
        serves = set(superlink._run_superlink_http_api.__code__.co_names)
        starts = superlink.SuperLinkLifespan._start_superexec_if_needed.__code__.co_names
        expected = {
            "it is served by _run_superlink_http_api": "_run_superlink_http_api" in runs,
            "uvicorn.run serves it": {"uvicorn", "run"} <= serves
            and not {"Server", "Config"} & serves
            and inspect.ismodule(superlink.uvicorn),
            "_get_superexec_command says how to start a SuperExec": "_get_superexec_command"
            in starts,
            "what workers call is under /v1/fleet/": _only_fleet_paths_pass(),
        }
    except (ImportError, AttributeError) as error:
        raise UnknownFlower(_refusal(str(error))) from None
    wrong = [text for text, holds in expected.items() if not holds]
    if wrong:
        raise UnknownFlower(_refusal(f"it is no longer true that {wrong[0]}"))
    return superlink


def _guard(
    superlink: Any,
    private: tuple[str, int],
    sockets: list[socket.socket],
    keys: Sequence[Path] | None,
    private_pair: tuple[Path, Path] | None,
) -> None:
    """Make Flower serve its application on these sockets, behind the filter."""
    import uvicorn
    from flwr.supercore import log

    from mll_flower.processes.fleet_filter import FleetFilter, WorkerKeys
    from mll_flower.processes.guarded_superexec import superexec_command
    from mll_flower.processes.renewed_certificate import follow_renewals
    from mll_flower.processes.superlink_cleaning import clean_regularly
    from mll_flower.processes.two_certificates import TwoCertificatesServer

    worker_keys = WorkerKeys(keys) if keys else None

    class Uvicorn:
        """What Flower uses of uvicorn; any other use is an error."""

        @staticmethod
        def run(app: Any, host: str, port: int, **more: Any) -> None:
            if (host, port) != private:
                raise UnknownFlower(_refusal(f"it serves {host}:{port}, not {private}"))
            # h11 bounds what a caller may send as headers, which uvicorn's other parser does
            # not. No proxy is believed, and nothing in Flower needs websockets.
            more.update(http="h11", ws="none", proxy_headers=False)
            config = uvicorn.Config(
                FleetFilter(app, private, worker_keys), host=host, port=port, **more
            )
            scheme = "https" if config.is_ssl else "http"
            config.load()
            if config.ssl is not None:
                files = Path(str(config.ssl_certfile)), Path(str(config.ssl_keyfile))
                follow_renewals(config.ssl, *files)
            clean_regularly(lambda: app.state.linkstate_factory.state())
            for bound, use in zip(sockets, ("the hub itself", "workers alone"), strict=True):
                log(INFO, "%s://%s:%d serves %s", scheme, *bound.getsockname()[:2], use)
            if private_pair is None:
                uvicorn.Server(config).run(sockets=sockets)
            else:
                TwoCertificatesServer(config, sockets[0], *private_pair).run(sockets=sockets[1:])

    superlink.uvicorn = Uvicorn
    trusted = None if private_pair is None else private_pair[0]
    stock = superlink._get_superexec_command
    superlink._get_superexec_command = lambda **given: superexec_command(stock(**given), trusted)


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound; the server listens on it when it is ready."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        address = socket.getaddrinfo(host, port, bound.family, socket.SOCK_STREAM)[0][4]
        bound.bind(address)
    except OSError as error:
        raise SystemExit(f"{host}:{port} cannot be used: {error.strerror}") from None
    return bound


def _only_fleet_paths_pass() -> bool:
    """Return whether, of all of Flower's paths, the filter passes those for workers alone."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    from mll_flower.processes.fleet_filter import FLEET_PATH

    passing = {path for _, path in PROTOBUF_REQUEST_TYPES if FLEET_PATH.fullmatch(path.encode())}
    fleet = {path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    return "/v1/fleet/pull-messages" in fleet and passing == fleet


def _refusal(why: str) -> str:
    from flwr.supercore.version import package_version

    return (
        f"Flower {package_version} starts its SuperLink in a way that mll-flower does not know "
        f"({why}). It would be open to anyone, so it is not started: install flwr 1.41"
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UnknownFlower as error:
        sys.exit(f"Error: {error}")
