"""Plots of runs."""


def plot_run(path): ...
