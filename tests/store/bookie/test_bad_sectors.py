"""A sector that its disk never reads again, in the part of a log that a start scans."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_ledger import IN_LIMBO, FenceNoted
from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.protocol.ledger.responses import Negative
from bookspark.servers.daemon.bookie_process import fence_what_may_be_lost, why_lossy
from bookspark.store.autorecovery.healing import Healing
from bookspark.store.autorecovery.own_bookie import OwnBookie
from bookspark.store.bookie.checks import CANNOT_READ
from bookspark.store.bookie.disk.control_log import encode_records
from bookspark.store.bookie.disk.file_system import FileSystem, RealFileSystem
from bookspark.store.bookie.disk.log_scan import SCHEMA
from bookspark.store.bookie.disk.synced_note import SyncedNote
from bookspark.store.bookie.disk.unclean_marker import Lost, UncleanMarker
from bookspark.store.bookie.offline.inspection import LossToAccept, accept_losses, losses_to_accept, rebuild_index
from bookspark.store.bookie.offline.scrub import EntryRange, scrub
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.lost_records import note_lost_records
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem, Operation
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import nothing_kept
from tests.awaiting import SECONDS_MAX, await_that
from tests.protocol.ledgers import metadata
from tests.store.bookie.kit import KEY, Pumped, add_frame, config, crash_image

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


def with_bad_sector(byte: int = 9000, files: FileSystem | None = None) -> FaultyFileSystem:
    bad = f"*/logs/00000001.arrows 1.. bad-sector:{byte}"
    return FaultyFileSystem(files or RealFileSystem(), f"read {bad}", f"read_cached {bad}")


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


def test_entries_between_two_bad_sectors_are_served(killed: Path, store: MemoryStore) -> None:
    """On a disk with several, only entries before the first and behind the last one were found. An operator who accepted the
    loss of both sectors gave up all entries between them."""
    sectors = with_bad_sector(17_000, with_bad_sector())
    bookie = started(killed, sectors, store)
    assert lacking(bookie) == [*range(12, 20), *range(26, 34)]
    bookie.storage.close()
    (loss,) = losses_to_accept(sectors, [str(killed)])
    assert loss.what.endswith("the disk can't read bytes 8192..12287, 16384..20479")
    assert loss.entries == (EntryRange(4, 12, 19), EntryRange(4, 26, 33))


def holding_frames() -> bytes:
    """A payload with frames of ledger 2, which begin at a multiple of 8 bytes of the log."""
    return b"x" * (4096 + 7) + b"".join(add_frame(2, entry_id) for entry_id in range(20))


def test_frames_in_a_payload_are_no_entries_if_the_head_of_its_own_frame_cannot_be_read(store: MemoryStore) -> None:
    disk = MemoryFileSystem("/a")
    running = Pumped(config(Path("/a")), disk)
    assert running.add(4, 0, payload=holding_frames()) is Status.OK
    assert running.add(4, 1) is Status.OK
    bookie = started(Path("/a"), with_bad_sector(len(SCHEMA), disk.crashed(nothing_kept)), store)
    assert not any(bookie.read(2, entry_id, entry_id)[0] for entry_id in range(20))
    assert bookie.read(2, 0, 0)[1] == IN_LIMBO
    assert bookie.read(4, 1, 1)[0] and not bookie.read(4, 0, 0)[0]
    bookie.storage.close()


def test_frames_in_a_payload_are_no_entries_if_its_end_and_the_next_head_are_in_a_bad_sector(
    store: MemoryStore,
) -> None:
    """The stated end of their own frame led to no good frame, and so they counted, up to the bad sector."""
    disk = MemoryFileSystem("/a")
    running = Pumped(config(Path("/a")), disk)
    assert running.add(4, 0, payload=holding_frames()) is Status.OK
    (end,) = (entry_log.end for entry_log in running.storage.logs.values())
    for entry_id in range(1, 20):
        assert running.add(4, entry_id) is Status.OK
    bookie = started(Path("/a"), with_bad_sector(end, disk.crashed(nothing_kept)), store)
    assert not any(bookie.read(2, entry_id, entry_id)[0] for entry_id in range(20))
    assert bookie.read(4, 19, 19)[0] and not bookie.read(4, 0, 0)[0]
    bookie.storage.close()


@pytest.mark.parametrize("cut", [False, True], ids=["torn before a torn one", "cut short"])
def test_frames_in_a_payload_are_no_entries_if_their_own_frame_is_torn(store: MemoryStore, cut: bool) -> None:
    """It was enough that a bookie was killed within the write of the payload."""
    disk = MemoryFileSystem("/a")
    running = Pumped(config(Path("/a")), disk)
    assert running.add(4, 0) is Status.OK
    (end,) = (entry_log.end for entry_log in running.storage.logs.values())
    image = disk.crashed(nothing_kept)
    own, following = add_frame(4, 1, payload=holding_frames()), add_frame(4, 2)
    torn = own[:-1000] if cut else own[:2048] + bytes(512) + own[2560:] + following[:300]
    with closing(image.open("/a/logs/00000001.arrows", write=True)) as file:
        file.write([torn], end)
        file.truncate(end + len(torn))
        file.sync()
    bookie = started(Path("/a"), image, store)
    assert not any(bookie.read(2, entry_id, entry_id)[0] for entry_id in range(20))
    assert bookie.read(4, 0, 0)[0] and not bookie.read(4, 1, 1)[0]
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


# -- the files beside the logs


def bad(files: FileSystem, *paths: str) -> FaultyFileSystem:
    rules = [f"{kind} {path} 1.. bad-sector:0" for path in paths for kind in ("read", "read_cached")]
    return FaultyFileSystem(files, *rules)


def stopped(disk: FileSystem, *directories: str) -> None:
    """A bookie that held the entries of ledgers 4 and 5, and was stopped cleanly."""
    bookie = Pumped(config(*map(Path, directories)), disk)
    for ledger_id in (4, 5):
        for entry_id in ENTRIES:
            assert bookie.add(ledger_id, entry_id) is Status.OK
    bookie.storage.close()


def assert_serves_all(bookie: Pumped) -> None:
    assert bookie.ids(4) == ENTRIES and bookie.ids(5) == ENTRIES
    assert why_lossy(bookie.storage.lossy_boots, ()) == ""


NOTES = ["/a/control.synced", "/a/logs/*.synced", "/a/checkpoint"]


@pytest.mark.parametrize("path", ["/a/control.log", *NOTES], ids=["control log", "its note", "note of a log", "index"])
def test_unreadable_file_beside_the_logs_costs_nothing_if_another_directory_has_its_knowledge(path: str) -> None:
    """The whole directory was given up: its entries were in limbo, and all fences unsure."""
    disk = MemoryFileSystem("/a", "/b")
    stopped(disk, "/a", "/b")
    for files in (bad(disk, path), disk):
        bookie = Pumped(config(Path("/a"), Path("/b")), files)
        assert_serves_all(bookie)
        assert bookie.add(9, 0) is bookie.add(10, 0) is Status.OK
        assert [directory.path for directory in bookie.storage.live] == ["/a", "/b"]
        bookie.storage.close()


@pytest.mark.parametrize("path", NOTES, ids=["note of the control log", "note of a log", "index"])
def test_bookie_starts_without_a_note_that_its_only_disk_cannot_read(path: str) -> None:
    """It stayed down, for 32 bytes that its logs replace."""
    disk = MemoryFileSystem("/a")
    stopped(disk, "/a")
    for files in (bad(disk, path), disk):
        bookie = Pumped(config(Path("/a")), files)
        assert_serves_all(bookie)
        bookie.storage.close()


@pytest.mark.parametrize("path", ["/a/control.synced", "/a/logs/00000001.synced"], ids=["control log", "log"])
def test_unreadable_note_is_made_anew_as_another_file(path: str) -> None:
    """A write into a block that can't be read fails as well."""
    disk = MemoryFileSystem("/a")
    killed = Pumped(config(Path("/a")), disk)
    assert killed.add(4, 0) is Status.OK
    image = disk.crashed(nothing_kept)
    killed.storage.close()

    def mend(operation: Operation) -> None:
        if operation == Operation("rename", f"{path}.new"):
            files.clear()

    files = FaultyFileSystem(image, f"read {path} 1.. io-error", f"write {path} 1.. io-error", before=mend)
    Pumped(config(Path("/a")), files).storage.close()
    assert Operation("rename", f"{path}.new") in files.calls
    again = Pumped(config(Path("/a")), image)
    assert again.ids(4) == [0] and why_lossy(again.storage.lossy_boots, ()) == ""
    again.storage.close()


