"""The measurements behind the plots of the last hour."""

from __future__ import annotations

import pytest

from bookspark.operations.console.figures import HISTORY_SECONDS, POINT_SECONDS, History, counts_of, parsed
from bookspark.support.metrics.web import Page, WebServer

ADDS = "bookspark_bookie_added_entries_total"
SUM, COUNT = "bookspark_bookie_add_seconds_sum", "bookspark_bookie_add_seconds_count"


def test_counters_are_summed_over_their_labels():
    text = f'# HELP {ADDS} words 7\n{ADDS}{{a="x y",b="}}"}} 2.0\n{ADDS}{{a="z"}} 3\n{COUNT} 4\nother_total 5\n'
    assert parsed(text) == {ADDS: 5.0, COUNT: 4.0}


def test_point_counts_the_growth_on_bookies_that_answered_twice():
    history = History()
    history.add(0.0, {"a": {ADDS: 100, SUM: 1, COUNT: 100}, "b": {ADDS: 7}}, 0.001)
    assert history.points[0][1:] == (None, None, None, None, None, 1.0)
    history.add(10.0, {"a": {ADDS: 150, SUM: 1.5, COUNT: 150}, "c": {ADDS: 9}}, None)
    point = history.points[1]
    assert (point.adds, point.add_ms, point.reads, point.zookeeper_ms) == (5.0, 10.0, None, None)


def test_restarted_bookie_counts_from_its_next_answer():
    history = History()
    for at, count in ((0.0, 100), (10.0, 20), (20.0, 30)):
        history.add(at, {"a": {ADDS: count}}, None)
    assert [one.adds for one in history.points] == [None, None, 1.0]


def test_history_keeps_one_hour():
    history = History()
    for at in range(0, 2 * int(HISTORY_SECONDS), int(POINT_SECONDS)):
        assert history.due(at)
        history.add(at, {}, None)
        assert not history.due(at + POINT_SECONDS / 2)
    assert history.points[-1].at - history.points[0].at == HISTORY_SECONDS


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
