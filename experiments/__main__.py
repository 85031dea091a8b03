"""Entry point of ``python -m experiments``."""

from __future__ import annotations

from experiments.command import app

if __name__ == "__main__":
    app()
