"""A disk that is read-only at a start: the bookie serves what is there, loses nothing, and goes on once it can write."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.protocol.ledger.responses import Negative
from bookspark.servers.daemon.bookie_process import why_lossy
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.disk.file_system import FileSystem
from bookspark.store.wire.header import Status
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import everything_kept, nothing_kept
from tests.store.bookie.kit import Pumped, config

ONE, TWO = config(Path("/a")), config(Path("/a"), Path("/b"))
ROWS = range(10)


def filled(settings: BookieConfig, disk: FileSystem) -> Pumped:
    """Entries 0 to 9 of the ledgers 4 and 5, and a fence of ledger 7."""
    bookie = Pumped(settings, disk)
    bookie.storage.lossy_boots.note_first_mark(3)
    for ledger_id in (4, 5):
        assert bookie.add(ledger_id, 0, 9) is Status.OK
    bookie.fence(7)
    return bookie


def serves(bookie: Pumped) -> None:
    assert not why_lossy(bookie.storage.lossy_boots, ())
    bookie.storage.lossy_boots.end_absence()
    bookie.storage.lossy_boots.note_first_mark(20)
    for ledger_id in (4, 5):
        assert bookie.ids(ledger_id) == list(ROWS) == [entry.entry_id for entry in bookie.read(ledger_id, 0, 9)[0]]
        assert isinstance(bookie.read(ledger_id, 10, 10)[1], Negative)
    ledger = bookie.storage.holdings.ledger(7)
    assert ledger is not None and ledger.fenced and bookie.storage.lossy_boots.mark.boot == 0


def look(bookie: Pumped) -> None:
    for directory, used in bookie.storage.disks.measure():
        bookie.steps(bookie.storage.disks.look(directory, used))
    bookie.run(bookie.storage.settle)


@pytest.mark.parametrize("ended", ["a clean stop", "a kill", "a power cut"])
@pytest.mark.parametrize(
    ("settings", "read_only"), [(ONE, ("/a",)), (TWO, ("/a",)), (TWO, ("/b",)), (TWO, ("/a", "/b"))]
)
def test_bookie_starts_on_read_only_disks_and_goes_on_once_they_take_writes(
    settings: BookieConfig, read_only: tuple[str, ...], ended: str
) -> None:
    """The disk counted as lost: the boot was lossy, and all open ledgers of the bookie were fenced and in limbo."""
    disk = MemoryFileSystem("/a", "/b")
    bookie = filled(settings, disk)
    if ended == "a clean stop":
        bookie.storage.close()
    disk = disk.crashed(nothing_kept if ended == "a power cut" else everything_kept)
    disk.read_only = read_only
    before = {path: content for path, content in disk.files().items() if path.startswith(read_only)}
    bookie = Pumped(settings, disk)
    serves(bookie)
    every = len(read_only) == len(settings.directories)
    (why, *_) = bookie.storage.status().reasons
    assert "read-only" in why and "mount it for writing" in why
    assert bookie.storage.disks.read_only is every
    assert {bookie.add(ledger_id, 10) for ledger_id in (4, 5)} == {Status.READ_ONLY if every else Status.OK}
    look(bookie)
    bookie.checkpoint()
    assert {path: content for path, content in disk.files().items() if path.startswith(read_only)} == before
    disk.read_only = ()
    look(bookie)
    assert bookie.storage.status().reasons == [] and not bookie.storage.disks.read_only
    for ledger_id in (4, 5):
        assert bookie.add(ledger_id, 10) is bookie.add(ledger_id, 11) is Status.OK
    bookie.fence(5)
    for _ in range(2):
        disk = disk.crashed(nothing_kept)
        bookie = Pumped(settings, disk)
        assert not why_lossy(bookie.storage.lossy_boots, ())
        assert bookie.ids(4) == bookie.ids(5) == [*ROWS, 10, 11]
        assert bookie.storage.holdings.ledger(5).fenced and bookie.storage.holdings.ledger(7).fenced
        bookie.storage.close()


@pytest.mark.parametrize(("settings", "read_only"), [(ONE, ("/a",)), (TWO, ("/a",)), (TWO, ("/a", "/b"))])
def test_disk_that_is_read_only_for_a_while_takes_writes_again(
    settings: BookieConfig, read_only: tuple[str, ...]
) -> None:
    """The seal of its log failed, which retired the directory until the next start, and the last one ended the bookie."""
    disk = MemoryFileSystem("/a", "/b")
    bookie = filled(settings, disk)
    told: list[str] = []
    bookie.storage.when_none_is_left(told.append)
    disk.read_only = read_only
    every = len(read_only) == len(settings.directories)
    for entry_id in (10, 11):
        statuses = {bookie.add(ledger_id, entry_id) for ledger_id in (4, 5)}
        assert statuses <= {Status.OK, Status.READ_ONLY} and (not every or statuses == {Status.READ_ONLY})
    look(bookie)
    for ledger_id in (4, 5):
        assert [entry.entry_id for entry in bookie.read(ledger_id, 0, 9)[0]] == list(ROWS)
    assert not told and len(bookie.storage.live) == len(settings.directories)
    disk.read_only = ()
    for _ in range(2):
        look(bookie)
    assert bookie.storage.status().reasons == []
    for ledger_id in (4, 5):
        assert [bookie.add(ledger_id, entry_id) for entry_id in (10, 11, 12)] == [Status.OK] * 3
    again = Pumped(settings, disk.crashed(nothing_kept))
    assert not why_lossy(again.storage.lossy_boots, ())
    assert again.ids(4) == again.ids(5) == list(range(13))


def test_fence_that_no_disk_takes_is_not_promised() -> None:
    disk = MemoryFileSystem("/a")
    filled(ONE, disk).storage.close()
    disk.read_only = ("/a",)
    bookie = Pumped(ONE, disk)
    told: list[int] = []
    bookie.run(
        lambda done: bookie.storage.fence(
            4, bookie.storage.holdings.ledger(4).master_key, lambda status: (told.append(status), done(status))
        )
    )
    assert told and told[0] != Status.OK
