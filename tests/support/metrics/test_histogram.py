"""Histograms: counts of values in buckets."""

from __future__ import annotations

import pytest

from bookspark.support.metrics.histogram import Histogram, together


def test_a_value_counts_in_the_first_bucket_that_it_fits():
    seconds = Histogram((1, 2, 5))
    for value in (0.5, 1, 1.5, 5, 6):
        seconds.observe(value)
    found = seconds.copy()
    assert list(found.counts) == [2, 1, 1, 1]
    assert found.cumulated == [2, 3, 4, 5]
    assert found.total == 14


def test_value_observed_with_a_count_equals_repeated_observations():
    one, many = Histogram((1, 2)), Histogram((1, 2))
    many.observe(1.5, 3)
    for _ in range(3):
        one.observe(1.5)
    assert many.copy() == one.copy()


def test_copy_of_a_histogram_does_not_change():
    seconds = Histogram((1,))
    before = seconds.copy()
    seconds.observe(0.5)
    assert (before.total, list(before.counts)) == (0, [0, 0])


def test_histograms_with_the_same_bounds_are_added():
    first, second = Histogram((1, 2)), Histogram((1, 2))
    first.observe(0.5)
    second.observe(1.5, 2)
    found = together((first.copy(), second.copy()))
    assert (found.cumulated, found.total) == ([1, 3, 3], 3.5)
    with pytest.raises(ValueError):
        together((first.copy(), Histogram((1,)).copy()))