def test_unreadable_note_without_its_log_is_reported() -> None:
    disk = MemoryFileSystem("/a")
    stopped(disk, "/a")
    disk.unlink("/a/logs/00000001.arrows")
    damages = scrub(bad(disk, "/a/logs/*.synced"), "/a").damages
    assert ("/a/logs/00000001.arrows", CANNOT_READ) in [(damage.path, damage.what) for damage in damages]


def test_note_that_can_be_read_only_once_may_hold_a_written_position() -> None:
    """Bytes above the synced position may be acknowledged, and are not cut."""
    disk = MemoryFileSystem("/a")
    SyncedNote(disk, "/a/note", 1).write(8)
    note = SyncedNote(FaultyFileSystem(disk, "read /a/note 2.. io-error"), "/a/note", 1)
    assert note.read() == 8 and note.has_written() and note.read_written() is None


def test_control_log_in_a_bad_sector_is_not_given_up_while_no_other_directory_has_all_of_it() -> None:
    """The other directory was full or away, and lacks a fence that may lie there."""
    disk, both = MemoryFileSystem("/a", "/b"), config(Path("/a"), Path("/b"))
    stopped(disk, "/a", "/b")
    alone = Pumped(both, disk, without=["/b"])
    assert alone.run(alone.storage.fence, 4, KEY) is Status.OK
    alone.storage.close()
    bookie = Pumped(both, bad(disk, "/a/control.log"))
    assert why_lossy(bookie.storage.lossy_boots, ()) == "/a can't be read" and bookie.storage.lossy_boots.fences_lost
    bookie.storage.close()
    again = Pumped(both, disk)
    assert again.ids(4) == ENTRIES and again.ids(5) == ENTRIES
    assert again.add(4, 40) is Status.FENCED
    again.storage.close()


