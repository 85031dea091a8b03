"""Models as flat vectors: sums, a hub's average of its workers, mixing, and checkpoints.

A hub's average of its workers is called the sub-network average.
"""
