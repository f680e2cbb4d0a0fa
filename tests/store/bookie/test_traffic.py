"""Counters for a bookie's metrics: each add counts once, when it is done."""

from __future__ import annotations

import pytest

from bookspark.store.bookie.commit import commit_thread
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from tests.store.bookie.kit import KEY, Pumped, add_frame, config
from tests.store.bookie.stepped import Stepped, without_threads
from tests.store.metadata.kit import ledger


@pytest.fixture
def stepped():
    """Makes a storage whose groups the test commits itself."""
    with without_threads():
        yield lambda files=None, **options: Stepped(config("/disk", **options), files or MemoryFileSystem())


def counted(distribution):
    return sum(distribution.counts)


def commit_of(run):
    [directory] = run.storage.holdings.directories
    return directory.commit


def test_adds_groups_and_syncs_are_counted_once(stepped):
    run = stepped()
    statuses = [run.add(5, first, first + 9) for first in (0, 10, 20)]
    commit = commit_of(run)
    assert counted(commit.adds.copy()) == 0, "none is done yet"
    run.commit()
    assert statuses == [[Status.OK]] * 3
    assert counted(commit.adds.copy()) == 3
    assert [counted(commit.groups.entry_batches.copy()), commit.groups.entry_batches.copy().total] == [1, 3]
    traffic = run.storage.traffic
    assert (traffic.entries_in, traffic.bytes_in) == (30, 3 * len(add_frame(5, 0, 9)))
    assert commit.groups.bytes.copy().total == traffic.bytes_in
    assert counted(commit.syncs) == 1
    run.storage.close()


def test_adds_acknowledged_before_and_after_their_sync_are_each_counted_once(stepped):
    run = stepped(journal_write_data=False)
    run.add(5, 0)
    run.add(6, 0, flags=Flag.RECOVERY)
    run.commit()
    commit = commit_of(run)
    assert counted(commit.adds.copy()) == 2
    assert counted(commit.groups.entry_batches.copy()) == 1
    run.storage.close()


def test_background_sync_counts_as_a_sync(stepped):
    run = stepped(journal_write_data=False, background_sync_bytes=1)
    run.add(5, 0)
    run.commit()
    assert counted(commit_of(run).syncs) == 1
    run.storage.close()


def test_failed_adds_are_not_timed(stepped):
    files = FaultyFileSystem(MemoryFileSystem())
    run = stepped(files)
    files.add("write *.arrows 1 no-space")
    lost = run.add(5, 0)
    run.commit()
    assert lost == [Status.READ_ONLY]
    assert counted(commit_of(run).adds.copy()) == 0
    run.storage.close()


def test_add_is_timed_from_its_turn_of_the_loop_to_its_answer(stepped, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(commit_thread, "monotonic", lambda: clock[0])
    run = stepped()
    run.add(5, 0)
    clock[0] += 3.0
    run.add(5, 1)
    clock[0] += 1.0
    run.commit()
    assert commit_of(run).adds.copy().total == 4.0 + 1.0
    run.storage.close()


def test_adds_of_a_turn_of_the_loop_are_timed_from_their_first(tmp_path, monkeypatch):
    clock, ends = [100.0], []
    monkeypatch.setattr(commit_thread, "monotonic", lambda: clock[0])
    run = Pumped(config(tmp_path), RealFileSystem(), soon=ends.append)
    told = [run.submit(add_frame(5, 0))]
    clock[0] += 3.0
    told.append(run.submit(add_frame(5, 1)))
    ends.pop()()
    clock[0] += 1.0
    run.wait(lambda: all(told))
    assert (counted(commit_of(run).adds.copy()), commit_of(run).adds.copy().total) == (2, 8.0)
    run.storage.close()


def test_repeated_fence_requests_count_as_a_single_fence(stepped):
    run = stepped()
    for _ in range(2):
        run.storage.fence(5, KEY, lambda status: None)
        run.commit()
    assert run.storage.traffic.fences == 1
    run.storage.close()


def test_garbage_collected_rewritten_and_removed_bytes_are_counted(tmp_path):
    run = Pumped(config(tmp_path / "live"), RealFileSystem())
    for ledger_id in (5, 6, 7):
        run.add(ledger_id, 0, 9)
    run.seal()
    store, storage = MemoryStore(), run.storage
    for _ in range(10):
        store.new_ledger_id()
    store.create_ledger(ledger(5))
    path = str(tmp_path / "live")
    assert run.collect(store) == 2 and storage.garbage_collection.collected == 2
    run.reclaim(entry_logs=False, threshold=0.2)
    assert storage.reclaiming.garbage[path] >= 2 * len(add_frame(5, 0, 9)), "two thirds of the log are"
    given_back = run.reclaim(entry_logs=False, threshold=0.5)
    assert storage.reclaiming.removed_bytes - storage.reclaiming.rewritten_bytes == given_back > 0
    assert storage.reclaiming.rewritten_bytes > 0
    run.reclaim(entry_logs=False, threshold=0.5)
    assert storage.reclaiming.garbage.get(path, 0) < len(add_frame(5, 0, 9)), "it was rewritten"
    storage.close()
