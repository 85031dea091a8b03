"""Start, watch and end operating-system processes: Flower's commands, SuperLinks, simulation runs.

A process is ended together with all processes that it has started, also when this one is killed.
"""
