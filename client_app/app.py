"""ClientApp: the workers of a simulation, or one worker of a deployment."""

from __future__ import annotations

from mll_flower.apps.worker_app import worker_app

app = worker_app()
