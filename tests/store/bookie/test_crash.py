"""The content of a bookie after a kill or damage to its disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow
import pytest

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_ledger import NO_SUCH_ENTRY, NO_SUCH_LEDGER, STORAGE_DAMAGED
from bookspark.store.bookie.disk.file_system import SPARE_FILES, RealFileSystem
from bookspark.store.bookie.disk.log_scan import SCHEMA, filler, scan_log
from bookspark.store.bookie.offline.power_loss import lose_unsynced
from bookspark.store.bookie.offline.scrub import scrub
from bookspark.store.bookie.steps import run_steps
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.header import Status
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.store.bookie.kit import KEY, Pumped, add_frame, config, crash_image, payloads


def logs_of(directory: Path) -> list[Path]:
    return sorted((directory / "logs").glob("*.arrows"))


def copied(directory: Path, target: Path) -> Path:
    """The files as they are now, as a kill at this moment leaves them."""
    return crash_image(directory, target)


def reopened(directory: Path, **options) -> Pumped:
    """The tests do not close it, as when a bookie dies; its thread writes only on request."""
    return Pumped(config(directory, **options))


@pytest.fixture
def written(tmp_path):
    """A directory of a bookie killed after it acknowledged entries 0–9 and 10 of ledger 5, and 0 of ledger 8."""
    storage = Pumped(config(tmp_path / "live"))
    assert storage.add(5, 0, 9) is storage.add(8, 0) is storage.add(5, 10) is Status.OK
    return copied(tmp_path / "live", tmp_path / "dead")


def test_acknowledged_entries_are_served_after_a_kill(written):
    again = reopened(written)
    assert again.ids(5) == list(range(11)) and again.ids(8) == [0]
    assert payloads(again.read(5, 0, 10)[0]) == [b"%08d:payload" % i for i in range(11)]
    assert again.read(5, 11, 11)[1] == NO_SUCH_ENTRY
    assert again.read(9, 0, 0)[1] == NO_SUCH_LEDGER
    assert again.storage.holdings.ledger(5).master_key == KEY
    assert again.add(5, 11) is Status.OK
    assert len(logs_of(written)) == 2, "no log is appended to that another process wrote"


def test_consecutive_fillers_belong_to_no_ledger(written):
    """Many fillers take the place of a long torn write."""
    [log] = logs_of(written)
    size = len(add_frame(5, 10))
    log.write_bytes(log.read_bytes() + b"".join(next(filler(size)) for _ in range(600)))
    again = reopened(written)
    assert again.storage.status().ledgers == 2 and again.storage.holdings.last_entry_id(5) == 10


def test_every_log_is_a_plain_arrow_stream(written):
    [log] = logs_of(written)
    table = pyarrow.ipc.open_stream(log.read_bytes()).read_all()
    assert table.column("entry_id").to_pylist() == [*range(10), 0, 10]
    assert table.column("ledger_id").to_pylist() == [5] * 10 + [8, 5]


def test_a_torn_write_above_the_note_is_cut_at_every_byte(written, tmp_path):
    [log] = logs_of(written)
    content = log.read_bytes()
    note = log.with_suffix(".synced")
    before = len(content) - len(add_frame(5, 10))
    # As if the last group had not been synced: the note after the first two frames.
    short = Pumped(config(tmp_path / "short"))
    short.add(5, 0, 9)
    short.add(8, 0)
    shutil.copy(tmp_path / "short/logs/00000001.synced", note)
    file = RealFileSystem().open(str(log))
    for size in range(before, len(content)):
        found = scan_log(file, size, 0, before, lambda frame: None)
        assert (found.frames, found.end, found.damaged) == (2, before, False)
    for size in range(before, len(content), 41):
        log.write_bytes(content[:size])
        storage = Storage(config(written)).open()
        assert storage.holdings.last_entry_id(5) == 9 and storage.holdings.last_entry_id(8) == 0
        assert not storage.holdings.damaged
        assert log.stat().st_size == before
    log.write_bytes(content)
    assert reopened(written).ids(5) == list(range(11)), "what was written whole may stay"


def test_torn_write_inside_the_last_group_is_skipped(written, tmp_path):
    """The write lacks sectors. Frames behind it stay, and a filler replaces it, so that the log is whole again."""
    [log] = logs_of(written)
    content = bytearray(log.read_bytes())
    torn = len(SCHEMA) + len(add_frame(5, 0, 9))
    content[torn + 130 : torn + 400] = bytes(270)
    log.write_bytes(content)
    only = Pumped(config(tmp_path / "only"))
    only.add(5, 0, 9)
    shutil.copy(tmp_path / "only/logs/00000001.synced", log.with_suffix(".synced"))
    again = reopened(written)
    assert not again.storage.holdings.damaged
    assert again.ids(5) == list(range(11)) and again.read(8, 0, 0)[1] == NO_SUCH_ENTRY
    assert pyarrow.ipc.open_stream(log.read_bytes()).read_all().column("ledger_id").to_pylist() == [*[5] * 10, -1, 5]
    assert not scrub(RealFileSystem(), str(written)).damages


def test_damage_below_the_note_is_never_reported_as_absence(written, tmp_path):
    content = logs_of(written)[0].read_bytes()
    second = len(SCHEMA) + len(add_frame(5, 0, 9))
    for at in range(second, second + len(add_frame(8, 0)), 13):
        damaged = copied(written, tmp_path / "damaged")
        flipped = bytearray(content)
        flipped[at] ^= 16
        logs_of(damaged)[0].write_bytes(flipped)
        storage = reopened(damaged)
        assert storage.storage.holdings.damaged
        assert storage.read(8, 0, 0) == ([], STORAGE_DAMAGED)
        assert storage.ids(5)[:10] == list(range(10)), "good frames are served"
        assert payloads(storage.read(5, 10, 10)[0]) == [b"00000010:payload"], "those after the damage too"
        assert storage.read(5, 11, 11)[1] == STORAGE_DAMAGED
        assert len(logs_of(damaged)[0].read_bytes()) == len(content), "nothing is cut"
        storage.storage.close()
        assert Storage(config(damaged)).open().holdings.damaged, "a checkpoint does not make it good"


@pytest.mark.parametrize("checkpointed", [False, True])
def test_truncated_log_counts_as_damage(written, checkpointed):
    if checkpointed:
        reopened(written).storage.close()
    log = logs_of(written)[0]
    log.write_bytes(log.read_bytes()[:-8])
    again = reopened(written)
    assert again.storage.holdings.damaged
    assert again.read(9, 0, 0)[1] == STORAGE_DAMAGED


def test_missing_log_counts_as_damage(written):
    logs_of(written)[0].unlink()
    again = reopened(written)
    assert again.read(5, 0, 0)[1] == STORAGE_DAMAGED


@pytest.mark.parametrize("at", range(16))
def test_a_damaged_note_loses_nothing(written, at):
    note = logs_of(written)[0].with_suffix(".synced")
    content = bytearray(note.read_bytes())
    content[at] ^= 1
    note.write_bytes(content)
    again = reopened(written)
    assert again.ids(5) == list(range(11)) and not again.storage.holdings.damaged


def test_frame_inside_a_payload_is_not_read_as_a_frame(tmp_path):
    storage = Pumped(config(tmp_path / "live"))
    storage.add(5, 0, payload=add_frame(99, 0))
    storage.add(5, 1)
    dead = copied(tmp_path / "live", tmp_path / "dead")
    content = bytearray(logs_of(dead)[0].read_bytes())
    content[len(SCHEMA) + 100] ^= 1  # the outer header
    logs_of(dead)[0].write_bytes(content)
    again = reopened(dead)
    assert again.storage.holdings.last_entry_id(99) == -1
    assert again.ids(5) == [], "a sparse read says nothing where absence proves nothing"
    assert payloads(again.read(5, 1, 1)[0]) == [b"00000001:payload"]


# -- checkpoints


def test_boot_reads_the_checkpoint_and_scans_only_the_tail(tmp_path):
    storage = Pumped(config(tmp_path / "live"))
    storage.add(5, 0, 9, last_add_confirmed=3)
    storage.checkpoint()
    storage.add(5, 10, last_add_confirmed=6)
    storage.add(6, 0)
    dead = copied(tmp_path / "live", tmp_path / "dead")
    content = bytearray(logs_of(dead)[0].read_bytes())
    content[len(SCHEMA) + 300] ^= 1  # below the checkpoint: detected by a read, not at boot
    logs_of(dead)[0].write_bytes(content)
    again = reopened(dead)
    assert not again.storage.holdings.damaged
    assert again.storage.holdings.last_entry_id(5) == 10 and again.ids(6) == [0]
    assert again.storage.holdings.ledger(5).last_add_confirmed == 6
    assert again.read(5, 0, 0) == ([], "bad frame")


def test_checkpoint_covers_only_synced_entries(tmp_path):
    storage = Pumped(config(tmp_path / "live"))
    storage.add(5, 0)
    statuses = storage.submit(add_frame(5, 1))
    storage.checkpoint()
    dead = copied(tmp_path / "live", tmp_path / "dead")
    storage.wait(lambda: bool(statuses))
    lose_unsynced(str(dead))
    again = reopened(dead)
    assert again.ids(5) in ([0], [0, 1])
    assert again.read(5, 2, 2)[1] == NO_SUCH_ENTRY


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_bad_checkpoint_costs_only_a_scan(written, damage):
    reopened(written).storage.close()
    path = written / "checkpoint"
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes({"flip": content, "cut": content[:-8], "empty": b""}[damage])
    again = reopened(written)
    assert again.ids(5) == list(range(11)) and again.ids(8) == [0] and not again.storage.holdings.damaged


def test_clean_restart_keeps_all_entries_and_leaves_no_extra_files(written):
    for _ in range(3):
        again = reopened(written)
        assert again.ids(5) == list(range(11))
        again.storage.close()
    # A file system without a limit of inodes needs no spare files.
    assert sorted(p.name for p in written.rglob("*") if p.is_file() and p.name not in SPARE_FILES) == [
        "00000001.arrows", "00000001.synced", "checkpoint", "checkpoint.00000001", "control.log", "control.synced",
    ]  # fmt: skip


def test_boot_removes_half_replaced_files(written):
    for name in ("checkpoint.new", "control.log.new"):
        (written / name).write_bytes(b"half")
    again = reopened(written)
    assert again.ids(5) == list(range(11))
    assert not list(written.glob("*.new"))


# -- rolling, losing power


def test_logs_roll_by_size(tmp_path):
    settings = {"entry_log_bytes_max": 4000}
    storage = Pumped(config(tmp_path / "live", **settings))
    pending = [storage.submit(add_frame(5, i, payload=b"x" * 500)) for i in range(20)]
    storage.wait(lambda: all(pending))
    assert len(logs_of(tmp_path / "live")) == 5
    assert storage.ids(5) == list(range(20))
    again = reopened(copied(tmp_path / "live", tmp_path / "dead"), **settings)
    assert again.ids(5) == list(range(20))
    for log in logs_of(tmp_path / "dead"):
        assert pyarrow.ipc.open_stream(log.read_bytes()).read_all().num_rows == 4
    storage.storage.close()
    assert reopened(tmp_path / "live", **settings).ids(5) == list(range(20))


def test_preallocation_does_not_change_the_file_length(written):
    frames = len(add_frame(5, 0, 9)) + len(add_frame(8, 0)) + len(add_frame(5, 10))
    assert logs_of(written)[0].stat().st_size == len(SCHEMA) + frames


def test_lose_unsynced_cuts_a_log_to_its_acknowledged_entries(written):
    log = logs_of(written)[0]
    acked = log.read_bytes()
    log.write_bytes(acked + add_frame(5, 11))
    lose_unsynced(str(written))
    assert log.read_bytes() == acked
    assert reopened(written).ids(5) == list(range(11))


def test_lose_unsynced_accepts_a_bookie_killed_while_starting_a_log(tmp_path):
    """The log's note was created but not yet written, and the log not created, so there is nothing to cut. This raised an
    error, and failed tests of power cuts under load."""
    file_system = FaultyFileSystem(RealFileSystem(), "write */logs/*.synced 1 hold")
    storage = Pumped(config(tmp_path / "live"), file_system)
    storage.fence(5)
    done = storage.submit(add_frame(8, 0))
    file_system.wait_held()
    dead = copied(tmp_path / "live", tmp_path / "dead")
    file_system.release()
    storage.wait(lambda: done)
    assert [path.stat().st_size for path in (dead / "logs").iterdir()] == [0]
    lose_unsynced(str(dead))
    again = reopened(dead)
    assert again.ids(8) == [] and again.add(5, 0) is Status.FENCED


def test_lose_unsynced_keeps_fences_after_a_kill_during_a_control_log_rewrite(tmp_path):
    """The note says 0 while either the old or the new log may be in place; both are synced. The whole log was cut off."""
    file_system = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path / "live"), file_system)
    assert storage.fence(5) is storage.fence(8) is Status.OK
    file_system.add("write */control.synced 2 hold")
    run_steps(storage.storage.garbage_collection.forget([8]), lambda: None)
    file_system.wait_held()
    dead = copied(tmp_path / "live", tmp_path / "dead")
    file_system.release()
    lose_unsynced(str(dead))
    assert reopened(dead).add(5, 0) is Status.FENCED


# -- control log


def test_fences_survive_in_every_directory(tmp_path):
    storage = Pumped(config(tmp_path / "a", tmp_path / "b"))
    storage.add(5, 0)
    assert storage.fence(5) is Status.OK
    for lost in ("a", "b"):
        dead = tmp_path / f"without {lost}"
        for name in ("a", "b"):
            copied(tmp_path / name, dead / name)
        (dead / lost / "control.log").write_bytes(b"")
        again = Pumped(config(dead / "a", dead / "b"))
        assert again.add(5, 1) is Status.FENCED
        again.storage.close()
        assert Pumped(config(dead / lost)).add(5, 1) is Status.FENCED, "the union is in every directory again"


def test_a_damaged_control_log_without_another_copy_keeps_the_bookie_down(written):
    path = written / "control.log"
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"control\.log is damaged at byte 0"):
        Storage(config(written)).open()


@pytest.mark.parametrize("names", [["control.log"], ["control.log", "control.synced"]])
def test_a_missing_control_log_beside_logs_keeps_the_bookie_down(written, names):
    for name in names:
        (written / name).unlink()
    with pytest.raises(StorageError, match=r"control\.log is missing, .* a fence may lie there"):
        Storage(config(written)).open()


def test_a_torn_control_record_is_cut(written):
    path = written / "control.log"
    path.write_bytes(path.read_bytes() + b"\x10\x00\x00\x00torn")
    again = reopened(written)
    assert b"torn" not in path.read_bytes() and not again.storage.holdings.damaged
    assert again.fence(5) is Status.OK
    assert reopened(copied(written, written.parent / "third")).add(5, 11) is Status.FENCED


def test_the_control_log_is_rewritten_when_most_of_it_is_superseded(tmp_path, monkeypatch):
    monkeypatch.setattr("bookspark.store.bookie.disk.control_log._REWRITE_BYTES_MIN", 200)
    storage = Pumped(config(tmp_path))
    storage.fence(6)
    for confirmed in range(60):
        assert storage.run(storage.storage.write_last_add_confirmed, 5, KEY, confirmed) is Status.OK
    size = (tmp_path / "control.log").stat().st_size
    storage.checkpoint()
    storage.run(storage.storage.settle)
    assert (tmp_path / "control.log").stat().st_size < size / 5
    assert storage.run(storage.storage.write_last_add_confirmed, 5, KEY, 77) is Status.OK
    again = reopened(tmp_path)
    assert again.storage.holdings.ledger(5).last_add_confirmed == 77
    assert again.add(6, 0) is Status.FENCED


# -- defects from crashes before every operation


def test_log_note_left_empty_by_a_crash_is_no_damage(tmp_path):
    """The name of a log's note reached the disk, its content did not; the log had not been started."""
    for content in (b"", bytes(16)):
        directory = tmp_path / str(len(content))
        reopened(directory).storage.close()
        (directory / "logs/00000001.synced").write_bytes(content)
        again = reopened(directory)
        assert not again.storage.holdings.damaged
        assert list((directory / "logs").iterdir()) == []


