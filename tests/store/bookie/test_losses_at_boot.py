"""Missing, truncated, outdated or damaged logs and control logs at boot."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from crc32c import crc32c

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_boot import HealedNoted, LossyBootNoted, phase_one
from bookspark.protocol.bookie.bookie_ledger import FenceNoted, MasterKeyNoted
from bookspark.protocol.bookie.garbage_collection import CollectionNoted
from bookspark.protocol.bookie.read_only_switch import ReadOnlySwitched
from bookspark.protocol.ledger.responses import Negative, Unknown
from bookspark.servers.daemon.bookie_process import why_lossy
from bookspark.store.bookie.checks import check_control_log
from bookspark.store.bookie.disk import control_state
from bookspark.store.bookie.disk.control_log import encode_records
from bookspark.store.bookie.disk.control_state import ControlState
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.index import Index
from bookspark.store.bookie.disk.log_scan import SCHEMA, read_padded
from bookspark.store.bookie.disk.synced_note import SyncedNote
from bookspark.store.bookie.disk.torn import RECORD_HEAD, is_torn_record
from bookspark.store.bookie.holdings import boot
from bookspark.store.bookie.offline.inspection import rebuild_index
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.batch_prefix import HEADER_OFFSET
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Flag, Status, decode
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import LOSSES, everything_kept, nothing_kept
from tests.protocol.ledgers import metadata
from tests.store.bookie.flips import flip
from tests.store.bookie.kit import KEY, add_frame, config
from tests.store.bookie.stepped import Stepped, without_threads

ONE = config(Path("/disk"))
TWO = config(Path("/disk0"), Path("/disk1"))
LOG = "/disk/logs/00000001.arrows"
FRAME_BYTES = len(add_frame(5, 0))


@pytest.fixture(autouse=True)
def stepped():
    with without_threads():
        yield


def is_lossy(run: Stepped) -> bool:
    return bool(why_lossy(run.storage.lossy_boots, ()))


def unknown(run: Stepped, ledger_id: int, entry_id: int) -> bool:
    found, refusal = run.read(ledger_id, entry_id, entry_id)
    assert not isinstance(refusal, Negative) and not found
    return True


def remove(disk: MemoryFileSystem, *paths: str) -> None:
    for path in paths:
        disk.unlink(path)
    disk.sync_all()


def paths(disk: MemoryFileSystem, part: str) -> list[str]:
    return [path for path in disk.files() if part in path]


# -- missing logs


@pytest.mark.parametrize("checkpointed", [True, False], ids=["checkpointed", "never checkpointed"])
@pytest.mark.parametrize("what", ["both", "log", "emptied log", "both and the checkpoint"])
def test_missing_log_makes_the_boot_lossy_and_its_entries_unknown(checkpointed, what):
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    run.add(5, 0, 2)
    run.commit()
    if checkpointed:
        run.checkpoint()
    run.add(5, 3, 6)
    run.commit()
    disk = disk.crashed(everything_kept)
    if what == "emptied log":
        disk.open(LOG, write=True).truncate(0)
        disk.sync_all()
    else:
        remove(disk, *(paths(disk, "/logs/") if what != "log" else [LOG]))
    if what == "both and the checkpoint":
        remove(disk, *paths(disk, "/checkpoint"))
    for _ in range(2):
        run = Stepped(ONE, disk)
        assert is_lossy(run), "until phase one is over, each boot knows of it"
        assert unknown(run, 5, 3) and unknown(run, 5, 0)
        disk = disk.crashed(everything_kept)


def test_missing_last_log_is_detected():
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    run.add(5, 0)
    run.commit()
    run.storage.close()
    run = Stepped(ONE, disk)
    run.add(5, 1)
    run.commit()
    disk = disk.crashed(nothing_kept)
    remove(disk, *paths(disk, "00000002."))
    run = Stepped(ONE, disk)
    assert is_lossy(run) and unknown(run, 5, 1)
    assert [entry.entry_id for entry in run.read(5, 0, 0)[0]] == [0]


def test_missing_log_is_detected_after_a_control_log_rewrite():
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    for ledger_id in (5, 6):
        run.add(ledger_id, 0)
    run.commit()
    before = disk.files()["/disk/control.log"]
    run.delete(6)
    run.commit()
    disk = disk.crashed(everything_kept)
    assert not disk.files()["/disk/control.log"].startswith(before)
    remove(disk, *paths(disk, "/logs/"))
    run = Stepped(ONE, disk)
    assert is_lossy(run) and unknown(run, 5, 0)


def test_missing_rewritten_log_stays_unknown_after_an_index_rebuild():
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    run.add(5, 0, 4)
    run.commit()
    run.seal()
    run.reclaim()
    run.add(6, 0)
    run.commit()
    run.storage.close()
    [rewritten] = [path for path in disk.files() if path.endswith(".arrow")]
    for also in ((), ("/disk/checkpoint",)):
        damaged = disk.crashed(everything_kept)
        remove(damaged, rewritten, *also)
        rebuild_index(damaged, ["/disk"])
        run = Stepped(ONE, damaged)
        assert unknown(run, 5, 0)
        assert is_lossy(run) == bool(also), "the checkpoint tells which entries are lost"
        assert isinstance(run.read(7, 0, 0)[1], Negative) != bool(also)


def test_logs_removed_on_purpose_are_not_reported_missing():
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    run.add(5, 0, 4)
    run.commit()
    run.seal()
    run.reclaim()
    run.delete(5)
    run.reclaim()
    assert not paths(disk, "/logs/")
    disk = disk.crashed(everything_kept)
    remove(disk, "/disk/checkpoint")
    assert not is_lossy(Stepped(ONE, disk))


def test_phase_one_ends_the_lossy_state_and_healing_makes_absence_negative():
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    run.add(5, 0, 2)
    run.commit()
    disk = disk.crashed(everything_kept)
    remove(disk, *paths(disk, "/logs/"))
    storage = Storage(ONE, disk).open()
    storage.lossy_boots.note_lossy_boot(phase_one("b1", [], 20, storage.lossy_boots.mark))
    storage.end_phase_one()
    storage.close()
    run = Stepped(ONE, disk)
    assert not is_lossy(run) and not run.storage.holdings.damaged
    assert unknown(run, 5, 0) and unknown(run, 20, 0)
    assert isinstance(run.read(21, 0, 0)[1], Negative)
    run.storage.lossy_boots.note_healed(1, lambda status: None)
    run.commit()
    assert isinstance(run.read(5, 0, 0)[1], Negative)
    run.restart()
    assert isinstance(run.read(5, 0, 0)[1], Negative)


def test_space_of_a_damaged_log_is_reclaimed_after_healing():
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    for entry_id in range(4):
        run.add(5, entry_id)
    run.commit()
    disk = disk.crashed(everything_kept)
    flip(disk, LOG, len(SCHEMA) + FRAME_BYTES // 2, 1)
    disk.sync_all()
    storage = Storage(ONE, disk).open()
    assert storage.holdings.damaged
    storage.lossy_boots.note_lossy_boot(phase_one("b1", [], 20, storage.lossy_boots.mark))
    storage.end_phase_one()
    storage.close()
    run = Stepped(ONE, disk)
    for entry_id in range(4):
        run.add(5, entry_id, flags=int(Flag.RECOVERY))
    run.commit()
    run.storage.lossy_boots.note_healed(1, lambda status: None)
    run.commit()
    for _ in range(2):
        assert [entry.entry_id for entry in run.read(5, 0, 9)[0]] == [0, 1, 2, 3] and not run.storage.holdings.damaged
        run.restart()
    run.delete(5)
    run.seal()
    run.reclaim(0.99)
    run.restart()
    assert not run.storage.holdings.damaged and isinstance(run.read(5, 0, 0)[1], Negative)
    assert not paths(disk, "/logs/")


def test_crash_anywhere_in_a_lossy_boot_leaves_the_bookie_lossy_or_unhealed():
    disk = MemoryFileSystem("/disk0", "/disk1")
    run = Stepped(TWO, disk)
    for ledger_id in (4, 5):
        run.add(ledger_id, 0)
    run.commit()
    image = disk.crashed(everything_kept)
    remove(image, *paths(image, "/disk1/logs/"))
    outcomes: Counter[str] = Counter()
    booted = image.crashed(everything_kept)

    def crash(operation=None) -> None:
        for loss in LOSSES:
            storage = Storage(TWO, booted.crashed(loss)).open()
            boots = storage.lossy_boots
            assert why_lossy(boots, ()) or boots.mark.boot > boots.healed_boot, operation
            outcomes["again" if why_lossy(boots, ()) else "phase one is over"] += 1
            for ledger_id in (4, 5):
                plan = storage.holdings.plan_read(ledger_id, 0, 0, 0, sparse=False)
                assert plan.pieces or isinstance(plan.refusal, Unknown), operation
            if not why_lossy(boots, ()):
                assert boots.limbo(0, 9) == [(5, 1)] and storage.holdings.ledger(5).fenced

    storage = Storage(TWO, FaultyFileSystem(booted, before=crash)).open()
    phase = phase_one("b1", [replace(metadata(master_key=KEY), ledger_id=5)], 20, storage.lossy_boots.mark)
    storage.lossy_boots.note_lossy_boot(phase)
    storage.end_phase_one()
    crash()
    assert min(outcomes["again"], outcomes["phase one is over"]) >= len(LOSSES), outcomes


# -- power cuts and bit rot


def groups(count: int) -> tuple[MemoryFileSystem, Stepped]:
    """``count`` groups, each synced and acknowledged, with the notes as far behind as allowed."""
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    for entry_id in range(count):
        run.add(5, entry_id)
        run.commit()
    return disk.crashed(nothing_kept), run


def test_bit_flipped_after_a_power_cut_damages_only_its_own_group():
    disk, run = groups(4)
    outcomes = Counter()
    for bit in range(3, 8 * len(disk.files()[LOG]), 23):
        after = disk.crashed(everything_kept)
        flip(after, LOG, bit // 8, bit % 8)
        after.sync_all()
        again = Stepped(ONE, after)
        hit = (bit // 8 - len(SCHEMA)) // FRAME_BYTES
        for entry_id in range(4):
            found, refusal = again.read(5, entry_id, entry_id)
            assert not isinstance(refusal, Negative), f"bit {bit}, entry {entry_id}"
            assert bool(found) == (entry_id != hit), f"bit {bit}, entry {entry_id}"
            assert not found or found[0] in run.promises.asked[5][entry_id]
        outcomes[is_lossy(again)] += 1
    assert outcomes[True] > 4 * outcomes[False] > 0, "the schema is not an entry's"


@pytest.mark.parametrize(
    "garbage", [bytes(300), b"\xa5" * 300, bytes(range(150)) * 2], ids=["zeros", "one byte", "any"]
)
def test_tail_is_never_cut_before_good_groups(garbage):
    disk, _ = groups(20)
    file = disk.open(LOG, write=True)
    file.write([garbage], len(SCHEMA) + 7 * FRAME_BYTES)
    file.sync()
    run = Stepped(ONE, disk)
    held = [entry_id for entry_id in range(20) if run.read(5, entry_id, entry_id)[0]]
    assert held == [*range(7), *range(8, 20)]
    assert is_lossy(run) == any(garbage), "a frame without its sectors is what a power cut leaves of an unsynced one"


def test_frames_inside_a_payload_are_ignored_when_both_sizes_are_damaged():
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    run.add(5, 0, payload=bytes(7) + b"".join(add_frame(99, entry_id) for entry_id in range(5)))
    run.add(5, 1)
    run.commit()
    disk = disk.crashed(nothing_kept)
    file = disk.open(LOG, write=True)
    file.write([b"\xa5" * 560], len(SCHEMA) + 20)
    file.sync()
    run = Stepped(ONE, disk)
    assert run.storage.holdings.last_entry_id(99) == -1 and unknown(run, 99, 0) and unknown(run, 5, 0)
    assert run.read(5, 1, 1)[0]


@pytest.mark.parametrize("fault", ["io-error", "stale", "no-device"])
@pytest.mark.parametrize("call", [f"open {LOG} 1", "list /disk/logs 1", f"size {LOG} 1"])
def test_log_that_can_t_be_read_at_a_boot_keeps_the_bookie_down_and_loses_nothing(call, fault):
    """Its bytes counted as damage: the boot was lossy, and the next checkpoint covered them."""
    disk, _ = groups(20)
    before = {path: content for path, content in disk.files().items() if "/logs/" in path}
    with pytest.raises(StorageError, match="can't be read"):
        Stepped(ONE, FaultyFileSystem(disk, f"{call} {fault}"))
    assert {path: content for path, content in disk.files().items() if "/logs/" in path} == before
    run = Stepped(ONE, disk)
    assert not is_lossy(run) and [entry.entry_id for entry in run.read(5, 0, 19)[0]] == list(range(20))


def test_flipped_bit_in_a_last_group_of_zeros_is_no_torn_write():
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    run.add(5, 0)
    run.commit()
    run.add(5, 1, payload=bytes(4000))
    run.commit()
    disk = disk.crashed(nothing_kept)
    flip(disk, LOG, len(disk.files()[LOG]) - 1000, 3)
    disk.sync_all()
    run = Stepped(ONE, disk)
    assert is_lossy(run) and unknown(run, 5, 1)


def test_notes_are_durable_about_once_a_second(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("bookspark.store.bookie.commit.commit_thread.monotonic", lambda: now[0])
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    lag = []
    for entry_id in range(40):
        run.add(5, entry_id)
        run.fence(100 + entry_id)
        run.commit()
        now[0] += 0.3
        after = disk.crashed(nothing_kept).files()
        log, control = after["/disk/logs/00000001.synced"], after["/disk/control.synced"]
        lag.append(entry_id + 1 - (int.from_bytes(log[:8], "little") - len(SCHEMA)) // FRAME_BYTES)
        assert int.from_bytes(control[16:24], "little") >= entry_id - 4
    assert min(lag) >= 0 and 1 < max(lag) <= 4


# -- control logs


def two_with_a_fence_on_one(rule: str, *, later: bool) -> tuple[MemoryFileSystem, Stepped]:
    disk = MemoryFileSystem("/disk0", "/disk1")
    files = FaultyFileSystem(disk)
    run = Stepped(TWO, files)
    for ledger_id in (4, 5):
        run.add(ledger_id, 0)
    run.commit()
    files.add(rule)
    run.add(5, 1)
    run.add(4, 1)
    run.commit()
    run.fence(4)
    run.commit()
    assert run.promises.fenced == {4}
    files.clear()
    if later:
        # The directory that had no room takes records again before its control log is rewritten.
        run.fence(6)
        run.commit()
    return disk, run


@pytest.mark.parametrize("rule", ["sync /disk1/logs/* 1 io-error", "write /disk1/control.log 1.. no-space"])
@pytest.mark.parametrize(("cut", "later"), [(nothing_kept, False), (everything_kept, True)])
def test_outdated_control_log_copy_does_not_replace_a_damaged_copy(rule, cut, later):
    disk, _ = two_with_a_fence_on_one(rule, later=later)
    size = len(disk.files()["/disk0/control.log"])
    outcomes = Counter()
    for bit in range(0, 8 * size, 11):
        after = disk.crashed(cut)
        flip(after, "/disk0/control.log", bit // 8, bit % 8)
        after.sync_all()
        try:
            run = Stepped(TWO, after)
        except StorageError:
            outcomes["stays down"] += 1
            continue
        outcomes["lossy" if is_lossy(run) else "not lossy"] += 1
        for _ in range(2):
            for ledger_id in (4, 77):
                refused = run.add(ledger_id, 2)
                run.commit()
                if ledger_id == 4:
                    assert refused in ([Status.FENCED], [Status.LIMBO]), f"bit {bit}: the fence is forgotten"
            run = Stepped(TWO, after.crashed(everything_kept))
    assert outcomes["lossy"] and not outcomes["not lossy"], outcomes


def test_intact_control_log_copy_of_equal_extent_replaces_a_damaged_copy():
    disk = MemoryFileSystem("/disk0", "/disk1")
    run = Stepped(TWO, disk)
    for ledger_id in (4, 5):
        run.add(ledger_id, 0)
    run.fence(4)
    run.commit()
    size = len(disk.files()["/disk0/control.log"])
    for bit in range(0, 8 * size, 5):
        after = disk.crashed(everything_kept)
        flip(after, "/disk0/control.log", bit // 8, bit % 8)
        after.sync_all()
        again = Stepped(TWO, after)
        assert not is_lossy(again), f"bit {bit}"
        assert again.add(4, 1) == [Status.FENCED]


def test_bit_flips_in_a_control_log_after_a_power_cut_keep_fences():
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    for ledger_id in (4, 6, 8):
        run.fence(ledger_id)
        run.commit()
    disk = disk.crashed(nothing_kept)
    down = 0
    for bit in range(8 * len(disk.files()["/disk/control.log"])):
        after = disk.crashed(everything_kept)
        flip(after, "/disk/control.log", bit // 8, bit % 8)
        after.sync_all()
        try:
            again = Stepped(ONE, after)
        except StorageError:
            down += 1
            continue
        assert [again.add(ledger_id, 1) for ledger_id in (4, 6, 8)] == [[Status.FENCED]] * 3, f"bit {bit}"
    assert down


def test_control_log_older_than_its_note_keeps_the_bookie_down():
    """A restored older copy was longer than the note says, since the log had been rewritten meanwhile: later fences were
    forgotten, although the note had the number of the last write."""
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    for entry_id in range(40):
        run.confirm(5, entry_id)
        run.commit()
    run.storage.close()
    older = disk.files()["/disk/control.log"]
    with patch("bookspark.store.bookie.disk.control_log._REWRITE_BYTES_MIN", 1):
        run.open()
        run.checkpoint()
    run.fence(5)
    run.commit()
    assert run.promises.fenced == {5}
    run.storage.close()
    assert len(disk.files()["/disk/control.log"]) < len(older)
    file = disk.open("/disk/control.log", write=True)
    file.truncate(0)
    file.write([older], 0)
    with pytest.raises(StorageError, match="older than its note"):
        run.open()


def test_control_log_written_during_its_check_is_not_reported_as_damaged():
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    run.fence(4)
    run.commit()

    def read(*arguments):
        content = read_padded(*arguments)
        run.fence(5)
        run.commit()
        return content

    with patch("bookspark.store.bookie.disk.control_log.read_padded", read):
        assert check_control_log(disk, "/disk", expected=True)[1] == []
    assert run.promises.fenced == {4, 5}


def test_control_logs_without_numbers_are_read_and_damage_makes_the_boot_lossy():
    records = [MasterKeyNoted(4, KEY), FenceNoted(4)]
    for damaged in (False, True):
        disk = MemoryFileSystem("/disk0", "/disk1")
        for directory in ("/disk0", "/disk1"):
            content = encode_records(records)
            disk.open(f"{directory}/control.log", create=True).write([content], 0)
            SyncedNote(disk, f"{directory}/control.synced", 0).write(len(content))
        if damaged:
            flip(disk, "/disk0/control.log", 30, 2)
        disk.sync_all()
        run = Stepped(TWO, disk)
        assert is_lossy(run) == damaged, "nobody can tell whether the other copy goes as far"
        assert run.add(4, 0) == [Status.FENCED]
        run.fence(6)
        run.commit()
        again = Stepped(TWO, disk.crashed(everything_kept))
        assert again.add(6, 0) == [Status.FENCED]


# -- marks and markers


def test_first_boot_of_a_bookie_notes_the_highest_ledger_id_once():
    disk = MemoryFileSystem("/disk")
    storage = Storage(ONE, disk).open()
    storage.lossy_boots.note_first_mark(-1)
    assert storage.lossy_boots.mark.highest_ledger_id == -1, "there are no ledgers"
    storage.lossy_boots.note_first_mark(7)
    storage.close()
    storage = Storage(ONE, disk).open()
    assert storage.lossy_boots.mark == LossyBootNoted(0, 7) and storage.lossy_boots.healed_boot == 0
    storage.lossy_boots.note_first_mark(9)
    assert storage.lossy_boots.mark == LossyBootNoted(0, 7), "it is noted once"
    storage.start(lambda function, *arguments: function(*arguments))
    for ledger_id, expected in ((7, [Status.LIMBO]), (8, [Status.OK])):
        statuses: list[int] = []
        frame = add_frame(ledger_id, 0)
        header, crc = decode(frame, HEADER_OFFSET)
        storage.add(header, EntryBatch.checked(frame, header, crc), statuses.append)
        for directory in storage.holdings.directories:
            directory.commit.step()
        assert ledger_id == 7 or statuses == expected
        storage.looks.close()
        assert statuses == expected
    assert isinstance(storage.holdings.plan_read(7, 0, 0, 0, sparse=False).refusal, Negative), "nothing was lost"


def test_marker_of_a_trusted_crash_is_removed_by_a_clean_stop():
    settings = config(Path("/disk"), journal_write_data=False, trust_boot_id=True)
    disk = MemoryFileSystem("/disk")

    def boot(boot_id: str) -> Storage:
        storage = Storage(settings, disk, boot_id=boot_id).open()
        storage.start(lambda function, *arguments: function(*arguments))
        return storage

    def add(storage: Storage, entry_id: int) -> None:
        frame = add_frame(5, entry_id)
        header, crc = decode(frame, HEADER_OFFSET)
        storage.add(header, EntryBatch.checked(frame, header, crc), lambda status: None)
        for directory in storage.holdings.directories:
            directory.commit.step()

    add(boot("kernel-1"), 0)
    disk = disk.crashed(everything_kept)
    trusted = boot("kernel-1")
    assert trusted.lossy_boots.unclean == [] and disk.exists("/disk/unclean")
    add(trusted, 1)
    trusted.close()
    assert not disk.exists("/disk/unclean")
    assert boot("kernel-2").lossy_boots.unclean == []


def test_loss_marker_counts_even_under_the_same_boot_id():
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    run.add(5, 0)
    run.commit()
    disk = disk.crashed(everything_kept)
    remove(disk, *paths(disk, "/logs/"))
    Storage(ONE, disk, boot_id="kernel").open()
    again = Storage(ONE, disk, boot_id="kernel").open()
    assert again.lossy_boots.unclean and isinstance(again.holdings.plan_read(5, 0, 0, 0, sparse=False).refusal, Unknown)


def test_written_position_of_a_log_counts_until_its_tail_is_settled():
    """Under the kernel that has the page cache, all written bytes must exist. After a power cut they need not, and a later boot
    does not miss bytes that this boot cut off."""

    def written(*, left: int) -> MemoryFileSystem:
        disk = MemoryFileSystem("/disk")
        disk.make_directory("/disk/logs")
        entry_log = EntryLog(disk, "/disk", 1)
        entry_log.create(10_000)
        entry_log.note.note_written(entry_log.write([add_frame(5, 0), add_frame(5, 1)], len(SCHEMA)))
        disk.open(LOG, write=True).truncate(len(SCHEMA) + left)
        return disk

    def lost(disk: MemoryFileSystem, *, cached: bool) -> list[str]:
        found: list[str] = []
        EntryLog(disk, "/disk", 1).recover(0, found.append, lambda frame: None, cached=cached)
        return found

    assert lost(written(left=2 * FRAME_BYTES), cached=True) == []
    assert lost(written(left=FRAME_BYTES), cached=True) == [f"{LOG} is damaged"]
    cut = written(left=FRAME_BYTES)
    assert lost(cut, cached=False) == [] and lost(cut, cached=True) == []
    # A position that fails its checks proves nothing: every existing byte must be valid.
    bad = written(left=FRAME_BYTES + 1)
    flip(bad, "/disk/logs/00000001.synced", 20, 0)
    assert lost(bad, cached=True) == [f"{LOG} is damaged"]


def test_boot_that_trusts_no_cache_leaves_no_marker_that_a_later_boot_trusts():
    """A rebuild of the index settled the tail without the written position, and the next start trusted the boot id."""
    settings = config(Path("/disk"), journal_write_data=False, trust_boot_id=True)
    disk = MemoryFileSystem("/disk")
    killed = Storage(settings, disk, boot_id="kernel").open()
    killed.start(lambda function, *arguments: function(*arguments))
    for entry_id in range(15):
        frame = add_frame(5, entry_id)
        header, crc = decode(frame, HEADER_OFFSET)
        killed.add(header, EntryBatch.checked(frame, header, crc), lambda status: None)
    killed.holdings.directories[0].commit.step()
    size = len(disk.files()[LOG].rstrip(b"\0"))
    disk.open(LOG, write=True).write([bytes(512)], size // 512 * 512 - 512)
    rebuild_index(disk, ["/disk"])
    assert why_lossy(Storage(settings, disk, boot_id="kernel").open().lossy_boots, ())


# -- the cost of many losses


def vanished(frames: int, ledgers: range) -> MemoryFileSystem:
    """A checkpointed disk of many logs, all missing but the last. Each log has one frame of each ledger."""
    disk = MemoryFileSystem("/disk")
    run = Stepped(ONE, disk)
    for entry_id in range(frames):
        for ledger_id in ledgers:
            run.add(ledger_id, entry_id)
        run.commit()
        run.seal()
    run.checkpoint()
    run.storage.close()
    remove(disk, *[path for path in paths(disk, ".arrows") if f"{frames:08x}" not in path])
    return disk


def test_boot_scans_the_index_once_for_any_number_of_missing_logs(monkeypatch):
    """The index was scanned once for each log: 4 logs of 200,000 ledgers took 10 s."""
    disk = vanished(6, range(30))
    walks: list[int] = []
    walk = Index.remove_at_boot
    monkeypatch.setattr(Index, "remove_at_boot", lambda self, gone: (walks.append(len(gone)), walk(self, gone))[1])
    run = Stepped(ONE, disk)
    assert walks == [5]
    assert all(unknown(run, ledger_id, entry_id) for ledger_id in range(30) for entry_id in range(5))
    assert all(len(run.read(ledger_id, 5, 5)[0]) == 1 for ledger_id in range(30))


def test_boot_notes_losses_in_bounded_writes_and_ledgers_stay_packed(monkeypatch):
    """The records of 400,000 rows and all their ledgers were objects at once: 460 MB."""
    disk = vanished(4, range(50))
    most: list[int] = []
    note = boot.note_in_each
    monkeypatch.setattr(boot, "note_in_each", lambda *given: (most.append(len(given[2])), note(*given))[1])
    monkeypatch.setattr(boot, "_LOST_A_WRITE", 8)
    monkeypatch.setattr("bookspark.store.bookie.holdings.holdings._PLACES_MAX", 0)
    monkeypatch.setattr(control_state, "_IN_USE_MAX", 16)
    for _ in range(2):
        run = Stepped(ONE, disk)
        holdings = run.storage.holdings
        assert sum(most) == 50, "entries that follow each other share a record, beyond the bound of noted places"
        assert max(most) <= 8 and holdings.ledgers.in_use_count <= 20 and holdings.index._rows.in_use_count == 0
        assert all(isinstance(kept, bytes) for kept in holdings.ledgers.packed.values() if kept is not None)
        assert all(unknown(run, ledger_id, 2) and len(run.read(ledger_id, 3, 3)[0]) == 1 for ledger_id in range(50))
        disk, most = disk.crashed(nothing_kept), []
    run.checkpoint()
    run.restart()
    assert run.storage.holdings.lost_copies == 0, "the checkpoint names them no more"
    assert all(unknown(run, ledger_id, 2) and len(run.read(ledger_id, 3, 3)[0]) == 1 for ledger_id in range(50))


@pytest.mark.parametrize("loss", [everything_kept, nothing_kept])
def test_crash_while_noting_the_losses_of_a_boot_omits_no_loss(monkeypatch, loss):
    disk = vanished(3, range(12))
    crashed: list[MemoryFileSystem] = []
    note = boot.note_in_each

    def noted(*given):
        crashed.append(disk.crashed(loss))
        note(*given)
        crashed.append(disk.crashed(loss))

    with monkeypatch.context() as patch:
        patch.setattr(boot, "_LOST_A_WRITE", 2)
        patch.setattr("bookspark.store.bookie.holdings.holdings._PLACES_MAX", 0)
        patch.setattr(boot, "note_in_each", noted)
        Stepped(ONE, disk)
    assert len(crashed) == 12
    for number, left in enumerate(crashed):
        run = Stepped(ONE, left)
        if number % 2:
            # The checkpoint of this boot no longer names them.
            run.checkpoint()
            run = Stepped(ONE, left.crashed(nothing_kept))
        assert all(unknown(run, ledger_id, entry_id) for ledger_id in range(12) for entry_id in range(2))
        assert all(len(run.read(ledger_id, 2, 2)[0]) == 1 for ledger_id in range(12))


def test_lost_sector_with_a_bit_of_a_record_size_counts_as_damage():
    """It can't be distinguished from a flipped bit, and the record may have been acknowledged."""
    body = msgspec.msgpack.encode(("fence", 1 << 40))
    assert len(body) == 16
    record = RECORD_HEAD.pack(len(body), crc32c(body)) + body
    for start in range(256):
        lost = bytearray(record)
        lost[: -start % 128] = bytes(min(-start % 128, len(record)))
        assert is_torn_record(memoryview(lost), start, is_last=True) == (-start % 128 > 4)


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_boot_knows_the_last_add_fully_replicated(count, rewritten):
    files = MemoryFileSystem("/disk")
    run = Stepped(ONE, files)
    for entry_id in range(1, count + 1):
        run.add(5, entry_id, last_add_fully_replicated=entry_id - 1, last_add_confirmed=entry_id - 1)
        run.commit()
    if rewritten:
        run.seal()
        run.reclaim()
        for path in [path for path in files.files() if "checkpoint" in path]:
            files.lose(path)
    ledger = Stepped(ONE, files).storage.holdings.ledger(5)
    assert ledger.last_add_fully_replicated == ledger.last_add_confirmed == count - 1


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("mark", LossyBootNoted(3, 10)),
        ("healed", HealedNoted(3)),
        ("collected", CollectionNoted(9)),
        ("switch", ReadOnlySwitched(2, True)),
    ],
)
def test_highest_record_of_the_whole_bookie_is_kept(name, record):
    state = ControlState()
    state.replay([record])
    assert getattr(state, name) == record
    state.replay([record._replace(**{record._fields[0]: 1})])
    assert getattr(state, name) == record
