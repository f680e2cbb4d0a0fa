"""Figures in the text format of Prometheus."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bookspark.support.metrics.described import Described, Form
from bookspark.support.metrics.families import FiguresCollector
from bookspark.support.metrics.histogram import Histogram

DESCRIBED = (
    Described(Form.GAUGE, "a_bytes", "Bytes."),
    Described(Form.COUNTER, "b_total", "How many.", ("kind",)),
    Described(Form.HISTOGRAM, "c_seconds", "How long."),
)


def told(figures):
    registry = CollectorRegistry()
    registry.register(FiguresCollector(DESCRIBED, lambda: (figures, {"bookie_id": "one"})))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples
    }


def test_each_form_of_metric_is_exported_with_common_and_own_labels():
    seconds = Histogram((1, 2))
    seconds.observe(1.5, 2)
    one = ("bookie_id", "one")
    assert told({"a_bytes": 7, "b_total": {("add",): 2}, "c_seconds": seconds.copy()}) == {
        ("a_bytes", one): 7,
        ("b_total", one, ("kind", "add")): 2,
        ("c_seconds_bucket", one, ("le", "1.0")): 0,
        ("c_seconds_bucket", one, ("le", "2.0")): 2,
        ("c_seconds_bucket", one, ("le", "+Inf")): 2,
        ("c_seconds_count", one): 2,
        ("c_seconds_sum", one): 3,
    }


def test_metric_without_a_description_is_refused():
    with pytest.raises(KeyError, match="d_total"):
        told({"d_total": 1})


def test_metric_with_wrong_labels_is_refused():
    with pytest.raises(ValueError, match="b_total has the labels"):
        told({"b_total": 1})
