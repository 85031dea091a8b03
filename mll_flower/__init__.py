"""Multi-Level Local SGD for Flower."""
