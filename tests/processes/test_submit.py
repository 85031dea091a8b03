"""Flower's commands run in one process: which ones, and what their failures lead to."""

from __future__ import annotations

import pytest

from mll_flower.processes import submit

Calls = list[tuple[str, ...]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The ``flwr`` commands, which succeed unless the key is bad or known."""
    made: Calls = []

    def run_flwr(*arguments: str) -> tuple[int, str]:
        made.append(arguments)
        if "known.pub" in arguments:
            return 1, "public key already in use"
        return (1, "no such file") if "bad.pub" in arguments else (0, "fine")

    monkeypatch.setattr(submit, "_run_flwr", run_flwr)
    # The tests of the guarded SuperLink have this part, on a real one.
    monkeypatch.setattr(submit, "_revoke_others", lambda connection, keys: [])
    return made


def test_workers_are_registered_before_the_run_starts(
    calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit.main(["mll", "/app", "tau=8", "new.pub", "known.pub"]) == 0
    assert calls == [
        ("supernode", "register", "new.pub", "mll"),
        ("supernode", "register", "known.pub", "mll"),
        ("run", "/app", "mll", "--run-config", "tau=8"),
    ]
    assert capsys.readouterr().out == "fine\n"


def test_no_run_starts_if_a_worker_cannot_be_registered(
    calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit.main(["mll", "/app", "tau=8", "bad.pub", "new.pub"]) == 1
    assert len(calls) == 1
    assert "the worker with the key bad.pub cannot be registered:\nno such file" in (
        capsys.readouterr().out
    )


def test_a_key_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["mll", "/app", "tau=8", "missing.pub"]) == 1
    assert "missing.pub" in capsys.readouterr().out


def test_flower_s_own_output_and_exit_code() -> None:
    code, output = submit._run_flwr("--help")
    assert code == 0
    assert "supernode" in output
    code, output = submit._run_flwr("no-such-command")
    assert code != 0
    assert "no-such-command" in output
