"""Small pieces of several ledgers read together: the same rows as piece by piece, in few reads and few batches."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, islice
from types import SimpleNamespace
from typing import Any, cast

import pyarrow
import pytest
from pyspark.sql.types import LongType, StructType

from bookspark.errors import InvalidRowError, NoSuchEntryError
from bookspark.logs.rows.encodings import RowDecoder
from bookspark.logs.rows.splits import Piece
from bookspark.logs.rows.value_rows import ValueDecoder
from bookspark.protocol.logs.log_options import Compression
from bookspark.spark.offload import small_pieces
from bookspark.spark.offload.opened_ledgers import OpenedLedgers
from bookspark.spark.offload.small_pieces import SmallPieces
from bookspark.spark.rows.rows import ArrowDecoder, ArrowEncoder
from bookspark.store.client import BookKeeper
from tests.spark.test_opened_ledgers import _BookKeeper, _expected
from tests.stories import seeds

_COLUMNS: Any = SimpleNamespace(names=["value", "position", "ledger_id", "entry_id"])
_NUMBERS = StructType().add("n", LongType())


class _Task:
    """Reads pieces as a task does: together, or else the first piece by itself."""

    def __init__(
        self, bookkeeper: _BookKeeper, decoder: RowDecoder | None = None, names: Sequence[str] = _COLUMNS.names
    ) -> None:
        self.ledgers = OpenedLedgers(cast(BookKeeper, bookkeeper), b"", lambda metadata: decoder or ValueDecoder(""))
        self.small = SmallPieces(self.ledgers, cast(Any, SimpleNamespace(names=names)), ())
        self.batches: list[pyarrow.RecordBatch] = []
        self.alone = 0

    def read(self, pieces: list[Piece]) -> list[tuple[int, bytes]]:
        self.take(pieces)
        return self.rows

    def take(self, pieces: list[Piece]) -> None:
        left = deque(pieces)
        while left:
            found = self.small.read(left)
            if found is None:
                self.alone += 1
                self.batches += self.ledgers.rows(left.popleft(), left)
            else:
                self.batches.append(found)

    @property
    def rows(self) -> list[tuple[int, bytes]]:
        return [(row["position"], row["value"]) for batch in self.batches for row in batch.to_pylist()]


def test_pieces_written_in_turns_are_read_in_few_batches() -> None:
    """3,000 pieces of 5 rows cost a reader 100 microseconds each."""
    bookkeeper = _BookKeeper()
    ids = [bookkeeper.ledger_of(1000) for _ in range(2)]
    pieces = [Piece(ids[n % 2], n // 2 * 5, n * 5, 5) for n in range(400)]
    task = _Task(bookkeeper)
    assert task.read(pieces) == [row for piece in pieces for row in _expected(piece)]
    assert (len(task.batches), task.alone) == (2, 0)
    assert bookkeeper.reads == bookkeeper.opened == dict.fromkeys(ids, 1)
    for batch in task.batches:
        assert batch.schema.names == _COLUMNS.names
        assert [b"%d/%d" % (row["ledger_id"], row["entry_id"]) for row in batch.to_pylist()] == batch[
            "value"
        ].to_pylist()


def test_pieces_with_gaps_are_read_in_few_batches() -> None:
    """A read with ``where`` chose every second of 1,500 small commits, and sent a bookie a request for each."""
    bookkeeper = _BookKeeper()
    ids = [bookkeeper.ledger_of(2000) for _ in range(2)]
    pieces = [Piece(ids[n % 2], n // 2 * 10, n * 10, 5) for n in range(400)]
    task = _Task(bookkeeper)
    assert task.read(pieces) == [row for piece in pieces for row in _expected(piece)]
    assert (len(task.batches), task.alone) == (2, 0)
    # The first read shows how long the entries are.
    assert bookkeeper.opened == dict.fromkeys(ids, 1) and bookkeeper.reads == dict.fromkeys(ids, 2)


def _arrow_ledger(bookkeeper: _BookKeeper, counts: Sequence[int]) -> int:
    """A ledger whose entries hold ``counts`` rows: numbers, from 0 on."""
    ledger = bookkeeper.ledger_of(0)
    rows = iter(range(sum(counts)))
    for count in counts:
        batch = pyarrow.record_batch({"n": pyarrow.array(islice(rows, count), pyarrow.int64())})
        encoder = ArrowEncoder(_NUMBERS, Compression.NONE)
        payloads = [*encoder.add(batch), *encoder.finish()]
        bookkeeper.entries[ledger] += [value for some in payloads for value in some.values.to_pylist()]
    return ledger


def test_entries_of_different_row_counts_are_read_together() -> None:
    """Each micro-batch has another number of rows, so each was decoded by itself. Pieces begin and end in the middle of
    entries, and two may lie in the same entry."""
    for seed in seeds(20):
        chance, bookkeeper = random.Random(seed), _BookKeeper()
        counts = [chance.randint(1, 5) for _ in range(60)]
        ledger = _arrow_ledger(bookkeeper, counts)
        assert len(bookkeeper.entries[ledger]) == len(counts)
        pieces, expected, position = [], [], 0
        starts = [0, *accumulate(counts)]
        for entry, count in enumerate(counts):
            cuts = sorted(chance.sample(range(count + 1), min(count + 1, chance.choice((0, 2, 2, 4)))))
            for low, high in zip(cuts[::2], cuts[1::2], strict=False):
                pieces.append(Piece(ledger, entry, position, high - low, count, low))
                expected += [(position + n, starts[entry] + low + n, entry) for n in range(high - low)]
                position += chance.choice((high - low, 100))
        task = _Task(bookkeeper, ArrowDecoder(_NUMBERS), ["n", "position", "ledger_id", "entry_id"])
        task.take(pieces)
        rows = [(row["position"], row["n"], row["entry_id"]) for batch in task.batches for row in batch.to_pylist()]
        assert rows == expected, seed
        assert (len(task.batches), task.alone) == (1, 0), seed


def test_entry_that_contradicts_its_piece_is_an_error_after_the_rows_before_it() -> None:
    bookkeeper = _BookKeeper()
    ledger = _arrow_ledger(bookkeeper, [2, 2, 1, 2])
    task = _Task(bookkeeper, ArrowDecoder(_NUMBERS), ["n", "position", "ledger_id", "entry_id"])
    with pytest.raises(InvalidRowError, match=r"entry 2 of ledger .* an entry of 1 row, where its commit has 2"):
        task.take([Piece(ledger, 0, 0, 3, 2), Piece(ledger, 2, 3, 1, 2), Piece(ledger, 3, 4, 2, 2)])
    assert [row["n"] for batch in task.batches for row in batch.to_pylist()] == [0, 1, 2]


def test_piece_that_disagrees_with_another_about_an_entry_is_an_error() -> None:
    bookkeeper = _BookKeeper()
    ledger = _arrow_ledger(bookkeeper, [4, 4])
    task = _Task(bookkeeper, ArrowDecoder(_NUMBERS), ["n", "position", "ledger_id", "entry_id"])
    with pytest.raises(InvalidRowError, match="an entry of 4 rows, where its commit has 3"):
        task.take([Piece(ledger, 0, 0, 2, 4), Piece(ledger, 0, 2, 1, 3, 2), Piece(ledger, 1, 3, 4, 4)])
    assert [row["n"] for batch in task.batches for row in batch.to_pylist()] == [0, 1]


def test_random_small_pieces_give_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges also go back or leave entries out, positions have gaps, and lanes change."""
    for seed in seeds(40):
        chance = random.Random(seed)
        monkeypatch.setattr(small_pieces, "FIRST_ROWS", chance.choice((1, 7, 256)))
        monkeypatch.setattr(small_pieces, "_PIECES_MAX", chance.choice((2, 5, 1024)))
        bookkeeper = _BookKeeper()
        ids = [bookkeeper.ledger_of(60) for _ in range(chance.randint(1, 4))]
        pieces, at, position = [], dict.fromkeys(ids, 0), 0
        for _ in range(chance.randint(1, 40)):
            ledger = chance.choice(ids)
            first = min(at[ledger] + chance.choice((0, 0, 0, 2)), 59) if chance.random() < 0.9 else chance.randrange(60)
            count = chance.randint(1, min(4, 60 - first))
            position += chance.choice((0, 0, 3))
            pieces.append(Piece(ledger, first, position, count, lane=int(chance.random() < 0.1)))
            position += count
            at[ledger] = (first + count) % 60
        assert _Task(bookkeeper).read(pieces) == [row for piece in pieces for row in _expected(piece)], seed


