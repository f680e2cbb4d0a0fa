"""Durability of answers: for each sync and note behind an answer, a test that fails without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_boot import phase_one
from bookspark.protocol.bookie.bookie_ledger import ENTRY_LOST
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.ledger.responses import Negative
from bookspark.servers.daemon.directories import read_cookie, write_cookie
from bookspark.store.bookie.commit.commit_thread import SyncWritten
from bookspark.store.bookie.disk.control_log import control_note
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.disk.index import log_of, position_of
from bookspark.store.bookie.disk.synced_note import SyncedNote
from bookspark.store.bookie.steps import run_steps
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import everything_kept, nothing_kept
from tests.store.bookie.kit import KEY, config
from tests.store.bookie.stepped import Stepped, without_threads
from tests.store.metadata.kit import ledger

JOURNAL = config(Path("/disk"), entry_log_bytes_max=1500)
TWO_DISKS = config(Path("/disk0"), Path("/disk1"))
NO_JOURNAL = config(
    Path("/disk"), journal_write_data=False, background_sync_interval_ms=3_600_000, background_sync_bytes=1 << 30
)
LOG = "/disk/logs/00000001.arrows"


@pytest.fixture(autouse=True)
def stepped():
    with without_threads():
        yield


@pytest.fixture
def no_seconds(monkeypatch):
    """The passing of a second does not make notes durable."""
    monkeypatch.setattr("bookspark.store.bookie.commit.commit_thread._NOTE_SECONDS", 1e9)


def noted(disk, number=1):
    """The position in a log's note after a power cut that loses all unsynced data."""
    after = disk.crashed(nothing_kept)
    if not number:
        return control_note(after, "/disk")[1].read()
    return SyncedNote(after, f"/disk/logs/{number:08x}.synced", number).read()


def ids(storage, ledger_id):
    return [entry.entry_id for entry in storage.read(ledger_id, 0, 99)[0]]


def held(storage, ledger_id):
    """The ranges that the bookie reports as held; empty until it answers."""
    told = []
    storage.storage.held_ranges(ledger_id, told.append)
    return told


# -- the tail of a log


def test_boot_rewrites_a_tail_left_clean_by_a_failed_sync_before_serving():
    """The page cache considers the tail written: without a new write, the boot's sync does nothing (fsyncgate)."""
    disk = MemoryFileSystem("/disk")
    run = Stepped(JOURNAL, FaultyFileSystem(disk, "sync *.arrows 2 write-back:1"))
    run.add(5, 0)
    run.commit()
    failed = run.add(5, 1)
    run.commit()
    assert failed == [Status.IO_ERROR]
    assert disk.crashed(everything_kept).files()[LOG] != disk.files()[LOG], "the disk does not have it all"
    again = Stepped(JOURNAL, disk)
    assert ids(again, 5) == [0, 1] and held(again, 5) == [[(0, 1)]]
    after = Stepped(JOURNAL, disk.crashed(nothing_kept))
    assert ids(after, 5) == [0, 1] and not after.storage.holdings.damaged


def test_boot_syncs_an_unsynced_tail_before_serving():
    disk = MemoryFileSystem("/disk")
    run = Stepped(NO_JOURNAL, disk)
    run.add(5, 0, 3)
    run.commit()
    again = Stepped(NO_JOURNAL, disk)
    assert ids(again, 5) == [0, 1, 2, 3] and held(again, 5) == [[(0, 3)]]
    after = Stepped(NO_JOURNAL, disk.crashed(nothing_kept))
    assert ids(after, 5) == [0, 1, 2, 3] and not after.storage.holdings.damaged


# -- several logs


@pytest.mark.parametrize(
    "settings", [JOURNAL, config(Path("/disk"), journal_write_data=False, entry_log_bytes_max=1500)]
)
def test_all_logs_of_a_group_are_synced(settings):
    disk = MemoryFileSystem("/disk")
    run = Stepped(settings, disk)
    statuses = [run.add(5, entry_id, payload=bytes(400)) for entry_id in range(9)]
    run.commit()
    assert statuses == [[Status.OK]] * 9
    assert len([path for path in disk.files() if path.endswith(".arrows")]) > 2
    if not settings.journal_write_data:
        # Early acknowledged entries are durable at the latest when the bookie has stopped.
        run.storage.close()
    after = Stepped(settings, disk.crashed(nothing_kept))
    assert ids(after, 5) == list(range(9)) and held(after, 5) == [[(0, 8)]]
    assert not after.storage.holdings.damaged and not after.storage.lossy_boots.unclean


