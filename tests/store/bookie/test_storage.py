"""Storage on real files: adding, reading, fencing, failing disks."""

from __future__ import annotations

import gc

import pytest

from bookspark.protocol.bookie.bookie_ledger import ENTRY_AWAY, NO_SUCH_ENTRY, NO_SUCH_LEDGER
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.holdings import reads
from bookspark.store.bookie.holdings.reads import LogFiles
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.store.bookie.kit import KEY, OTHER_KEY, Pumped, add_frame, config, payloads


@pytest.fixture
def storage(tmp_path):
    pumped = Pumped(config(tmp_path))
    yield pumped
    pumped.storage.close()


def test_added_entries_are_read_back(storage):
    assert storage.add(5, 0, 9) is Status.OK
    assert storage.add(5, 10) is Status.OK
    entries, refusal = storage.read(5, 3, 10)
    assert [entry.entry_id for entry in entries] == list(range(3, 11))
    assert payloads(entries)[0] == b"00000003:payload"
    assert refusal is None


def test_read_of_an_absent_entry_or_ledger_is_negative(storage):
    storage.add(5, 0)
    assert storage.read(5, 0, 1)[1] == NO_SUCH_ENTRY
    assert storage.read(5, 1, 1) == ([], NO_SUCH_ENTRY)
    assert storage.read(6, 0, 0) == ([], NO_SUCH_LEDGER)


def test_sparse_read_skips_missing_entries(storage):
    for entry_id in (0, 2, 5):
        storage.add(5, entry_id)
    assert [entry.entry_id for entry in storage.read(5, 0, 9, sparse=True)[0]] == [0, 2, 5]
    assert [entry.entry_id for entry in storage.read(5, 0, 9)[0]] == [0]


def test_entry_added_into_a_gap_is_read_in_order(storage):
    for entry_id in (0, 1, 9, 4):
        assert storage.add(5, entry_id) is Status.OK
    assert [entry.entry_id for entry in storage.read(5, 0, 9, sparse=True)[0]] == [0, 1, 4, 9]
    assert storage.add(5, 2, 3) is Status.OK
    assert payloads(storage.read(5, 0, 4)[0]) == [b"%08d:payload" % entry_id for entry_id in range(5)]


def test_admitted_add_is_readable_before_its_sync(storage):
    statuses = storage.submit(add_frame(5, 0, 2))
    assert statuses == []
    assert [entry.entry_id for entry in storage.read(5, 0, 2)[0]] == [0, 1, 2]
    storage.wait(lambda: bool(statuses))


def test_read_ends_at_its_limit_but_returns_at_least_a_batch(storage):
    for entry_id in range(5):
        storage.add(5, entry_id)
    plan = storage.storage.holdings.plan_read(5, 1, 4, 1, sparse=False)
    assert ([piece.first for piece in plan.pieces], plan.end, plan.refusal) == ([1], 1, None)


def test_waiting_adds_are_synced_together(tmp_path):
    files = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path), files)
    storage.add(5, 0)
    frames = [add_frame(5, i) for i in range(1, 500)]
    before = len(files.calls)
    statuses = [storage.submit(frame) for frame in frames]
    storage.wait(lambda: all(statuses))
    syncs = [path for call, path in files.calls[before:] if call == "sync"]
    assert 0 < len(syncs) < 400
    assert storage.storage.bytes_in_flight == 0
    storage.storage.close()


def test_note_of_the_log_is_synced_after_its_entries_before_the_acknowledgement(tmp_path):
    files = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path), files)
    storage.add(5, 0)
    log = [(call, path.rsplit(".", 1)[1]) for call, path in files.calls if "/logs/" in path]
    assert log[-4:] == [("write", "arrows"), ("sync", "arrows"), ("write", "synced"), ("sync", "synced")], (
        "of its first group"
    )
    storage.storage.close()


# -- duplicates


def test_duplicate_is_acknowledged_and_not_written_again(storage):
    storage.add(5, 0, 9)
    size = storage.storage.status().log_bytes
    assert storage.add(5, 0, 9) is Status.OK
    assert storage.add(5, 3, 6) is Status.OK
    assert storage.storage.status().log_bytes == size


def test_duplicate_longer_than_a_read_answer_is_compared_whole(storage):
    """The answer was I/O error for ever: a ledger whose bookies held such a long last batch in pieces could not be recovered."""
    piece = b"x" * (1 << 20)
    for first in range(6):
        assert storage.add(5, first, payload=piece) is Status.OK
    assert storage.add(5, 0, 5, payload=piece) is Status.OK
    assert storage.add(5, 0, 5, payload=piece[:-1] + b"y") is Status.CONFLICT


