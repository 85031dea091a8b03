"""Flower's own SuperLink in this process, and runs that ask SuperNodes in the place of a ServerApp.

The SuperNodes are real processes, which reach it over HTTP; their ClientApp is made for tests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import uvicorn
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response

from mll_flower.processes.flower_environment import free_port

PROJECT = """
[project]
name = "obedient"
version = "1.0.0"
description = "A ClientApp that does what it is told"
license = "Apache-2.0"
dependencies = ["flwr"]
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "obedient.app:app"
clientapp = "obedient.app:app"
[tool.flwr.app.config]
"""

# Does what the message says, and replies with what is of interest about its process.
APP = """
import ctypes, os, signal, sys, time
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
VERSION = 1
LEAK = []
app = ClientApp()

@app.query()
def query(message, context):
    order = message.content["order"]
    state = context.state.setdefault("count", MetricRecord({"n": 0}))
    state["n"] += 1
    print(f"order {order['do']} in {os.getpid()}")
    if order["do"] == "raise":
        raise ValueError("as it was told")
    if order["do"] == "exit":
        sys.exit(3)
    if order["do"] == "_exit":
        os._exit(4)
    if order["do"] == "segfault":
        ctypes.string_at(0)
    if order["do"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if order["do"] == "sleep":
        time.sleep(order["seconds"])
    if order["do"] == "hold":  # hangs with Python's lock held: none of its threads runs
        ctypes.PyDLL(None).sleep(int(order["seconds"]))
    if order["do"] == "leak":
        LEAK.append(bytearray(os.urandom(1000)) * int(order["megabytes"] * 1000))
        time.sleep(order["seconds"])
    about = {
        "pid": os.getpid(), "version": VERSION, "count": state["n"],
        "modules": [name for name in ("torch", "numpy", "mailbox") if name in sys.modules],
        "mll": getattr(sys.modules.get("mll_flower"), "__file__", None) or "",
        "begun": time.time(),
    }
    return Message(RecordDict({"about": ConfigRecord(about)}), reply_to=message)
"""


class Run:
    """A run on the SuperLink below, whose ServerApp is the test.

    Parameters
    ----------
    superlink : InProcessSuperLink
        Where it runs.
    files : Mapping[str, str]
        Files of its app, by path, besides pyproject.toml.
    """

    def __init__(self, superlink: InProcessSuperLink, files: Mapping[str, str]) -> None:
        self.state: Any = superlink.state
        contents = {"pyproject.toml": PROJECT, "obedient/__init__.py": "", **files}
        fab, _ = build_fab_from_files({path: text.encode() for path, text in contents.items()})
        fab_hash = self.state.store_fab(Fab("", fab, {}))
        self.id = self.state.create_run(
            *("tests/obedient", "1.0.0", fab_hash, {}, NOOP_FEDERATION_ID),
            *(None, None, TaskType.SERVER_APP),
        )
        run = self.state.get_run_info(run_ids=[self.id])[0]
        self.task = run.primary_task_id
        token = self.state.claim_task(self.task)
        assert token is not None
        assert self.state.activate_task(self.task)
        self.grid = HttpGrid(superlink.address, insecure=True, token=token)
        self.grid.set_run(run)

    def send(self, node: int, do: str = "", ttl: float = 60.0, **order: Any) -> str:
        """Send an order to a node; return the message's id."""
        TaskIdentity.task_id, TaskIdentity.run_id = self.task, self.id
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        # The time makes each message another one: Flower tells them by their contents.
        content = RecordDict({"order": ConfigRecord({"do": do, "at": time.time(), **order})})
        message = Message(content, node, "query", ttl=ttl)
        [message_id] = self.grid.push_messages([message])
        return message_id

    def reply(self, message_id: str, timeout: float = 60.0) -> Message:
        """Wait for the reply to a message."""
        end = time.monotonic() + timeout
        while not (replies := list(self.grid.pull_messages([message_id]))):
            assert time.monotonic() < end, f"no reply within {timeout:g} s"
            self.state.acknowledge_task_heartbeat(self.task)
            time.sleep(0.02)
        return replies[0]

    def ask(self, node: int, do: str = "", **order: Any) -> dict[str, Any]:
        """Send an order and return what the ClientApp replies; fail if it is an error."""
        reply = self.reply(self.send(node, do, **order))
        assert not reply.has_error(), reply.error
        return dict(reply.content["about"])

    def error(self, node: int, do: str, timeout: float = 60.0, **order: Any) -> str:
        """Send an order that must fail, and return the error's reason."""
        reply = self.reply(self.send(node, do, **order), timeout)
        assert reply.has_error()
        return reply.error.reason


class InProcessSuperLink:
    """Flower's SuperLink, without TLS, on a port of its own; a context manager."""

    def __init__(self) -> None:
        self.broken = "nothing"  # requests with this in their path are answered with status 500
        app = create_app()
        self.state: Any = app.state.linkstate_factory.state()
        self.address = f"127.0.0.1:{free_port()}"
        host, _, port = self.address.partition(":")
        app.add_middleware(BaseHTTPMiddleware, dispatch=self._break)
        config = uvicorn.Config(app, host=host, port=int(port), log_level="warning")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> InProcessSuperLink:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def _break(self, request: Request, call_next: Any) -> Response:
        if self.broken in request.url.path:
            return Response(status_code=500)
        answer: Response = await call_next(request)
        return answer

    def run(self, app: str = APP, files: Mapping[str, str] | None = None) -> Run:
        """Begin a run of an app, given as the text of its module, with further files."""
        return Run(self, {"obedient/app.py": app, **(files or {})})

    def online(self) -> list[int]:
        """Return the ids of the SuperNodes that are online."""
        return [node.node_id for node in self.state.get_node_info(statuses=["online"])]

    def forget(self, node: int) -> None:
        """Treat a node as one that has left: a killed one stays online for a minute."""
        self.state.deactivate_node(node)

    def wait_for_nodes(self, count: int, timeout: float = 60.0) -> list[int]:
        """Wait until so many SuperNodes are online; return their ids."""
        end = time.monotonic() + timeout
        while True:
            online = self.online()
            if len(online) == count:
                return sorted(online)
            assert time.monotonic() < end, f"{len(online)} of {count} nodes within {timeout:g} s"
            time.sleep(0.05)
