"""Full disks: refused requests, kept data, and the return to normal."""

from __future__ import annotations

import shutil
from collections import deque
from pathlib import Path

import pytest

from bookspark.errors import ConfigurationError
from bookspark.protocol.bookie.bookie_ledger import ENTRY_AWAY, NO_SUCH_ENTRY, FenceNoted
from bookspark.store.bookie.disk.control_log import ControlLog, encode_records
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import NoSpaceError, RealFileSystem
from bookspark.store.bookie.holdings.disk_marks import Takes, Thresholds, takes, used_part
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import nothing_kept
from tests.awaiting import await_that
from tests.store.bookie.kit import Client, Pumped, add_frame, config, serving
from tests.store.bookie.stepped import Stepped, without_threads

RECOVERY = int(Flag.RECOVERY)
MARKS = Thresholds(warn=0.90, low_water_mark=0.85, full=0.95, recovery=0.98)


def look(storage: Pumped) -> None:
    """Check the disks, and run the resulting work."""
    for directory, used in storage.storage.disks.measure():
        storage.steps(storage.storage.disks.look(directory, used))
    storage.run(storage.storage.settle)


# -- the marks


def test_directory_turns_full_at_a_mark_and_writable_below_a_lower_mark():
    used = [0.5, 0.94, 0.95, 0.90, 0.85, 0.84, 0.94]
    found, before = [], Takes.ALL
    for part in used:
        before = takes(before, part, MARKS)
        found.append(before)
    assert found == [Takes.ALL, Takes.ALL, Takes.RECOVERY, Takes.RECOVERY, Takes.RECOVERY, Takes.ALL, Takes.ALL]


def test_recovery_writes_up_to_a_higher_mark():
    assert takes(Takes.ALL, 0.97, MARKS) is Takes.RECOVERY
    assert takes(Takes.RECOVERY, 0.98, MARKS) is Takes.NOTHING
    assert takes(Takes.NOTHING, 0.97, MARKS) is Takes.RECOVERY
    assert takes(Takes.NOTHING, 0.80, MARKS) is Takes.ALL


def test_used_part_is_the_fuller_of_disk_and_quota():
    assert used_part(10, 30, 100, 0) == pytest.approx(0.7)
    assert used_part(90, 30, 100, 100) == pytest.approx(0.9)
    assert used_part(10, 30, 100, 100) == pytest.approx(0.7)


def test_marks_in_the_wrong_order_are_refused():
    with pytest.raises(ConfigurationError, match=r"disk_usage_threshold 0\.85 .* have to ascend"):
        config("/disk", disk_usage_threshold=0.85)


# -- by measured usage


def test_full_directory_refuses_adds_and_serves_its_entries(tmp_path):
    storage = Pumped(config(tmp_path, directory_bytes_max=100_000))
    told: list[bool] = []
    storage.storage.disks.read_only_changed = told.append
    ids = iter(range(1000))
    while not told:
        assert storage.add(5, next(ids), payload=b"x" * 1000) is Status.OK
        look(storage)
    kept = storage.ids(5)
    assert told == [True] and storage.storage.status().read_only
    assert storage.add(5, len(kept)) is Status.READ_ONLY
    assert storage.add(5, len(kept), flags=RECOVERY) is Status.OK, "space is kept for recovery"
    assert storage.add(5, len(kept) - 1, payload=b"x" * 1000) is Status.OK, "a duplicate takes none"
    assert storage.fence(5) is Status.OK
    assert storage.ids(5) == [*kept, len(kept)]
    storage.storage.close()