def test_name_of_a_note_is_durable_before_its_log_is_created(tmp_path):
    """Otherwise a crash can leave a log without a note, which counts as damage."""
    files = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path), files)
    storage.add(5, 0)
    made = [call.kind for call in files.calls if "/logs" in call.path and call.kind in ("create", "sync_directory")]
    assert made[-4:] == ["create", "sync_directory", "create", "sync_directory"], "note, names, log, names"
    storage.storage.close()


def test_control_log_without_a_note_gets_a_note_before_the_first_append(tmp_path):
    """A crash in the first boot can leave an empty control log without a note; a torn record in it would later count as
    damage."""
    (tmp_path / "control.log").write_bytes(b"")
    storage = Pumped(config(tmp_path))
    assert (tmp_path / "control.synced").exists()
    storage.fence(5)
    with (tmp_path / "control.log").open("ab") as file:
        file.write(bytes(40))
    assert reopened(copied(tmp_path, tmp_path.parent / "torn")).add(5, 0) is Status.FENCED


@pytest.mark.parametrize("at", range(12, 16))
def test_scrub_checks_the_last_bytes_of_a_note(written, at):
    note = logs_of(written)[0].with_suffix(".synced")
    content = bytearray(note.read_bytes())
    content[at] ^= 1
    note.write_bytes(content)
    assert scrub(RealFileSystem(), str(written)).damages
