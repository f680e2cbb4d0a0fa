"""Audits: SQL over a snapshot that answers where each entry lies, and whether that is where it should."""

from __future__ import annotations

from bookspark.spark.audit.report import write_report
from bookspark.spark.audit.runner import Finding, left_out, names, run, safe_to_stop, show

__all__ = ["Finding", "left_out", "names", "run", "safe_to_stop", "show", "write_report"]