def test_bad_sector_in_the_only_control_log_keeps_the_bookie_down_and_is_named() -> None:
    disk = MemoryFileSystem("/a")
    stopped(disk, "/a")
    with pytest.raises(
        StorageError, match=r"^/a/control\.log: the disk can't read bytes 0\.\.\d+, .*accept-loss"
    ) as down:
        Storage(config(Path("/a")), bad(disk, "/a/control.log")).open()
    assert "damaged" not in str(down.value)
    bookie = Pumped(config(Path("/a")), disk)
    assert_serves_all(bookie)
    bookie.storage.close()


UNREAD = ["/a/control.log 1.. bad-sector:0", "/a* 1.. io-error"]


@pytest.mark.parametrize("rule", UNREAD, ids=["its control log", "the whole directory"])
def test_unread_directory_beside_a_damaged_one_is_waited_for(rule: str) -> None:
    """The bookie was to be started anew with empty directories, although the unread one had a whole copy of everything."""
    disk, both = MemoryFileSystem("/a", "/b"), config(Path("/a"), Path("/b"))
    stopped(disk, "/a", "/b")
    disk.flip("/b/control.log", 10, 0)
    files = FaultyFileSystem(disk, f"read {rule}", f"list {rule}")
    with pytest.raises(
        StorageError, match=r"^/a.* can't (be read|read bytes .*), and /b/control\.log is damaged"
    ) as down:
        Storage(both, files).open()
    assert "start it again once the disk" in str(down.value) and "anew" not in str(down.value)
    bookie = Pumped(both, disk)
    assert bookie.ids(4) == ENTRIES and bookie.ids(5) == ENTRIES
    bookie.storage.close()


@pytest.mark.parametrize("rule", UNREAD, ids=["its control log", "the whole directory"])
def test_bookie_does_not_start_from_a_new_directory_beside_one_that_cannot_be_read(rule: str) -> None:
    """It fenced all its ledgers, and went on without the only copy that may be whole."""
    disk, both = MemoryFileSystem("/a", "/b"), config(Path("/a"), Path("/b"))
    stopped(disk, "/a")
    files = FaultyFileSystem(disk, f"read {rule}", f"list {rule}")
    with pytest.raises(
        StorageError, match=r"^/a.* can't .*no other directory has a whole copy.*Nothing is given up yet"
    ):
        Storage(both, files).open()
    bookie = Pumped(both, disk)
    assert_serves_all(bookie)
    assert bookie.storage.lossy_boots.mark.boot == 0
    bookie.storage.close()


def torn(disk: MemoryFileSystem, directory: str) -> None:
    """A crash left a control record without its end."""
    with closing(disk.open(f"{directory}/control.log", write=True)) as file:
        file.write([encode_records([FenceNoted(4)])[:-5]], file.size())
        file.sync()


def test_torn_control_log_whose_note_cannot_be_read_is_not_called_damaged(store: MemoryStore) -> None:
    """The bookie was to be started anew with empty directories, although its next start might read the note."""
    disk = MemoryFileSystem("/a")
    stopped(disk, "/a")
    torn(disk, "/a")
    files = bad(disk, "/a/control.synced")
    with pytest.raises(StorageError, match=r"^/a/control\.synced: the disk can't read it, .*accept-loss") as error:
        Storage(config(Path("/a")), files).open()
    assert "/a/control.log at byte" in str(error.value) and "empty directories" not in str(error.value)
    image = MemoryFileSystem.crashed(disk, nothing_kept)
    assert_serves_all(Pumped(config(Path("/a")), image))
    (accepted,) = accept_losses(files, ["/a"], "ada@host")
    assert accepted.what.startswith("/a/control.synced")
    bookie = Pumped(config(Path("/a")), disk)
    assert bookie.storage.lossy_boots.fences_lost and bookie.storage.holdings.control.accepted[0].by == "ada@host"
    assert bookie.ids(4) == ENTRIES and bookie.ids(5) == ENTRIES


