"""What a metric is: its name, kind, help and labels. The tables of all metrics are made of these.

Law: a figure that is told stands in a table, and each one of a table can be told: ``families`` refuses what is in none, and the
tests compare what is told with the tables, and these with docs/metrics.md. Names begin with ``bookspark_``, end with their unit,
and, if they only grow, with ``_total``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from bookspark.support.metrics.histogram import Distribution


class Form(StrEnum):
    """How a metric behaves."""

    GAUGE = "gauge"
    """Goes up and down."""
    COUNTER = "counter"
    """Only grows, from 0 at the start of the process."""
    HISTOGRAM = "histogram"
    """Counts values in buckets."""


class Described(NamedTuple):
    """One metric."""

    name: str
    """As Prometheus shows it; of a histogram without ``_bucket``, ``_sum`` and ``_count``."""
    form: Form
    help: str
    """One sentence, with what an unusual value means where that is not plain."""
    labels: tuple[str, ...] = ()
    """Besides those that all metrics of the process have."""


Value = float | Distribution
Values = Mapping[tuple[str, ...], Value]
"""By the values of the labels."""
Figures = Mapping[str, Value | Values]
"""What a process tells at one moment: by name; by name and labels where there are labels."""