def test_full_directory_is_writable_again_after_a_collection(tmp_path):
    storage = Pumped(config(tmp_path, directory_bytes_max=100_000))
    told: list[bool] = []
    storage.storage.disks.read_only_changed = told.append
    storage.add(5, 0, 23, payload=b"x" * 4000)
    storage.add(6, 0)
    look(storage)
    assert storage.add(6, 1) is Status.READ_ONLY
    storage.steps(storage.storage.garbage_collection.forget([5]))
    storage.reclaim(threshold=0.8)
    look(storage)
    assert told == [True, False]
    assert storage.add(6, 1) is Status.OK
    assert storage.ids(6) == [0, 1]
    storage.storage.close()


def test_bookie_on_a_full_disk_starts_read_only(tmp_path):
    storage = Pumped(config(tmp_path))
    storage.add(5, 0, payload=b"x" * 4000)
    storage.storage.close()
    again = Pumped(config(tmp_path, directory_bytes_max=4800))
    assert again.storage.status().read_only
    assert again.add(5, 1) is Status.READ_ONLY
    assert again.ids(5) == [0]
    again.storage.close()


def test_full_directory_leaves_all_adds_to_the_other_directory(tmp_path):
    storage = Pumped(config(tmp_path / "a", tmp_path / "b"))
    first, second = storage.storage.live
    storage.steps(storage.storage.disks.look(first, 0.96))
    assert not storage.storage.status().read_only
    assert storage.add(4, 0) is storage.add(5, 0) is Status.OK
    assert (first.bytes, second.bytes > 0) == (0, True)
    storage.steps(storage.storage.disks.look(second, 0.97))
    assert storage.storage.status().read_only
    storage.steps(storage.storage.disks.look(first, 0.5))
    assert storage.add(4, 1) is Status.OK
    storage.storage.close()


def test_failing_disk_takes_only_its_directory_out_of_use(tmp_path):
    files = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path / "a", tmp_path / "b"), files)
    storage.add(4, 0)
    storage.add(5, 0)
    files.add(f"sync {tmp_path}/a/* 1.. io-error")
    assert storage.add(4, 1) is Status.IO_ERROR
    assert storage.read(4, 1, 1)[1] == ENTRY_AWAY and storage.read(4, 2, 2)[1] == NO_SUCH_ENTRY
    assert storage.add(4, 1) is Status.OK
    assert [entry.entry_id for entry in storage.read(4, 1, 1)[0]] == [1]
    assert not storage.storage.status().read_only
    look(storage)
    assert storage.add(4, 2) is Status.OK
    storage.storage.close()


# -- during an operation


@pytest.mark.parametrize(
    "rule",
    [
        "write */logs/*.arrows 3.. no-space",
        "create */logs/* 1.. no-space",
        "create */logs/*.synced 1.. too-many-files",
        "create */logs/*.arrows 2.. too-many-files",
        "write */logs/*.synced 3.. no-space",
        "write */control.log 1.. no-space",
        "write */logs/*.arrows 1.. no-space",
    ],
)
def test_add_without_room_is_refused_and_loses_no_acknowledged_entry(tmp_path, rule):
    """The add gets a clear error, no acknowledged entry is lost, the refused entry is absent, and adds go on once there is
    room."""
    files = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path, entry_log_bytes_max=6000), files)
    acked: list[int] = []
    files.add(rule)
    for i in range(40):
        status = storage.add(5, i, payload=b"x" * 500)
        if status is not Status.OK:
            break
        acked.append(i)
    assert status is Status.READ_ONLY
    assert storage.storage.status().read_only
    assert storage.add(6, 0) is Status.READ_ONLY
    assert storage.ids(5) == acked
    if acked:
        assert storage.read(5, i, i) == ([], NO_SUCH_ENTRY)
    # The note of the log sealed by the failure may find no room either, and is reported later.
    storage.run(storage.storage.settle)
    files.clear()

    def takes_adds() -> bool:
        look(storage)
        return not storage.storage.status().read_only

    # A note that found no room before may be reported after a look.
    await_that(takes_adds)
    for i in range(len(acked), 40):
        assert storage.add(5, i, payload=b"x" * 500) is Status.OK
    assert storage.ids(5) == list(range(40))
    assert not storage.storage.holdings.damaged
    storage.storage.close()
    again = Pumped(config(tmp_path))
    assert again.ids(5) == list(range(40)) and not again.storage.holdings.damaged
    again.storage.close()


