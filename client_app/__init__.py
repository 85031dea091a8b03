"""The ClientApp of MLL-Flower: the workers."""
