"""Directories of a bookie that were used separately: data of one is never taken for data of the other."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_boot import phase_one
from bookspark.servers.daemon.bookie_process import why_lossy
from bookspark.store.bookie.disk.file_system import replace_file
from bookspark.store.bookie.storage import Storage
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import nothing_kept
from tests.store.bookie.flips import flip
from tests.store.bookie.kit import config
from tests.store.bookie.stepped import Stepped, without_threads
from tests.store.bookie.test_losses_at_boot import TWO, is_lossy, paths, remove, unknown


@pytest.fixture(autouse=True)
def stepped():
    with without_threads():
        yield


def without(disk: MemoryFileSystem, directory: str) -> FaultyFileSystem:
    """The disk with an unreadable directory."""
    files = FaultyFileSystem(disk)
    files.add(f"* {directory}/* 1.. io-error")
    return files


def test_directories_used_separately_share_no_log_number():
    disk = MemoryFileSystem("/disk0", "/disk1")
    small = config(Path("/disk0"), Path("/disk1"), entry_log_bytes_max=1)
    run = Stepped(small, disk)
    for ledger_id in (4, 5):
        run.add(ledger_id, 0)
    run.commit()
    run.storage.close()
    for away, ledger_id in (("/disk0", 6), ("/disk1", 7), ("/disk0", 8), ("/disk1", 9)):
        run = Stepped(small, without(disk, away))
        assert run.storage.lossy_boots.unreadable == [away]
        for entry_id in range(4):
            run.add(ledger_id, entry_id)
        run.commit()
        run.storage.close()
    run = Stepped(small, disk)
    assert len(run.storage.holdings.logs) == 2 + 4 * 4
    for ledger_id in range(6, 10):
        assert [entry.entry_id for entry in run.read(ledger_id, 0, 3)[0]] == [0, 1, 2, 3]
    assert not run.storage.holdings.lost_copies


def test_directories_of_an_earlier_version_with_equal_log_numbers_are_refused():
    disk = MemoryFileSystem("/disk0", "/disk1")
    run = Stepped(TWO, disk)
    run.add(4, 0)
    run.commit()
    run.storage.close()
    copies = [path.replace("/disk0", "/disk1") for path in paths(disk, "/disk0/logs/00000040.")]
    for path in copies:
        replace_file(disk, path, [disk.files()[path.replace("/disk1", "/disk0")]])
    for _ in range(2):
        with pytest.raises(StorageError, match="/disk0 and /disk1 both have a log 00000040"):
            Stepped(TWO, disk)
    remove(disk, *copies)
    assert [entry.entry_id for entry in Stepped(TWO, disk).read(4, 0, 0)[0]] == [0]


def use(disk: MemoryFileSystem, away: str, *fences: int, healed: bool = False, rewritten: bool = False) -> None:
    """Boot without a directory, run phase one and fence ledgers; optionally heal all and rewrite the control log."""
    storage = Storage(TWO, without(disk, away)).open()
    found = phase_one("b1", [], 20, storage.lossy_boots.mark)
    storage.lossy_boots.note_lossy_boot(found, fences_lost=storage.lossy_boots.fences_lost)
    storage.end_phase_one()
    storage.close()
    run = Stepped(TWO, without(disk, away))
    for ledger_id in fences:
        run.fence(ledger_id)
        run.commit()
    if healed:
        run.storage.lossy_boots.note_healed(found.mark.boot, lambda status: None)
        run.commit()
    if rewritten:
        deque(run.storage._records.rewrite(), maxlen=0)
        run.commit()
    run.storage.close()


def test_directories_used_separately_make_boots_lossy_until_phase_one_ends():
    """Both lossy boots have number 1, and the healing of one does not heal the other."""
    disk = MemoryFileSystem("/disk0", "/disk1")
    Stepped(TWO, disk).storage.close()
    use(disk, "/disk0", healed=True)
    use(disk, "/disk1")
    found: list[str] = []
    for _ in range(3):
        storage = Storage(TWO, disk).open()
        found.append(why_lossy(storage.lossy_boots, ()))
        assert not storage.lossy_boots.fences_lost, "together they know of all fences"
        disk = disk.crashed(nothing_kept)
    assert "/disk0 was used without other directories, and they without it" in found[0] and all(found)
    storage = Storage(TWO, disk).open()
    storage.lossy_boots.note_lossy_boot(phase_one("b1", [], 20, storage.lossy_boots.mark))
    assert storage.lossy_boots.mark.boot > 1 >= storage.lossy_boots.healed_boot
    storage.end_phase_one()
    storage.close()
    run = Stepped(TWO, disk)
    assert not is_lossy(run) and unknown(run, 20, 0)


@pytest.mark.parametrize(
    ("before", "rewritten"),
    [("used without it", False), ("used without it", True), ("it failed before", False), ("nothing before", False)],
)
def test_damaged_control_log_of_separately_used_directories_makes_fences_unsure(before, rewritten):
    """The other copy's writes had numbers as high, but they were other writes."""
    disk = MemoryFileSystem("/disk0", "/disk1")
    files = FaultyFileSystem(disk)
    run = Stepped(TWO, files)
    for ledger_id in (4, 5, 6, 7):
        run.add(ledger_id, 0)
    run.commit()
    if before == "it failed before":
        files.add("* /disk0/* 1.. io-error")
        for ledger_id in (4, 6, 8, 9):
            run.fence(ledger_id)
            run.commit()
        files.clear()
    run.storage.close()
    if before == "used without it":
        use(disk, "/disk0", 4, 6, 8, 9, rewritten=rewritten)
    use(disk, "/disk1", 5)
    flip(disk, "/disk0/control.log", len(disk.files()["/disk0/control.log"]) // 2, 1)
    disk.sync_all()
    storage = Storage(TWO, disk).open()
    assert storage.lossy_boots.fences_lost and why_lossy(storage.lossy_boots, ())
