"""What we touch of Flower's SuperLink is as it was, and no SuperLink starts when it is not."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import uvicorn
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.superlink.cli import flower_superlink as superlink_command

from mll_flower.processes import guarded_superexec, guarded_superlink
from mll_flower.processes.guarded_superlink import UnknownFlower, check_flower

SUPERLINK: Any = check_flower()


def test_this_flower_is_known() -> None:
    assert SUPERLINK.uvicorn is uvicorn
    assert guarded_superexec.check_flower() is subprocess_executor
    assert callable(superlink_command)


def serve_in_another_way() -> None:
    uvicorn.Server(uvicorn.Config("app")).run()


def never_serve() -> None:
    pass


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_run_superlink_http_api", serve_in_another_way),
        ("_run_superlink_http_api", never_serve),
        ("flower_superlink", never_serve),
        ("uvicorn", uvicorn.run),
    ],
)
def test_a_flower_that_serves_in_another_way(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(SUPERLINK, name, value)
    with pytest.raises(UnknownFlower, match=r"not started: install flwr 1\.41"):
        check_flower()


def test_a_flower_without_what_we_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(SUPERLINK, "uvicorn")
        with pytest.raises(UnknownFlower, match="uvicorn"):
            check_flower()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess_executor, "subprocess", object())
        with pytest.raises(UnknownFlower, match="starts its processes in another way"):
            check_flower()
    monkeypatch.setattr(guarded_superlink, "SUPERLINK_MODULE", "flwr.no_such_module")
    with pytest.raises(UnknownFlower, match="no_such_module"):
        check_flower()


def test_flower_s_old_ports_stay_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_INTERNAL_GRPC_CONTROL_API", "1")
    with pytest.raises(UnknownFlower, match="FLWR_INTERNAL_GRPC_CONTROL_API=1"):
        check_flower()


def test_a_token_is_in_no_command_line() -> None:
    script = 'import sys; print(sys.argv[2], open(sys.argv[2]).read(), end="")'
    process = guarded_superexec._Subprocess.Popen(
        ["python", "-c", script, "--token", "secret"], stdout=subprocess.PIPE
    )
    output, _ = process.communicate()
    path, token = output.decode().split()
    assert path.startswith("/dev/fd/")
    assert token == "secret"
    assert "secret" not in process.args
