"""Keep a simulation going when processes of Ray die: replace actors that are dead.

Flower 1.41 puts an actor back into its pool after any failure, also when the process, or the
machine on which it ran, no longer exists. Such an actor fails at once and is the next to be
chosen, so that it takes nearly every later message with it. Here a dead actor leaves the pool. A
new one takes its place as soon as the cluster has room for it, also on a machine that joins later.
The message that it had is lost: the workers in it are absent for one message.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

from flwr.supercore import log

_MODULE = "flwr.simulation.ray_transport.ray_actor"
_POLL = 0.05  # seconds between two looks for an idle actor
_LOOK_FOR_ROOM = 5.0  # seconds between two looks for room in the cluster


def replace_dead_actors() -> None:
    """Mend the actor pool of this process, if it has one; called once the pool exists."""
    module = sys.modules.get(_MODULE)
    kind = getattr(module, "BasicActorPool", None)
    needed = ("submit", "add_actor_back_to_pool", "add_actors_to_pool")
    if kind is None or hasattr(kind, "mended") or not all(hasattr(kind, n) for n in needed):
        return
    submit, lock, successors = kind.submit, threading.Lock(), _Successors(module)

    def submit_when_idle(pool: Any, actor_fn: Any, job: Any) -> Any:
        while True:
            with lock:
                successors.join(pool)
                if pool.pool:
                    return submit(pool, actor_fn, job)
            time.sleep(_POLL)

    def return_or_drop(pool: Any, future: Any) -> None:
        actor = pool._future_to_actor.pop(future)
        with lock:
            if _is_dead(future):
                pool.num_actors -= 1
                log(logging.WARNING, "A process that trains has died; %d are left", pool.num_actors)
            else:
                pool.pool.append(actor)

    kind.submit, kind.add_actor_back_to_pool, kind.mended = submit_when_idle, return_or_drop, True


def _is_dead(future: Any) -> bool:
    """Return whether the actor of a finished call has died."""
    import ray

    try:
        ray.get(future, timeout=0)
    except ray.exceptions.RayActorError:
        return True
    except Exception:  # what the app raised
        return False
    return False


class _Successors:
    """Actors that are to take the places of dead ones.

    They wait outside the pool until they answer: Ray counts a dead node's CPUs for some seconds
    more, and an actor that it cannot place would keep its message for ever.

    Parameters
    ----------
    module : module
        Flower's, which knows how many actors fit into the cluster.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._starting: list[tuple[Any, Any]] = []  # with what they have been asked
        self._looked = 0.0

    def join(self, pool: Any) -> None:
        """Add to the pool those that answer; start others if the cluster has room for them."""
        if pool.num_actors >= pool.actors_capacity:
            return
        for actor, question in list(self._starting):
            answered = self._has_answered(question)
            if answered is None:
                continue
            self._starting.remove((actor, question))
            if answered:
                pool.pool.append(actor)
                pool.num_actors += 1
                log(logging.INFO, "A new process trains; there are %d", pool.num_actors)
        now = time.monotonic()
        if now - self._looked < _LOOK_FOR_ROOM:
            return
        self._looked = now
        try:
            room = self._module.pool_size_from_resources(pool.client_resources)
        except ValueError:  # for none at all
            return
        missing = min(pool.actors_capacity, room) - pool.num_actors - len(self._starting)
        for _ in range(missing):
            actor = pool.create_actor_fn()
            self._starting.append((actor, actor.__ray_ready__.remote()))

    def _has_answered(self, question: Any) -> bool | None:
        """Return whether an actor lives; None if that is not known yet."""
        import ray

        try:
            ray.get(question, timeout=0)
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayError:
            return False
        return True
