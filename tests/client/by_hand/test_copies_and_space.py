"""The copies and the space of one bookie, over answers that the test gives."""

from __future__ import annotations

import queue
from types import SimpleNamespace

import pytest
from crc32c import crc32c

from bookspark.client.client_config import ClientConfig
from bookspark.client.inspection import copies
from bookspark.client.inspection.copies import Unreadable, copies_on
from bookspark.client.network.bookie_connection import Answer
from bookspark.client.placement import free_space
from bookspark.client.placement.free_space import FreeSpace
from bookspark.client.runtime import client_figures
from bookspark.errors import ReadError
from bookspark.protocol.ledger.responses import Negative, Positive, Unknown, UnknownReason
from bookspark.wire.batch_prefix import PREFIX_BYTES
from bookspark.wire.entry_batch import Entry, encode_entries
from bookspark.wire.frames import Frame, parse_frame
from bookspark.wire.header import Flag, Header, Kind
from tests.client.by_hand.test_asking_bookies import BAD, FAILED, GONE, LOST

# -- copies


def read_copies(monkeypatch, rows, *answers):
    waiting, asked = list(answers), []

    def ask(context, bookie, header):
        assert (header.kind, header.last_entry_id, header.flags, header.ledger_id) == (
            Kind.READ,
            rows[-1][1],
            Flag.SPARSE,
            5,
        )
        asked.append(header.first_entry_id)
        response, end = waiting.pop(0)
        return Answer(response, None if end is None else header._replace(last_entry_id=end))

    monkeypatch.setattr(copies, "ask", ask)
    context = SimpleNamespace(runtime=SimpleNamespace(connections=SimpleNamespace(next_request_id=lambda: 1)))
    found = list(copies_on(context, "b1", 5, rows))
    assert waiting == []
    return found, asked


def test_copies_are_asked_for_from_row_to_row_and_not_between_them(monkeypatch):
    rows = [(3, 9), (20, 29)]
    assert read_copies(monkeypatch, rows, (LOST, 2), (LOST, 19)) == ([Unreadable(3, 9), Unreadable(20, 29)], [3, 20])
    assert read_copies(monkeypatch, rows, (FAILED, 9), (Positive(), 29)) == ([], [3, 20])
    assert read_copies(monkeypatch, rows, (LOST, 24), (LOST, 24)) == ([Unreadable(25, 29)], [3, 25])
    # One that tells of less than it was asked for is asked for the row again.
    assert read_copies(monkeypatch, rows[:1], (LOST, 0), (LOST, 2)) == ([Unreadable(3, 9)], [3, 3])
    assert read_copies(monkeypatch, [(0, 0), (1, 1)], (FAILED, 0), (LOST, 0)) == ([Unreadable(1, 1)], [0, 1])


def test_copies_that_came_are_told_and_the_row_goes_on_behind_them(monkeypatch):
    def frame(*ids, damaged=0):
        header = Header(Kind.READ, 1, 5, ids[0], ids[-1], flags=Flag.MORE | Flag.RESPONSE)
        encoded = memoryview(encode_entries(header, [Entry(5, i, -1, 1, b"x", b"") for i in ids]))
        return Frame(header, crc32c(encoded[PREFIX_BYTES:]) + damaged, encoded, memoryview(b""))

    def came(*parts):
        left = list(parts)

        def ask(context, bookie, header):
            batches, end = left.pop(0)
            return Answer(Positive(), header._replace(last_entry_id=end), batches)

        monkeypatch.setattr(copies, "ask", ask)
        context = SimpleNamespace(runtime=SimpleNamespace(connections=SimpleNamespace(next_request_id=lambda: 1)))
        found = [
            [entry.entry_id for entry in batch.entries()] for batch in copies_on(context, "b1", 5, [(3, 6), (8, 9)])
        ]
        assert left == []
        return found

    assert came(((frame(3), frame(4)), 4), ((frame(5, 6), frame(8, 9)), 9)) == [[3], [4], [5, 6], [8, 9]]
    with pytest.raises(ReadError, match="bookie b1, ledger 5"):
        came(((frame(3), frame(4, damaged=1)), 9))