def test_damaged_control_log_is_called_damaged_without_its_note() -> None:
    disk = MemoryFileSystem("/a")
    stopped(disk, "/a")
    disk.flip("/a/control.log", 10, 0)
    torn(disk, "/a")
    with pytest.raises(StorageError, match=r"^/a/control\.log is damaged at byte"):
        Storage(config(Path("/a")), bad(disk, "/a/control.synced")).open()


def test_torn_control_log_whose_note_cannot_be_read_is_left_out_until_it_can() -> None:
    """Nothing that may lie there is given up for a note."""
    disk, both = MemoryFileSystem("/a", "/b"), config(Path("/a"), Path("/b"))
    stopped(disk, "/a", "/b")
    torn(disk, "/a")
    bookie = Pumped(both, bad(disk, "/a/control.synced"))
    assert why_lossy(bookie.storage.lossy_boots, ()) == "/a can't be read" and bookie.storage.lossy_boots.fences_lost
    bookie.storage.close()
    again = Pumped(both, disk)
    assert again.ids(4) == ENTRIES and again.ids(5) == ENTRIES
    again.storage.close()


def test_marker_that_cannot_be_read_counts_as_the_worst_one() -> None:
    """The bookie stayed down; a marker read as empty would have hidden the loss."""
    disk = MemoryFileSystem("/a")
    stopped(disk, "/a")
    UncleanMarker(disk, "/a").note_loss(Lost.ENTRIES)
    storage = Storage(config(Path("/a")), bad(disk, "/a/unclean")).open()
    assert storage.lossy_boots.losses == ["/a lost data before the last start"] and storage.lossy_boots.fences_lost
    storage.lossy_boots.phase_one_is_over()
    storage.close()
    assert not disk.exists("/a/unclean")


# -- an operator's word


def test_loss_that_an_operator_accepted_is_looked_for_no_more_after_the_next_healing(
    killed: Path, store: MemoryStore
) -> None:
    """No command ended the lossy starts of a bookie with a bad sector that no other bookie could replace."""
    what = f"{killed}/logs/00000001.arrows: the disk can't read bytes 8192..12287"
    lost = [LossToAccept(what, (EntryRange(4, 12, 19),))]
    assert losses_to_accept(with_bad_sector(), [str(killed)]) == lost
    for accepted in (False, True):
        if accepted:
            assert accept_losses(with_bad_sector(), [str(killed)], "ada@host") == lost
        bookie = started(killed, with_bad_sector(), store)
        assert bookie.storage.status().unread_logs, "the next start looks once more, and asks all other bookies"
        boot = bookie.storage.lossy_boots.mark.boot
        assert bookie.run(bookie.storage.lossy_boots.note_lost, 4, [(12, 19)]) is Status.OK
        assert bookie.run(bookie.storage.lossy_boots.note_healed, boot) is Status.OK
        assert bool(bookie.storage.status().unread_logs) is not accepted
        bookie.storage.close()
    again = started(killed, with_bad_sector(), store)
    assert why_lossy(again.storage.lossy_boots, ()) == "" and again.storage.status().unread_logs == []
    assert lacking(again) == list(range(12, 20))
    assert not any(again.read(4, entry_id, entry_id)[1] == Negative() for entry_id in lacking(again))
    assert again.storage.holdings.control.accepted == {}
    again.storage.close()


def test_bad_sector_that_comes_after_the_accepted_loss_is_not_given_up(killed: Path, store: MemoryStore) -> None:
    """The operator's word was for the whole log."""
    accept_losses(with_bad_sector(), [str(killed)], "ada@host")
    bookie = started(killed, with_bad_sector(17_000, with_bad_sector()), store)
    lost = lacking(bookie)
    assert set(lost) > set(range(12, 20))
    assert bookie.run(bookie.storage.lossy_boots.note_lost, 4, [(lost[0], lost[-1])]) is Status.OK
    assert bookie.run(bookie.storage.lossy_boots.note_healed, 1) is Status.OK
    assert bookie.storage.status().unread_logs
    bookie.storage.close()
    again = started(killed, None, store)
    assert again.ids(4) == ENTRIES
    assert again.storage.holdings.control.accepted == {}, "a log that is read as a whole needs it no more"
    again.storage.close()


