"""Scenarios of one bookie on disks in memory, each from beginning to end.

``test_every_crash``, ``test_every_bit`` and ``test_histories`` try the same at every operation, byte and order;
``test_slow_readers`` has slow readers.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookspark.protocol.bookie.bookie_boot import phase_one
from bookspark.protocol.bookie.bookie_ledger import (
    ENTRY_AWAY,
    ENTRY_LOST,
    IN_LIMBO,
    LOST_AT_BOOT,
    NO_SUCH_ENTRY,
    NO_SUCH_LEDGER,
    STORAGE_DAMAGED,
)
from bookspark.protocol.ledger.responses import Negative
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.servers.daemon.bookie_process import why_lossy
from bookspark.store.bookie.steps import run_steps
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Flag, Header, Kind, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import LOSSES, nothing_kept
from tests.awaiting import await_that
from tests.protocol.ledgers import metadata
from tests.store.bookie.kit import KEY, Client, config, serving
from tests.store.bookie.stepped import Stepped, without_threads

ME = "b1"
ONE = config(Path("/disk"))
TWO = config(Path("/disk0"), Path("/disk1"))
NEVER = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40}
"""Syncs run only on request."""
RECOVERY, VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)
ALONE = Assignment(0)
"""The ledger has an ensemble of one."""
MINUTE_MS = 60_000


@pytest.fixture
def stepped() -> Iterator[None]:
    with without_threads():
        yield


def add(bookie: Stepped, ledger_id: int, first: int, last: int | None = None, **options: Any) -> Status:
    """Add and commit; the add's status."""
    statuses = bookie.add(ledger_id, first, last, **options)
    bookie.commit()
    [status] = statuses
    return Status(status)


def held(bookie: Stepped, ledger_id: int) -> list[int]:
    """Ids of the served entries among the first 60."""
    return [entry_id for entry_id in range(60) if bookie.read(ledger_id, entry_id, entry_id)[0]]


def refusal(bookie: Stepped, ledger_id: int, entry_id: int) -> Any:
    """Why the bookie does not serve an entry."""
    found, why = bookie.read(ledger_id, entry_id, entry_id)
    assert not found
    return why


def lossy(storage: Storage) -> str:
    """Why the boot was lossy, or ""."""
    return why_lossy(storage.lossy_boots, ())


class AfterLoss(Stepped):
    """A bookie whose boot has to be lossy. In the metadata ledger 5 is open and names the bookie; ledger ids go up to 20."""

    def open(self) -> None:
        self.storage = Storage(self._settings, self.files).open()
        assert lossy(self.storage)
        open_ledger = replace(metadata(master_key=KEY), ledger_id=5)
        self.storage.lossy_boots.note_lossy_boot(phase_one(ME, [open_ledger], 20, self.storage.lossy_boots.mark))
        self.storage.end_phase_one()
        self.storage.start(lambda function, *arguments: function(*arguments))


# -- boots


def test_boot_after_clean_stop_has_every_entry_fence_and_lac_and_is_not_lossy(stepped: None) -> None:
    settings = config(Path("/disk"), journal_write_data=False, **NEVER)
    disk = MemoryFileSystem("/disk")
    bookie = Stepped(settings, disk)
    assert add(bookie, 5, 0, 9, last_add_confirmed=3) == Status.OK, "acknowledged before its sync"
    bookie.confirm(5, 7)
    bookie.fence(8)
    bookie.commit()
    bookie.storage.close()
    again = Stepped(settings, disk.crashed(nothing_kept))
    assert not lossy(again.storage), "the stop synced all of it, and power may fail"
    assert held(again, 5) == list(range(10))
    assert refusal(again, 5, 10) == NO_SUCH_ENTRY and refusal(again, 6, 0) == NO_SUCH_LEDGER
    known = again.storage.holdings.ledger(5)
    assert known is not None and known.last_add_confirmed == 7
    assert add(again, 8, 0) == Status.FENCED
    assert add(again, 5, 10) == Status.OK


