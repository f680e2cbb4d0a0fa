"""What reads, recoveries and repairs ask of bookies, and what the answers are taken to say."""

from __future__ import annotations

import math
from itertools import product

import pytest
from crc32c import crc32c

from bookspark import DigestType
from bookspark.client.network import ledger_requests
from bookspark.client.network.bookie_connection import Answer
from bookspark.client.network.ledger_requests import LedgerRequests, _frames
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Negative, Positive, Unknown, UnknownReason
from bookspark.wire.batch_prefix import PREFIX_BYTES
from bookspark.wire.digests import digester
from bookspark.wire.entry_batch import Entry, EntryBatch, encode_entries
from bookspark.wire.frames import Frame, parse_frame
from bookspark.wire.header import Flag, Header, Kind, Status, WireError
from bookspark.wire.messages import FetchFrom, Ranges

DIGEST = digester(DigestType.CRC32C, b"")
KEY = b"k" * 16
BUSY, REFUSED = Unknown(UnknownReason.TOO_MANY_REQUESTS), Unknown(UnknownReason.IO_ERROR)


class Bench:
    """An I/O loop and connections in one. What is sent waits for the test's answer."""

    def __init__(self, digest=DIGEST):
        self.sent, self.events, self.later_ = [], [], []
        self.ids = iter(range(50, 500))
        self.requests = LedgerRequests(self, self, 1, KEY, digest, 7.0)

    def submit(self, function, *arguments):
        function(*arguments)

    def next_request_id(self):
        return next(self.ids)

    def later(self, seconds, send):
        self.later_.append((seconds, send))

    def send(self, bookie, request_id, frame, on_answer, timeout, on_batch, body):
        parsed = parse_frame(memoryview(b"".join((bytes(frame), bytes(body)))))
        assert parsed.header.request_id == request_id
        self.sent.append((bookie, parsed, on_answer, timeout, on_batch))

    def header(self):
        """Of the one request that was sent."""
        ((bookie, parsed, _, _, _),) = self.sent
        assert (bookie, parsed.header.ledger_id, parsed.header.master_key) == ("b1", 1, KEY)
        return parsed.header

    def answer(self, answer, number=-1):
        """The event that follows from an answer."""
        _, _, on_answer, _, on_batch = self.sent[number]
        on_answer(answer._replace(batches=tuple(map(on_batch, answer.batches))) if on_batch else answer)
        return self.events[-1] if self.events else None


@pytest.fixture
def bench():
    return Bench()


def frame(*ids, ledger_id=1, rotten=(), damaged=False):
    payloads = [b"%d" % i for i in ids]
    rows = [
        Entry(ledger_id, i, -1, 10 * i, payload, DIGEST(ledger_id, i, -1, 10 * i, b"other" if i in rotten else payload))
        for i, payload in zip(ids, payloads, strict=True)
    ]
    header = Header(Kind.READ, 50, ledger_id, ids[0], ids[-1], flags=Flag.MORE | Flag.RESPONSE)
    encoded = memoryview(encode_entries(header, rows))
    return Frame(header, crc32c(encoded[PREFIX_BYTES:]) + damaged, encoded, memoryview(b""))


def ended(*frames, last, value, status=Status.OK, **fields):
    header = Header(Kind.READ, 50, 1, last_entry_id=last, value=value, status=status, **fields)
    return Answer(header.response(), header, frames)


def ids(batches):
    return [entry.entry_id for batch in batches for entry in batch.entries()]


# -- what is sent


@pytest.mark.parametrize(("fence", "sparse"), list(product([True, False], repeat=2)))
def test_a_read_asks_for_its_range_and_for_what_it_is(bench, fence, sparse):
    bench.requests.read(act.SendRead("b1", 3, 9, fence=fence, sparse=sparse), bench.events.append)
    header = bench.header()
    flags = (Flag.FENCE if fence else Flag.NONE) | (Flag.SPARSE if sparse else Flag.NONE)
    assert (header.kind, header.first_entry_id, header.last_entry_id) == (Kind.READ, 3, 9)
    assert (header.flags, header.limit, bench.sent[0][3]) == (int(flags), ledger_requests.READ_BYTES, 7.0)


