"""The paper: network, graphs, mixing matrices, coins, the simulated clock, and the theory.

`mll_flower.algorithm.reference` is Algorithm 1 in plain NumPy. This room imports nothing of
Flower's or PyTorch's, and nothing from the rooms above it.
"""
