"""Ledgers that a task reads: opened once, read on from piece to piece, and an error comes with its own rows."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import pyarrow
import pytest

from bookspark.errors import NoSuchEntryError, NoSuchLedgerError
from bookspark.logs.rows.splits import Piece
from bookspark.logs.rows.value_rows import ValueDecoder
from bookspark.spark.offload import opened_ledgers
from bookspark.spark.offload.opened_ledgers import LARGE_BYTES, LARGE_ROWS, OpenedLedgers, gathered
from bookspark.store.client import BookKeeper
from tests.spark.memory_bookkeeper import MemoryBookKeeper, MemoryReader

OPTIONS = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "password": b""}


class _Reader(MemoryReader):
    """Returns three entries a batch, and counts requests."""

    def read(self, first: int, last: int) -> Iterator[Any]:
        bookkeeper = cast("_BookKeeper", self._bookkeeper)
        for entry in super().read(first, last):
            if (entry.ledger_id, entry.entry_id) in bookkeeper.lost:
                raise NoSuchEntryError(f"entry {entry.entry_id}")
            yield entry

    def read_batches(self, first: int, last: int) -> Iterator[pyarrow.RecordBatch]:
        assert last <= max(self._confirmed, -1), "read beyond what is confirmed"
        bookkeeper = cast("_BookKeeper", self._bookkeeper)
        bookkeeper.reads[self.ledger_id] += 1
        for at in range(first, last + 1, 3):
            good = range(at, min(at + 3, last + 1))
            lost = next((n for n in good if (self.ledger_id, n) in bookkeeper.lost), None)
            if lost != at:
                for batch in super().read_batches(at, good[-1] if lost is None else lost - 1):
                    bookkeeper.given += batch.nbytes
                    yield batch
            if lost is not None:
                bookkeeper.failed += 1
                raise NoSuchEntryError(f"entry {lost}")


class _BookKeeper(MemoryBookKeeper):
    def __init__(self) -> None:
        super().__init__()
        self.opened: Counter[int] = Counter()
        self.reads: Counter[int] = Counter()
        self.lost: set[tuple[int, int]] = set()
        # Reads that ended at a lost entry.
        self.failed = 0
        # Bytes returned to readers.
        self.given = 0

    def _reader(self, ledger_id: int) -> MemoryReader:
        self.opened[ledger_id] += 1
        return _Reader(self, ledger_id)

    def ledger_of(self, entries: int) -> int:
        ledger = self.create_ledger(**OPTIONS)
        for n in range(entries):
            ledger.append(b"%d/%d" % (ledger.ledger_id, n))
        return ledger.ledger_id


def _ledgers(bookkeeper: MemoryBookKeeper) -> OpenedLedgers:
    return OpenedLedgers(cast(BookKeeper, bookkeeper), b"", lambda metadata: ValueDecoder(""))


def _read(ledgers: OpenedLedgers, pieces: deque[Piece]) -> list[tuple[int, bytes]]:
    piece = pieces.popleft()
    found = [row for batch in ledgers.rows(piece, pieces) for row in batch.to_pylist()]
    return [(row["position"], row["value"]) for row in found]


def _expected(piece: Piece) -> list[tuple[int, bytes]]:
    return [(piece.position + n, b"%d/%d" % (piece.ledger_id, piece.first_entry_id + n)) for n in range(piece.rows)]


def test_ranges_written_in_turns_cost_a_single_read_of_each_ledger() -> None:
    """Each of 1,500 small commits of two tasks cost an opening, which asked ZooKeeper twice and three bookies, and a read."""
    bookkeeper = _BookKeeper()
    ids = [bookkeeper.ledger_of(300) for _ in range(3)]
    pieces = [Piece(ids[n % 3], n // 3 * 5, n * 5, 5) for n in range(180)]
    ledgers, left, found = _ledgers(bookkeeper), deque(pieces), []
    while left:
        found += _read(ledgers, left)
    assert found == [row for piece in pieces for row in _expected(piece)]
    assert bookkeeper.opened == dict.fromkeys(ids, 1) == bookkeeper.reads


def test_pieces_in_any_order_give_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges also go back, overlap or leave entries out, and more ledgers are read than stay open."""
    monkeypatch.setattr(opened_ledgers, "LEDGERS_MAX", 2)
    for seed in range(200):
        chance = random.Random(seed)
        monkeypatch.setattr(opened_ledgers, "LOOK_AHEAD", chance.choice((1, 3, 1024)))
        bookkeeper = _BookKeeper()
        ids = [bookkeeper.ledger_of(40) for _ in range(chance.randint(1, 4))]
        pieces, at = [], dict.fromkeys(ids, 0)
        for n in range(chance.randint(1, 30)):
            ledger = chance.choice(ids)
            first = min(at[ledger] + chance.choice((0, 0, 1, 4)), 39) if chance.random() < 0.8 else chance.randrange(40)
            count = chance.randint(1, 40 - first) if chance.random() < 0.1 else chance.randint(1, min(4, 40 - first))
            pieces.append(Piece(ledger, first, n * 100, count))
            at[ledger] = (first + count) % 40
        ledgers, left = _ledgers(bookkeeper), deque(pieces)
        for piece in pieces:
            assert _read(ledgers, left) == _expected(piece), (seed, piece)