def stopped_without_room(*rules):
    """Stop a bookie that acknowledged entries 0 to 3 before their sync and has no room for the next entry. Returns the disk
    after a power cut."""
    disk = MemoryFileSystem("/disk")
    files = FaultyFileSystem(disk)
    run = Stepped(NO_JOURNAL, files)
    acknowledged = run.add(5, 0, 3)
    run.commit()
    for rule in ("write */logs/*.arrows 1.. no-space", *rules):
        files.add(rule)
    refused = run.add(5, 4)
    run.storage.close()
    assert (acknowledged, refused) == ([Status.OK], [Status.READ_ONLY])
    return disk.crashed(nothing_kept)


def test_bookie_stopping_without_room_syncs_its_acknowledged_entries():
    after = Stepped(NO_JOURNAL, stopped_without_room())
    assert ids(after, 5) == [0, 1, 2, 3] and not after.storage.lossy_boots.unclean


def test_bookie_stopping_without_room_or_sync_is_unclean_at_the_next_boot():
    after = Stepped(NO_JOURNAL, stopped_without_room("sync */logs/*.arrows 1.. io-error"))
    assert after.storage.lossy_boots.unclean


def test_stopped_bookie_releases_its_reserved_disk_space(tmp_path):
    run = Stepped(config(tmp_path, entry_log_bytes_max=1 << 20), RealFileSystem())
    run.add(5, 0)
    run.commit()
    [directory] = run.storage.holdings.directories
    log = directory.current
    run.storage.close()
    assert (tmp_path / "logs" / "00000001.arrows").stat().st_size == log.end
    assert (tmp_path / "logs" / "00000001.arrows").stat().st_blocks * 512 < 1 << 19
    assert log.file is None


# -- answers after a failure or a stop


def test_add_to_a_retired_directory_is_not_acknowledged():
    """The bookie no longer holds any entry of such a directory."""
    run = Stepped(JOURNAL, MemoryFileSystem("/disk"))
    run.add(5, 0)
    run.commit()
    late = run.add(5, 1)
    [directory] = run.storage.holdings.directories
    run.storage._results._retire(directory, "on purpose")
    run.commit()
    assert late == [Status.IO_ERROR]


def test_stopped_bookie_refuses_adds_and_control_records():
    run = Stepped(JOURNAL, MemoryFileSystem("/disk"))
    run.add(5, 0)
    run.commit()
    run.storage.close()
    told = []
    run.storage._records.settle(told.append)
    run.storage._records.write((), told.append)
    assert told == [Status.IO_ERROR] * 2
    assert run.add(5, 1) == [Status.READ_ONLY]


# -- synced notes


def test_a_note_is_durable_once_its_log_is_sealed(no_seconds):
    """Otherwise, after a power cut, a flipped bit in a sealed log passed for a torn write and was cut off."""
    disk = MemoryFileSystem("/disk")
    run = Stepped(JOURNAL, disk)
    # The first sync of a log makes its note durable.
    run.add(5, 0)
    run.commit()
    behind = noted(disk)
    run.add(5, 1, 2)
    run.commit()
    assert noted(disk) == behind
    run.seal()
    size = len(disk.files()[LOG])
    assert noted(disk) == size
    damaged = disk.crashed(nothing_kept)
    damaged.flip(LOG, size - 9, 3)
    assert not isinstance(Stepped(JOURNAL, damaged).read(5, 2, 2)[1], Negative)


def test_note_is_durable_once_its_control_log_is_rewritten(no_seconds):
    disk = MemoryFileSystem("/disk")
    run = Stepped(JOURNAL, disk)
    for ledger_id in (5, 6):
        run.fence(ledger_id)
    run.commit()
    # The new log already has the record of this write, so it is not appended: only the note shows it.
    run.fence(7)
    run_steps(run.storage._records.rewrite(), lambda: None)
    run.commit()
    size = len(disk.files()["/disk/control.log"])
    assert noted(disk, 0) == size
    number = run.storage.holdings.control.write_number
    assert control_note(disk.crashed(nothing_kept), "/disk")[1].read_write_number() == number
    damaged = disk.crashed(nothing_kept)
    damaged.flip("/disk/control.log", size - 3, 3)
    with pytest.raises(StorageError, match="a fence may lie there"):
        Stepped(JOURNAL, damaged)


