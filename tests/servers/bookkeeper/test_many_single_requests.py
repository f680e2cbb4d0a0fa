"""BookKeeper's clients send each add and each read alone: handling many of them together changes no answer."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.servers.bookkeeper.door import KeptBatches
from bookspark.servers.bookkeeper.entries import body_of
from bookspark.servers.bookkeeper.messages import Operation
from bookspark.servers.bookkeeper.requests import Asked, answer, answer_adds
from bookspark.store.bookie.holdings.reads import Piece, Stop
from bookspark.store.wire.entry_batch import EntryBatch, encode_entries
from bookspark.store.wire.header import Header, Kind, Status
from tests.servers.bookkeeper.kit import KEY, add_2, body, framed, open_door, read_2, request
from tests.store.bookie.kit import SECONDS_MAX, config, entries

COUNT = 40


def add_3(ledger_id: int, entry_id: int, key: bytes = KEY) -> bytes:
    made = body(ledger_id, entry_id, b"payload")
    return request(Operation.ADD_ENTRY, entry_id, "add", ledgerId=ledger_id, entryId=entry_id, masterKey=key, body=made)


def read_3(ledger_id: int, entry_id: int) -> bytes:
    return request(Operation.READ_ENTRY, entry_id, "read", ledgerId=ledger_id, entryId=entry_id)


def on_loop(server: Any, work: Callable[[], Any]) -> Any:
    async def done() -> Any:
        return work()

    return asyncio.run_coroutine_threadsafe(done(), server._porch._loop).result(SECONDS_MAX)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("status", [Status.OK, Status.FENCED, Status.CONFLICT, Status.TOO_MANY_REQUESTS])
def test_adds_answered_together_get_the_same_answers_as_alone(version: int, status: Status) -> None:
    adds = [
        Asked(version, Operation.ADD_ENTRY, txn, 7, entry)
        for txn, entry in ((0, 0), (300, 1), (1 << 40, 5_000_000_000))
    ]
    assert answer_adds(adds, status) == b"".join(answer(asked, status) for asked in adds)


def test_consecutive_adds_of_two_versions_are_answered_in_their_own_version(tmp_path: Path) -> None:
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        caller.send(add_3(5, 0), add_3(5, 1))
        assert caller.statuses(2) == {0: 0, 1: 0}
        caller.send(add_3(5, 2), add_2(KEY, body(5, 3, b"payload")), add_3(5, 4))
        assert caller.answer().header.txnId == 2
        assert caller.answer_2() == (0, 5, 3, b"")
        assert caller.answer().header.txnId == 4


def test_add_with_a_wrong_key_among_others_is_refused_alone(tmp_path: Path) -> None:
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        caller.send(add_3(5, 0), add_3(5, 1, b"k" * 20), add_3(5, 1))
        answers = [caller.answer() for _ in range(3)]
        assert [told.status for told in answers if told.header.txnId == 0] == [0]
        assert sorted(told.status for told in answers if told.header.txnId == 1) == [0, 502]


@pytest.mark.parametrize("digest_type", [DigestType.BOOKKEEPER_CRC32, DigestType.BOOKKEEPER_DUMMY])
def test_adds_of_two_ledgers_sent_together_use_their_own_digest_types(tmp_path: Path, digest_type: DigestType) -> None:
    types = {5: DigestType.BOOKKEEPER_CRC32C, 6: digest_type}
    with open_door(config(tmp_path), types.__getitem__) as (_, call, _):
        caller = call()
        ids = ((5, 0), (5, 1), (6, 2), (6, 3))
        bodies = [body(ledger, entry, b"payload", digest_type=types[ledger]) for ledger, entry in ids]
        for _ in range(2):
            # In the second round the digest types are known.
            caller.send(*(add_2(KEY, made) for made in bodies))
            assert [caller.answer_2()[0] for _ in bodies] == [0] * 4
        for one, made in zip(ids, bodies, strict=True):
            caller.send(read_2(*one))
            assert caller.answer_2()[3] == made


@pytest.mark.parametrize("version", [2, 3])
def test_single_reads_of_a_batchs_entries_read_the_log_once(tmp_path: Path, version: int) -> None:
    bodies = [body(5, entry, b"payload %d" % entry) for entry in range(COUNT)]
    with open_door(config(tmp_path)) as (server, call, _):
        caller = call()
        caller.send(add_2(KEY, body(5, 0, b"payload 0")))
        assert caller.answer_2()[0] == 0
        caller.send(b"".join(add_2(KEY, made) for made in bodies))
        assert all(caller.answer_2()[0] == 0 for _ in bodies)
        storage = server.behind[0].storage
        fetches: list[int] = []
        fetch = storage.files.fetch
        storage.files.fetch = lambda pieces, **how: (fetches.append(len(pieces)), fetch(pieces, **how))[1]
        for entry, made in enumerate(bodies):
            caller.send(read_2(5, entry) if version == 2 else read_3(5, entry))
            found = caller.answer_2()[3] if version == 2 else caller.answer().read.body
            assert found == made
        batches = len({piece.where for piece in storage.holdings.plan_read(5, 0, COUNT - 1, 0, sparse=False).pieces})
        # Each read tries the page cache first, then a disk thread.
        assert len(fetches) <= 2 * batches < COUNT / 2


def test_lost_entry_is_not_served_from_a_kept_batch(tmp_path: Path) -> None:
    with open_door(config(tmp_path)) as (server, call, _):
        caller = call()
        caller.send(b"".join(add_3(5, entry) for entry in range(COUNT)))
        assert set(caller.statuses(COUNT).values()) == {0}
        caller.send(read_3(5, 8), read_3(5, 9))
        assert set(caller.statuses(2).values()) == {0}
        storage = server.behind[0].storage

        def lose() -> None:
            storage.holdings.read_ended(storage.holdings.plan_read(5, 9, 9, 0, sparse=False).pieces, Stop.DAMAGED)

        on_loop(server, lose)
        caller.send(read_3(5, 9))
        assert caller.answer().status == 501, "what was lost is no absence, and is not there"


def test_kept_batches_are_bounded_and_the_latest_stay() -> None:
    kept = KeptBatches(bytes_max=20_000)
    frames = {}
    for ledger_id in range(30):
        rows = entries(ledger_id, 0, 9, b"x" * 100)
        frame = encode_entries(Header(Kind.ADD, 0, ledger_id, 0, 9), rows)
        frames[ledger_id] = Piece(ledger_id, 3, 9, ledger_id << 32, len(frame), None), rows
        # Frames are read into memory that is reused.
        lent = memoryview(bytearray(frame) + bytes(50_000))[: len(frame)]
        assert body_of(kept.keep(frames[ledger_id][0], lent)) == body_of(rows[3])
    found = [ledger_id for ledger_id, (piece, _) in frames.items() if kept.entry(piece) is not None]
    assert 5 < len(found) < 15 and found == list(range(30 - len(found), 30))
    assert kept._bytes == sum(len(batch.frame) for batch in kept._batches.values()) <= 20_000
    assert all(len(batch.frame.obj) == len(batch.frame) for batch in kept._batches.values())
    piece, rows = frames[29]
    assert [kept.entry(piece._replace(first=at)) for at in range(10)] == rows
    assert kept.entry(piece._replace(first=10)) is None
    assert kept.entry(piece._replace(ledger_id=5)) is None, "it is another ledger's"


def test_entry_decoded_alone_equals_the_entry_decoded_with_its_batch() -> None:
    for count in range(1, 12):
        rows = [
            row._replace(payload=b"p" * (at * 5 % 17), digest=b"d" * (at % 5))
            for at, row in enumerate(entries(3, 7, 6 + count))
        ]
        batch = EntryBatch(encode_entries(Header(Kind.ADD, 0, 3, 7, 6 + count), rows))
        assert [batch.entry(entry_id) for entry_id in range(7, 7 + count)] == rows == list(batch.entries())


def test_answer_to_a_batched_read_fills_a_mebibyte(tmp_path: Path) -> None:
    """A client sends its next batched read after this answer: with 256 KiB it would wait four times as often."""
    with open_door(config(tmp_path)) as (_, call, _):
        caller, payload = call(), b"p" * (16 << 10)
        for entry in range(80):
            caller.send(add_2(KEY, body(5, entry, payload)))
            assert caller.answer_2()[0] == 0
        found = []
        for _ in range(2):
            # The first read opens the log, in a thread.
            caller.send(framed(struct.pack(">BBHqqqiq", 2, 7, 0, 5, 0, 1, 80, 5 << 20)))
            code, _, _, told = caller.answer_2()
            assert code == 0
            found.append(told.count(payload))
        assert all(60 <= count < 80 for count in found), found
