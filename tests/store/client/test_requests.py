"""Answers of bookies and the metadata store, turned into events of the protocol."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from crc32c import crc32c

from bookspark import DigestType
from bookspark.errors import MetadataStoreError, NotEnoughBookiesError
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    ChooseBookies,
    MetadataFailed,
    NoBookies,
    ReadMetadata,
    SendAdd,
    SendRead,
)
from bookspark.protocol.ledger.responses import Negative, Positive, Unknown, UnknownReason
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.connections import Answer
from bookspark.store.client.network.ledger_requests import LedgerRequests
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.runtime.runtime import Room
from bookspark.store.client.writing.ledger_driver import LedgerDriver
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.batch_prefix import PREFIX_BYTES
from bookspark.store.wire.digests import digester, first_mismatch
from bookspark.store.wire.entry_batch import Entry, EntryBatch, encode_entries
from bookspark.store.wire.frames import Frame, parse_frame
from bookspark.store.wire.header import NO_KEY, Flag, Header, Kind, Status
from bookspark.support.threads import Threads
from tests.store.metadata.kit import ledger


class OneAnswer:
    """An I/O loop and connections in a single object; every request gets the same answer."""

    def __init__(self, answer):
        self.answer = answer

    def submit(self, function, *arguments):
        function(*arguments)

    def next_request_id(self):
        return 1

    def send(self, bookie_id, request_id, frame, on_answer, timeout_seconds=None, on_batch=None, body=b""):
        on_answer(self.answer._replace(batches=tuple(map(on_batch, self.answer.batches))))


DIGEST = digester(DigestType.CRC32C, b"")


def read(answer, first=0, *, sparse=False):
    wire = OneAnswer(answer)
    events = []
    requests = LedgerRequests(wire, wire, 1, NO_KEY, DIGEST, 1.0)
    requests.read(SendRead("b1", first, 9, sparse=sparse), events.append)
    (event,) = events
    return event


def frame(*ids, good=True, ledger_id=1):
    """A batch frame with these entries."""
    payloads = [b"%d" % i if good else b"rotten" for i in ids]
    rows = [
        Entry(ledger_id, i, -1, 9, payload, DIGEST(ledger_id, i, -1, 9, b"%d" % i))
        for i, payload in zip(ids, payloads, strict=True)
    ]
    header = Header(Kind.READ, 1, ledger_id, ids[0], ids[-1], flags=Flag.MORE | Flag.RESPONSE)
    encoded = memoryview(encode_entries(header, rows))
    return Frame(header, crc32c(encoded[PREFIX_BYTES:]), encoded, memoryview(b""))


def ended(*frames, last, value, status=Status.OK):
    """An answer to a read: the frames, then the control frame about entry ids up to ``last`` and after."""
    header = Header(Kind.READ, 1, 1, last_entry_id=last, value=value, status=status)
    return Answer(header.response(), header, frames)


def ids(batches):
    return [entry.entry_id for batch in batches for entry in batch.entries()]


class TestSparseRead:
    def test_answer_splits_into_the_first_run_and_entries_ahead(self):
        event = read(ended(frame(2, 3), frame(4), frame(6, 7), frame(9), last=9, value=6), 2, sparse=True)
        assert (event.first, event.last, ids(event.entries)) == (2, 4, [2, 3, 4])
        assert event.following == Negative(), "5 was looked for"
        assert [i for i, _ in event.ahead] == [6, 7, 9] == [i for _, batches in event.ahead for i in ids(batches)]

    def test_missing_first_entry_of_a_complete_answer_is_denied(self):
        event = read(ended(frame(6), last=9, value=1), 2, sparse=True)
        assert (event.last, event.following, [i for i, _ in event.ahead]) == (1, Negative(), [6])

    def test_answer_with_missing_frames_denies_no_entry(self):
        event = read(ended(frame(6), last=9, value=4), 2, sparse=True)
        assert isinstance(event.following, Unknown) and event.following.reason is UnknownReason.BAD_REQUEST

    def test_entries_after_a_damaged_entry_are_unknown(self):
        event = read(ended(frame(2), frame(4, good=False), frame(6), last=9, value=3), 2, sparse=True)
        assert (event.last, event.ahead) == (2, ())
        assert isinstance(event.following, Unknown) and event.following.reason is UnknownReason.DIGEST_MISMATCH

    def test_limbo_is_not_a_denial(self):
        event = read(ended(last=1, value=0, status=Status.LIMBO), 2, sparse=True)
        assert (event.last, event.following.reason) == (1, UnknownReason.LIMBO)

    def test_gap_in_an_answer_to_a_dense_read_is_a_bad_answer(self):
        event = read(ended(frame(2), frame(4), last=4, value=2), 2)
        assert (event.last, event.following.reason) == (2, UnknownReason.BAD_REQUEST)

    @pytest.mark.parametrize("frames", [[frame(2, 3), frame(3, 4)], [frame(2), frame(2), frame(4)]])
    def test_answer_with_entries_out_of_order_is_bad_and_denies_no_entry(self, frames):
        count = sum(one.header.last_entry_id - one.header.first_entry_id + 1 for one in frames)
        for sparse in (False, True):
            event = read(ended(*frames, last=9, value=count), 2, sparse=sparse)
            assert isinstance(event.following, Unknown) and event.following.reason is UnknownReason.BAD_REQUEST
            assert (event.last, event.ahead) == (frames[0].header.last_entry_id, ())


class Sent(OneAnswer):
    """Keeps sent frames and acknowledges them."""

    def __init__(self):
        super().__init__(Answer(Positive()))
        self.frames = []

    def send(self, bookie_id, request_id, frame, on_answer, timeout_seconds=None, on_batch=None, body=b""):
        self.frames.append((frame, body))
        on_answer(self.answer)


class TestRecoveryAdd:
    def add(self, *batches):
        wire, events = Sent(), []
        first, last = batches[0].first_entry_id, batches[-1].last_entry_id
        LedgerRequests(wire, wire, 1, NO_KEY, DIGEST, 1.0).recovery_add(
            SendAdd(("b1", "b2"), first, last, 9, list(batches)), events.append
        )
        assert events == [AddAnswered(bookie, first, last, Positive()) for bookie in ("b1", "b2")]
        half = wire.frames[: len(wire.frames) // 2]
        return [(b"".join(map(bytes, parts)), parts[1]) for parts in half]

    def test_consecutive_short_batches_share_a_frame(self):
        """The repair of a ledger of 60,000 short batches failed because its target accepts only 10,000 requests at a time."""
        batches = [EntryBatch(frame(i).batch) for i in (0, 1, 2, 4, 5, 9)]
        sent = [EntryBatch(whole) for whole, _ in self.add(*batches)]
        assert [ids([one]) for one in sent] == [[0, 1, 2], [4, 5], [9]]
        assert [e for one in sent for e in one.entries()] == [e for one in batches for e in one.entries()]
        for whole, _ in self.add(*batches):
            found = parse_frame(memoryview(whole))
            assert first_mismatch(EntryBatch.checked(found.batch, found.header, found.body_crc), DIGEST) is None

    def test_long_batch_is_sent_unchanged_without_a_copy(self):
        rows = [Entry(1, i, -1, 9, b"x" * 9000, DIGEST(1, i, -1, 9, b"x" * 9000)) for i in range(2)]
        long = EntryBatch(encode_entries(Header(Kind.READ, 1, 1, 0, 1), rows))
        ((whole, body), *others) = self.add(long, EntryBatch(frame(2).batch))
        assert len(others) == 1 and body.obj is long.frame.obj, "it is not copied"
        found = parse_frame(memoryview(whole))
        assert (found.header.kind, found.header.flags, found.header.last_add_confirmed) == (Kind.ADD, Flag.RECOVERY, 9)
        assert list(EntryBatch.checked(found.batch, found.header, found.body_crc).entries()) == rows


@pytest.mark.parametrize("status", [Status.OK, Status.NO_SUCH_ENTRY])
def test_answer_without_its_announced_entries_denies_no_entry(status):
    """Found by chaos tests: the bookie sent entries 0 to 4 and a status about the entry after them. When the entries did not
    arrive, the status was applied to entry 0: OK made ledger recovery fail, and NO_SUCH_ENTRY would have counted as a denial."""
    header = Header(Kind.READ, 1, 1, last_entry_id=4, status=status)
    event = read(Answer(header.response(), header))
    assert (event.first, event.last) == (0, -1)
    assert isinstance(event.following, Unknown) and event.following.reason is UnknownReason.BAD_REQUEST


def test_denial_of_the_first_entry_is_accepted():
    header = Header(Kind.READ, 1, 1, last_entry_id=-1, status=Status.NO_SUCH_ENTRY)
    assert read(Answer(header.response(), header)).following == header.response()


def test_entries_of_another_ledger_are_refused():
    """Their digests match, since ledgers may share a password or have none."""
    event = read(ended(frame(0, ledger_id=2), last=0, value=1))
    assert (event.last, event.entries) == (-1, []) and "of ledger 1" in str(event.following)


@pytest.mark.parametrize("sparse", [True, False])
def test_entries_beyond_the_requested_range_are_refused(sparse):
    """Entries after the last requested entry may not be confirmed."""
    event = read(ended(frame(8, 9), frame(10), last=10, value=3), 8, sparse=sparse)
    assert (event.last, event.ahead, event.following.reason) == (9, (), UnknownReason.BAD_REQUEST)


class TestStoreAnswers:
    @pytest.mark.parametrize(
        ("error", "answer"),
        [(MetadataStoreError("no answer"), MetadataFailed), (NotEnoughBookiesError("2"), NoBookies)],
    )
    def test_silent_metadata_store_is_not_reported_as_a_lack_of_bookies(self, error, answer):
        class Failing(ClientContext):
            def topology(self, members=(), listed_seconds_ago_max=0.0):
                raise error

        context = Failing(MemoryStore, ClientConfig())
        try:
            assert context.answer_from_store(ledger(1), ChooseBookies(("b1",), ("b1",))) == answer(error)
        finally:
            context.close()

    def test_query_of_a_failing_metadata_store_is_repeated_after_a_pause(self):
        later = []
        io = OneAnswer(None)
        io.submit_later = lambda seconds, *call: later.append(seconds)
        context = SimpleNamespace(
            config=ClientConfig(),
            runtime=SimpleNamespace(
                io=io,
                connections=None,
                threads=None,
                callbacks=Threads(0, ""),
                room=Room(1 << 20),
                wake=lambda writer: None,
            ),
            answer_from_store=lambda metadata, action: MetadataFailed(MetadataStoreError("no layout")),
        )
        LedgerDriver(context, ledger(1), 0, b"")._ask_store(ReadMetadata())
        assert len(later) == 1 and later[0] > 0
