"""Helpers for the tests of alert rules and dashboards: all metrics by name, and the metrics in a Prometheus expression."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from bookspark.support.metrics import tables

ROOT = Path(__file__).resolve().parents[3]
PROMTOOL = shutil.which("promtool")
METRICS = {
    one.name: one for name, table in vars(tables).items() if name[0].isupper() and type(table) is tuple for one in table
}


def named(expression: str) -> set[str]:
    """Metrics in an expression, without the suffixes of a histogram's series."""
    found = re.findall(r"\bbookspark_[a-z_]+", expression)
    return {re.sub(r"_(bucket|sum|count)$", "", one) for one in found}