@pytest.mark.parametrize("response", [GONE, BAD, Unknown(UnknownReason.FENCED)])
@pytest.mark.parametrize("end", [None, 2])
def test_of_a_bookie_that_tells_nothing_nothing_is_told(monkeypatch, response, end):
    with pytest.raises(ReadError, match="did not tell what it has of ledger 5"):
        read_copies(monkeypatch, [(3, 9)], (response, end))


def test_a_ledger_that_was_collected_meanwhile_is_passed_over(monkeypatch):
    assert read_copies(monkeypatch, [(3, 9), (20, 29)], (Negative(), 2), (Negative(), 2)) == ([], [3, 20])


# -- free space


class Bookies:
    """Their answers come at once, with how much they have; of ``silent`` ones none comes."""

    def __init__(self, silent=(), refusing=()):
        self.silent, self.refusing, self.asked = silent, refusing, []
        self.send, self.next_request_id = "send", lambda: 7

    def submit(self, send, bookie, request_id, frame, put, seconds):
        assert (send, request_id, seconds, parse_frame(memoryview(frame)).header.kind) == ("send", 7, 1.0, Kind.STATUS)
        self.asked.append(bookie)
        if bookie not in self.silent:
            put(Answer(GONE if bookie in self.refusing else Positive(), body=memoryview(bookie.encode())))


@pytest.fixture
def space(monkeypatch):
    now = [100.0]

    class Queue(queue.SimpleQueue):
        def get(self, timeout):
            waited.append(timeout)
            if self.empty():
                now[0] += 1.5
            return super().get(block=False)

    waited = []
    monkeypatch.setattr(free_space, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(free_space, "queue", SimpleNamespace(SimpleQueue=Queue, Empty=queue.Empty))
    monkeypatch.setattr(
        free_space.msgspec.json, "decode", lambda body, type: SimpleNamespace(free_bytes=int(bytes(body)[1:]))
    )

    def made(**options):
        bookies = Bookies(**options)
        return FreeSpace(bookies, bookies), bookies, now, waited

    return made


def test_bookies_are_asked_for_their_space_once_a_minute(space):
    known, bookies, now, _ = space()
    assert known.of(["b1", "b2"]) == {"b1": 1, "b2": 2}
    now[0] += 59.0
    assert known.of(["b2", "b3"]) == {"b2": 2, "b3": 3} and bookies.asked == ["b1", "b2", "b3"]
    now[0] += 1.0
    known.of(["b1", "b3"])
    assert bookies.asked[3:] == ["b1"]


def test_who_does_not_answer_is_left_out_and_is_not_asked_again_at_once(space):
    known, bookies, now, waited = space(silent=("b1", "b4"), refusing=("b2",))
    assert known.of(["b1", "b2", "b3", "b4"]) == {"b3": 3} and waited == [1.0, 1.0, 1.0]
    # The wait has used up the time of all.
    assert known.of(["b1", "b2", "b3", "b4"]) == {"b3": 3} and len(bookies.asked) == 4
    now[0] += 60.0
    bookies.silent = ("b3",)
    assert known.of(["b3", "b1"]) == {"b1": 1, "b3": 3}, "its last answer counts"


# -- figures


def test_a_client_that_is_not_used_tells_no_figures_and_connects_to_nothing(monkeypatch):
    context = SimpleNamespace(config=ClientConfig(client_name="me"), running=None)
    assert client_figures.client_figures(context) == ({}, {"client": "me"})

    class Store:
        connection = SimpleNamespace(figures=SimpleNamespace(figures=lambda: {"zookeeper": 1}))

    monkeypatch.setattr(client_figures, "_gathered", lambda runtime: {"own": 2})
    for store, told in ((Store(), {"own": 2, "zookeeper": 1}), (object(), {"own": 2})):
        monkeypatch.setattr(client_figures, "ZooKeeperStore", Store)
        context.running = SimpleNamespace(io=SimpleNamespace(submit=lambda call: call()), store=store)
        assert client_figures.client_figures(context) == (told, {"client": "me"})