def test_missing_room_for_the_next_log_keeps_the_current_log(tmp_path):
    """A disk runs full at this point, since a log reserves its room. Entries of the same group in the earlier log were refused
    although they were synced, and that log was taken for unfinished: its room came back only after a restart."""
    files = FaultyFileSystem(RealFileSystem())
    turn = []
    storage = Pumped(config(tmp_path, entry_log_bytes_max=1 << 16), files, soon=turn.append)

    def end_turn():
        while turn:
            turn.pop()()

    files.add("create */00000002.* 1.. no-space")
    before, last, next_one = (storage.submit(add_frame(5, i, payload=bytes(40_000))) for i in range(3))
    end_turn()
    storage.wait(lambda: bool(next_one))
    assert (before, last, next_one) == ([Status.OK], [Status.OK], [Status.READ_ONLY])
    assert storage.ids(5) == [0, 1]
    assert storage.read(5, 2, 2)[1] == NO_SUCH_ENTRY
    end_turn()
    storage.steps(storage.storage.garbage_collection.forget([5]))
    files.clear()
    pump = storage.pump
    storage.pump = lambda: (end_turn(), pump())
    assert storage.reclaim() > 80_000
    storage.storage.close()


def test_duplicate_queued_behind_a_refused_add_is_refused_too(tmp_path):
    files = FaultyFileSystem(RealFileSystem(), "write */logs/*.arrows 3 no-space")
    storage = Pumped(config(tmp_path), files)
    storage.add(5, 0)
    first = storage.submit(add_frame(5, 1))
    duplicate = storage.submit(add_frame(5, 1))
    storage.wait(lambda: bool(first and duplicate))
    assert first == duplicate == [Status.READ_ONLY], "a duplicate of what is not kept is no success"
    assert storage.ids(5) == [0]
    look(storage)
    assert storage.add(5, 1) is Status.OK
    storage.storage.close()


def test_duplicate_arriving_before_the_loop_sees_the_refusal_is_refused_too(tmp_path):
    files = FaultyFileSystem(RealFileSystem(), "write */logs/*.arrows 3 no-space")
    storage = Pumped(config(tmp_path), files)
    storage.add(5, 0)
    first = storage.submit(add_frame(5, 1))
    while storage.unheard == 0:
        pass  # the disk's thread has finished, and the loop does not know yet
    duplicate = storage.submit(add_frame(5, 1))
    storage.wait(lambda: bool(first and duplicate))
    assert first == duplicate == [Status.READ_ONLY]
    assert storage.ids(5) == [0]
    storage.storage.close()


def test_partly_written_control_record_is_cut_off():
    files = MemoryFileSystem("/disk")
    log = ControlLog(files, "/disk")
    log.rewrite([])
    log.append(encode_records([FenceNoted(1)]))
    files.capacity_bytes = files.used_bytes() + 60
    with pytest.raises(NoSpaceError):
        log.append(encode_records([FenceNoted(ledger_id) for ledger_id in (2, 3, 4, 5, 6)]))
    log.append(encode_records([FenceNoted(7)]))
    scan = ControlLog(files, "/disk").scan()
    assert scan.records == [FenceNoted(1), FenceNoted(7)]
    assert scan.end == scan.size


def test_fence_without_room_is_unacknowledged_but_refuses_the_writer(tmp_path):
    """The fence is not acknowledged until it is durable, refuses the writer from the start, and succeeds once there is room."""
    files = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path), files)
    storage.add(5, 0)
    files.add("write */control.log 1.. no-space")
    assert storage.fence(5) is not Status.OK
    assert storage.fence(5) is not Status.OK
    assert storage.add(5, 1) is Status.FENCED
    files.clear()
    look(storage)
    assert storage.fence(5) is Status.OK
    storage.storage.close()
    assert Pumped(config(tmp_path)).add(5, 1) is Status.FENCED


