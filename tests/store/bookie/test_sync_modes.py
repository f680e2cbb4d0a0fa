"""Adds acknowledged before their sync: of volatile ledgers (VD, BP-14) and of a bookie without a journal (BP-46)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bookspark.protocol.bookie.bookie_ledger import ENTRY_AWAY, NO_SUCH_ENTRY
from bookspark.protocol.ledger.sync_cursor import Assignment, assignment
from bookspark.store.bookie.disk.file_system import RealFileSystem, replace_file
from bookspark.store.bookie.disk.unclean_marker import UncleanMarker
from bookspark.store.bookie.offline.power_loss import lose_unsynced
from bookspark.store.wire.batch_prefix import HEADER_OFFSET
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Flag, Header, Kind, Status, decode
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.store.bookie.kit import (
    KEY,
    OTHER_KEY,
    SECONDS_MAX,
    Client,
    Pumped,
    add_frame,
    config,
    crash_image,
    payloads,
    serving,
)

ALL = Assignment(0)
LATER = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40}
"""Syncs run only on request."""


class ParkedFiles(RealFileSystem):
    """Every sync of an entry log waits until ``go_on`` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.syncs: list[str] = []
        self.waiting = threading.Semaphore(0)

    def open(self, path, *, write=False, create=False):
        file = super().open(path, write=write, create=create)
        if path.endswith(".arrows"):
            sync = file.sync
            parked = _Parked(file)

            def wait_then_sync():
                self.waiting.release()
                assert self.go_on.wait(SECONDS_MAX)
                self.syncs.append(path)
                sync()

            parked.sync = wait_then_sync
            return parked
        return file

    def await_sync(self) -> None:
        """Wait until a sync has begun."""
        assert self.waiting.acquire(timeout=SECONDS_MAX)


class _Parked:
    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)


def volatile_frame(ledger_id, first, last=None, mine=ALL, **options):
    header = Header(Kind.ADD, 0).with_assignment(mine)
    flags = int(options.pop("flags", Flag.NONE)) | int(Flag.VOLATILE)
    return add_frame(ledger_id, first, last, flags=flags, value=header.value, limit=header.limit, **options)


def add_volatile(storage: Pumped, ledger_id: int, first: int, last=None, mine=ALL, **options) -> Status:
    statuses = storage.submit(volatile_frame(ledger_id, first, last, mine, **options))
    storage.wait(lambda: bool(statuses))
    return Status(statuses[0])


def sync(storage: Pumped, ledger_id: int, mine=ALL, key=KEY) -> Status:
    return storage.run(storage.storage.sync, ledger_id, key, mine)


def cursor(storage: Pumped, ledger_id: int, mine=ALL) -> int:
    return storage.storage.volatile.last_add_synced(ledger_id, mine)


def died(directory: Path, target: Path) -> Path:
    """The directory as a bookie's death and the loss of power leave it."""
    crash_image(directory, target)
    lose_unsynced(str(target))
    return target


def marked(directory: Path) -> bool:
    return (directory / "unclean").exists()


# -- VD ledgers


@pytest.fixture
def storage(tmp_path):
    pumped = Pumped(config(tmp_path / "live", **LATER))
    yield pumped
    pumped.storage.close()


def test_only_a_sync_request_advances_last_add_synced(storage):
    assert add_volatile(storage, 5, 0, 9) is Status.OK
    assert cursor(storage, 5) == -1
    assert sync(storage, 5) is Status.OK
    assert cursor(storage, 5) == 9
    assert add_volatile(storage, 5, 10) is Status.OK
    assert cursor(storage, 5) == 9


def test_volatile_add_is_acknowledged_while_the_disk_syncs(tmp_path):
    files = ParkedFiles()
    storage = Pumped(config(tmp_path, **LATER), files)
    assert add_volatile(storage, 5, 0) is Status.OK
    files.go_on.clear()
    synced = []
    storage.storage.sync(5, KEY, ALL, synced.append)
    files.await_sync()
    assert add_volatile(storage, 5, 1) is Status.OK
    assert payloads(storage.read(5, 0, 1)[0]) == [b"00000000:payload", b"00000001:payload"]
    assert synced == []
    files.go_on.set()
    storage.wait(lambda: bool(synced))
    storage.storage.close()


