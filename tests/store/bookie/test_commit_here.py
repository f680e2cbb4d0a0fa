"""Groups that the event loop commits itself, with the same result as the commit thread."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from bookspark.store.bookie.commit import commit_thread
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.store.bookie.kit import KEY, SECONDS_MAX, Pumped, add_frame, config

LOG_SYNC = "sync */logs/*.arrows"


class Looped(Pumped):
    """A storage whose event loop, with its turns, is the test. ``syncs`` holds the thread of each sync."""

    def __init__(self, settings, monkeypatch):
        self._groups = SimpleQueue()
        original = commit_thread.CommitThread.commit_queued

        def commit_queued(thread, post, completed):
            goes_on = original(thread, post, completed)
            self._groups.put(None)
            return goes_on

        monkeypatch.setattr(commit_thread.CommitThread, "commit_queued", commit_queued)
        monkeypatch.setattr(commit_thread, "monotonic", lambda: self.clock)
        self._ends = []
        self.syncs = []
        self.clock = 0.0
        self.files = FaultyFileSystem(RealFileSystem(), before=self._seen, sleep=self._slept)
        super().__init__(settings, self.files, soon=self._ends.append)

    def _seen(self, operation):
        if operation.kind == "sync":
            self.syncs.append(threading.current_thread())

    def _slept(self, seconds):
        self.clock += seconds

    def turn(self, *entry_ids, **options):
        """Adds that come in one turn of the loop; their statuses will be in the lists."""
        added = [self.submit(add_frame(1, entry_id, **options)) for entry_id in entry_ids]
        self.end_turn()
        return added

    def end_turn(self):
        while self._ends:
            self._ends.pop(0)()

    def turn_and_wait(self, *entry_ids, **options):
        added = self.turn(*entry_ids, **options)
        self.wait(lambda: all(added))
        for directory in self.storage.holdings.directories:
            while directory.commit._through < directory.commit._handed_over:
                self._groups.get(timeout=SECONDS_MAX)
        return [statuses[0] for statuses in added]

    @property
    def committed_here(self):
        return self.syncs[-1] is threading.current_thread()


@pytest.fixture
def looped(tmp_path, monkeypatch):
    made = Looped(config(tmp_path), monkeypatch)
    yield made
    made.files.clear()
    made.storage.close()


@pytest.fixture
def quick(looped):
    """A storage after enough quick groups for the loop to commit."""
    for entry_id in range(commit_thread._QUICK_GROUPS + 1):
        assert looped.turn_and_wait(entry_id) == [Status.OK]
    return looped


def next_ids(count=1):
    first = commit_thread._QUICK_GROUPS + 1
    return range(first, first + count)


def test_loop_commits_only_after_many_quick_groups(looped):
    for entry_id in range(commit_thread._QUICK_GROUPS):
        looped.turn_and_wait(entry_id)
        assert not looped.committed_here
    looped.turn_and_wait(commit_thread._QUICK_GROUPS)
    assert looped.committed_here
    assert looped.ids(1) == list(range(commit_thread._QUICK_GROUPS + 1))


def test_entry_acknowledged_by_the_loop_is_synced_and_noted(quick):
    [statuses] = quick.turn(*next_ids())
    assert statuses == [Status.OK] and quick.committed_here
    [directory] = quick.storage.holdings.directories
    assert directory.current.synced == directory.current.end == directory.current.note.read()


def test_shared_loop_leaves_commits_to_the_thread(quick):
    first, second = next_ids(2)
    quick.storage.loop_is_shared = lambda: True
    assert quick.turn_and_wait(first) == [Status.OK] and not quick.committed_here
    quick.storage.loop_is_shared = lambda: False
    assert quick.turn_and_wait(second) == [Status.OK] and quick.committed_here


def test_slow_group_moves_commits_back_to_the_thread(quick):
    quick.files.add(f"{LOG_SYNC} 1 slow:0.002")
    first, second = next_ids(2)
    assert quick.turn_and_wait(first) == [Status.OK] and quick.committed_here
    assert quick.turn_and_wait(second) == [Status.OK] and not quick.committed_here


def test_loop_never_overtakes_adds_queued_at_the_thread(quick):
    first, second, third = next_ids(3)
    quick.files.add(f"{LOG_SYNC} 1 hold")
    slow = quick.turn(first, payload=b"x" * commit_thread._BYTES_HERE_MAX)
    quick.files.wait_held()
    lone = quick.turn(second)
    assert lone == [[]], "the thread is at work: it has to wait"
    quick.files.release()
    quick.wait(lambda: bool(slow[0] and lone[0]))
    assert not quick.committed_here
    assert quick.turn_and_wait(third) == [Status.OK] and quick.ids(1)[-3:] == [first, second, third]


@pytest.mark.parametrize(
    "many",
    [
        {"count": commit_thread._ITEMS_HERE_MAX + 1},
        {"count": 2, "payload": b"x" * (commit_thread._BYTES_HERE_MAX // 2)},
    ],
)
def test_large_group_is_committed_by_the_thread(quick, many):
    assert set(quick.turn_and_wait(*next_ids(many.pop("count")), **many)) == {Status.OK}
    assert not quick.committed_here


def test_fence_is_committed_by_the_thread(quick):
    statuses = []
    syncs = len(quick.syncs)
    quick.storage.fence(1, KEY, statuses.append)
    quick.end_turn()
    quick.wait(lambda: bool(statuses))
    assert statuses == [Status.OK] and quick.syncs[syncs:]
    assert threading.current_thread() not in quick.syncs[syncs:]


def test_bookie_with_two_directories_commits_only_on_its_threads(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.mkdir()
    looped = Looped(config(*paths), monkeypatch)
    looped.syncs.clear()
    for entry_id in range(commit_thread._QUICK_GROUPS + 5):
        looped.turn_and_wait(entry_id)
    assert looped.syncs and threading.current_thread() not in looped.syncs
    looped.storage.close()


def test_failed_sync_on_the_loop_retires_the_directory(quick):
    quick.files.add(f"{LOG_SYNC} 1.. io-error")
    first, second = next_ids(2)
    assert quick.turn(first) == [[Status.IO_ERROR]]
    assert quick.storage.live == []
    assert quick.turn(second) == [[Status.READ_ONLY]]


def test_write_without_room_on_the_loop_fails_only_its_group(quick):
    quick.files.add("write */logs/*.arrows 1 no-space")
    first, second = next_ids(2)
    assert quick.turn(first) == [[Status.READ_ONLY]]
    assert quick.ids(1) == list(range(first)), "it is absent like any other"
    assert quick.turn_and_wait(second, flags=int(Flag.RECOVERY)) == [Status.READ_ONLY]


def test_close_writes_adds_submitted_in_the_same_turn(tmp_path, monkeypatch):
    looped = Looped(config(tmp_path), monkeypatch)
    statuses = looped.submit(add_frame(1, 0))
    looped.storage.close()
    looped.wait(lambda: bool(statuses))
    assert statuses == [Status.OK]
    again = Pumped(config(tmp_path))
    assert again.ids(1) == [0]
    again.storage.close()


def test_new_log_is_started_by_the_thread(tmp_path, monkeypatch):
    looped = Looped(config(tmp_path, entry_log_bytes_max=commit_thread._QUICK_GROUPS * 700), monkeypatch)
    numbers = set()
    for entry_id in range(3 * commit_thread._QUICK_GROUPS):
        assert looped.turn_and_wait(entry_id) == [Status.OK]
        [directory] = looped.storage.holdings.directories
        if directory.current.number not in numbers:
            numbers.add(directory.current.number)
            assert not looped.committed_here
    assert len(numbers) >= 2
    looped.storage.close()


def test_thread_commits_while_a_background_sync_is_due(quick):
    first, second = next_ids(2)
    unsynced = {"flags": int(Flag.VOLATILE), "limit": 1 << 20 | 1 << 10}
    assert quick.turn_and_wait(first, **unsynced) == [Status.OK]
    [directory] = quick.storage.holdings.directories
    assert directory.commit._writer.relaxed_bytes
    assert quick.turn_and_wait(second) == [Status.OK] and not quick.committed_here
