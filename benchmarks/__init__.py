"""Benchmarks: each is a module to run, and prints a table."""