def test_full_directory_behind_on_control_records_stays_in_use_after_a_restart(tmp_path):
    """The directory was given up: its entries were unknown, and the boot was lossy, so all open ledgers of the bookie were
    fenced."""
    files = FaultyFileSystem(RealFileSystem())
    directories = config(tmp_path / "a", tmp_path / "b")
    storage = Pumped(directories, files)
    assert [storage.add(ledger_id, 0) for ledger_id in (4, 5)] == [Status.OK, Status.OK]
    files.add(f"write {tmp_path}/a/control.log 1.. no-space")
    files.add(f"create {tmp_path}/a/* 1.. no-space")
    assert storage.fence(4) is Status.OK, "it stands in the other directory"
    storage.storage.close()
    again = Pumped(directories, files)
    assert again.storage.lossy_boots.unreadable == [] and not again.storage.holdings.damaged
    assert again.ids(4) == again.ids(5) == [0]
    assert again.add(4, 1) is Status.FENCED
    assert again.add(6, 0) is Status.OK, "the other directory takes it"
    assert not (tmp_path / "a" / "control.log.new").exists()
    first = next(one for one in again.storage.holdings.live if one.path == str(tmp_path / "a"))
    assert first.takes is Takes.NOTHING
    files.clear()
    look(again)
    if first.takes is Takes.NOTHING:
        # The loop did not know yet of a write without room: the writes queued behind it were refused.
        look(again)
    assert first.takes is Takes.ALL
    assert again.add(6, 1) is Status.OK
    again.storage.close()
    shutil.rmtree(tmp_path / "b")
    alone = Pumped(config(tmp_path / "a"))
    assert alone.add(4, 1) is Status.FENCED, "now it stands here, too"
    alone.storage.close()


def test_directory_with_an_emptied_control_log_and_no_room_is_unreadable(tmp_path):
    storage = Pumped(config(tmp_path / "a", tmp_path / "b"))
    storage.fence(4)
    storage.storage.close()
    (tmp_path / "a" / "control.log").write_bytes(b"")
    files = FaultyFileSystem(RealFileSystem())
    files.add(f"create {tmp_path}/a/* 1.. no-space")
    again = Pumped(config(tmp_path / "a", tmp_path / "b"), files)
    assert again.storage.lossy_boots.unreadable == [str(tmp_path / "a")]
    again.storage.close()


def test_checkpoint_without_room_leaves_no_files_and_succeeds_later(tmp_path):
    files = FaultyFileSystem(RealFileSystem(), "write */checkpoint.new 1.. no-space")
    storage = Pumped(config(tmp_path), files)
    storage.add(5, 0)
    storage.checkpoint()
    assert not list(tmp_path.glob("checkpoint*")), "nothing is left lying about"
    assert storage.add(5, 1) is Status.OK
    files.clear()
    storage.checkpoint()
    assert (tmp_path / "checkpoint").exists(), "and it is not left out the next time"
    storage.storage.close()


@pytest.mark.parametrize("rule", ["write */logs/*.arrow.new 1.. no-space", "sync */logs/*.arrow.new 1.. no-space"])
def test_rewriting_without_room_keeps_the_old_log(tmp_path, rule):
    files = FaultyFileSystem(RealFileSystem(), rule)
    storage = Pumped(config(tmp_path), files)
    storage.add(5, 0, 9)
    storage.seal()
    storage.reclaim()
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["00000001.arrows", "00000001.synced"]
    assert storage.ids(5) == list(range(10))
    storage.storage.close()