def test_a_sync_that_began_before_an_add_never_covers_it(tmp_path):
    files = ParkedFiles()
    storage = Pumped(config(tmp_path, **LATER), files)
    add_volatile(storage, 5, 0)
    files.go_on.clear()
    synced = []
    storage.storage.sync(5, KEY, ALL, lambda status: synced.append((status, cursor(storage, 5))))
    files.await_sync()
    add_volatile(storage, 5, 1)
    files.go_on.set()
    storage.wait(lambda: bool(synced))
    assert synced == [(Status.OK, 0)]
    assert sync(storage, 5) is Status.OK
    assert cursor(storage, 5) == 1
    storage.storage.close()


def test_power_cut_loses_exactly_the_entries_above_last_add_synced(storage, tmp_path):
    add_volatile(storage, 5, 0, 9)
    sync(storage, 5)
    add_volatile(storage, 5, 10, 19)
    again = Pumped(config(died(tmp_path / "live", tmp_path / "dead"), **LATER))
    assert again.ids(5) == list(range(10))
    assert again.read(5, 10, 10)[1] == NO_SUCH_ENTRY
    assert not marked(tmp_path / "dead"), "an ack of a VD ledger is no promise"
    add_volatile(again, 5, 30)
    assert cursor(again, 5) == 9, "what the replay found is synced"
    again.storage.close()


def test_killed_process_loses_no_acknowledged_entry(storage, tmp_path):
    add_volatile(storage, 5, 0, 9)
    crash_image(tmp_path / "live", tmp_path / "killed")  # the page cache outlives a process
    again = Pumped(config(tmp_path / "killed", **LATER))
    assert again.ids(5) == list(range(10))
    again.storage.close()


def test_last_add_synced_stops_at_a_gap_and_passes_the_filled_gap(storage):
    add_volatile(storage, 5, 0)
    add_volatile(storage, 5, 2, 3)
    assert sync(storage, 5) is Status.OK
    assert cursor(storage, 5) == 0
    add_volatile(storage, 5, 1)
    sync(storage, 5)
    assert cursor(storage, 5) == 3


def test_last_add_synced_of_a_striped_ledger_skips_entries_of_other_bookies(storage):
    mine = assignment(0, 3, 2, 1)  # holds ids 0, 1, 3, 4, 6, …
    for first in (0, 1, 3, 4):
        add_volatile(storage, 5, first, mine=mine)
    sync(storage, 5, mine)
    assert cursor(storage, 5, mine) == 5
    assert cursor(storage, 5, ALL) == -1, "that is not the assignment it is kept for"


def test_lac_of_an_add_does_not_advance_last_add_synced(storage):
    add_volatile(storage, 5, 3, last_add_confirmed=2)
    sync(storage, 5)
    assert cursor(storage, 5) == -1
    assert storage.storage.holdings.ledger(5).last_add_confirmed == 2


def test_duplicate_counts_as_synced_once_the_kept_copy_is(storage):
    add_volatile(storage, 5, 0, 3)
    elsewhere = Assignment(0, 3, 2, 0)
    assert add_volatile(storage, 5, 0, 3, mine=elsewhere) is Status.OK
    assert cursor(storage, 5, elsewhere) == -1
    assert sync(storage, 5, elsewhere) is Status.OK
    assert cursor(storage, 5, elsewhere) == 4


def test_late_request_of_an_earlier_assignment_does_not_reset_last_add_synced(storage):
    """Each change of the bookie's assignment began the cursor anew, without the entries synced by then: it never advanced, and
    the writer requested syncs again and again."""
    earlier, present = Assignment(0, 3, 2, 0), Assignment(0, 3, 2, 2)
    for entry_id in (1, 2):
        add_volatile(storage, 5, entry_id, mine=present)
    assert sync(storage, 5, present) is Status.OK
    assert cursor(storage, 5, present) == 3
    assert add_volatile(storage, 5, 0, mine=earlier) is Status.OK
    assert sync(storage, 5, present) is Status.OK
    assert cursor(storage, 5, present) == 3
    assert cursor(storage, 5, earlier) == -1, "that is not the assignment it is kept for"


def test_sync_begun_before_a_fence_is_refused_after_it(tmp_path):
    files = ParkedFiles()
    storage = Pumped(config(tmp_path, **LATER), files)
    add_volatile(storage, 5, 0)
    files.go_on.clear()
    statuses = []
    storage.storage.sync(5, KEY, ALL, statuses.append)
    files.await_sync()
    fenced = []
    storage.storage.fence(5, KEY, fenced.append)
    files.go_on.set()
    storage.wait(lambda: bool(statuses))
    assert statuses == [Status.FENCED]
    assert sync(storage, 5) is Status.FENCED
    assert cursor(storage, 5) == -1, "nothing is told of a fenced ledger"
    assert sync(storage, 6, key=OTHER_KEY) is Status.OK
    storage.storage.close()


