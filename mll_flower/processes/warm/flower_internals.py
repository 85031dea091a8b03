"""Everything of Flower's that warm workers replace or call, and whether it is as they expect.

All of it is private to Flower and may change with any version. `differences` looks before anything
is replaced; if something differs, the SuperNode runs as Flower's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

SUPERNODE = "flwr.supernode.start_client_internal"
"""The SuperNode's main loop."""

SUPEREXEC = "flwr.supercore.superexec.run_superexec"
"""The loop that takes tasks from the SuperNode and hands them to an executor."""

CLIENT = "flwr.supernode.runtime.run_clientapp"
"""What a ClientApp's process does."""


@dataclass(frozen=True)
class Touched:
    """A name of Flower's that is replaced or called.

    Parameters
    ----------
    module, name : str
        Where it is; a name may have dots.
    parameters : str, optional
        Names of its parameters, in their order; not looked at if not given.
    used_by : str, optional
        A function of the module that must use the name: otherwise replacing it has no effect.
    sets : str, optional
        Names of attributes that it must set, which instances have and a class does not.
    """

    module: str
    name: str
    parameters: str | None = None
    used_by: str | None = None
    sets: str = ""


TOUCHED: tuple[Touched, ...] = (
    # Replaced in the SuperNode's main loop, to wait less and to answer for processes that died.
    Touched(SUPERNODE, "time", used_by="start_client_internal"),
    Touched(SUPERNODE, "subprocess", used_by="start_client_internal"),
    Touched(
        SUPERNODE,
        "_pull_and_store_message",
        "state object_store node_config receive get_run get_fab pull_object "
        "confirm_message_received trusted_entities",
        used_by="start_client_internal",
    ),
    Touched(
        SUPERNODE,
        "_push_messages",
        "state object_store send push_object",
        used_by="start_client_internal",
    ),
    Touched(
        SUPERNODE,
        "pull_objects",
        "object_ids pull_object_fn max_concurrent_pulls max_time max_tries_per_object "
        "initial_backoff backoff_cap",
        used_by="_pull_and_store_message",
    ),
    # Called there.
    Touched(SUPERNODE, "_insert_message", "msg state store"),
    Touched(SUPERNODE, "iterate_object_tree", "tree"),
    Touched(
        "flwr.supernode.nodestate.in_memory_nodestate",
        "InMemoryNodeState.get_messages_legacy",
        "self run_ids is_reply limit",
    ),
    Touched(
        "flwr.supernode.nodestate.in_memory_nodestate",
        "InMemoryNodeState.delete_messages",
        "self message_ids",
    ),
    Touched(
        "flwr.supernode.nodestate.in_memory_nodestate",
        "InMemoryNodeState.finish_task",
        "self task_id sub_status details",
    ),
    Touched(
        "flwr.supernode.nodestate.in_memory_nodestate",
        "InMemoryNodeState.record_message_processing_end",
        "self message_id",
    ),
    Touched(
        "flwr.supercore.corestate.in_memory_corestate",
        "InMemoryCoreState.__init__",
        sets="lock_task_store task_store",
    ),
    Touched(
        "flwr.supercore.corestate.in_memory_corestate",
        "InMemoryCoreState.create_task",
        "self task_type run_id fab_hash model_ref connector_ref connector_id requesting_task_id",
    ),
    Touched("flwr.proto.task_pb2", "Task.STATUS_FIELD_NUMBER"),
    Touched("flwr.proto.task_pb2", "TaskStatus.STATUS_FIELD_NUMBER"),
    Touched("flwr.supernode.cli", "flower_supernode", ""),
    # Replaced in SuperExec's loop, to give it an executor of ours.
    Touched(
        SUPEREXEC,
        "get_executor",
        "executor_type executor_config insecure root_certificates_path",
        used_by="run_superexec",
    ),
    Touched(SUPEREXEC, "AutoExecPlugin", used_by="run_superexec"),
    Touched(SUPEREXEC, "AutoExecPlugin.launch_task", "self token task"),
    Touched("flwr.supercore.superexec.executor", "Executor.launch", "self spec"),
    Touched("flwr.supercore.superexec.executor", "Executor.reconcile", "self"),
    Touched("flwr.supercore.superexec.executor", "Executor.close", "self"),
    Touched("flwr.supercore.superexec.executor", "SubprocessExecutor.launch", "self spec"),
    Touched("flwr.supercore.cli", "flower_superexec", ""),
    # Replaced in a ClientApp's process, so that it outlives a message.
    Touched(CLIENT, "register_signal_handlers", used_by="run_clientapp"),
    Touched(CLIENT, "flwr_exit", used_by="run_clientapp"),
    Touched(
        CLIENT, "install_from_fab", "fab_file install_dir skip_prompt", used_by="run_clientapp"
    ),
    Touched(
        CLIENT,
        "pull_and_inflate_object_from_tree",
        "object_tree pull_object_fn confirm_object_received_fn return_type max_concurrent_pulls "
        "max_time max_tries_per_object initial_backoff backoff_cap",
        used_by="pull_task_input",
    ),
    # Called there.
    Touched(
        CLIENT,
        "run_clientapp",
        "runtime_api_address token insecure certificates parent_pid runtime_dependency_install",
    ),
)
"""All of it."""


def differences(touched: Sequence[Touched] | None = None) -> list[str]:
    """Return what the installed Flower has otherwise than expected, one text per name.

    Parameters
    ----------
    touched : Sequence[Touched], optional
        What is looked at; all of it if not given.
    """
    looked_at = TOUCHED if touched is None else touched
    return [text for one in looked_at if (text := _difference(one)) is not None]


def warning(found: Sequence[str]) -> str:
    """Return the line that says why workers are cold."""
    return (
        f"Flower {version('flwr')} differs from the versions that warm workers are made for "
        f"({'; '.join(found)}): ClientApps run as Flower runs them, in a new process per message"
    )


def _difference(one: Touched) -> str | None:
    try:
        module = import_module(one.module)
        found: Any = module
        for part in one.name.split("."):
            found = getattr(found, part)
        if one.parameters is not None:
            parameters = list(inspect.signature(found).parameters)
            if parameters != one.parameters.split():
                return f"{one.module}.{one.name} takes {' '.join(parameters) or 'nothing'}"
        if one.used_by is not None and one.name not in _names(getattr(module, one.used_by)):
            return f"{one.module}.{one.used_by} does not use {one.name}"
        missing = [name for name in one.sets.split() if name not in _names(found)]
        if missing:
            return f"{one.module}.{one.name} does not set {missing[0]}"
    except (ImportError, AttributeError) as error:
        return f"{one.module}.{one.name}: {error}"
    return None


def _names(function: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = inspect.unwrap(function).__code__.co_names
    return names