def test_accepted_loss_gives_up_nothing_that_another_bookie_has(killed: Path, store: MemoryStore) -> None:
    accept_losses(with_bad_sector(), [str(killed)], "ada@host")
    bookie = started(killed, with_bad_sector(), store)
    for entry_id in lacking(bookie):
        assert bookie.add(4, entry_id, flags=Flag.RECOVERY) is Status.OK
    assert bookie.run(bookie.storage.lossy_boots.note_healed, 1) is Status.OK
    assert bookie.ids(4) == ENTRIES
    bookie.storage.close()


def test_accepted_loss_keeps_bytes_of_ledgers_whose_record_is_lost(
    killed: Path, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """No healing looks for their entries. The warning named the command that the operator had given already."""
    accept_losses(with_bad_sector(), [str(killed)], "ada@host")
    bookie = started(killed, with_bad_sector(), store)
    bookie.storage.lossy_boots.keep_unread()
    caplog.clear()
    assert bookie.run(bookie.storage.lossy_boots.note_healed, 1) is Status.OK
    assert "ledgers whose records are lost" in caplog.text and "accept-loss" not in caplog.text
    bookie.storage.close()
    again = started(killed, None, store)
    assert again.ids(4) == ENTRIES
    again.storage.close()


@pytest.mark.parametrize("fault", ["unread", "damaged", "missing", "one of each"])
@pytest.mark.parametrize("directories", [["/a"], ["/a", "/b"]], ids=["one directory", "two directories"])
def test_accepted_loss_of_the_control_log_makes_every_fence_unsure_and_keeps_the_entries(
    directories: list[str], fault: str, store: MemoryStore
) -> None:
    """With a damaged control log the bookie had to give up all its entries: it was to be started anew, empty."""
    disk = MemoryFileSystem(*directories)
    stopped(disk, *directories)
    settings = config(*map(Path, directories))
    logs = [f"{directory}/control.log" for directory in directories]
    for path in {"damaged": logs, "one of each": logs[:1]}.get(fault, []):
        disk.flip(path, 10, 0)
    for path in logs if fault == "missing" else []:
        disk.unlink(path)
    files = bad(disk, *{"unread": logs, "one of each": logs[1:]}.get(fault, []))
    with pytest.raises(StorageError, match="accept-loss"):
        Storage(settings, files).open()
    assert losses_to_accept(files, directories) == accept_losses(files, directories, "ada@host")
    bookie = Pumped(settings, disk)
    lossy_boots = bookie.storage.lossy_boots
    assert lossy_boots.fences_lost and len(lossy_boots.losses) == len(directories)
    assert bookie.ids(4) == ENTRIES and bookie.ids(5) == ENTRIES
    fence_what_may_be_lost(bookie.storage, store, ME, (), lambda text: None)
    lossy_boots.phase_one_is_over()
    assert bookie.read(4, 40, 40)[1] == IN_LIMBO
    assert bookie.add(4, 40) is Status.FENCED
    assert bookie.storage.holdings.control.accepted[0].by == "ada@host"
    bookie.storage.close()


def test_bookie_without_its_control_log_is_no_older_copy_of_itself_after_the_accepted_loss() -> None:
    disk, unread = MemoryFileSystem("/a"), ("/a/control.log", "/a/control.synced")
    stopped(disk, "/a")
    reach = Storage(config(Path("/a")), disk).open().live[0].reach()
    assert reach.writes > 1
    accept_losses(bad(disk, *unread), ["/a"], "ada@host")
    storage = Storage(config(Path("/a")), disk).open({"/a": reach})
    assert storage.lossy_boots.losses == ["/a lost data before the last start"]
    storage.close()


def test_no_loss_is_accepted_while_a_whole_directory_cannot_be_read() -> None:
    """The command said that the disk gives all bytes."""
    disk = MemoryFileSystem("/a", "/b")
    stopped(disk, "/a", "/b")
    with pytest.raises(StorageError, match=r"^/b can't be read"):
        losses_to_accept(FaultyFileSystem(disk, "* /b* 1.. io-error"), ["/a", "/b"])


def test_nothing_is_accepted_and_nothing_changed_on_a_disk_that_reads_well() -> None:
    disk = MemoryFileSystem("/a")
    stopped(disk, "/a")
    files = FaultyFileSystem(disk)
    assert losses_to_accept(files, ["/a"]) == []
    assert not {call.kind for call in files.calls} & {"write", "rename", "unlink", "truncate"}