@pytest.mark.parametrize("power_cut", LOSSES, ids=lambda cut: cut.__name__)
def test_boot_with_torn_tail_keeps_acknowledged_entries_and_drops_or_keeps_whole_adds(stepped: None, power_cut) -> None:
    disk = MemoryFileSystem("/disk")
    files = FaultyFileSystem(disk)
    bookie = Stepped(ONE, files)
    assert add(bookie, 5, 0, 2) == Status.OK
    files.add("sync */logs/*.arrows 1.. io-error")
    assert add(bookie, 5, 3, 5, payload=bytes(300)) == Status.IO_ERROR, "power fails before its sync"
    again = Stepped(ONE, disk.crashed(power_cut))
    assert not lossy(again.storage), "no acknowledged entry is lost"
    assert held(again, 5) in ([0, 1, 2], [0, 1, 2, 3, 4, 5])
    assert refusal(again, 5, 6) == NO_SUCH_ENTRY
    assert add(again, 5, 3, 5, payload=bytes(300)) == Status.OK, "the writer sends it again"
    again.restart()
    assert held(again, 5) == [0, 1, 2, 3, 4, 5]


def test_boot_after_a_lost_directory_denies_nothing_and_admits_only_recovery_adds(stepped: None) -> None:
    disk = MemoryFileSystem("/disk0", "/disk1")
    bookie = Stepped(TWO, disk)
    for ledger_id in (4, 5):
        assert add(bookie, ledger_id, 0, 2) == Status.OK
    bookie.storage.close()

    again = AfterLoss(TWO, FaultyFileSystem(disk, "* /disk1/* 1.. io-error"))
    assert held(again, 4) == [0, 1, 2], "the other directory serves"
    assert refusal(again, 5, 0) == refusal(again, 4, 3) == refusal(again, 21, 0) == STORAGE_DAMAGED
    assert add(again, 5, 3) == Status.FENCED, "what a fenced ledger had in it is to be recovered"
    again.storage.close()

    for path in [path for path in disk.files() if path.startswith("/disk1/")]:
        disk.lose(path)
    again = Stepped(TWO, disk)
    assert held(again, 4) == [0, 1, 2]
    assert refusal(again, 5, 0) == IN_LIMBO, "it was open at the loss"
    assert refusal(again, 6, 0) == LOST_AT_BOOT, "perhaps it had entries"
    assert refusal(again, 21, 0) == NO_SUCH_LEDGER, "it was made after the loss"
    assert add(again, 5, 3) == Status.FENCED
    assert add(again, 5, 0, 1, flags=RECOVERY) == Status.OK
    assert held(again, 5) == [0, 1] and refusal(again, 5, 2) == IN_LIMBO, "it is not repaired yet"
    boots, done = again.storage.lossy_boots, []
    [(ledger_id, boot)] = boots.limbo(0, 9)
    boots.clear_limbo(ledger_id, boot, done.append)
    boots.note_healed(boots.mark.boot, done.append)
    again.commit()
    assert done == [Status.OK, Status.OK]
    assert refusal(again, 5, 2) == NO_SUCH_ENTRY and refusal(again, 6, 0) == NO_SUCH_LEDGER, "all is back"
    assert add(again, 5, 3) == Status.FENCED, "the fence stays"


def test_boot_reads_logs_below_its_checkpoint_only_if_the_checkpoint_is_damaged(stepped: None) -> None:
    disk = MemoryFileSystem("/disk")
    bookie = Stepped(ONE, disk)
    assert add(bookie, 5, 0, 9, last_add_confirmed=3) == Status.OK
    bookie.seal()
    bookie.checkpoint()
    assert add(bookie, 5, 10, last_add_confirmed=9) == add(bookie, 6, 0) == Status.OK
    dead = disk.crashed(nothing_kept)

    files = FaultyFileSystem(dead, "read /disk/logs/00000001.arrows 1.. io-error")
    again = Stepped(ONE, files)
    known = again.storage.holdings.ledger(5)
    assert not lossy(again.storage) and known is not None and known.last_add_confirmed == 9
    assert held(again, 6) == [0] and again.storage.holdings.last_entry_id(5) == 10
    files.clear()
    assert held(again, 5) == list(range(11))

    dead = disk.crashed(nothing_kept)
    dead.flip("/disk/checkpoint", 40, 3)
    again = Stepped(ONE, dead)
    assert not lossy(again.storage)
    assert held(again, 5) == list(range(11)) and held(again, 6) == [0]


# -- disks


