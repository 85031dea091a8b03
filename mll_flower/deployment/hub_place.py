"""How a ServerApp learns that it is a hub of a deployment, and which one.

``mll-flower hub`` tells an app of your own by an environment variable of the SuperLink that it
starts: Flower's processes pass it on down to the ServerApp, and the app's ``pyproject.toml`` needs
no keys of this library. The run config of this project's own app has the same values as keys
(``role = "hub"``), and so may that of an app whose SuperLink is started in another way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

VARIABLE = "MLL_FLOWER_HUB"
"""The environment variable that holds a hub's place, as JSON."""


@dataclass(frozen=True)
class HubPlace:
    """One hub's place in a deployment.

    Parameters
    ----------
    network : str
        Path of the network file.
    hub : str
        Id of the hub.
    folder : str
        Where it keeps its checkpoint and its records; if empty, ``state/`` beside the file.
    run : str
        Name of the run; if empty, that of the network.
    insecure : bool
        Without TLS.
    """

    network: str
    hub: str
    folder: str = ""
    run: str = ""
    insecure: bool = False

    def environment(self) -> dict[str, str]:
        """Return the environment variable by which a ServerApp finds this place."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def find(cls, run_config: Mapping[str, Any]) -> HubPlace | None:
        """Return the place that this ServerApp has; None if it runs the whole network.

        Parameters
        ----------
        run_config : Mapping
            The run config of the ServerApp.
        """
        if run_config.get("role") == "hub":
            return cls(
                network=str(run_config["network"]),
                hub=str(run_config["hub"]),
                folder=str(run_config.get("output") or ""),
                run=str(run_config.get("run-name") or ""),
                insecure=run_config.get("insecure") is True,
            )
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{VARIABLE}={text!r} is not a hub's place ({error}): `mll-flower hub` sets this "
                "variable; unset it to run the app elsewhere"
            ) from None
