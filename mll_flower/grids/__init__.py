"""Flower grids: rounds with a deadline, absent workers, node identities, an in-process grid.

A Flower grid is the server side's way to send messages to nodes and to receive their replies.
"""