def test_sync_with_a_wrong_password_is_refused(storage):
    add_volatile(storage, 5, 0)
    assert sync(storage, 5, key=OTHER_KEY) is Status.UNAUTHORIZED


@pytest.mark.parametrize(
    "options",
    [{"background_sync_interval_ms": 20}, {"background_sync_bytes": 2000, "background_sync_interval_ms": 10**6}],
)
def test_volatile_adds_are_synced_soon_in_the_background(tmp_path, options):
    files = ParkedFiles()
    storage = Pumped(config(tmp_path, **options), files)
    for entry_id in range(10):
        add_volatile(storage, 5, entry_id)
    storage.wait(lambda: cursor(storage, 5) >= 5)
    storage.storage.close()


def test_volatile_bytes_are_in_flight_until_their_sync(storage):
    frames = [volatile_frame(5, i) for i in range(10)]
    statuses = [storage.submit(frame) for frame in frames]
    storage.wait(lambda: all(statuses))
    assert storage.storage.bytes_in_flight == sum(map(len, frames)), "so that the server takes no more than is allowed"
    sync(storage, 5)
    assert storage.storage.bytes_in_flight == 0


def test_persistent_add_beside_volatile_adds_is_synced_before_its_acknowledgement(storage, tmp_path):
    add_volatile(storage, 5, 0)
    assert storage.add(6, 0) is Status.OK
    dead = Pumped(config(died(tmp_path / "live", tmp_path / "dead")))
    assert dead.ids(6) == [0]
    assert cursor(storage, 5) == 0, "the sync covered the volatile one as well"


def test_full_log_is_synced_before_the_next_log_begins(tmp_path):
    storage = Pumped(config(tmp_path / "live", entry_log_bytes_max=3000, **LATER))
    for entry_id in range(40):
        add_volatile(storage, 5, entry_id, payload=b"x" * 200)
    logs = sorted((tmp_path / "live" / "logs").glob("*.arrows"))
    assert len(logs) > 3
    again = Pumped(config(died(tmp_path / "live", tmp_path / "dead")))
    held = again.ids(5)
    assert held == list(range(len(held))) and 0 < 40 - len(held) < 40 / (len(logs) - 1)
    storage.storage.close()


def test_a_failed_background_sync_retires_the_directory(storage, tmp_path, monkeypatch):
    add_volatile(storage, 5, 0)
    sync(storage, 5)
    add_volatile(storage, 5, 1)

    def fail(*arguments):
        raise OSError(5, "Input/output error (on purpose)")

    monkeypatch.setattr("bookspark.store.bookie.disk.entry_log.EntryLog.sync_beside", fail)
    assert sync(storage, 5) is Status.IO_ERROR
    assert storage.read(5, 1, 1) == ([], ENTRY_AWAY), "an acked entry that may be lost is never absent"
    assert sync(storage, 5) is Status.IO_ERROR, "and the writer is told, so that it looks for another bookie"
    storage.storage.volatile.forget(5)
    assert sync(storage, 5) is Status.IO_ERROR, "also when the cursor is made anew"
    assert storage.add(7, 0) is Status.READ_ONLY
    assert storage.storage.bytes_in_flight == 0


# -- without a journal


@pytest.fixture
def relaxed(tmp_path):
    pumped = Pumped(config(tmp_path / "live", journal_write_data=False, **LATER))
    yield pumped
    pumped.storage.close()


def test_add_without_a_journal_is_acknowledged_before_its_sync_and_marks_the_directory(relaxed, tmp_path):
    assert not marked(tmp_path / "live")
    assert relaxed.add(5, 0, 4) is Status.OK
    assert marked(tmp_path / "live")
    dead = Pumped(config(died(tmp_path / "live", tmp_path / "dead")))
    assert dead.ids(5) == [] and marked(tmp_path / "dead")
    assert dead.storage.lossy_boots.unclean == [str(tmp_path / "dead")]


def test_unclean_marker_is_durable_before_the_first_acknowledgement(tmp_path, monkeypatch):
    order = []

    def noted(*arguments):
        replace_file(*arguments)
        order.append("marked")

    monkeypatch.setattr("bookspark.store.bookie.disk.unclean_marker.replace_file", noted)
    storage = Pumped(config(tmp_path, journal_write_data=False, **LATER))
    header, crc = decode(frame := add_frame(5, 0), HEADER_OFFSET)
    storage.storage.add(header, EntryBatch.checked(frame, header, crc), lambda status: order.append("acked"))
    storage.wait(lambda: "acked" in order)
    assert order == ["marked", "acked"]
    storage.storage.close()


