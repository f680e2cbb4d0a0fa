"""A sector that its disk never reads again, in the part of a log that a start scans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_ledger import IN_LIMBO
from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.servers.daemon.bookie_process import fence_what_may_be_lost, why_lossy
from bookspark.store.autorecovery.healing import Healing
from bookspark.store.autorecovery.own_bookie import OwnBookie
from bookspark.store.bookie.disk.file_system import FileSystem, RealFileSystem
from bookspark.store.bookie.disk.synced_note import SyncedNote
from bookspark.store.bookie.offline.inspection import rebuild_index
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.lost_records import note_lost_records
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import nothing_kept
from tests.awaiting import SECONDS_MAX, await_that
from tests.protocol.ledgers import metadata
from tests.store.bookie.kit import KEY, Pumped, config, crash_image

ME = "b1"
ENTRIES = list(range(40))
READ_ONLY = ("write */logs/*.arrows 1 read-only",)
FAILING = ("read */logs/*.arrows 1.. bad-sector:9000", "sync */logs/*.arrows 1 io-error")


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The directory of a killed bookie with 40 entries of ledger 4, one in each batch, and no checkpoint."""
    running = Pumped(config(tmp_path / "running"))
    for entry_id in ENTRIES:
        assert running.add(4, entry_id) is Status.OK
    image = crash_image(tmp_path / "running", tmp_path / "killed")
    running.storage.close()
    return image


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    for ledger_id in range(5):
        assert store.new_ledger_id() == ledger_id
        store.create_ledger(replace(metadata(master_key=KEY), ledger_id=ledger_id))
    return store


def with_bad_sector(byte: int = 9000) -> FaultyFileSystem:
    bad = f"*/logs/00000001.arrows 1.. bad-sector:{byte}"
    return FaultyFileSystem(RealFileSystem(), f"read {bad}", f"read_cached {bad}")


def started(directory: Path, files: FileSystem | None, store: MemoryStore) -> Pumped:
    def boot(storage: Storage) -> None:
        if why_lossy(storage.lossy_boots, ()):
            fence_what_may_be_lost(storage, store, ME, (), lambda text: None)
            storage.lossy_boots.phase_one_is_over()
        else:
            storage.lossy_boots.end_absence()

    return Pumped(config(directory), files, before_start=boot)


def lacking(bookie: Pumped) -> list[int]:
    return [entry_id for entry_id in ENTRIES if not bookie.read(4, entry_id, entry_id)[0]]


def test_bookie_with_a_bad_sector_serves_the_rest_and_denies_nothing(killed: Path, store: MemoryStore) -> None:
    bookie = started(killed, with_bad_sector(), store)
    assert lacking(bookie) == list(range(12, 20)), "the entries with a byte in the sector"
    assert all(bookie.read(4, entry_id, entry_id)[1] == IN_LIMBO for entry_id in lacking(bookie))
    assert bookie.add(4, 40) is Status.FENCED
    assert bookie.storage.status().unread_logs == [f"{killed}/logs/00000001.arrows"]
    assert bookie.storage.status().lacking_ledgers == 0, "nothing is noted as lost"
    bookie.storage.close()


def test_bytes_of_a_bad_sector_are_read_again_by_each_start_until_they_are_good(
    killed: Path, store: MemoryStore
) -> None:
    """A checkpoint over them would have left them out for ever."""
    before = (killed / "logs/00000001.arrows").read_bytes()
    for _ in range(2):
        bookie = started(killed, with_bad_sector(), store)
        assert bookie.add(9, 0) is Status.OK
        bookie.checkpoint()
        bookie.storage.close()
    assert (killed / "logs/00000001.arrows").read_bytes().startswith(before.rstrip(b"\0"))
    again = started(killed, None, store)
    assert again.ids(4) == ENTRIES and again.ids(9) == [0]
    assert again.storage.lossy_boots.limbo_count == 0, "the ledgers leave limbo, since nothing was lost"
    assert again.storage.status().unread_logs == []
    again.storage.close()


