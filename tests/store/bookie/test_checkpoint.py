"""Checkpoints in parts: their content compared with the index, and their cost."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bookspark.protocol.bookie.bookie_ledger import (
    BookieLedger,
    EntriesLost,
    FenceNoted,
    FenceUnsureNoted,
    MasterKeyNoted,
)
from bookspark.store.bookie.disk.checkpoint import (
    Part,
    Snapshot,
    part_path,
    read_checkpoint,
    write_checkpoint,
)
from bookspark.store.bookie.disk.control_log import decode_records, encode_records, live_bytes
from bookspark.store.bookie.disk.control_state import (
    _LOST_PACKED_MAX,
    _PLAIN,
    _PLAIN_LEDGER,
    ControlState,
    LedgersNoted,
)
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import FileSystem, RealFileSystem
from bookspark.store.bookie.disk.index import Index, Row, location, log_of
from bookspark.store.bookie.disk.log_scan import SCHEMA
from bookspark.store.bookie.holdings.checkpointing import fill
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.header import Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from tests.store.bookie.kit import KEY, add_frame, config
from tests.store.bookie.stepped import Stepped, without_threads


class Directory:
    """A directory's checkpoint and its expected content."""

    def __init__(self, file_system: FileSystem, path: str, logs: frozenset[int] | None, rewritten: int = 90) -> None:
        self.file_system, self.path, self.logs, self.rewritten = file_system, path, logs, rewritten
        self.parts: list[Part] | None = None

    def snapshot(self, covered: int, whole: bool = False) -> Snapshot:
        return Snapshot(self.logs, covered, frozenset({self.rewritten}), whole=whole or self.parts is None)

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


def take(index: Index, snapshots: list[Snapshot], meanwhile: Callable[[], None]) -> None:
    for _ in fill(snapshots, BookieLedger, index, whole=snapshots[0].whole):
        meanwhile()