def test_recovery_add_is_synced_before_its_acknowledgement(relaxed, tmp_path):
    relaxed.fence(5)
    assert relaxed.add(5, 0, 4, flags=int(Flag.RECOVERY)) is Status.OK
    assert not marked(tmp_path / "live")
    dead = Pumped(config(died(tmp_path / "live", tmp_path / "dead")))
    assert dead.ids(5) == list(range(5))
    assert dead.add(5, 9) is Status.FENCED


def test_recovery_duplicate_waits_for_the_sync_of_the_kept_copy(relaxed, tmp_path):
    relaxed.add(5, 0, 4)
    assert relaxed.add(5, 2, 3, flags=int(Flag.RECOVERY)) is Status.OK
    dead = Pumped(config(died(tmp_path / "live", tmp_path / "dead")))
    assert dead.ids(5) == list(range(5))


def test_recovery_add_held_in_part_waits_for_the_sync_of_the_kept_part(relaxed, tmp_path):
    relaxed.add(5, 0, 4)
    assert relaxed.add(5, 3, 7, flags=int(Flag.RECOVERY)) is Status.OK
    dead = Pumped(config(died(tmp_path / "live", tmp_path / "dead")))
    assert dead.ids(5) == list(range(8))


def test_duplicate_of_the_writer_waits_for_no_sync(relaxed, tmp_path):
    statuses = relaxed.submit(add_frame(5, 0)), relaxed.submit(add_frame(5, 0))
    relaxed.wait(lambda: all(statuses))
    assert statuses == ([Status.OK], [Status.OK]) and marked(tmp_path / "live")
    assert Pumped(config(died(tmp_path / "live", tmp_path / "dead"))).ids(5) == []


def test_fences_and_lacs_are_synced_without_a_journal(relaxed, tmp_path):
    relaxed.add(5, 0)
    relaxed.run(relaxed.storage.write_last_add_confirmed, 5, KEY, 0)
    relaxed.fence(5)
    dead = Pumped(config(died(tmp_path / "live", tmp_path / "dead")))
    assert dead.add(5, 1) is Status.FENCED
    assert dead.storage.holdings.ledger(5).last_add_confirmed == 0


def test_a_clean_stop_leaves_no_marker_and_loses_nothing(tmp_path):
    storage = Pumped(config(tmp_path / "live", journal_write_data=False, **LATER))
    storage.add(5, 0, 9)
    storage.storage.close()
    assert not marked(tmp_path / "live")
    again = Pumped(config(died(tmp_path / "live", tmp_path / "dead")))
    assert again.ids(5) == list(range(10)) and again.storage.lossy_boots.unclean == []


def test_idle_synced_directory_loses_its_unclean_marker(tmp_path, monkeypatch):
    monkeypatch.setattr("bookspark.store.bookie.commit.commit_thread._IDLE_SECONDS", 0.05)
    cleared = threading.Event()
    clear = UncleanMarker.clear
    monkeypatch.setattr(UncleanMarker, "clear", lambda marker: (clear(marker), cleared.set()))
    storage = Pumped(config(tmp_path / "live", journal_write_data=False, background_sync_interval_ms=10))
    storage.add(5, 0, 9)
    assert cleared.wait(SECONDS_MAX)
    assert not marked(tmp_path / "live")
    assert storage.add(5, 10) is Status.OK
    assert marked(tmp_path / "live"), "made again"
    storage.storage.close()


def test_unclean_marker_from_before_the_boot_survives_a_clean_stop(relaxed, tmp_path):
    relaxed.add(5, 0)
    dead = died(tmp_path / "live", tmp_path / "dead")
    again = Pumped(config(dead, journal_write_data=False))
    again.add(6, 0)
    again.storage.close()
    assert marked(dead), "it is for phase one of the lossy boot to take away"


def test_unclean_marker_stays_if_the_last_sync_fails(relaxed, tmp_path, monkeypatch):
    relaxed.add(5, 0)

    def fail(*arguments):
        raise OSError(5, "Input/output error (on purpose)")

    monkeypatch.setattr("bookspark.store.bookie.disk.entry_log.EntryLog.sync", fail)
    relaxed.storage.close()
    assert marked(tmp_path / "live")