@pytest.mark.parametrize("capacity_bytes", range(2_000, 40_000, 1_777))
def test_disk_filling_up_loses_no_acknowledged_entry(capacity_bytes):
    """An in-memory disk of any size serves its acknowledged entries, before and after a power cut."""
    files = MemoryFileSystem("/disk")
    storage = Pumped(config("/disk", entry_log_bytes_max=8000), files)
    files.capacity_bytes = capacity_bytes
    acked = [i for i in range(60) if storage.add(5, i, payload=b"x" * 400) is Status.OK]
    storage.fence(6)
    storage.checkpoint()
    assert storage.ids(5) == acked
    after = files.crashed(nothing_kept)
    again = Pumped(config("/disk"), after)
    assert set(acked) <= set(again.ids(5))
    assert not again.storage.holdings.damaged
    files.capacity_bytes = 1 << 20
    look(storage)
    assert [storage.add(5, i, payload=b"x" * 400) for i in range(60)] == [Status.OK] * 60
    assert storage.ids(5) == list(range(60))
    storage.storage.close()
    assert Pumped(config("/disk"), files).ids(5) == list(range(60))


def test_server_turns_read_only_on_a_full_disk_and_recovers_by_itself(tmp_path):
    files = FaultyFileSystem(RealFileSystem())
    with serving(config(tmp_path, disk_check_interval_seconds=0.02), files) as (server, address):
        told: list[bool] = []
        server.storage.disks.read_only_changed = told.append
        client = Client(address)
        assert client.add(5, 0).status == Status.OK
        files.add("write */logs/*.arrows 1 no-space")
        assert client.add(5, 1).status == Status.READ_ONLY
        while client.status().read_only:
            pass
        assert client.add(5, 1).status == Status.OK
        assert told == [True, False]
        client.close()


def test_disk_check_during_a_failed_write_leaves_no_hole_in_the_log():
    """The check reported that the loop knew of the failed write, and the next add went behind the hole."""
    disk = MemoryFileSystem("/disk")
    files = FaultyFileSystem(disk)
    with without_threads():
        run = Stepped(config(Path("/disk")), files)
        posted = []
        (directory,) = run.storage.live
        disks = run.storage.disks
        deque(disks.look(directory, 0.96), maxlen=0)
        assert directory.takes is Takes.RECOVERY
        run.commit()
        run.add(5, 0, flags=RECOVERY)
        run.commit()
        write = directory.commit._tell
        directory.commit._tell = lambda _, *told: write(lambda *call: posted.append(call), *told)
        files.add("write *.arrows 1 no-space")
        lost = run.add(5, 1, flags=RECOVERY)
        run.commit()
        deque(disks.look(directory, 0.1), maxlen=0)
        kept = run.add(5, 2, flags=RECOVERY)
        run.commit()
        for function, *arguments in posted:
            function(*arguments)
        assert lost == [Status.READ_ONLY]
        directory.commit._tell = write
        again = Stepped(config(Path("/disk")), disk.crashed(nothing_kept))
        assert not again.storage.holdings.damaged
        assert [entry.entry_id for entry in again.read(5, 0, 9, sparse=True)[0]] == (
            [0, 2] if kept == [Status.OK] else [0]
        )


@pytest.mark.parametrize("marks", [(0.9, 0.9, 0.98), (0.9, 0.95, 0.95)])
def test_neighbouring_disk_marks_may_be_equal(marks):
    low, threshold, recovery = marks
    config(
        "/disk",
        disk_usage_low_water_mark_threshold=low,
        disk_usage_threshold=threshold,
        disk_usage_recovery_threshold=recovery,
    )


def test_reserved_room_of_a_log_is_kept_on_a_full_disk():
    files = MemoryFileSystem("/disk", "/disk/logs", capacity_bytes=1 << 20)
    log = EntryLog(files, "/disk", 1)
    log.create(1 << 19)
    files.capacity_bytes -= files.free_bytes("/disk")
    end = log.write([bytes(1 << 18)], log.end)
    assert end > 1 << 18