def test_entries_of_a_failed_disk_are_away_and_the_other_disk_takes_all_adds(stepped: None) -> None:
    files = FaultyFileSystem(MemoryFileSystem("/disk0", "/disk1"))
    bookie = Stepped(TWO, files)
    assert add(bookie, 4, 0) == add(bookie, 5, 0) == Status.OK
    files.add("sync /disk0/* 1.. io-error")
    assert add(bookie, 4, 1) == Status.IO_ERROR, "perhaps it is on the disk: neither acknowledged nor denied"
    assert list(bookie.storage.status().failed_directories) == ["/disk0"]
    assert refusal(bookie, 4, 0) == refusal(bookie, 4, 1) == ENTRY_AWAY
    assert refusal(bookie, 4, 2) == NO_SUCH_ENTRY
    assert held(bookie, 5) == [0]
    assert add(bookie, 4, 1) == add(bookie, 4, 2) == add(bookie, 5, 1) == Status.OK
    assert held(bookie, 4) == [1, 2] and held(bookie, 5) == [0, 1]
    assert not bookie.storage.status().read_only


def test_full_disk_refuses_writers_serves_reads_and_recovery_and_becomes_writable_again(stepped: None) -> None:
    def look() -> None:
        for directory, used in bookie.storage.disks.measure():
            run_steps(bookie.storage.disks.look(directory, used), bookie.commit)

    bookie = Stepped(config(Path("/disk"), directory_bytes_max=100_000), MemoryFileSystem("/disk"))
    assert add(bookie, 5, 0, 23, payload=bytes(3920)) == Status.OK
    assert add(bookie, 6, 0) == Status.OK
    look()
    assert bookie.storage.status().read_only
    assert add(bookie, 6, 1) == Status.READ_ONLY
    [why] = bookie.storage.status().reasons
    assert "/disk is full" in why and "free some space" in why
    assert held(bookie, 5) == list(range(24))
    assert add(bookie, 6, 0) == Status.OK, "a duplicate needs no space"
    assert add(bookie, 7, 0, flags=RECOVERY) == Status.OK, "space is kept for recovery"
    bookie.fence(7)
    bookie.commit()
    assert bookie.promises.fenced == {7}
    bookie.delete(5)
    bookie.seal()
    bookie.reclaim(0.8)
    look()
    assert not bookie.storage.status().read_only
    assert add(bookie, 6, 1) == Status.OK
    assert held(bookie, 6) == [0, 1] and held(bookie, 7) == [0]


def test_scrub_detects_rot_reports_lost_copies_and_accepts_new_copies(stepped: None) -> None:
    disk = MemoryFileSystem("/disk")
    bookie = Stepped(ONE, disk)
    for entry_id in range(4):
        assert add(bookie, 5, entry_id, payload=b"rot %d" % entry_id) == Status.OK
    bookie.checkpoint()
    [log] = [path for path in disk.files() if path.endswith(".arrows")]
    disk.flip(log, disk.files()[log].index(b"rot 2"), 3, cached=True)
    assert held(bookie, 5) == [0, 1, 2, 3], "the page cache hides it"
    bookie.scrub()
    assert refusal(bookie, 5, 2) == ENTRY_LOST
    assert held(bookie, 5) == [0, 1, 3]
    assert bookie.storage.lacking(10) == [(5, ((2, 2),))], "repair is asked for this copy"
    again = Stepped(ONE, disk.crashed(nothing_kept))
    assert refusal(again, 5, 2) == ENTRY_LOST, "the loss is durable"
    assert add(again, 5, 2, payload=b"rot 2", flags=RECOVERY) == Status.OK
    assert held(again, 5) == [0, 1, 2, 3]


def test_rewriting_frees_the_space_of_deleted_ledgers_and_keeps_every_other_entry(stepped: None) -> None:
    disk = MemoryFileSystem("/disk")
    bookie = Stepped(ONE, disk)
    for entry_id in range(50):
        assert add(bookie, 5, entry_id, payload=bytes(500)) == add(bookie, 6, entry_id) == Status.OK
    before = bookie.read(6, 0, 49)
    bookie.delete(5)
    bookie.seal()
    sealed = bookie.storage.status().log_bytes
    bookie.reclaim()
    assert bookie.storage.status().log_bytes < sealed / 2
    assert sum(len(content) for path, content in disk.files().items() if "/logs/" in path) < sealed / 2
    for again in (bookie, Stepped(ONE, disk.crashed(nothing_kept))):
        assert again.read(6, 0, 49) == before
        assert held(again, 6) == list(range(50)) and held(again, 5) == []
        assert not lossy(again.storage) and isinstance(refusal(again, 6, 50), Negative)


# -- requests


