"""The ClientApp of MLL-Flower: a worker."""