@pytest.mark.parametrize("busy", [True, False])
def test_failed_sync_of_a_note_retires_its_directory(busy, monkeypatch):
    """After a failed sync the content of the disk is unknown."""
    now = [0.0]
    monkeypatch.setattr("bookspark.store.bookie.commit.commit_thread.monotonic", lambda: now[0])
    disk = MemoryFileSystem("/disk")
    files = FaultyFileSystem(disk)
    run = Stepped(JOURNAL, files)
    run.add(5, 0)
    run.commit()
    behind = run.add(5, 1)
    run.commit()
    assert behind == [Status.OK]
    files.add("sync *.synced 1 io-error")
    now[0] += 1.5
    [directory] = run.storage.holdings.directories
    if busy:
        run.add(5, 2)
        run.commit()
    else:
        directory.commit._writer.note_idle()
    last = run.add(5, 3)
    run.commit()
    assert last != [Status.OK] and directory.retired


def test_failed_removal_of_the_unclean_marker_retires_its_directory():
    disk = MemoryFileSystem("/disk")
    files = FaultyFileSystem(disk)
    run = Stepped(NO_JOURNAL, files)
    run.add(5, 0)
    run.commit()
    [directory] = run.storage.holdings.directories
    run.seal()
    files.add("unlink */unclean 1 io-error")
    directory.commit._writer.note_idle()
    last = run.add(5, 1)
    run.commit()
    assert last != [Status.OK] and directory.retired


def test_checkpoint_makes_the_notes_durable(no_seconds):
    disk = MemoryFileSystem("/disk")
    run = Stepped(JOURNAL, disk)
    run.add(5, 0)
    run.commit()
    run.add(5, 1, 2)
    run.commit()
    run.fence(5)
    run.commit()
    assert noted(disk) < len(disk.files()[LOG])
    run.checkpoint()
    assert noted(disk) == len(disk.files()[LOG])
    assert noted(disk, 0) == len(disk.files()["/disk/control.log"])


def test_boot_makes_the_notes_durable():
    disk = MemoryFileSystem("/disk")
    run = Stepped(JOURNAL, disk)
    run.add(5, 0)
    run.commit()
    run.fence(5)
    run.add(5, 1, flags=int(Flag.RECOVERY))
    run.commit()
    behind = noted(disk), noted(disk, 0)
    Stepped(JOURNAL, disk)
    sizes = len(disk.files()[LOG]), len(disk.files()["/disk/control.log"])
    assert (noted(disk), noted(disk, 0)) == sizes, "a killed process had written them only"
    assert all(before < now for before, now in zip(behind, sizes, strict=True)), "so this test is about something"


def test_boot_detects_a_truncated_log_below_the_checkpoint():
    disk = MemoryFileSystem("/disk")
    run = Stepped(JOURNAL, disk)
    for entry_id in range(4):
        run.add(5, entry_id, payload=b"x" * 600)
        run.commit()
    run.storage.close()
    assert "/disk/logs/00000002.arrows" in disk.files()
    file = disk.open(LOG, write=True)
    file.truncate(file.size() - 8)
    file.sync()
    again = Stepped(JOURNAL, disk)
    assert not again.storage.holdings.damaged and held(again, 5) == [[(1, 3)]], "nobody has read the log yet"
    assert again.read(5, 0, 0) == ([], ENTRY_LOST)


# -- lossy boots


def after_phase_one(settings, disk):
    run = Stepped(settings, disk)
    boots = run.storage.lossy_boots
    boots.note_lossy_boot(phase_one("bookie-1", [ledger(5, master_key=KEY)], 20, boots.mark))
    return run


def test_acknowledged_healing_survives_a_power_cut():
    disk = MemoryFileSystem("/disk")
    run = after_phase_one(JOURNAL, disk)
    healed = []
    run.storage.lossy_boots.note_healed(1, healed.append)
    run.commit()
    assert healed == [Status.OK]
    boots = Stepped(JOURNAL, disk.crashed(nothing_kept)).storage.lossy_boots
    assert (boots.mark.boot, boots.healed_boot) == (1, 1)