def test_duplicate_waits_for_the_sync_of_the_first_copy(storage):
    first = storage.submit(add_frame(5, 0, 9))
    second = storage.submit(add_frame(5, 4, 5))
    assert second == []
    storage.wait(lambda: bool(second))
    assert first == second == [Status.OK]


def test_add_with_other_content_is_a_conflict_and_changes_nothing(storage):
    storage.add(5, 0, 9)
    assert storage.add(5, 8, 12, payload=b"another", last_add_confirmed=7) is Status.CONFLICT
    assert storage.ids(5) == list(range(10))
    assert storage.storage.holdings.ledger(5).last_add_confirmed == -1


def test_batch_held_in_part_adds_the_rest(storage):
    storage.add(5, 2, 3)
    storage.add(5, 6, 7)
    assert storage.add(5, 0, 9) is Status.OK
    assert storage.ids(5) == list(range(10))
    entries, _ = storage.read(5, 0, 9)
    assert payloads(entries) == [b"%08d:payload" % i for i in range(10)]


def test_duplicate_with_another_lac_is_no_conflict(storage):
    storage.add(5, 0, 1)
    assert storage.add(5, 0, 1, last_add_confirmed=0) is Status.OK
    assert storage.storage.holdings.ledger(5).last_add_confirmed == 0


# -- fences, keys, LAC


def test_a_fenced_ledger_refuses_its_writer_and_takes_recovery(storage):
    storage.add(5, 0)
    assert storage.fence(5) is Status.OK
    assert storage.add(5, 1) is Status.FENCED
    assert storage.add(5, 1, flags=int(Flag.RECOVERY)) is Status.OK
    assert storage.ids(5) == [0, 1]


def test_4462_fence_of_a_ledger_without_entries_survives_a_restart(tmp_path):
    storage = Pumped(config(tmp_path))
    assert storage.fence(5) is Status.OK
    assert storage.add(5, 0) is Status.FENCED
    again = Pumped(config(tmp_path))  # the first storage is still open
    assert again.add(5, 0) is Status.FENCED
    assert again.read(5, 0, 0)[1] == NO_SUCH_ENTRY
    again.storage.close()
    storage.storage.close()


def test_a_wrong_password_does_not_fence(storage):
    storage.add(5, 0)
    assert storage.fence(5, OTHER_KEY) is Status.UNAUTHORIZED
    assert storage.add(5, 1, master_key=OTHER_KEY) is Status.UNAUTHORIZED
    assert storage.add(5, 1) is Status.OK


def test_fence_requests_are_answered_together_after_the_sync(tmp_path):
    files = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path), files)
    answers = []
    storage.storage.fence(5, KEY, answers.append)
    storage.storage.fence(5, KEY, answers.append)
    assert answers == []
    storage.wait(lambda: len(answers) == 2)
    assert answers == [Status.OK, Status.OK]
    # The sync of the note, about once a second, may follow.
    synced = [path for call, path in files.calls if call == "sync" and not path.endswith(".synced")]
    assert synced[-1].endswith("control.log")
    storage.storage.close()


def test_explicit_lac_survives_a_restart_and_wakes_long_polls(tmp_path):
    storage = Pumped(config(tmp_path))
    storage.add(5, 0, 3)
    reached = []
    storage.storage.long_polls.add(5, 2, lambda: reached.append(2))
    late = storage.storage.long_polls.add(5, 9, lambda: reached.append(9))
    assert storage.run(storage.storage.write_last_add_confirmed, 5, KEY, 3) is Status.OK
    assert storage.run(storage.storage.write_last_add_confirmed, 5, KEY, 3) is Status.OK
    assert reached == [2]
    storage.storage.long_polls.remove(5, late)
    storage.storage.close()
    again = Pumped(config(tmp_path))
    assert again.storage.holdings.ledger(5).last_add_confirmed == 3
    again.storage.close()