@pytest.mark.parametrize("byte", [0, 24_000], ids=["head", "tail"])
def test_end_of_a_log_is_not_cut_behind_a_bad_sector(killed: Path, store: MemoryStore, byte: int) -> None:
    started(killed, with_bad_sector(byte), store).storage.close()
    again = started(killed, None, store)
    assert again.ids(4) == ENTRIES
    again.storage.close()


def test_directory_with_a_bad_sector_at_its_end_is_no_older_copy(killed: Path) -> None:
    """It seemed to end before the end that its bookie had noted, as one that was put back does."""
    whole = Storage(config(killed)).open()
    reach = whole.live[0].reach()
    storage = Storage(config(killed), with_bad_sector(24_000)).open({str(killed): reach})
    assert storage.lossy_boots.unread and not storage.lossy_boots.losses and not storage.lossy_boots.fences_lost


def test_log_that_cannot_be_read_at_all_is_no_damage(tmp_path: Path, store: MemoryStore) -> None:
    running = Pumped(config(tmp_path / "running"))
    assert running.add(4, 0) is Status.OK
    killed = crash_image(tmp_path / "running", tmp_path / "killed")
    running.storage.close()
    bookie = started(killed, with_bad_sector(0), store)
    assert bookie.read(4, 0, 0)[1] == IN_LIMBO
    bookie.storage.close()
    again = started(killed, None, store)
    assert again.ids(4) == [0] and again.storage.lossy_boots.limbo_count == 0
    again.storage.close()


def test_rebuild_over_a_bad_sector_loses_nothing(killed: Path, store: MemoryStore) -> None:
    rebuild_index(with_bad_sector(), [str(killed)])
    again = started(killed, None, store)
    assert again.ids(4) == ENTRIES
    again.storage.close()


def test_bad_sector_is_needed_no_more_once_its_entries_are_healed(killed: Path, store: MemoryStore) -> None:
    bookie = started(killed, with_bad_sector(), store)
    for entry_id in lacking(bookie):
        assert bookie.add(4, entry_id, flags=Flag.RECOVERY) is Status.OK
    assert bookie.run(bookie.storage.lossy_boots.note_healed, 1) is Status.OK
    assert bookie.storage.status().unread_logs == []
    bookie.storage.close()
    again = started(killed, with_bad_sector(), store)
    assert again.ids(4) == ENTRIES and not why_lossy(again.storage.lossy_boots, ())
    again.storage.close()


def test_bad_sector_is_kept_if_no_bookie_could_supply_its_entries(killed: Path, store: MemoryStore) -> None:
    bookie = started(killed, with_bad_sector(), store)
    assert bookie.run(bookie.storage.lossy_boots.note_lost, 4, [(12, 19)]) is Status.OK
    assert bookie.run(bookie.storage.lossy_boots.note_healed, 1) is Status.OK
    bookie.storage.close()
    again = started(killed, None, store)
    assert again.ids(4) == ENTRIES
    again.storage.close()


def test_bad_sector_is_kept_while_records_of_ledgers_are_lost(killed: Path) -> None:
    """Healing looks at the ledgers of the metadata. Entries of a ledger without a record lay there too, and were given up."""
    store = MemoryStore()
    note_lost_records(store, LostRecords(4, 10))
    bookie = started(killed, with_bad_sector(), store)
    own = OwnBookie(ME, bookie.storage, lambda function, *arguments: function(*arguments))
    healing = Healing(own, SimpleNamespace(metadata=store, close=lambda: None), 0)  # type: ignore[arg-type]
    healing.start()
    await_that(lambda: bookie.storage.lossy_boots.healed_boot == 1)
    bookie.pump()
    assert healing.wait(SECONDS_MAX)
    bookie.checkpoint()
    bookie.storage.close()
    again = started(killed, None, store)
    assert again.ids(4) == ENTRIES
    again.storage.close()