@pytest.mark.parametrize("left", TWO_DISKS.directories)
def test_each_directory_alone_holds_all_records_of_phase_one(left):
    disk = MemoryFileSystem(*TWO_DISKS.directories)
    after_phase_one(TWO_DISKS, disk)
    alone = Stepped(config(Path(left)), disk.crashed(nothing_kept))
    assert alone.storage.lossy_boots.mark[:2] == (1, 20)
    assert alone.storage.holdings.ledger(5).limbo_boot == 1
    assert alone.add(5, 0) == [Status.FENCED]


# -- answers of the commit threads


class Unheard(Stepped):
    """The loop gets no completions from its commit threads until ``listen``."""

    def open(self):
        super().open()
        self.posted = []

    def listen(self):
        while self.posted:
            function, *arguments = self.posted.pop(0)
            function(*arguments)

    def commit(self):
        for directory in self.storage.holdings.directories:
            commit = directory.commit
            while commit.queued:
                commit.commit_queued(lambda *call: self.posted.append(call), self.storage._results.completed)


def test_failed_background_sync_ends_acknowledgements_before_the_loop_knows():
    disk = MemoryFileSystem("/disk")
    run = Unheard(NO_JOURNAL, FaultyFileSystem(disk, "sync *.arrows 1 write-back:1"))
    run.add(5, 0)
    run.commit()
    run.listen()
    assert run.promises.acked_early[5] == {0}
    run.storage._held_copies.submit_behind(
        [next(iter(run.storage.holdings.index.get(5).where))], lambda status: None, SyncWritten
    )
    run.commit()
    later = run.add(5, 1)
    run.commit()
    assert later == []
    run.listen()
    assert later == [Status.IO_ERROR]
    assert run.storage.live == [] and run.add(5, 2) == [Status.READ_ONLY]
    for entry_id in (0, 1):
        found, refusal = run.read(5, entry_id, entry_id)
        assert found == [] and not isinstance(refusal, Negative)


def test_held_ranges_are_reported_only_after_their_sync():
    """Repair and healing count a held entry as a copy."""
    disk = MemoryFileSystem("/disk")
    run = Stepped(NO_JOURNAL, disk)
    assert run.add(5, 0, 3) == []
    run.commit()
    assert run.promises.acked_early[5] == {0, 1, 2, 3}
    told = held(run, 5)
    assert told == []
    run.commit()
    assert told == [[(0, 3)]]
    assert ids(Stepped(NO_JOURNAL, disk.crashed(nothing_kept)), 5) == [0, 1, 2, 3]


# -- reads


@pytest.mark.parametrize("rewritten", [False, True], ids=["as it came", "rewritten"])
def test_misplaced_batch_of_another_ledger_is_damage_and_not_served(rewritten):
    """The disk misplaced a write: the batch is valid by itself."""
    disk = MemoryFileSystem("/disk")
    run = Stepped(JOURNAL, disk)
    run.add(5, 0)
    run.add(6, 0)
    run.commit()
    if rewritten:
        run.seal()
        run.reclaim()
    mine, other = (run.storage.holdings.index.get(ledger_id).row(0) for ledger_id in (5, 6))
    assert mine.size == other.size and log_of(mine.where) == log_of(other.where)
    file = disk.open(run.storage.logs[log_of(mine.where)].path, write=True)
    file.write([file.read(other.size, position_of(other.where))], position_of(mine.where))
    found, refusal = run.read(5, 0, 0)
    assert found == [] and not isinstance(refusal, Negative)
    assert [entry.ledger_id for entry in run.read(6, 0, 0)[0]] == [6]


# -- the cookie


def test_cookie_file_is_synced_before_its_rename_and_the_directory_afterwards(tmp_path, monkeypatch):
    """Otherwise a power cut leaves an empty cookie, or no cookie beside the cookie in the metadata: the bookie stays down."""
    calls = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        "os.fsync",
        lambda descriptor: (calls.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}"))), fsync(descriptor)),
    )
    monkeypatch.setattr("os.rename", lambda source, target: (calls.append(("rename", source)), rename(source, target)))
    cookie = Cookie("bookie-1f", (str(tmp_path),), "instance", "nonce")
    write_cookie(str(tmp_path), cookie)
    temporary = str(tmp_path / "COOKIE.tmp")
    assert calls == [("sync", temporary), ("rename", temporary), ("sync", str(tmp_path))]
    assert read_cookie(str(tmp_path)) == cookie
