"""Benchmarks: time and memory, beside other ways to do the same work; for docs/performance.md.

``python -m benchmarks`` runs all of them, ``python -m benchmarks.NAME`` one: averaging, rates,
simulation, scaling or gossip. The other modules hold the work that is timed and what the
benchmarks share.
"""
