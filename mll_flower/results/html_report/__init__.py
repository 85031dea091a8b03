"""The HTML report of a run: one page, in one file, that loads nothing from elsewhere."""

from mll_flower.results.html_report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
