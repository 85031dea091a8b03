"""Flower with PyTorch on handwritten digits."""