@pytest.mark.parametrize(("boot_id", "unclean"), [("one", False), ("two", True), ("", True)])
def test_trusted_boot_id_distinguishes_a_killed_process_from_a_host_crash(tmp_path, boot_id, unclean):
    storage = Pumped(config(tmp_path / "live", journal_write_data=False, **LATER), boot_id="one")
    storage.add(5, 0)
    crash_image(tmp_path / "live", tmp_path / "killed")
    again = Pumped(config(tmp_path / "killed"), boot_id=boot_id)
    assert bool(again.storage.lossy_boots.unclean) is unclean
    assert again.ids(5) == [0]
    storage.storage.close()


def test_a_boot_id_is_not_trusted_after_a_failed_sync(tmp_path, monkeypatch):
    storage = Pumped(config(tmp_path / "live", journal_write_data=False, **LATER), boot_id="one")
    storage.add(5, 0)

    def fail(*arguments):
        raise OSError(5, "Input/output error (on purpose)")

    with monkeypatch.context() as patch:
        patch.setattr("bookspark.store.bookie.disk.entry_log.EntryLog.sync", fail)
        storage.add(5, 1, flags=int(Flag.RECOVERY))
    again = Pumped(config(tmp_path / "live"), boot_id="one")
    assert again.storage.lossy_boots.unclean


@pytest.mark.parametrize("frame", [add_frame, volatile_frame])
def test_full_disk_loses_no_entry_acknowledged_before_its_sync(tmp_path, frame):
    files = FaultyFileSystem(RealFileSystem(), "write */logs/*.arrows 4.. no-space")
    storage = Pumped(config(tmp_path / "live", journal_write_data=False, **LATER), files)
    for entry_id in range(2):
        statuses = storage.submit(frame(5, entry_id))
        storage.wait(lambda answers=statuses: bool(answers))
        assert statuses == [Status.OK]
    first = storage.submit(frame(5, 2))
    while storage.unheard == 0:
        pass  # until the disk's thread is done; the loop does not know yet
    second = storage.submit(frame(5, 3))
    storage.wait(lambda: bool(first and second))
    assert first == second == [Status.READ_ONLY]
    assert storage.ids(5) == [0, 1]
    files.clear()
    for directory, used in storage.storage.disks.measure():
        storage.steps(storage.storage.disks.look(directory, used))
    assert storage.run(storage.storage.settle) is Status.OK
    assert storage.add(6, 0, flags=int(Flag.RECOVERY)) is Status.OK
    assert storage.storage.bytes_in_flight == 0
    assert Pumped(config(died(tmp_path / "live", tmp_path / "dead"))).ids(5) == [0, 1]
    storage.storage.close()


# -- on the wire


def test_every_answer_to_the_writer_of_a_vd_ledger_has_last_add_synced(tmp_path):
    with serving(config(tmp_path, **LATER)) as (_, address):
        client = Client(address)
        client.send(volatile_frame(5, 0, 9))
        answer = client.receive().header
        assert (answer.status, answer.last_add_synced, answer.incarnation) == (Status.OK, -1, 77)
        request = Header(Kind.SYNC, 0, 5, master_key=KEY).with_assignment(ALL)
        answer = client.call(request).header
        assert (answer.kind, answer.status, answer.last_add_synced, answer.incarnation) == (Kind.SYNC, 0, 9, 77)
        client.send(volatile_frame(5, 10))
        assert client.receive().header.last_add_synced == 9
        assert client.add(5, 11).last_add_synced == -1
        assert client.call(request._replace(limit=0)).header.status == Status.BAD_REQUEST
        client.send(add_frame(5, 12, flags=int(Flag.VOLATILE)))
        assert client.receive().header.status == Status.BAD_REQUEST
        fenced = client.call(Header(Kind.READ_LAC, 0, 5, master_key=KEY, flags=int(Flag.FENCE)))
        assert fenced.header.status == Status.OK
        answer = client.call(request).header
        assert (answer.status, answer.last_add_synced) == (Status.FENCED, -1)
        client.close()


def test_explicit_lac_carries_the_lafr(tmp_path):
    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        client.add(5, 0, 9)
        told = Header(Kind.WRITE_LAC, 0, 5, last_add_confirmed=8, last_add_fully_replicated=6, master_key=KEY)
        client.call(told)
        answer = client.call(Header(Kind.READ_LAC, 0, 5, master_key=KEY)).header
        assert (answer.last_add_confirmed, answer.last_add_fully_replicated) == (8, 6)
        client.close()
