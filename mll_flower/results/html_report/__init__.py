"""A run's report: one HTML page that stands alone."""

from mll_flower.results.html_report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
