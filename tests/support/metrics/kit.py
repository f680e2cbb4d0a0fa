"""What the tests of rules and dashboards share: every metric by name, and what an expression of Prometheus names."""

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
    """The metrics that an expression names, without the endings of a histogram's series."""
    found = re.findall(r"\bbookspark_[a-z_]+", expression)
    return {re.sub(r"_(bucket|sum|count)$", "", one) for one in found}
