"""Operating-system processes: trees of them, Flower's commands, SuperLinks, simulation runs."""
