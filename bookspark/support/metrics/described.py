"""The description of a metric: its name, kind, help and labels. ``tables`` consists of these.

Law: every published figure is in a table, and every entry of a table can be published: ``families`` refuses unknown names, and
tests compare figures with the tables, and these with docs/metrics.md. Names begin with ``bookspark_``, end with their unit,
and, if they only grow, with ``_total``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from bookspark.support.metrics.histogram import Distribution


class Form(StrEnum):
    GAUGE = "gauge"
    """Goes up and down."""
    COUNTER = "counter"
    """Only grows, from 0 at the start of the process."""
    HISTOGRAM = "histogram"


class Described(NamedTuple):
    form: Form
    name: str
    """Prometheus's name; of a histogram without ``_bucket``, ``_sum`` and ``_count``."""
    help: str
    """One sentence, with the meaning of an unusual value where that is not plain."""
    labels: tuple[str, ...] = ()
    """In addition to the labels of all metrics of the process."""


Value = float | Distribution
Values = Mapping[tuple[str, ...], Value]
"""Keys: the values of the labels."""
Figures = Mapping[str, Value | Values]
"""A process's figures at one moment: by name; by name and labels where there are labels."""
