"""Softmax regression on handwritten digits with NumPy."""
