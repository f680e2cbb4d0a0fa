"""What one bookie is asked about itself, and how its space is known, over answers that the test gives."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.inspection import bookie_orders, bookie_questions
from bookspark.client.network.bookie_connection import Answer
from bookspark.errors import BookieError, BookKeeperError, ReadError
from bookspark.protocol.ledger.responses import Negative, Positive, Unknown, UnknownReason
from bookspark.threads import mark_own_thread
from bookspark.wire.frames import parse_frame
from bookspark.wire.header import Header, Kind
from bookspark.wire.messages import Ranges

GONE, BAD = Unknown(UnknownReason.UNREACHABLE, "gone"), Unknown(UnknownReason.BAD_REQUEST)
LOST, FAILED = Unknown(UnknownReason.LOST), Unknown(UnknownReason.IO_ERROR)


# -- one question


class Asked:
    """A context whose I/O thread notes the question and gives ``answers``."""

    def __init__(self, *answers):
        self.answers, self.sent = list(answers), []
        self.config = ClientConfig(answer_timeout_seconds=7.0, connect_timeout_seconds=2.0)
        self.runtime = SimpleNamespace(
            io=SimpleNamespace(submit=self.submit),
            connections=SimpleNamespace(send="send", next_request_id=iter(range(9, 99)).__next__),
        )

    def submit(self, send, bookie, request_id, frame, answered, timeout):
        header = parse_frame(memoryview(frame)).header
        assert (send, header.request_id) == ("send", request_id)
        self.sent.append((bookie, header, timeout))
        for answer in self.answers:
            answered(answer)


def test_a_question_is_asked_once_and_its_answer_waited_for(monkeypatch):
    waits = []

    class Latch:
        was_set = False

        def set(self):
            self.was_set = True

        def wait(self, seconds):
            waits.append((seconds, self.was_set))

    monkeypatch.setattr(bookie_questions, "Latch", Latch)
    asked = Asked(Answer(FAILED))
    header = Header(Kind.STATUS, 5)
    assert bookie_questions.ask(asked, "b1", header) == Answer(FAILED)
    assert asked.sent == [("b1", header, 7.0)] and waits == [(10.0, True)]
    assert bookie_questions.ask(Asked(), "b1", header) == Answer(
        Unknown(UnknownReason.UNREACHABLE, "no answer in time")
    )


def test_an_answer_is_there_before_who_waits_is_woken(monkeypatch):
    box, seen = [], []
    monkeypatch.setattr(
        bookie_questions,
        "Latch",
        lambda: SimpleNamespace(set=lambda: seen.append(list(box[0])), wait=lambda seconds: None),
    )

    class Told(Asked):
        def submit(self, send, bookie, request_id, frame, answered, timeout):
            box.extend(cell.cell_contents for cell in answered.__closure__ if isinstance(cell.cell_contents, list))
            answered(Answer(FAILED))

    bookie_questions.ask(Told(), "b1", Header(Kind.STATUS, 5))
    assert seen == [[Answer(FAILED)]]


def test_a_question_is_not_asked_where_nobody_may_wait():
    asked = Asked(Answer(FAILED))
    mark_own_thread("of the test")
    try:
        with pytest.raises(BookKeeperError, match="of the test"):
            bookie_questions.ask(asked, "b1", Header(Kind.STATUS, 5))
    finally:
        mark_own_thread("")
    assert asked.sent == []


@pytest.mark.parametrize(
    ("answer", "good"),
    [
        (Answer(Positive(), Header(Kind.STATUS, 1)), True),
        (Answer(Positive()), False),
        (Answer(GONE, Header(Kind.STATUS, 1)), False),
        (Answer(Negative(), Header(Kind.STATUS, 1)), False),
        (Answer(BAD, Header(Kind.STATUS, 1)), False),
    ],
)
def test_only_a_positive_answer_with_a_header_is_one(monkeypatch, answer, good):
    for module, call, error in (
        (bookie_questions, bookie_questions._positive, ReadError),
        (bookie_orders, bookie_orders._done, BookieError),
    ):
        monkeypatch.setattr(module, "ask", lambda *question: answer)
        if good:
            assert call(None, "b1", None) in (answer, (answer, answer.header))
        else:
            with pytest.raises(error) as raised:
                call(None, "b1", None)
            if error is BookieError:
                assert ("older version" in str(raised.value)) is (answer.response is BAD)


# -- rows of its index


def pages(monkeypatch, pages, asked):
    """``pages``: by (ledger, entry), the rows (ledger, first, last, size) and where it goes on."""

    def told(context, bookie, header):
        assert (header.kind, header.limit) == (Kind.RANGES, 100_000)
        asked.append((header.ledger_id, header.first_entry_id, header.value))
        rows, (ledger_id, entry_id) = pages[header.ledger_id, header.first_entry_id]
        found = Ranges.empty()
        for ledger, first, last, size in rows:
            found.append((ledger, first, last, 1, 2, size))
        return Answer(Positive(), body=memoryview(found.encode())), header._replace(
            value=ledger_id, first_entry_id=entry_id
        )

    monkeypatch.setattr(bookie_questions, "_positive", told)
    monkeypatch.setattr(bookie_questions, "_next_request_id", lambda context: 1)


A, B, C, D = ((n, 0, 9, 100) for n in (0, 4, 5, 7))


@pytest.mark.parametrize(
    ("ledger_id", "found", "questions"),
    [
        (None, [A, B, C, D], [(0, 0, 0), (4, 7, 0), (7, 0, 0)]),
        (4, [], [(4, 0, 1)]),
        (0, [A], [(0, 0, 1)]),
    ],
)
def test_the_rows_of_one_ledger_or_of_all_are_asked_for_page_after_page(monkeypatch, ledger_id, found, questions):
    asked = []
    pages(
        monkeypatch,
        {(0, 0): ([A], (4, 7)), (4, 7): ([B, C], (7, 0)), (7, 0): ([D], (-1, 0)), (4, 0): ([], (5, 0))},
        asked,
    )
    table = bookie_questions.ranges(None, "b1", ledger_id)
    assert isinstance(table, pa.Table)
    assert [tuple(row.values()) for row in table.to_pylist()] == [(n, f, e, 1, 2, s) for n, f, e, s in found]
    assert asked == questions


@pytest.mark.parametrize(
    ("first", "last", "found", "questions"),
    [
        (0, 5, [A, B, C], [(0, 0, 0), (4, 7, 0)]),
        (0, 4, [A, B], [(0, 0, 0), (4, 7, 0)]),
        (0, 3, [A], [(0, 0, 0)]),
        (0, 7, [A, B, C, D], [(0, 0, 0), (4, 7, 0), (7, 0, 0)]),
        (9, 8, [], []),
    ],
)
def test_the_rows_of_some_ledgers_end_with_the_last_of_them(monkeypatch, first, last, found, questions):
    asked = []
    pages(monkeypatch, {(0, 0): ([A], (4, 7)), (4, 7): ([B, C], (7, 0)), (7, 0): ([D], (-1, 0))}, asked)
    batches = list(bookie_questions.range_batches(None, "b1", first, last))
    assert [row["ledger_id"] for batch in batches for row in batch.to_pylist()] == [row[0] for row in found]
    assert asked == questions and len(batches) == bool(found)


@pytest.mark.parametrize(("size", "batches"), [(1, [1, 2, 1]), (2, [3, 1]), (3, [3, 1]), (9, [4])])
def test_rows_come_in_batches_of_a_size_and_the_rest_at_the_end(monkeypatch, size, batches):
    pages(monkeypatch, {(0, 0): ([A], (4, 7)), (4, 7): ([B, C], (7, 0)), (7, 0): ([D], (-1, 0))}, [])
    monkeypatch.setattr(bookie_questions, "_ROWS_PER_BATCH", size)
    assert [len(batch) for batch in bookie_questions.range_batches(None, "b1")] == batches


def test_the_ends_of_large_batches_are_told_as_far_as_they_are_large(monkeypatch):
    kib, asked = 1024, []
    large, small = [(0, 0, 4, 16 * kib), (0, 5, 9, 16 * kib)], [(0, 10, 19, 16 * kib), (0, 20, 29, 16 * kib - 1)]
    pages(monkeypatch, {(0, 0): (large, (0, 10)), (0, 10): (small, (0, 30))}, asked)
    assert bookie_questions.large_batch_ends(None, "b1", 0) == [4, 9] and asked == [(0, 0, 1), (0, 10, 1)]
    pages(monkeypatch, {(0, 0): (large, (-1, 0))}, asked)
    assert bookie_questions.large_batch_ends(None, "b1", 0) == [4, 9]


def test_entry_logs_and_limbo_are_asked_for_from_the_first_one_on(monkeypatch):
    asked = []

    def told(context, bookie, header):
        asked.append(header.value if header.kind == Kind.ENTRY_LOGS else header.ledger_id)
        body = b'{"logs":[]}' if header.kind == Kind.ENTRY_LOGS else b'{"ledgers":[]}'
        return Answer(Positive(), body=memoryview(body)), header._replace(value=[0, 5, -1][len(asked) % 3 - 1])

    monkeypatch.setattr(bookie_questions, "_positive", told)
    monkeypatch.setattr(bookie_questions, "_next_request_id", lambda context: 1)
    assert bookie_questions.entry_logs(None, "b1") == [] and asked == [0, 0, 5]
    del asked[:]
    assert bookie_questions.limbo(None, "b1") == {} and asked == [0, 0, 5]


# -- orders


def collection(monkeypatch, *looks, seconds=100.0):
    """``looks``: (incarnation, number of the collection that ended last, its problem) of each status; the order was number 4 of
    incarnation 8. Returns what came of it, and the pauses."""
    left, now, pauses = list(looks), [100.0], []

    def sleep(pause):
        pauses.append(pause)
        now[0] += pause

    def done(context, bookie, header):
        if header.kind == Kind.COLLECT:
            return Answer(Positive(), header._replace(value=4, incarnation=8))
        incarnation, number, problem = left.pop(0) if left else looks[-1]
        assert len(found) < 99, "it goes on"
        found.append(None if number is None else SimpleNamespace(number=number, problem=problem))
        return Answer(Positive(), header._replace(incarnation=incarnation))

    found = []
    monkeypatch.setattr(bookie_orders, "_done", done)
    monkeypatch.setattr(bookie_orders, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(bookie_orders.msgspec.json, "decode", lambda *_, **kind: SimpleNamespace(collection=found[-1]))
    context = SimpleNamespace(runtime=SimpleNamespace(connections=SimpleNamespace(next_request_id=lambda: 1)))
    return bookie_orders.collect_now(context, "b1", seconds), pauses


def test_a_collection_is_waited_for_until_one_that_began_after_the_order_ended(monkeypatch):
    found, pauses = collection(monkeypatch, (8, None, ""), (8, 3, "old"), (8, 4, ""))
    assert found.number == 4 and pauses == [0.2, 0.2]
    assert collection(monkeypatch, (8, 5, ""))[0].number == 5


@pytest.mark.parametrize(
    ("look", "why"),
    [
        ((8, 4, "full"), "did not finish its collection: full"),
        ((9, 4, ""), "was started anew"),
        ((8, 3, ""), "still collects after 1 s"),
    ],
)
def test_a_collection_that_does_not_come_to_its_end_is_an_error(monkeypatch, look, why):
    with pytest.raises(BookieError, match=why):
        collection(monkeypatch, look, seconds=1.0)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_bookie_is_switched_to_what_is_asked_for(monkeypatch, read_only):
    asked = []
    monkeypatch.setattr(bookie_orders, "_done", lambda *what: asked.append(what))
    context = SimpleNamespace(runtime=SimpleNamespace(connections=SimpleNamespace(next_request_id=lambda: 9)))
    bookie_orders.switch_read_only(context, "b1", read_only)
    assert asked == [(context, "b1", Header(Kind.SWITCH_READ_ONLY, 9, value=int(read_only)))]
