"""Rounds on Flower's grids: deadlines, absences, who a node is, and a grid in this process."""
