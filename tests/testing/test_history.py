"""The checker of histories: it accepts good histories and detects each kind of violation."""

from __future__ import annotations

import pytest

from bookspark.testing.history import EVENTS_KEPT, Event, EventKind, History

A, B, C = b"a", b"bb", b"ccc"


def appended(entry_id, payload):
    return Event(EventKind.APPENDED, "writer", 1, entry_id, payload)


def acked(entry_id):
    return Event(EventKind.ACKED, "writer", 1, entry_id)


def failed(entry_id):
    return Event(EventKind.FAILED, "writer", 1, entry_id)


def read(entry_id, payload, client="reader"):
    return Event(EventKind.READ, client, 1, entry_id, payload)


def absent(entry_id, since):
    return Event(EventKind.ABSENT, "reader", 1, entry_id, since=since)


def lac(entry_id, client="reader"):
    return Event(EventKind.LAC, client, 1, entry_id)


def closed(entry_id, length):
    return Event(EventKind.CLOSED, "recoverer", 1, entry_id, length=length)


def closed_by_writer(entry_id, length):
    return Event(EventKind.CLOSED_BY_WRITER, "writer", 1, entry_id, length=length)


TWO_ACKED = [appended(0, A), appended(1, B), acked(0), acked(1)]


def rules(*events):
    history = History()
    for event in events:
        history.record(event)
    return [violation.rule for violation in history.violations]


@pytest.mark.parametrize(
    "events",
    [
        [*TWO_ACKED, lac(0), read(0, A), lac(1), read(1, B), closed_by_writer(1, 3), closed(1, 3)],
        [appended(0, A), absent(0, 1), failed(0), closed(-1, 0)],
        [appended(0, A), failed(0), closed(0, 1), read(0, A)],
        [appended(0, A), failed(0), closed(-1, 0), lac(-1)],
        [appended(0, A), read(0, A), acked(0), absent(0, 1)],  # the read began before the acknowledgement
        [*TWO_ACKED, lac(1, "one"), lac(0, "another")],
        [appended(0, A), appended(1, B), failed(1), acked(0), closed_by_writer(0, 1)],
        [Event(EventKind.FAULT, "nemesis", note="kill all"), closed(-1, 0)],
    ],
)
def test_good_history_has_no_violation(events):
    assert rules(*events) == []


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([*TWO_ACKED, absent(1, 4)], "an entry that was confirmed is never absent"),
        ([*TWO_ACKED, absent(0, 4)], "an entry that was confirmed is never absent"),
        ([appended(0, A), lac(0), absent(0, 2)], "an entry that was confirmed is never absent"),
        ([appended(0, A), closed(0, 1), absent(0, 2)], "an entry that was confirmed is never absent"),
        ([*TWO_ACKED, read(1, A)], "an entry has the value that was appended under its id"),
        ([*TWO_ACKED, read(2, C)], "an entry has the value that was appended under its id"),
        ([*TWO_ACKED, lac(1), lac(0)], "the LAC never goes back"),
        ([*TWO_ACKED, closed(0, 1)], "a ledger is closed at or above what was confirmed, 1"),
        ([appended(0, A), lac(0), closed(-1, 0)], "a ledger is closed at or above what was confirmed, 0"),
        ([appended(0, A), closed(-1, 0), acked(0)], "what is acknowledged is in the closed ledger, which ends at -1"),
        (
            [appended(0, A), closed(-1, 0), lac(0)],
            "a LAC is at or below the end of the closed ledger, which ends at -1",
        ),
        ([*TWO_ACKED, closed(1, 3), closed(0, 1)], "a closed ledger has one end, 1 with 3 bytes"),
        ([*TWO_ACKED, closed(1, 3), closed_by_writer(1, 4)], "a closed ledger has one end, 1 with 3 bytes"),
        ([*TWO_ACKED, closed(1, 4)], "the length of a closed ledger is that of its entries"),
        ([*TWO_ACKED, closed(2, 3)], "all that is in a closed ledger was appended"),
        ([appended(0, A), closed(-1, 0), read(0, A)], "nothing is read beyond the end of a closed ledger"),
        ([appended(0, A), appended(0, B)], "an id is given to one append only"),
        ([acked(0)], "only what was appended is acknowledged"),
        ([lac(0)], "only what was appended is confirmed"),
        ([appended(0, A), failed(0), acked(0)], "an append that raised is not acknowledged afterwards"),
        (
            [appended(0, A), failed(0), closed_by_writer(0, 1)],
            "an append that raised is not in a ledger that its writer closed",
        ),
        (
            [appended(0, A), closed_by_writer(0, 1), failed(0)],
            "an append that raised is not in a ledger that its writer closed",
        ),
    ],
)
def test_each_kind_of_violation_is_detected(events, rule):
    assert rules(*events) == [rule]


def test_excerpt_of_a_long_history_shows_the_entry_the_end_and_the_faults():
    history = History()
    history.record(appended(0, A))
    history.record(Event(EventKind.FAULT, "nemesis", note="kill bookie-1"))
    for entry_id in range(1, 100):
        history.record(appended(entry_id, B))
        history.record(Event(EventKind.APPENDED, "another writer", 2, entry_id, C))
    history.record(closed(-1, 0))
    for _ in range(EVENTS_KEPT):
        history.record(lac(-1))
    history.record(appended(100, A))
    history.record(acked(100))
    for entry_id in range(101, 101 + EVENTS_KEPT):
        history.record(appended(entry_id, B))
    (violation,) = history.violations
    lines = violation.excerpt
    text = "\n".join(lines)
    assert "writer: appended ledger 1 entry 100 = b'a'" in text
    assert "kill bookie-1" in text
    assert "recoverer: closed ledger 1 entry -1" in text
    assert "ledger 2" not in text
    assert lines[-1].endswith("writer: acked ledger 1 entry 100")