def test_fence_refuses_the_old_writer_forever_and_admits_recovery(stepped: None) -> None:
    disk = MemoryFileSystem("/disk")
    bookie = Stepped(ONE, disk)
    assert add(bookie, 5, 0, 2) == Status.OK
    early = bookie.add(5, 3)
    bookie.fence(5)
    late = bookie.add(5, 4)
    bookie.commit()
    assert (early, late) == ([Status.OK], [Status.FENCED]), "who fences may read every add that came before"
    assert bookie.promises.fenced == {5} and held(bookie, 5) == [0, 1, 2, 3]
    for again in (bookie, Stepped(ONE, disk.crashed(nothing_kept))):
        assert add(again, 5, 9) == Status.FENCED
        told: list[int] = []
        again.storage.write_last_add_confirmed(5, KEY, 3, told.append)
        again.commit()
        assert told == [Status.FENCED]
        assert add(again, 5, 4, flags=RECOVERY) == Status.OK, "recovery writes back"
        assert held(again, 5) == [0, 1, 2, 3, 4]


def test_volatile_adds_are_acknowledged_before_their_sync_and_sync_reports_durable_entries(stepped: None) -> None:
    def sync() -> tuple[int, int]:
        """The status, and LastAddSynced."""
        told: list[int] = []
        bookie.storage.sync(5, KEY, ALONE, told.append)
        bookie.commit()
        [status] = told
        return status, bookie.storage.volatile.last_add_synced(5, ALONE)

    disk = MemoryFileSystem("/disk")
    files = FaultyFileSystem(disk)
    bookie = Stepped(config(Path("/disk"), **NEVER), files)
    assert add(bookie, 5, 0, 4, flags=VOLATILE) == Status.OK
    assert held(bookie, 5) == [0, 1, 2, 3, 4], "who reads may have it at once"
    assert held(Stepped(ONE, disk.crashed(nothing_kept)), 5) == [], "the acknowledgement came before the sync"
    assert sync() == (Status.OK, 4)
    assert add(bookie, 5, 5, 6, flags=VOLATILE) == Status.OK
    assert bookie.storage.volatile.last_add_synced(5, ALONE) == 4
    again = Stepped(ONE, disk.crashed(nothing_kept))
    assert held(again, 5) == [0, 1, 2, 3, 4] and refusal(again, 5, 5) == NO_SUCH_ENTRY
    assert not lossy(again.storage), "an acknowledgement of a VD ledger is no promise of durability"
    files.add("sync */logs/*.arrows 1.. io-error")
    status, synced = sync()
    assert status == Status.IO_ERROR and synced <= 4


# -- long polls


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with serving(ONE, MemoryFileSystem("/disk")) as (_, address):
        yield address


def poll(client: Client, entry_id: int, limit_ms: int) -> None:
    """Ask for the LAC of ledger 5, once it reaches ``entry_id`` or after ``limit_ms``."""
    client.send(control_frame(Header(Kind.READ_LAC, 7, 5, first_entry_id=entry_id, limit=limit_ms)))


def test_long_poll_is_answered_once_an_add_confirms_its_entry(address) -> None:
    reader, writer = Client(address), Client(address)
    writer.add(5, 0)
    poll(reader, 1, 60 * MINUTE_MS)
    reader.send(control_frame(Header(Kind.STATUS, 8)))
    assert reader.receive().header.request_id == 8, "the poll waits, and holds up nothing"
    assert writer.add(5, 1, last_add_confirmed=0).status == Status.OK
    assert writer.add(5, 2, last_add_confirmed=1).status == Status.OK
    answer = reader.receive().header
    assert (answer.request_id, answer.status, answer.last_add_confirmed) == (7, Status.OK, 1)
    for client in (reader, writer):
        client.close()


def test_long_poll_is_answered_at_its_deadline_with_the_current_lac(address) -> None:
    client = Client(address)
    client.add(5, 0, 2, last_add_confirmed=1)
    poll(client, 2, 20)
    answer = client.receive().header
    assert (answer.request_id, answer.status, answer.last_add_confirmed) == (7, Status.OK, 1)
    client.close()


def test_long_poll_ends_with_its_connection_and_frees_its_memory() -> None:
    with serving(ONE, MemoryFileSystem("/disk")) as (server, address):
        gone = Client(address)
        poll(gone, 1, 60 * MINUTE_MS)
        gone.call(Header(Kind.STATUS, 0))
        [connection] = map(weakref.ref, server.connections)
        gone.close()

        def is_forgotten() -> bool:
            gc.collect()
            return connection() is None

        await_that(is_forgotten)
        reader, writer = Client(address), Client(address)
        poll(reader, 1, 60 * MINUTE_MS)
        writer.add(5, 2, last_add_confirmed=1)
        assert reader.receive().header.last_add_confirmed == 1
        for client in (reader, writer):
            client.close()