@pytest.mark.parametrize(("fence", "seconds"), list(product([True, False], [0.0, 2.5])))
def test_a_read_of_the_lac_is_held_for_the_time_that_it_asks_for(bench, fence, seconds):
    bench.requests.read_lac(act.SendReadLac("b1", fence, 4), bench.events.append, seconds)
    header = bench.header()
    flags = (Flag.FENCE if fence else Flag.NONE) | (Flag.ENTRY if seconds else Flag.NONE)
    assert (header.kind, header.first_entry_id, header.flags) == (Kind.READ_LAC, 4, int(flags))
    assert (header.limit, bench.sent[0][3]) == (math.ceil(1000 * seconds), 7.0 + seconds)


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        (act.SendRead("b1", 0, 9), Kind.READ),
        (act.SendReadLac("b1"), Kind.READ_LAC),
        (act.SendListHeld("b1", 4), Kind.RANGES),
        (act.SendAdd(("b1",), 0, 1, -1, [EntryBatch(frame(0, 1).batch)]), Kind.ADD),
    ],
)
def test_what_a_machine_asks_is_sent_as_what_it_is(bench, action, kind):
    bench.requests.send(action, bench.events.append)
    assert bench.header().kind == kind


def test_a_fetch_names_the_source_and_has_the_time_of_two_answers(bench):
    told, source = [], FetchFrom("b2", "CRC32C")
    action = act.SendAdd(("b1",), 3, 9, 2, None, 1)
    bench.requests.fetch("b1", action, source, 5, told.append)
    header = bench.header()
    assert (header.kind, header.first_entry_id, header.last_entry_id) == (Kind.FETCH, 5, 9)
    assert (header.last_add_confirmed, header.last_add_fully_replicated) == (2, 1)
    assert (header.flags, header.limit, bench.sent[0][3]) == (int(Flag.RECOVERY), 7000, 14.0)
    assert bytes(bench.sent[0][1].body) == bytes(source.encode())
    bench.answer(Answer(REFUSED))
    assert told == [Answer(REFUSED)]


# -- answers to reads


def read(answer, first=0, last=9, *, sparse=False, digest=DIGEST):
    bench = Bench(digest)
    bench.requests.read(act.SendRead("b1", first, last, sparse=sparse), bench.events.append)
    event = bench.answer(answer)
    assert (event.bookie, event.first) == ("b1", first) and len(bench.events) == 1
    return event


def reason(event):
    return event.following.reason if isinstance(event.following, Unknown) else type(event.following)


@pytest.mark.parametrize(
    ("frames", "last", "came", "up_to", "following"),
    [
        ([frame(2, 3), frame(4)], 4, 3, 4, Positive),
        ([frame(2, 3), frame(4)], 4, 2, 4, UnknownReason.BAD_REQUEST),
        ([frame(2, 3), frame(4)], 5, 3, 4, UnknownReason.BAD_REQUEST),
        ([frame(2, 3), frame(4)], 3, 3, 4, UnknownReason.BAD_REQUEST),
        ([frame(2, 3), frame(5)], 5, 3, 3, UnknownReason.BAD_REQUEST),
        ([frame(2, 3), frame(3)], 3, 3, 3, UnknownReason.BAD_REQUEST),
        ([frame(3)], 3, 1, 1, UnknownReason.BAD_REQUEST),
        ([frame(9)], 9, 1, 1, UnknownReason.BAD_REQUEST),
        ([frame(2, 3), frame(4, ledger_id=2)], 4, 3, 3, UnknownReason.BAD_REQUEST),
        ([frame(2, 3), frame(4, damaged=True)], 4, 3, 3, UnknownReason.BAD_REQUEST),
        ([frame(2, 3, rotten=(2,))], 3, 2, 1, UnknownReason.DIGEST_MISMATCH),
        ([frame(2, 3, 4, rotten=(3,))], 4, 3, 2, UnknownReason.DIGEST_MISMATCH),
        ([frame(2, 3, 4, rotten=(4,))], 4, 3, 3, UnknownReason.DIGEST_MISMATCH),
        ([], 1, 0, 1, Positive),
    ],
)
def test_of_a_read_only_what_goes_on_without_a_gap_is_believed(frames, last, came, up_to, following):
    event = read(ended(*frames, last=last, value=came), 2)
    assert (event.last, ids(event.entries), reason(event)) == (up_to, list(range(2, up_to + 1)), following)
    assert all(batch.count for batch in event.entries), "no batch is empty"
    assert event.length == (10 * up_to if up_to >= 2 else 0) and event.ahead == ()


def test_of_a_batch_whose_first_entry_is_rotten_nothing_is_told():
    event = read(ended(frame(0, 1, rotten=(0,)), last=1, value=2))
    assert (event.last, event.length, event.entries, reason(event)) == (-1, 0, [], UnknownReason.DIGEST_MISMATCH)


