"""Models as flat vectors: their sums, the sub-network average, mixing, and checkpoints."""