def test_ranges_list_every_row_in_portions(storage):
    for entry_id in range(5):
        storage.add(5, entry_id)
    storage.add(8, 0, 9)
    first, ledger_id, entry_id = storage.storage.holdings.ranges(0, 0, 3, only=False)
    assert (list(first.first_entry_ids), ledger_id, entry_id) == ([0, 1, 2], 5, 3)
    rest, ledger_id, entry_id = storage.storage.holdings.ranges(5, 3, 0, only=False)
    assert list(zip(rest.ledger_ids, rest.first_entry_ids, rest.last_entry_ids, strict=True)) == [
        (5, 3, 3), (5, 4, 4), (8, 0, 9),
    ]  # fmt: skip
    assert (ledger_id, entry_id) == (-1, -1)
    assert list(storage.storage.holdings.ranges(8, 0, 0, only=True)[0].ledger_ids) == [8]
    assert list(storage.storage.holdings.ranges(6, 0, 0, only=True)[0].ledger_ids) == []


# -- failing disks


def test_failed_sync_retires_the_directory_for_good(tmp_path):
    files = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path), files)
    storage.add(5, 0, 4)
    none_left: list[str] = []
    storage.storage.when_none_is_left(none_left.append)
    files.add("sync *.arrows 1.. io-error")
    assert storage.add(5, 5) is Status.IO_ERROR
    syncs = sum(call == "sync" for call, _ in files.calls)
    assert storage.add(5, 6) is Status.READ_ONLY
    assert storage.fence(5) is Status.IO_ERROR
    assert sum(call == "sync" for call, _ in files.calls) == syncs, "never tried again"
    assert [storage.read(5, i, i)[1] for i in (0, 5, 6)] == [ENTRY_AWAY, ENTRY_AWAY, NO_SUCH_ENTRY], "nothing is held"
    assert storage.storage.status().read_only and list(storage.storage.status().failed_directories) == [str(tmp_path)]
    assert len(none_left) == 1 and str(tmp_path) in none_left[0], "and the bookie ends"
    storage.storage.close()


def test_fence_without_a_successful_sync_is_never_acknowledged(tmp_path):
    files = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path), files)
    storage.add(5, 0)
    files.add("sync */control.log 1.. io-error")
    assert storage.fence(5) is Status.IO_ERROR
    assert storage.fence(5) is Status.IO_ERROR
    assert storage.add(5, 1) is Status.FENCED
    storage.storage.close()


def test_boot_keeps_the_counts_of_the_garbage_collector(tmp_path):
    """A boot set the counts of Python's collector to 0: a process that opened many bookies in turn kept all of them in memory."""
    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(1_000_000)
        for opened in range(1, 6):
            gc.collect(0)
            Storage(config(tmp_path)).open().close()
            assert gc.get_count()[1] >= opened
    finally:
        gc.set_threshold(*thresholds)


def test_adds_of_a_failed_directory_go_to_another_directory(tmp_path):
    files = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path / "a", tmp_path / "b"), files)
    assert storage.add(4, 0) is storage.add(5, 0) is Status.OK
    files.add("write */a/logs/* 1.. io-error")
    assert storage.add(4, 1) is Status.IO_ERROR
    assert storage.add(4, 1) is Status.OK
    assert storage.add(5, 1) is Status.OK
    assert storage.fence(4) is Status.OK
    assert storage.read(4, 0, 0)[1] == ENTRY_AWAY, "what lies in a directory that failed is not held"
    assert [entry.entry_id for entry in storage.read(4, 1, 1)[0]] == [1] and storage.ids(5) == [0, 1]
    assert storage.read(4, 2, 2)[1] == storage.read(5, 2, 2)[1] == NO_SUCH_ENTRY
    again = Pumped(config(tmp_path / "a", tmp_path / "b"))
    assert again.ids(4) == again.ids(5) == [0, 1]
    assert again.add(4, 2) is Status.FENCED
    again.storage.close()
    storage.storage.close()


def test_unreadable_entry_is_not_absent(storage, tmp_path):
    storage.add(5, 0)
    storage.add(5, 1)
    [log] = (tmp_path / "logs").glob("*.arrows")
    content = bytearray(log.read_bytes())
    content[-1] ^= 1
    log.write_bytes(content)
    entries, refusal = storage.read(5, 0, 1)
    assert [entry.entry_id for entry in entries] == [0]
    assert refusal == "bad frame"


def test_least_recently_read_log_is_closed_when_too_many_are_open(monkeypatch):
    monkeypatch.setattr(reads, "_OPEN_FILES_MAX", 2)
    logs = LogFiles(lambda number: f"log {number}")
    for number in (1, 2, 1, 3):
        assert logs.get(number) == f"log {number}"
    assert [logs.is_open(number) for number in (1, 2, 3)] == [True, False, True]