def test_log_with_a_bad_sector_is_neither_rewritten_nor_removed(killed: Path, store: MemoryStore) -> None:
    """Nothing in the index names the entries that may lie there."""
    bookie = started(killed, with_bad_sector(), store)
    bookie.reclaim(1.0, entry_logs=True)
    bookie.storage.close()
    again = started(killed, None, store)
    assert again.ids(4) == ENTRIES
    again.storage.close()


def test_other_logs_are_reclaimed_beside_one_with_a_bad_sector(killed: Path, store: MemoryStore) -> None:
    """An entry that no bookie could supply ended all reclaiming of the directory."""
    bookie = started(killed, with_bad_sector(), store)
    for entry_id in ENTRIES:
        assert bookie.add(9, entry_id) is Status.OK
    bookie.seal()
    assert (killed / "logs/00000002.arrows").exists()
    bookie.reclaim(1.0, entry_logs=True)
    assert not (killed / "logs/00000002.arrows").exists()
    assert bookie.add(9, 40) is Status.OK
    bookie.storage.close()
    for files in (with_bad_sector(), None):
        again = started(killed, files, store)
        assert again.ids(9) == [*ENTRIES, 40] and (files or again.ids(4) == ENTRIES)
        assert again.storage.lossy_boots.losses == []
        again.storage.close()


def test_disk_that_reads_next_to_nothing_keeps_its_bookie_down(tmp_path: Path) -> None:
    running = Pumped(config(tmp_path / "running"))
    for entry_id in ENTRIES:
        assert running.add(4, entry_id, payload=bytes(40_000)) is Status.OK
    killed = crash_image(tmp_path / "running", tmp_path / "killed")
    running.storage.close()
    with pytest.raises(StorageError, match="can't be read"):
        Storage(config(killed), FaultyFileSystem(RealFileSystem(), "read */logs/*.arrows 1.. io-error")).open()


@pytest.mark.parametrize("rules", [READ_ONLY, FAILING], ids=["read-only", "bad sector and failing sync"])
def test_entry_is_not_acknowledged_before_its_log_could_be_synced(store: MemoryStore, rules: tuple[str, ...]) -> None:
    """The boot swallowed the failure, counted the tail as synced, and a repeated add was acknowledged without a sync."""
    disk = MemoryFileSystem("/a")
    files = FaultyFileSystem(disk)
    killed = Pumped(config(Path("/a")), files)
    for entry_id in ENTRIES[:-1]:
        assert killed.add(4, entry_id) is Status.OK
    files.add("sync */logs/*.arrows 1.. io-error")
    assert killed.add(4, 39) is Status.IO_ERROR
    bookie = started(Path("/a"), FaultyFileSystem(disk, *rules), store)
    assert bookie.add(4, 38, flags=Flag.RECOVERY) is Status.OK
    assert bookie.add(4, 39, flags=Flag.RECOVERY) is Status.READ_ONLY
    assert bookie.add(9, 0) is Status.OK
    bookie.checkpoint()
    again = started(Path("/a"), disk, store)
    assert again.add(4, 39, flags=Flag.RECOVERY) is Status.OK
    assert started(Path("/a"), disk.crashed(nothing_kept), store).ids(4) == ENTRIES


@pytest.mark.parametrize(("at", "size"), [(9216, 1024), (8704, 3072)], ids=["two sectors", "six sectors"])
def test_bad_sector_that_reads_as_zeros_later_is_no_torn_write(
    killed: Path, store: MemoryStore, at: int, size: int
) -> None:
    """The note of a log is behind after a host crash. The disk replaced the sector, and the next start denied its entries."""
    path = killed / "logs/00000001.arrows"
    note = SyncedNote(RealFileSystem(), str(path.with_suffix(".synced")), 1)
    note.write(8000)
    note.close()
    started(killed, with_bad_sector(), store).storage.close()
    content = path.read_bytes()
    path.write_bytes(content[:at] + bytes(size) + content[at + size :])
    again = started(killed, None, store)
    assert lacking(again) and all(again.read(4, entry_id, entry_id)[1] == IN_LIMBO for entry_id in lacking(again))
    again.storage.close()
