"""The bound on the fetches that a bookie has under way at the same time."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest

from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.store.autorecovery import fetching
from bookspark.store.autorecovery.fetching import _FETCHES_MAX, _WAITING_MAX, Fetching
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.batch_prefix import HEADER_OFFSET
from bookspark.store.wire.entry_batch import Entry, EntryBatch, encode_entries
from bookspark.store.wire.header import Flag, Header, Kind, Status, decode
from bookspark.store.wire.messages import FetchFrom

KEY = b"k" * 16


class Storage:
    """Keeps the adds; the test calls their callbacks."""

    def __init__(self):
        self.added = []
        self.looks = SimpleNamespace(asker=None)

    def add(self, header, batch, done):
        self.added.append((header, batch, done))


@pytest.fixture
def reads(monkeypatch):
    """The requested reads: the action and the callback for its answer."""
    asked = []
    requests = SimpleNamespace(read=lambda action, put: asked.append((action, put)))
    monkeypatch.setattr(fetching, "LedgerRequests", lambda *arguments: requests)
    return asked


@pytest.fixture
def storage():
    return Storage()


@pytest.fixture
def fetches(storage, reads):
    made = Fetching(MemoryStore(), ClientConfig(), storage, lambda function, *arguments: function(*arguments))
    yield made
    made.close()


def asked_for(fetches, count, answers, limit=0):
    for first in range(count):
        header = Header(Kind.FETCH, first, 7, first, first, 99, Flag.RECOVERY, limit=limit, master_key=KEY)
        fetches.fetch(header, FetchFrom("a", "CRC32C"), lambda *answer: answers.append(answer))


def read(entry_id):
    """A batch as received for a read: its header has no master key."""
    header = Header(Kind.READ, 3, 7, entry_id, entry_id, 5, Flag.RESPONSE | Flag.MORE)
    return EntryBatch(encode_entries(header, [Entry(7, entry_id, -1, 1, b"x", b"")]))


def test_fetches_above_the_bound_wait_for_the_sync_of_an_earlier_fetch(fetches, storage, reads) -> None:
    answers: list[tuple[int, int, int, str]] = []
    asked_for(fetches, 3 * _FETCHES_MAX, answers)
    assert len(reads) == _FETCHES_MAX
    for action, put in list(reads):
        put(act.ReadAnswered("a", action.first, action.last, Positive(), [read(action.first)], 1))
    assert len(storage.added) == len(reads) == _FETCHES_MAX and not answers, "what is read waits for its sync"
    header, batch, done = storage.added[0]
    assert header[:6] == (Kind.ADD, 0, 7, 0, 0, 99) and header.flags == Flag.RECOVERY and header.master_key == KEY
    assert decode(batch.frame, HEADER_OFFSET)[0] == header, "a log has the header of the add, with the master key"
    assert EntryBatch.checked(batch.frame, *decode(batch.frame, HEADER_OFFSET)).count == 1
    done(Status.OK)
    assert answers == [(Status.OK, 0, len(batch.frame), "")]
    assert len(reads) == _FETCHES_MAX + 1


def test_fetches_beyond_the_waiting_ones_are_refused(fetches, storage, reads) -> None:
    """A peer made the bookie hold any number of fetches. Repairs read and add what was refused."""
    answers: list[tuple[int, int, int, str]] = []
    asked_for(fetches, _FETCHES_MAX + _WAITING_MAX + 2, answers)
    assert len(answers) == 2 and {(status, byte_count) for status, _, byte_count, _ in answers} == {
        (Status.TOO_MANY_REQUESTS, 0)
    }
    assert [last + 1 for _, last, *_ in answers] == [_FETCHES_MAX + _WAITING_MAX, _FETCHES_MAX + _WAITING_MAX + 1]
    action, put = reads[0]
    put(act.ReadAnswered("a", action.first, action.first - 1, Unknown(UnknownReason.TIMEOUT, "9 s"), [], 0))
    asked_for(fetches, 1, answers)
    assert len(answers) == 3 and len(reads) == _FETCHES_MAX + 1, "one ended, so there is room for one"


def test_failed_fetch_makes_room_for_the_next(fetches, storage, reads) -> None:
    answers: list[tuple[int, int, int, str]] = []
    asked_for(fetches, 2 * _FETCHES_MAX, answers)
    while len(answers) < 2 * _FETCHES_MAX:
        action, put = reads[len(answers)]
        put(act.ReadAnswered("a", action.first, action.first - 1, Unknown(UnknownReason.TIMEOUT, "9 s"), [], 0))
    assert answers[0] == (Status.OK, -1, 0, "a: no answer in time: 9 s") and not storage.added


def test_fetch_from_a_quarantined_bookie_is_answered_without_a_read(fetches, reads) -> None:
    """Otherwise waiting repairs would take the fetching bookie for hung."""
    fetches._connections.quarantine("a", Unknown(UnknownReason.TIMEOUT, "9 s"))
    answers: list[tuple[int, int, int, str]] = []
    asked_for(fetches, 2 * _FETCHES_MAX, answers)
    assert not reads and len(answers) == 2 * _FETCHES_MAX
    assert answers[0][:3] == (Status.OK, -1, 0) and "in quarantine" in answers[0][3]


def test_fetch_beyond_the_time_limit_of_the_repair_is_answered_as_not_fetched(
    fetches, storage, reads, monkeypatch
) -> None:
    """A repair took the fetching bookie for hung if the repair's timeout was shorter than half of the bookie's."""
    timers, cancelled = [], []

    def timer(seconds, time_is_up):
        timers.append((seconds, time_is_up))
        return SimpleNamespace(cancel=lambda: cancelled.append(time_is_up))

    monkeypatch.setattr(fetching, "DeadlineTimer", timer)
    answers: list[tuple[int, int, int, str]] = []
    asked_for(fetches, _FETCHES_MAX + 2, answers, limit=700)
    assert {seconds for seconds, _ in timers} == {0.7}
    (action, put), (other, put_other) = reads[:2]
    put(act.ReadAnswered("a", action.first, action.last, Positive(), [read(action.first)], 1))
    for _, time_is_up in timers[:-1]:
        time_is_up()
    told = [(Status.OK, first - 1, 0, "a: nothing came in 700 ms") for first in range(1, _FETCHES_MAX + 1)]
    assert answers == told, "what is being added, and what has time, is waited for"
    storage.added[0][2](Status.OK)
    assert answers[-1][:2] == (Status.OK, 0) and len(reads) == _FETCHES_MAX + 1, "the one that waited is not begun"
    assert reads[-1][0].first == _FETCHES_MAX + 1
    put_other(act.ReadAnswered("a", other.first, other.last, Positive(), [read(other.first)], 1))
    assert len(storage.added) == 1 and len(answers) == len(told) + 1, "it came too late"
    for _, time_is_up in timers:
        time_is_up()
    assert len(answers) == _FETCHES_MAX + 2, "each is told once"
    assert len(cancelled) == _FETCHES_MAX + 2, "no timer keeps a fetch that is over"


def test_fetch_of_an_older_repair_has_no_time_limit(fetches, reads, monkeypatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(fetching, "DeadlineTimer", lambda *_: pytest.fail("a timer"))
        asked_for(fetches, 1, [])
    assert len(reads) == 1


def test_fetch_is_answered_with_the_status_of_a_refused_add(fetches, storage, reads) -> None:
    answers: list[tuple[int, int, int, str]] = []
    asked_for(fetches, 1, answers)
    [(_, put)] = reads
    put(act.ReadAnswered("a", 0, 0, Positive(), [read(0)], 1))
    storage.added[0][2](Status.CONFLICT)
    assert answers == [(Status.CONFLICT, -1, 0, "")]


def test_storage_exception_fails_its_fetch_and_makes_room(fetches, storage, reads, caplog) -> None:
    """Such a fetch got no answer, and after eight of them the bookie fetched nothing any more."""
    answers: list[tuple[int, int, int, str]] = []
    asked_for(fetches, _FETCHES_MAX + 1, answers)
    storage.add = lambda *arguments: 1 // 0
    for action, put in list(reads):
        with suppress(ZeroDivisionError):
            put(act.ReadAnswered("a", action.first, action.last, Positive(), [read(action.first)], 1))
    assert answers == [(Status.IO_ERROR, first - 1, 0, "") for first in range(_FETCHES_MAX)]
    assert len(reads) == _FETCHES_MAX + 1 and "can't be added" in caplog.text