def test_the_last_entry_that_was_asked_for_is_believed_and_none_behind_it():
    assert read(ended(frame(2, 3), last=3, value=2), 2, 3).last == 3
    event = read(ended(frame(2, 3), frame(4), last=4, value=3), 2, 3)
    assert (event.last, reason(event)) == (3, UnknownReason.BAD_REQUEST)


@pytest.mark.parametrize(
    ("frames", "last", "came", "up_to", "ahead", "following"),
    [
        ([frame(2), frame(4), frame(6, 7)], 7, 4, 2, [4, 6, 7], Negative),
        ([frame(2), frame(4)], 2, 2, 2, [4], Positive),
        ([frame(4)], 9, 1, 1, [4], Negative),
        ([frame(2), frame(4)], 4, 3, 2, [4], UnknownReason.BAD_REQUEST),
        ([frame(2)], 2, 1, 2, [], Positive),
        ([frame(2)], 3, 1, 2, [], Negative),
    ],
)
def test_of_a_sparse_read_all_is_believed_and_what_was_looked_for_and_not_sent_is_denied(
    frames, last, came, up_to, ahead, following
):
    event = read(ended(*frames, last=last, value=came), 2, sparse=True)
    assert (event.last, [i for i, _ in event.ahead], reason(event)) == (up_to, ahead, following)
    assert [ids(batches) for _, batches in event.ahead] == [[i] for i in ahead]


@pytest.mark.parametrize("sparse", [True, False])
def test_without_an_answer_nothing_is_known(sparse):
    event = read(Answer(REFUSED), sparse=sparse)
    assert (event.last, event.following, event.length) == (-1, REFUSED, 0)
    event = read(ended(last=-1, value=0, status=Status.LIMBO), sparse=sparse)
    assert (event.last, reason(event)) == (-1, UnknownReason.LIMBO)
    event = read(ended(last=-1, value=0, status=Status.NO_SUCH_ENTRY), sparse=sparse)
    assert event.following == Negative()
    # Nobody counted what came: that is no word on what follows.
    event = read(Answer(Positive(), None, (frame(0),)), sparse=sparse)
    assert (event.last, event.following) == (0, Positive())


def test_without_a_password_digests_are_not_checked():
    event = read(ended(frame(0, 1, rotten=(1,)), last=1, value=2), digest=None)
    assert (event.last, reason(event)) == (1, Positive)


def test_a_frame_that_is_no_batch_is_a_bad_answer():
    control = frame(0)._replace(batch=None)
    event = read(ended(control, last=-1, value=0))
    assert (event.last, reason(event)) == (-1, UnknownReason.BAD_REQUEST)


# -- the LAC


def test_the_lac_is_told_with_the_entry_that_was_waited_for(bench):
    bench.requests.read_lac(act.SendReadLac("b1", wait_for=4), bench.events.append, 60.0)
    header = Header(Kind.READ_LAC, 50, 1, last_add_confirmed=5, last_add_fully_replicated=3)
    event = bench.answer(Answer(Positive(), header, (frame(4),)))
    assert ids(event.entries) == [4]
    assert event == act.LacAnswered("b1", Positive(), 5, 3, event.entries)
    for answer, told in (
        (Answer(Positive(), header), act.LacAnswered("b1", Positive(), 5, 3)),
        (Answer(Positive(), header, (frame(5),)), act.LacAnswered("b1", Positive(), 5, 3)),
        (Answer(REFUSED), act.LacAnswered("b1", REFUSED, -1, -1)),
    ):
        assert bench.answer(answer) == told


