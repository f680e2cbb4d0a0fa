"""Answers as events: what a bookie's frames may be taken to say."""

from __future__ import annotations

import pytest

from bookspark import DigestType
from bookspark.client.connections import Answer
from bookspark.client.requests import LedgerRequests
from bookspark.protocol.actions import SendRead
from bookspark.protocol.responses import Unknown, UnknownReason
from bookspark.wire.digests import digester
from bookspark.wire.header import NO_KEY, Header, Kind, Status


class OneAnswer:
    """An I/O loop and connections in one, with the same answer to everything."""

    def __init__(self, answer):
        self.answer = answer

    def submit(self, function, *arguments):
        function(*arguments)

    def next_request_id(self):
        return 1

    def send(self, bookie_id, request_id, frame, on_answer, timeout_seconds=None):
        on_answer(self.answer)


def read(answer):
    wire = OneAnswer(answer)
    events = []
    requests = LedgerRequests(wire, wire, 1, NO_KEY, digester(DigestType.CRC32C, b""), 1.0)
    requests.read(SendRead("b1", 0, 9), events.append)
    (event,) = events
    return event


@pytest.mark.parametrize("status", [Status.OK, Status.NO_SUCH_ENTRY])
def test_an_answer_whose_entries_did_not_come_denies_nothing(status):
    """Found by chaos: the bookie sent entries 0 to 4 and says what is after them. Without them that was taken for a word on
    entry 0: OK tripped the recovery, and NO_SUCH_ENTRY would have counted as a denial."""
    header = Header(Kind.READ, 1, 1, last_entry_id=4, status=status)
    event = read(Answer(header.response(), header))
    assert (event.first, event.last) == (0, -1)
    assert isinstance(event.following, Unknown) and event.following.reason is UnknownReason.BAD_REQUEST


def test_a_denial_of_the_first_entry_is_one():
    header = Header(Kind.READ, 1, 1, last_entry_id=-1, status=Status.NO_SUCH_ENTRY)
    assert read(Answer(header.response(), header)).following == header.response()
