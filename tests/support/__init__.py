"""Helpers of the tests: imported as ``tests.support.NAME``, everywhere."""
