"""The measurements behind the plots."""

from __future__ import annotations

import pytest

from bookspark.operations.console.figures import (
    HISTORY_SECONDS,
    HOUR_SECONDS,
    MEAN_SECONDS,
    POINT_SECONDS,
    History,
    Track,
    counts_of,
    parsed,
)
from bookspark.support.metrics.web import Page, WebServer

ADDS = "bookspark_bookie_added_entries_total"
SUM, COUNT = "bookspark_bookie_add_seconds_sum", "bookspark_bookie_add_seconds_count"


def test_counters_are_summed_over_their_labels():
    text = f'# HELP {ADDS} words 7\n{ADDS}{{a="x y",b="}}"}} 2.0\n{ADDS}{{a="z"}} 3\n{COUNT} 4\nother_total 5\n'
    assert parsed(text) == {ADDS: 5.0, COUNT: 4.0}


def test_point_counts_the_growth_on_bookies_that_answered_twice():
    history = History()
    first = history.add(0.0, {"a": {ADDS: 100, SUM: 1, COUNT: 100}, "b": {ADDS: 7}}, 0.001)
    assert first == (None, None, None, None, None, 1.0)
    point = history.add(10.0, {"a": {ADDS: 150, SUM: 1.5, COUNT: 150}, "c": {ADDS: 9}}, None)
    assert (point.adds, point.add_ms, point.reads, point.zookeeper_ms) == (5.0, 10.0, None, None)


def test_restarted_bookie_counts_from_its_next_answer():
    history = History()
    adds = [history.add(at, {"a": {ADDS: count}}, None).adds for at, count in ((0.0, 100), (10.0, 20), (20.0, 30))]
    assert adds == [None, None, 1.0]


def test_last_hour_has_every_value_and_a_week_has_means():
    track, end = Track(), int(HISTORY_SECONDS + HOUR_SECONDS)
    for at in range(0, end, int(POINT_SECONDS)):
        track.add(at, (float(at), None))
    hour = track.last(HOUR_SECONDS, end)
    assert len(hour) == HOUR_SECONDS / POINT_SECONDS and hour[-1] == (end - POINT_SECONDS, (end - POINT_SECONDS, None))
    week = track.last(HISTORY_SECONDS, end)
    assert week[0][0] < end - HISTORY_SECONDS + MEAN_SECONDS * 2 and week[-len(hour) :] == hour
    at, (mean, unknown) = week[10]
    # The mean of the values up to that time.
    assert at - MEAN_SECONDS <= mean <= at and unknown is None
    assert len(week) < HISTORY_SECONDS / MEAN_SECONDS + len(hour)
    assert track.last(900, end) == [one for one in hour if end - one[0] <= 900]


def test_later_values_may_have_more_figures():
    track = Track(2 * POINT_SECONDS)
    for at, values in ((0.0, (1.0,)), (10.0, (2.0, 5.0)), (20.0, (None, 7.0))):
        track.add(at, values)
    assert track.last(HOUR_SECONDS, 20.0) == [(0.0, (1.0,)), (10.0, (2.0, 5.0)), (20.0, (None, 7.0))]
    track.add(2 * HOUR_SECONDS, (3.0, 9.0))
    assert track.last(HISTORY_SECONDS, 2 * HOUR_SECONDS)[0] == (20.0, (1.5, 6.0))


def test_history_is_due_every_ten_seconds():
    history = History()
    assert history.due(0.0)
    history.add(0.0, {}, None)
    assert not history.due(POINT_SECONDS / 2) and history.due(POINT_SECONDS)


@pytest.mark.parametrize(
    ("status", "content"),
    [(503, b""), (200, f"{ADDS} nonsense\n".encode()), (200, b"x" * (5 << 20))],
    ids=["not ready", "no number", "endless"],
)
def test_bookie_with_unusable_metrics_is_left_out(status, content):
    good, bad = Page(200, f"{ADDS} 4\n".encode()), Page(status, content)
    first = WebServer("127.0.0.1", 0, {"/metrics": lambda: good})
    second = WebServer("127.0.0.1", 0, {"/metrics": lambda: bad})
    try:
        addresses = {"good": f"127.0.0.1:{first.port}", "bad": f"127.0.0.1:{second.port}", "none": "no address"}
        assert counts_of(addresses) == {"good": {ADDS: 4.0}}
    finally:
        first.close()
        second.close()