@pytest.mark.parametrize("directories", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_checkpoint_parts_together_equal_the_index(
    directories: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookspark.store.bookie.disk.checkpoint._LEDGERS_MAX", 4)
    monkeypatch.setattr("bookspark.store.bookie.disk.index._PACKED_ROWS_MAX", 5)
    monkeypatch.setattr("bookspark.store.bookie.holdings.checkpointing._WEIGHT_A_STEP", 60)
    random = Random(f"{seed} of {directories}")
    files = MemoryFileSystem("/a", "/b")
    index = Index()
    each = [
        Directory(files, path, None if directories == 1 else frozenset(range(1 + number, 90, 2)), 90 + number)
        for number, path in zip(range(directories), ("/a", "/b"), strict=False)
    ]
    end = dict.fromkeys(range(1, 99), 408)
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
            for ledger_id in index.ledger_ids():
                index.changing(ledger_id).remove(covered, location(newest, 1 << 31))
        covered = max(covered, location(newest, random.randrange(408, end[newest] + 1)))
        before = {directory.path: directory.expected(index, covered) for directory in each}
        behind = location(newest, 1 << 30)
        taken = [directory.snapshot(covered) for directory in each]

        def meanwhile() -> None:
            index.of(random.randrange(30)).insert(200 + random.randrange(60), 300, behind, 7)  # noqa: B023

        take(index, taken, meanwhile)
        for directory, snapshot in zip(each, taken, strict=True):
            directory.write(snapshot)
            assert directory.rows() == before[directory.path]
            named = {part_path(directory.path, part.number) for part in directory.parts or ()}
            lying = {f"{directory.path}/{name}" for name in files.list(directory.path)}
            assert lying == named | {f"{directory.path}/checkpoint"}
            assert len(named) <= 12


# -- in a storage


@pytest.fixture
def disk() -> Iterator[MemoryFileSystem]:
    with without_threads():
        yield MemoryFileSystem("/disk")


def written_bytes(disk: MemoryFileSystem, run: Stepped) -> int:
    """The bytes of the files that a checkpoint creates."""
    before = disk.files()
    run.checkpoint()
    return sum(len(content) for path, content in disk.files().items() if "checkpoint" in path and path not in before)


def many(run: Stepped, ledgers: int) -> None:
    for ledger_id in range(ledgers):
        run.add(ledger_id, 0)
    run.commit()
    for _ in range(3):
        # The second checkpoint sees the ledgers unused and packs them.
        run.add(0, run.storage.holdings.last_entry_id(0) + 1)
        run.commit()
        run.checkpoint()


def test_checkpoint_writes_only_the_changes(disk: MemoryFileSystem) -> None:
    run = Stepped(config(Path("/disk")), disk)
    many(run, 400)
    for first in range(1, 11):
        run.add(7, first)
        run.commit()
        assert 0 < written_bytes(disk, run) < 1000, "64 bytes for each change since the last merge, and a short file"
    assert max(len(content) for path, content in disk.files().items() if "checkpoint" in path) > 400 * 64


def test_checkpoint_of_a_long_ledger_writes_only_its_new_rows(disk: MemoryFileSystem) -> None:
    run = Stepped(config(Path("/disk")), disk)
    for entry_id in range(300):
        run.add(5, entry_id)
    run.commit()
    run.checkpoint()
    run.add(5, 300)
    run.commit()
    assert written_bytes(disk, run) < 150
    run.restart()
    assert run.read(5, 0, 400)[0][-1].entry_id == 300


def test_checkpoint_keeps_no_second_copy_of_the_index(disk: MemoryFileSystem) -> None:
    run = Stepped(config(Path("/disk")), disk)
    many(run, 300)
    assert not any(run.storage.checkpoints._pending.values()), "nothing of what was written is kept"
    rows, ledgers = run.storage.holdings.index._rows, run.storage.holdings.ledgers
    assert all(isinstance(packed, bytes) for ledger_id, packed in rows.packed.items() if ledger_id)
    assert all(isinstance(packed, bytes) for ledger_id, packed in ledgers.packed.items() if ledger_id)


def test_control_logs_of_two_directories_merge_without_unpacking_ledgers() -> None:
    """A bookie with two directories has two control logs, and each ledger became an object at every start."""
    states = [ControlState(), ControlState()]
    for state, told in zip(states, (3, 8), strict=True):
        for ledger_id in range(50):
            ledger = state.of(ledger_id)
            ledger.replay(MasterKeyNoted(ledger_id, KEY))
            ledger.note(told, -1)
        state.of(told).replay(FenceNoted(told))
        state.of(told).replay(FenceUnsureNoted(told))
    both = ControlState()
    for state in (*states, states[0]):
        both.replay(record for part in state.records() for record in part)
    assert both.ledgers.in_use_count == 0 and all(isinstance(kept, bytes) for kept in both.ledgers.packed.values())
    found = list(both.ledgers.looks())
    assert [ledger.ledger_id for ledger in found if ledger.fenced and ledger.fence_unsure] == [3, 8]
    assert len(found) == 50 and {ledger.last_add_confirmed for ledger in found} == {8}


def test_packed_ledger_keeps_its_lost_entries() -> None:
    """Each such ledger stayed an object for ever, six times as large."""
    random = Random(3)
    packed, twin = ControlState(), ControlState()
    for number in range(1500):
        ledger_id, first = random.randrange(40), random.randrange(200)
        record: Any = random.choice(
            (
                EntriesLost(ledger_id, first, first + random.randrange(4)),
                EntriesLost(ledger_id, first, first, location(1, number)),
                FenceNoted(ledger_id),
                FenceUnsureNoted(ledger_id),
            )
        )
        plain = LedgersNoted(_PLAIN_LEDGER.pack(ledger_id, _PLAIN.pack(KEY, first, 0, random.randrange(4))))
        for state in (packed, twin):
            if number < 40:
                state.replay([MasterKeyNoted(number, KEY)])
            state.replay([record] if ledger_id % 4 == 0 or number % 7 else [plain])
            state.note(array("q", [ledger_id]), array("q", [first]), array("q", [first // 2]), 0)
            if number == 1400:
                state.lose_fences()
        packed.ledgers.rest_all()
        if number % 100 == 0 or number > 1490:
            assert list(packed.ledgers.looks()) == list(twin.ledgers.looks())
    assert sum(bool(ledger.lost) for ledger in twin.ledgers.looks()) == 40
    few = [ledger.ledger_id for ledger in twin.ledgers.looks() if len(ledger.lost) <= _LOST_PACKED_MAX]
    assert few and all(isinstance(packed.ledgers.packed[ledger_id], bytes) for ledger_id in few)
    again = ControlState()
    records = [record for part in packed.records() for record in part]
    again.replay_at_boot(decode_records(encode_records(records), 0))
    by_id = [{one.ledger_id: one for one in state.ledgers.looks()} for state in (again, packed)]
    assert by_id[0] == by_id[1] and again.lost_copies == twin.lost_copies
    assert live_bytes(packed) == live_bytes(twin) == live_bytes(again)


def test_ledger_with_many_lost_entries_is_not_unpacked_for_each_request() -> None:
    state = ControlState()
    state.replay([MasterKeyNoted(5, KEY), *(EntriesLost(5, 2 * i, 2 * i) for i in range(_LOST_PACKED_MAX + 1))])
    state.ledgers.rest_all()
    assert state.ledgers.look(5) is state.ledgers.look(5) is not None


def test_packed_ledger_keeps_its_state(disk: MemoryFileSystem) -> None:
    run = Stepped(config(Path("/disk")), disk)
    run.add(5, 0, 4, last_add_confirmed=3)
    run.fence(5)
    run.add(6, 0, 4)
    run.confirm(6, 4)
    many(run, 3)
    for run_again in range(2):
        fenced, told = run.storage.holdings.ledger(5), run.storage.holdings.ledger(6)
        assert fenced is not None and fenced.fenced and fenced.last_add_confirmed == 3 and fenced.master_key == KEY
        assert told is not None and told.explicit_last_add_confirmed == 4
        assert run.add(5, 5) == [Status.FENCED]
        assert [entry.entry_id for entry in run.read(5, 0, 9)[0]] == [0, 1, 2, 3, 4]
        run.add(6, 5 + run_again)
        run.commit()
        run.restart()


def test_ledger_changes_survive_packing_by_checkpoints(disk: MemoryFileSystem) -> None:
    """A change after a ledger was packed is not lost, whatever the order of checkpoints and adds."""
    random = Random(1)
    run = Stepped(config(Path("/disk")), disk)
    held: dict[int, int] = {}
    for _ in range(200):
        ledger_id = random.randrange(8)
        match random.randrange(6):
            case 0:
                run.checkpoint()
            case 1 if random.randrange(4) == 0:
                run.restart()
            case _:
                run.add(ledger_id, held.get(ledger_id, -1) + 1, last_add_confirmed=held.get(ledger_id, -1))
                run.commit()
                held[ledger_id] = held.get(ledger_id, -1) + 1
        for ledger_id, last in held.items():
            ledger = run.storage.holdings.ledger(ledger_id)
            assert ledger is not None and ledger.last_add_confirmed == last - 1
            assert run.storage.holdings.last_entry_id(ledger_id) == last


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damaged_checkpoint_part_is_never_merged_into_a_new_part(tmp_path: Path, damage: str) -> None:
    """A merge verifies the checksum of each part it reads; after damage the next checkpoint holds everything."""
    with without_threads():
        run = Stepped(config(tmp_path), RealFileSystem())
        run.add(5, 0)
        run.add(6, 0)
        run.commit()
        run.checkpoint()
        [part] = tmp_path.glob("checkpoint.0*")
        content = bytearray(part.read_bytes())
        content[24] ^= 1
        if damage == "gone":
            part.unlink()
        else:
            part.write_bytes(content if damage == "flip" else content[:-8])
        run.add(5, 1)
        run.commit()
        run.checkpoint()
        run.add(6, 1)
        run.commit()
        run.checkpoint()
        found = read_checkpoint(run.files, str(tmp_path))
        assert found is not None
        assert {kept.ledger_id: list(kept.rows.first) for kept in found.ledgers} == {5: [0, 1], 6: [0, 1]}
        for ledger_id in range(7, 100):
            run.add(ledger_id, 0)
        for entry_id in (2, 3):
            run.add(5, entry_id)
            run.commit()
            run.checkpoint()
        found = read_checkpoint(run.files, str(tmp_path))
        assert found is not None and len(found.parts or ()) == 2, "and the ones after it what changed"
        run.storage.close()


def test_checkpoint_that_cannot_be_opened_costs_a_scan_and_no_directory(tmp_path: Path) -> None:
    with without_threads():
        run = Stepped(config(tmp_path), RealFileSystem())
        run.add(5, 0)
        run.commit()
        run.checkpoint()
        run.storage.close()
        run = Stepped(config(tmp_path), FaultyFileSystem(RealFileSystem(), "open */checkpoint 1 io-error"))
        assert list(run.storage.holdings.index.ledger_ids()) == [5]
        run.storage.close()


def test_next_checkpoint_includes_the_changes_of_a_failed_checkpoint(tmp_path: Path) -> None:
    with without_threads():
        files = FaultyFileSystem(RealFileSystem(), "write */checkpoint.new 2..3 no-space")
        run = Stepped(config(tmp_path), files)
        for entry_id in range(6):
            run.add(5 + entry_id, entry_id)
            run.commit()
            run.checkpoint()
        found = read_checkpoint(files, str(tmp_path))
        assert found is not None
        assert {kept.ledger_id: kept.rows.last_entry_id for kept in found.ledgers} == {5 + i: i for i in range(6)}
        assert len(list(tmp_path.glob("checkpoint*"))) == 1 + len(found.parts or ())
        run.storage.close()


def test_control_log_does_not_grow_over_restarts(disk: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A boot, too, knows which records are superseded."""
    monkeypatch.setattr("bookspark.store.bookie.disk.control_log._REWRITE_BYTES_MIN", 1000)
    run = Stepped(config(Path("/disk")), disk)
    run.add(5, 0)
    run.commit()
    sizes = []
    for uptime in range(6):
        for lac in range(60):
            run.confirm(5, 60 * uptime + lac)
            run.commit()
        run.checkpoint()
        sizes.append(len(disk.files()["/disk/control.log"]))
        run.restart()
    assert max(sizes) < 4000, sizes


@pytest.mark.acceptance
def test_boot_scan_memory_does_not_grow_with_frames_or_logs(tmp_path: Path) -> None:
    """Each frame without a checkpoint took 64 bytes until all logs were scanned, and each log was read as a whole."""

    def scanned(name: str, frames: int) -> tuple[int, int]:
        """The peak bytes of a boot, and the bytes of its log. All frames are equal, so the index has one row."""
        settings = config(tmp_path / name, entry_log_bytes_max=1 << 30)
        Storage(settings).open().close()
        disk = RealFileSystem()
        entry_log = EntryLog(disk, str(tmp_path / name), 1)
        entry_log.create(1)
        frame = add_frame(5, 0, payload=b"p" * 500)
        for at in range(0, frames, 1000):
            entry_log.write([frame] * 1000, len(SCHEMA) + at * len(frame))
        entry_log.sync(size := len(SCHEMA) + frames * len(frame))
        entry_log.seal()
        tracemalloc.start()
        try:
            storage = Storage(settings).open()
            return tracemalloc.get_traced_memory()[1], size
        finally:
            tracemalloc.stop()
            rows = storage.holdings.index.get(5)
            assert rows is not None and len(rows) == 1

    few, some = scanned("few", 8_000)
    many, more = scanned("many", 24_000)
    assert some > 8 << 20 and more > 24 << 20
    assert many - few < 160_000, "less than ten bytes a frame"
