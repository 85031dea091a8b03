"""The paper's algorithm: network, graphs, mixing matrices, time, and the convergence bound.

`mll_flower.algorithm.coins` draws which worker takes a step in which slot, and
`mll_flower.algorithm.schedule` is the simulated clock.

Castiglia, Das, Patterson: Multi-Level Local SGD, ICLR 2021. Algorithm 1 itself, in plain NumPy,
is `mll_flower.algorithm.reference`. This package imports nothing of Flower or PyTorch, and
nothing from the other packages of MLL-Flower.
"""