def test_a_bookie_that_holds_as_many_answers_as_it_may_is_asked_again_less_and_less_often(bench, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(ledger_requests.time, "monotonic", lambda: now[0])
    bench.requests.read_lac(act.SendReadLac("b1", wait_for=4), bench.events.append, 4.0)
    pauses, times = [], []
    for _ in range(9):
        bench.answer(Answer(BUSY))
        if bench.events:
            break
        for seconds, send in bench.later_[len(pauses) :]:
            pauses.append(seconds)
            now[0] += seconds
            send()
            times.append(bench.sent[-1][1].header.limit)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    left = [4000 - 1000 * sum(pauses[: n + 1]) for n in range(len(pauses))]
    assert times == pytest.approx(left, abs=1.5)
    assert bench.events == [act.LacAnswered("b1", BUSY)]


@pytest.mark.parametrize(("answer", "seconds"), [(REFUSED, 60.0), (Positive(), 60.0), (BUSY, 0.0), (BUSY, 0.05)])
def test_only_a_busy_bookie_is_asked_again_and_only_while_there_is_time(bench, answer, seconds):
    bench.requests.read_lac(act.SendReadLac("b1", wait_for=4), bench.events.append, seconds)
    bench.answer(Answer(answer))
    assert bench.later_ == [] and [event.response for event in bench.events] == [answer]


# -- what a bookie holds


def ranges(*last_ids):
    found = Ranges.empty()
    for last in last_ids:
        found.append((1, last, last, 0, 0, 1))
    return memoryview(found.encode())


@pytest.mark.parametrize(
    ("answer", "last", "response"),
    [
        (Answer(Positive(), body=ranges(6)), 6, Positive()),
        (Answer(Positive(), body=ranges()), 3, Positive()),
        (Answer(REFUSED, body=ranges(6)), 3, REFUSED),
    ],
)
def test_what_a_bookie_holds_is_told_up_to_the_end_of_its_next_row(bench, answer, last, response):
    bench.requests.list_held(act.SendListHeld("b1", 4), bench.events.append)
    header = bench.header()
    assert (header.first_entry_id, header.limit, header.value, bench.sent[0][3]) == (4, 1, 1, 7.0)
    assert bench.answer(answer) == act.HeldAnswered("b1", 4, last, response)


def test_what_is_no_list_of_ranges_tells_nothing(bench):
    bench.requests.list_held(act.SendListHeld("b1", 4), bench.events.append)
    event = bench.answer(Answer(Positive(), body=memoryview(b"\x07")))
    assert (event.last, event.response.reason) == (3, UnknownReason.BAD_REQUEST)


# -- writing back


def long_batch(first, size=9000):
    payload = b"x" * size
    entry = Entry(1, first, -1, 9, payload, DIGEST(1, first, -1, 9, payload))
    return EntryBatch(encode_entries(Header(Kind.READ, 1, 1, first, first), [entry]))


def short(*ids):
    return EntryBatch(frame(*ids).batch)


@pytest.mark.parametrize(
    ("responses", "told"),
    [
        ((Positive(), Positive(), Positive()), Positive()),
        ((Positive(), REFUSED, BUSY), REFUSED),
        ((Negative(), Positive(), Positive()), Negative()),
        ((Positive(), Positive(), REFUSED), REFUSED),
    ],
)
def test_a_write_back_is_answered_once_with_the_first_refusal(bench, responses, told):
    batches = [short(0, 1), long_batch(2), short(3), short(4)]
    bench.requests.recovery_add(act.SendAdd(("b1",), 0, 4, 3, batches, 2), bench.events.append)
    headers = [parsed.header for _, parsed, _, _, _ in bench.sent]
    assert [(h.first_entry_id, h.last_entry_id) for h in headers] == [(0, 1), (2, 2), (3, 4)]
    assert {(h.kind, h.flags, h.last_add_confirmed, h.last_add_fully_replicated) for h in headers} == {
        (Kind.ADD, int(Flag.RECOVERY), 3, 2)
    }
    entries = [entry for _, parsed, _, _, _ in bench.sent for entry in EntryBatch(parsed.batch).entries()]
    assert entries == [entry for batch in batches for entry in batch.entries()]
    for number, response in enumerate(responses):
        assert bench.events == []
        bench.answer(Answer(response), number)
    assert bench.events == [act.AddAnswered("b1", 0, 4, told)]


class Sized:
    """A batch of one entry, and of a size."""

    def __init__(self, first, size):
        self.first_entry_id = self.last_entry_id = first
        self.frame = bytes(size)


@pytest.mark.parametrize(
    ("sizes", "together"),
    [
        ([8192, 8192], [[0, 1]]),
        ([8192, 8193, 8192], [[0], [1], [2]]),
        ([8192] * 65, [list(range(64)), [64]]),
        ([9000, 100], [[0], [1]]),
        ([], []),
    ],
)
def test_short_batches_are_joined_up_to_a_size(sizes, together):
    batches = [Sized(n, size) for n, size in enumerate(sizes)]
    assert [[batch.first_entry_id for batch in one] for one in _frames(batches)] == together
    gap = [Sized(0, 10), Sized(1, 10), Sized(3, 10)]
    assert [[batch.first_entry_id for batch in one] for one in _frames(gap)] == [[0, 1], [3]]


def test_what_is_wrong_with_a_part_is_told_as_it_comes():
    bench = Bench()
    bench.requests.read(act.SendRead("b1", 0, 9), bench.events.append)
    check = bench.sent[0][4]
    assert isinstance(check(frame(0, ledger_id=2)), WireError) and isinstance(check(frame(0, damaged=True)), WireError)
    assert [check(frame(0, 1, rotten=rotten)).bad for rotten in ((), (0,), (1,))] == [None, 0, 1]
    assert isinstance(check(frame(0)).batch, EntryBatch)
