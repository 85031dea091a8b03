"""Operating-system processes: trees of them, Flower's commands, simulation runs."""
