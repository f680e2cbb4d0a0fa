"""Queries and orders to a single bookie: answers in pages, and errors with their cause."""

from __future__ import annotations

import msgspec
import pytest

from bookspark.errors import BookieError, ReadError
from bookspark.store.client.inspection import bookie_questions
from bookspark.store.wire.header import Kind, Status
from bookspark.store.wire.messages import BookieStatus, CollectionStatus, EntryLogFacts, EntryLogs, Limbo, Ranges
from tests.store.client.fake_bookie import hang_up, silence, told

ROWS = [(4, 0, 9, 1, 0, 100), (5, 0, 4, 1, 100, 50), (5, 5, 7, 2, 0, 60), (9, 0, 0, 2, 60, 10)]


@pytest.fixture
def bookie(cluster):
    (made,) = cluster.start("b1")
    return made


@pytest.fixture
def client(cluster, bookie):
    return cluster.client()


def rows_page_by_page(bookie, header, body):
    """Two rows per answer, with the position of the next row."""
    left = [row for row in ROWS if row[:2] >= (header.ledger_id, header.first_entry_id)]
    if header.value:
        left = [row for row in left if row[0] == header.ledger_id]
    found = Ranges.empty()
    for row in left[:2]:
        found.append(row)
    following = left[2][:2] if len(left) > 2 else (-1, -1)
    return told(header, found.encode(), value=following[0], first_entry_id=following[1])


@pytest.mark.parametrize("ledger_id", [None, 4, 5, 6])
def test_ranges_of_all_ledgers_or_a_single_ledger_are_collected_over_pages(bookie, client, ledger_id):
    bookie.answers[Kind.RANGES] = rows_page_by_page
    table = client.list_ranges("b1", ledger_id)
    assert table.column_names == ["ledger_id", "first_entry_id", "last_entry_id", "log", "position", "bytes"]
    found = [tuple(row.values()) for row in table.to_pylist()]
    assert found == [row for row in ROWS if ledger_id in (None, row[0])]


def test_ranges_of_a_ledger_span_end_with_its_last_ledger(bookie, client):
    bookie.answers[Kind.RANGES] = rows_page_by_page
    batches = bookie_questions.range_batches(client.context, "b1", 4, 5)
    assert [row["ledger_id"] for batch in batches for row in batch.to_pylist()] == [4, 5, 5]


def test_entry_logs_and_limbo_are_collected_over_pages(bookie, client):
    logs = [EntryLogFacts(number, f"log {number}", 10, 10, True, False) for number in (1, 4, 6)]
    limbo = [(0, 1), (5, 2), (6, 3)]

    def log_of(bookie, header, body):
        left = [log for log in logs if log.number >= header.value]
        return told(header, EntryLogs(left[:1]).encode(), value=left[1].number if left[1:] else -1)

    def limbo_of(bookie, header, body):
        left = [each for each in limbo if each[0] >= header.ledger_id]
        return told(header, Limbo(left[:1]).encode(), value=left[1][0] if left[1:] else -1)

    bookie.answers |= {Kind.ENTRY_LOGS: log_of, Kind.LIMBO: limbo_of}
    assert client.list_entry_logs("b1") == logs
    assert client.list_limbo("b1") == dict(limbo)


@pytest.mark.parametrize("answer", [Status.IO_ERROR, Status.NO_SUCH_LEDGER, hang_up, silence])
def test_failed_query_raises_instead_of_returning_an_empty_answer(cluster, bookie, answer):
    bookie.answers |= dict.fromkeys((Kind.RANGES, Kind.LIMBO, Kind.ENTRY_LOGS, Kind.STATUS), answer)
    client = cluster.client(**{"answer_timeout_seconds": 0.1} if answer is silence else {})
    for ask in (client.list_ranges, client.list_limbo, client.list_entry_logs, client.bookie_status):
        with pytest.raises(ReadError, match="bookie b1 did not answer"):
            ask("b1")


# -- orders


@pytest.mark.parametrize("read_only", [True, False])
def test_bookie_is_switched_to_the_ordered_mode(bookie, client, read_only):
    client.switch_read_only("b1", read_only)
    assert [header.value for header in bookie.came(Kind.SWITCH_READ_ONLY)] == [int(read_only)]


def test_switch_carries_the_order_of_its_change(bookie, client):
    client.switch_read_only("b1", True, order=7)
    client.switch_read_only("b1", True)
    assert [header.limit for header in bookie.came(Kind.SWITCH_READ_ONLY)] == [7, 0]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Status.FENCED, "it has obeyed a later order"),
        (Status.IO_ERROR, "I/O error$"),
        (Status.BAD_REQUEST, "it knows no such request"),
        (hang_up, "closed by"),
    ],
)
def test_failed_order_raises(bookie, client, answer, words):
    bookie.answers |= {Kind.SWITCH_READ_ONLY: answer, Kind.COLLECT: answer}
    for order in (lambda: client.switch_read_only("b1", True), lambda: client.collect_now("b1")):
        with pytest.raises(BookieError, match=words):
            order()


def status_of(*collections, incarnation=7):
    """Successive answers to STATUS; the last answer repeats."""
    left = list(collections)

    def answer(bookie, header, body):
        found = left.pop(0) if len(left) > 1 else left[0]
        status = BookieStatus("b1", incarnation, 1, [], 0, 0, 0, collection=found)
        return told(header, msgspec.json.encode(status), incarnation=incarnation)

    return answer


def ordered(bookie, header, body):
    return told(header, value=3, incarnation=7)


def test_collect_now_waits_for_the_end_of_the_ordered_collection(bookie, client):
    over = CollectionStatus(3, 2, 1000, 0.5)
    bookie.answers |= {Kind.COLLECT: ordered, Kind.STATUS: status_of(None, CollectionStatus(2, 9, 9, 9.0), over)}
    assert client.collect_now("b1") == over
    assert len(bookie.came(Kind.STATUS)) == 3


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            status_of(CollectionStatus(3, 0, 0, 0.1, problem="a disk failed")),
            "did not finish its collection: a disk failed",
        ),
        (status_of(CollectionStatus(3, 0, 0, 0.1), incarnation=8), "was started anew meanwhile"),
        (status_of(CollectionStatus(2, 0, 0, 0.1)), "still collects after 0.1 s"),
    ],
)
def test_collection_that_does_not_finish_raises(bookie, client, status, words):
    bookie.answers |= {Kind.COLLECT: ordered, Kind.STATUS: status}
    with pytest.raises(BookieError, match=words):
        client.collect_now("b1", 0.1 if "still" in words else 60.0)
