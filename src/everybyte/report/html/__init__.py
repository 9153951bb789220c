"""The report: one HTML file that holds all of an answer and opens offline."""

from __future__ import annotations

from everybyte.report.html.page import report

__all__ = ["report"]
