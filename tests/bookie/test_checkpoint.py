"""Checkpoints in parts: any history of the index against what a checkpoint of everything would hold; and what they cost."""

from __future__ import annotations

from random import Random

import pytest

from bookspark.bookie.disk.checkpoint import (
    DamagedPartError,
    Part,
    Snapshot,
    part_path,
    read_checkpoint,
    write_checkpoint,
)
from bookspark.bookie.disk.file_system import RealFileSystem
from bookspark.bookie.disk.index import Index, Row, location, log_of
from bookspark.bookie.holdings.checkpointing import fill
from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.testing.memory_files import MemoryFileSystem

FILES = RealFileSystem()


class Directory:
    """A directory's checkpoint, and what it is to hold."""

    def __init__(self, file_system, path: str, logs: frozenset[int] | None, rewritten: int = 90) -> None:
        self.file_system, self.path, self.logs, self.rewritten = file_system, path, logs, rewritten
        self.parts: list[Part] | None = None

    def snapshot(self, covered: int, whole: bool = False) -> Snapshot:
        return Snapshot(self.logs, covered, False, frozenset({self.rewritten}), whole=whole or self.parts is None)

    def write(self, *taken: Snapshot) -> None:
        self.parts = write_checkpoint(self.file_system, self.path, self.parts or [], taken)

    def rows(self) -> dict[int, list[Row]]:
        checkpoint = read_checkpoint(self.file_system, self.path)
        assert checkpoint is not None and checkpoint.parts == self.parts
        return {kept.ledger_id: [kept.rows.row(i) for i in range(len(kept.rows))] for kept in checkpoint.ledgers}

    def expected(self, index: Index, covered: int) -> dict[int, list[Row]]:
        snapshot = self.snapshot(covered)
        found = {}
        for ledger_id in index.ledger_ids():
            rows = index.get(ledger_id)
            assert rows is not None
            held = [row for i in range(len(rows)) if snapshot.holds((row := rows.row(i)).where)]
            if held:
                found[ledger_id] = held
        return found


def take(index: Index, snapshots: list[Snapshot], meanwhile=lambda: None, ledgers=None) -> None:
    look = (lambda ledger_id: BookieLedger(ledger_id)) if ledgers is None else ledgers.get
    for _ in fill(snapshots, look, index, whole=snapshots[0].whole):
        meanwhile()


@pytest.mark.parametrize("directories", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_the_parts_of_a_checkpoint_say_together_what_the_index_says(directories, seed, monkeypatch):
    monkeypatch.setattr("bookspark.bookie.disk.index_block._LEDGERS_MAX", 4)
    monkeypatch.setattr("bookspark.bookie.disk.index._PACKED_ROWS_MAX", 5)
    monkeypatch.setattr("bookspark.bookie.holdings.checkpointing._WEIGHT_A_STEP", 60)
    random = Random(f"{seed} of {directories}")
    files = MemoryFileSystem("/a", "/b")
    index = Index()
    each = [
        Directory(files, path, None if directories == 1 else frozenset(range(1 + number, 90, 2)), 90 + number)
        for number, path in zip(range(directories), ("/a", "/b"), strict=False)
    ]
    end = {log: 408 for log in range(1, 99)}
    newest, covered = 4, 0

    def insert() -> None:
        log = random.randrange(max(1, newest - 1), newest + 1)
        first = random.randrange(60)
        size = random.randrange(100, 300)
        index.of(random.randrange(30)).insert(first, first + random.randrange(10), location(log, end[log]), size)
        end[log] += size

    for _ in range(60):
        for _ in range(random.randrange(12)):
            insert()
        ledger_id = random.randrange(30)
        match random.randrange(8):
            case 0:
                index.forget(ledger_id)
            case 1 if (rows := index.changing(ledger_id)) is not None and len(rows):
                row = rows.row(random.randrange(len(rows)))
                rows.remove(row.where, row.where)
            case 2 if (rows := index.changing(ledger_id)) is not None and len(rows):
                row = rows.row(random.randrange(len(rows)))
                if log_of(row.where) < newest:
                    to = location(90 if directories == 1 else 91 - log_of(row.where) % 2, random.randrange(1 << 20))
                    rows.move(frozenset({log_of(row.where)}), [row._replace(where=to)])
            case 3:
                newest += 1
        if random.randrange(3) == 0:
            index.remove(covered, location(newest, 1 << 31))
        covered = max(covered, location(newest, random.randrange(408, end[newest] + 1)))
        before = {directory.path: directory.expected(index, covered) for directory in each}
        taken = [directory.snapshot(covered) for directory in each]

        def meanwhile() -> None:
            index.of(random.randrange(30)).insert(200 + random.randrange(60), 300, location(newest, 1 << 30), 7)

        take(index, taken, meanwhile)
        for directory, snapshot in zip(each, taken, strict=True):
            directory.write(snapshot)
            assert directory.rows() == before[directory.path]
            named = {part_path(directory.path, part.number) for part in directory.parts or ()}
            lying = {f"{directory.path}/{name}" for name in files.list(directory.path)}
            assert lying == named | {f"{directory.path}/checkpoint"}
            assert len(named) <= 12