def test_entry_shared_by_two_pieces_is_returned_for_both() -> None:
    """An entry of many rows is cut where partitions, or ranges that continue in it, meet."""

    class Rows:
        def rows(self, entries: pyarrow.RecordBatch, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
            yield entries.select(["entry_id"])

    bookkeeper = _BookKeeper()
    ledger = bookkeeper.ledger_of(8)
    whole = Piece(ledger, 0, 0, 80, rows_each=10)
    pieces = deque(whole.part(start, start + 8) for start in range(0, 80, 8))
    ledgers = OpenedLedgers(cast(BookKeeper, bookkeeper), b"", lambda metadata: Rows())
    while pieces:
        piece = pieces.popleft()
        ids = [entry for batch in ledgers.rows(piece, pieces) for entry in batch.column(0).to_pylist()]
        assert ids == list(range(piece.first_entry_id, piece.last_entry_id + 1))
    assert bookkeeper.reads[ledger] == 1


def test_read_error_comes_with_its_own_piece_and_not_earlier() -> None:
    """Reading ahead meets a lost entry of a later piece; the pieces before it are read whole."""
    for lost in range(20):
        bookkeeper = _BookKeeper()
        ledger = bookkeeper.ledger_of(20)
        bookkeeper.lost.add((ledger, lost))
        pieces = [Piece(ledger, n, n, 2) for n in range(0, 20, 2)]
        ledgers, left = _ledgers(bookkeeper), deque(pieces)
        for piece in pieces:
            if not piece.first_entry_id <= lost <= piece.last_entry_id:
                assert _read(ledgers, left) == _expected(piece)
                continue
            rows = ledgers.rows(left.popleft(), left)
            came = next(rows).num_rows if lost > piece.first_entry_id else 0
            assert came == lost - piece.first_entry_id
            with pytest.raises(NoSuchEntryError, match=f"entry {lost}"):
                next(rows)
            # The lost entry is readable again, and is read again.
            bookkeeper.lost.clear()
            rest = piece.part(came, piece.rows)
            assert _read(ledgers, deque((rest, *left))) == _expected(rest)


def _every_second(ledger: int, count: int = 100) -> list[Piece]:
    """Pieces of two entries, with two entries between them."""
    return [Piece(ledger, 4 * n, 4 * n, 2) for n in range(count)]


def _read_all(ledgers: OpenedLedgers, pieces: list[Piece]) -> None:
    left = deque(pieces)
    for piece in pieces:
        assert _read(ledgers, left) == _expected(piece)


@pytest.mark.parametrize("closed", [True, False])
def test_pieces_with_short_gaps_are_read_together(closed: bool) -> None:
    """A read with ``where`` sent a request for each small commit that it chose. In an open ledger, a first read shows how long
    entries are."""
    bookkeeper = _BookKeeper()
    ledger = bookkeeper.ledger_of(400)
    if closed:
        bookkeeper.open_ledger(ledger)
    before = bookkeeper.opened[ledger]
    _read_all(_ledgers(bookkeeper), _every_second(ledger))
    assert bookkeeper.reads[ledger] == (1 if closed else 2)
    assert bookkeeper.opened[ledger] - before == 1


def test_lost_entry_outside_the_pieces_fails_no_piece_and_is_read_once() -> None:
    bookkeeper = _BookKeeper()
    ledger = bookkeeper.ledger_of(400)
    bookkeeper.lost |= {(ledger, 4 * n + 2) for n in range(20, 100)}
    _read_all(_ledgers(bookkeeper), _every_second(ledger))
    # 20 pieces at once after the first, and each of the others by itself.
    assert (bookkeeper.reads[ledger], bookkeeper.failed) == (2 + 79, 1)


def test_long_entries_between_pieces_are_not_read() -> None:
    """Reading and dropping entries takes no longer than another read would."""
    bookkeeper = _BookKeeper()
    ledger, pieces = bookkeeper.ledger_of(0), _every_second(0, 10)
    pieces = [piece._replace(ledger_id=ledger) for piece in pieces]
    bookkeeper.entries[ledger] += [bytes(opened_ledgers.GAP_BYTES)] * 40
    ledgers, left = _ledgers(bookkeeper), deque(pieces)
    while left:
        _read(ledgers, left)
    assert bookkeeper.reads[ledger] == len(pieces)
    assert bookkeeper.given < 20.5 * opened_ledgers.GAP_BYTES


def test_dropped_bytes_are_bounded_when_entries_get_longer() -> None:
    """By the mean length of the entries before them, they seemed short."""
    bookkeeper = _BookKeeper()
    ledger = bookkeeper.ledger_of(1100)
    bookkeeper.entries[ledger][510:900] = [bytes(opened_ledgers.GAP_BYTES_MAX // 10)] * 390
    pieces = deque([Piece(ledger, 0, 0, 2), Piece(ledger, 498, 2, 2), Piece(ledger, 900, 4, 2)])
    ledgers = _ledgers(bookkeeper)
    while pieces:
        expected = _expected(pieces[0])
        assert _read(ledgers, pieces) == expected
    assert bookkeeper.given < 2 * opened_ledgers.GAP_BYTES_MAX


def test_ledger_deleted_between_two_pieces_raises() -> None:
    bookkeeper = _BookKeeper()
    ledger = bookkeeper.ledger_of(10)
    ledgers = _ledgers(bookkeeper)
    # The second piece does not continue the first, so nothing of it is held.
    pieces = deque((Piece(ledger, 0, 0, 2), Piece(ledger, 5, 2, 2)))
    _read(ledgers, pieces)
    bookkeeper.delete_ledger(ledger)
    with pytest.raises(NoSuchLedgerError):
        _read(ledgers, pieces)


def test_tasks_of_later_micro_batches_reuse_opened_ledgers() -> None:
    bookkeeper, kept = _BookKeeper(), opened_ledgers.KeptHandles()
    ids = [bookkeeper.ledger_of(20) for _ in range(opened_ledgers.LEDGERS_MAX + 1)]
    ledger = ids[0]

    def task(piece: Piece) -> list[tuple[int, bytes]]:
        ledgers = OpenedLedgers(cast(BookKeeper, bookkeeper), b"", lambda metadata: ValueDecoder(""), kept)
        return _read(ledgers, deque((piece,)))

    for n in range(4):
        assert task(Piece(ledger, n, n, 1)) == _expected(Piece(ledger, n, n, 1))
    assert bookkeeper.opened[ledger] == 1
    bookkeeper.lost.add((ledger, 4))
    with pytest.raises(NoSuchEntryError):
        task(Piece(ledger, 4, 4, 1))
    task(Piece(ledger, 5, 5, 1))
    assert bookkeeper.opened[ledger] == 2, "after an error it is opened anew"
    for other in ids:
        task(Piece(other, 0, 0, 1))
    task(Piece(ledger, 6, 6, 1))
    assert bookkeeper.opened[ledger] == 3, "those that were used long ago are forgotten"


def test_small_batches_are_gathered_in_order_and_large_batches_pass_unchanged() -> None:
    chance = random.Random(7)
    sizes = [chance.choice((1, 5, 300, LARGE_ROWS - 1, LARGE_ROWS, 3 * LARGE_ROWS)) for _ in range(300)]
    at, batches = 0, []
    for size in sizes:
        batches.append(pyarrow.record_batch({"position": pyarrow.array(range(at, at + size), pyarrow.int64())}))
        at += size
    found = list(gathered(batches))
    assert [row for batch in found for row in batch.column(0).to_pylist()] == list(range(at))
    for one, other in pairwise(found):
        assert one.num_rows + other.num_rows > LARGE_ROWS, "two neighbours that fit in one"
    passed = set(map(id, found))
    assert all(id(batch) in passed for batch in batches if batch.num_rows >= LARGE_ROWS), "one was copied"
    wide = pyarrow.record_batch({"value": [b"x" * (LARGE_BYTES // 2 + 1)]})
    assert len(list(gathered([wide] * 4))) == 4, "few rows can be many bytes"
    assert list(gathered([])) == []