def test_lost_entry_fails_its_own_piece_after_the_rows_before_it() -> None:
    for lost in range(20):
        bookkeeper = _BookKeeper()
        ids = [bookkeeper.ledger_of(20) for _ in range(2)]
        bookkeeper.lost.add((ids[1], lost))
        pieces = [Piece(ids[n % 2], n // 2 * 2, n * 2, 2) for n in range(20)]
        task = _Task(bookkeeper)
        with pytest.raises(NoSuchEntryError, match=f"entry {lost}"):
            task.read(pieces)
        before = [row for piece in pieces for row in _expected(piece)]
        assert task.rows == before[: len(task.rows)]
        assert before[len(task.rows)][1] in (b"%d/%d" % (ids[1], lost), b"%d/%d" % (ids[1], lost - lost % 2))
        # Later pieces are still read once the entry is back.
        bookkeeper.lost.clear()
        assert len(_Task(bookkeeper).read(pieces)) == 40


def test_group_of_pieces_has_a_single_lane() -> None:
    """The lane column has one value in a batch."""
    bookkeeper = _BookKeeper()
    ids = [bookkeeper.ledger_of(20) for _ in range(2)]
    left = deque(Piece(ids[lane], n, n, 1, lane=lane) for lane in range(2) for n in range(3))
    task = _Task(bookkeeper)
    for ledger_id in ids:
        found = task.small.read(left)
        assert found is not None and found["ledger_id"].to_pylist() == [ledger_id] * 3


def _read_in_turns(rows: list[bytes]) -> _Task:
    """A task that has read two ledgers with these rows each, two rows a piece."""
    bookkeeper = _BookKeeper()
    ids = [bookkeeper.ledger_of(0) for _ in range(2)]
    for ledger_id in ids:
        bookkeeper.entries[ledger_id] += rows
    task = _Task(bookkeeper)
    task.read([Piece(ids[n % 2], n // 2 * 2, n * 2, 2) for n in range(len(rows))])
    assert [position for position, _ in task.rows] == list(range(2 * len(rows)))
    return task


def test_long_rows_are_read_in_small_groups() -> None:
    task = _read_in_turns([bytes(20_000)] * 400)
    assert max(batch.nbytes for batch in task.batches[1:]) < 1.1 * small_pieces.GROUP_BYTES


def test_rows_that_get_longer_are_held_in_bounded_groups() -> None:
    """8,192 rows of 100 KB are 800 MB."""
    task = _read_in_turns([b"short"] * 2000 + [bytes(100_000)] * 300)
    assert task.alone > 0
    assert max(batch.nbytes for batch in task.batches) <= small_pieces.GROUP_BYTES_MAX
