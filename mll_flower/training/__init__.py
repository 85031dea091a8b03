"""Local SGD: the engine that takes workers' steps, and the budgets that say how many.

Importing this package loads no torch.
"""
