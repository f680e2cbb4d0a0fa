"""Concurrent actions of two threads of a bookie on the same object."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from bookspark.store.bookie.disk.entry_log import LOGS, EntryLog
from bookspark.store.bookie.disk.synced_note import SyncedNote
from bookspark.store.bookie.disk.unclean_marker import NAME, UncleanMarker
from bookspark.store.bookie.holdings import checkpointing
from bookspark.store.bookie.holdings.reads import LogFiles
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from tests.locks import meanwhile
from tests.store.bookie.kit import Pumped, config, run_checkpoint

SECONDS = 60.0


@pytest.fixture
def files():
    made = FaultyFileSystem(MemoryFileSystem("/disk"))
    made.make_directory(f"/disk/{LOGS}")
    yield made
    made.clear()


# -- logs open for reading


class Table(OrderedDict):
    """A table that runs a callback once, in the middle of an operation."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.after_get = self.before_setdefault = None

    def get(self, key, default=None):
        found = super().get(key, default)
        happens, self.after_get = self.after_get, None
        if happens is not None:
            happens()
        return found

    def setdefault(self, key, default=None):
        happens, self.before_setdefault = self.before_setdefault, None
        if happens is not None:
            happens()
        return super().setdefault(key, default)


@pytest.mark.parametrize("other", [lambda logs: logs.forget(1), lambda logs: logs.clear()], ids=["forget", "clear"])
def test_log_lookup_during_a_removal_does_not_fail(other):
    """The lookup succeeded, and then the log could not be moved to the end of the table."""
    logs = LogFiles(lambda number: f"log {number}")
    logs.get(1)
    table = logs._files = Table(logs._files)
    with ExitStack() as ended:
        table.after_get = lambda: ended.enter_context(meanwhile(logs, "_lock", lambda: other(logs)))
        assert logs.get_open(1) == "log 1"
    assert not logs.is_open(1)


def test_log_removed_while_being_opened_does_not_stay_open():
    logs = LogFiles(lambda number: f"log {number}")
    table = logs._files = Table()
    with ExitStack() as ended:
        table.before_setdefault = lambda: ended.enter_context(meanwhile(logs, "_lock", lambda: logs.forget(1)))
        assert logs.get(1) == "log 1"
    assert not logs.is_open(1)


# -- notes and markers, which a scrub renews on its own thread


def written_log(files):
    log = EntryLog(files, "/disk", 1)
    log.create(1 << 20)
    end = log.write([b"x" * 100], log.end)
    log.sync(end - 50)
    return log, end


@pytest.fixture
def thread():
    with ThreadPoolExecutor(1) as threads:
        yield threads


def test_note_renewed_while_its_log_is_removed_stays_removed(files, thread):
    log, _ = written_log(files)
    files.add("open *.synced 1 hold")
    renewed = thread.submit(log.renew_note)
    files.wait_held()
    with meanwhile(log, "_noting", log.remove):
        files.release()
    renewed.result(SECONDS)
    assert not files.exists(log.note_path) and not files.exists(log.path)


def test_note_renewed_while_its_log_is_synced_keeps_the_new_position(files, thread):
    log, end = written_log(files)
    files.add("write *.synced 1 hold")
    renewed = thread.submit(log.renew_note)
    files.wait_held()
    with meanwhile(log, "_noting", lambda: log.sync_beside(end)):
        files.release()
    renewed.result(SECONDS)
    assert log.synced == end
    assert SyncedNote(files, log.note_path, log.number).read() == end


def standing_marker(files):
    marker = UncleanMarker(files, "/disk", "boot")
    marker.make()
    files.unlink(f"/disk/{NAME}")
    return marker


def test_marker_renewed_while_being_removed_stays_removed(files, thread):
    marker = standing_marker(files)
    files.add("create * 1 hold")
    renewed = thread.submit(marker.renew)
    files.wait_held()
    with meanwhile(marker, "_lock", marker.clear):
        files.release()
    assert renewed.result(SECONDS)
    assert not marker.stands and not files.exists(f"/disk/{NAME}")


def test_marker_created_by_two_threads_at_once_exists(files, thread):
    """Both threads write the same new file, and only one could rename it."""
    marker = standing_marker(files)
    files.add(f"sync */{NAME}* 1 hold")
    renewed = thread.submit(marker.renew)
    files.wait_held()
    with meanwhile(marker, "_lock", marker.make):
        files.release()
    assert renewed.result(SECONDS)
    assert marker.stands and files.exists(f"/disk/{NAME}")


# -- checkpoints


def test_checkpoint_behind_a_hanging_checkpoint_is_skipped_and_written_later(tmp_path, monkeypatch, caplog):
    bookie = Pumped(config(tmp_path))
    checkpoints = bookie.storage.checkpoints
    bookie.add(5, 0)
    with monkeypatch.context() as patched, checkpoints._writing:
        patched.setattr(checkpointing, "_WRITE_SECONDS_MAX", 0.0)
        run_checkpoint(bookie.storage)
        assert "the last checkpoint is still being written" in caplog.text
    (directory,) = bookie.storage.live
    assert not directory.parts
    bookie.add(5, 1)
    run_checkpoint(bookie.storage)
    assert directory.parts
    bookie.storage.close()


def test_check_of_a_damaged_checkpoint_always_releases_the_write_lock(tmp_path, monkeypatch):
    bookie = Pumped(config(tmp_path))
    checkpoints = bookie.storage.checkpoints
    bookie.add(5, 0)
    run_checkpoint(bookie.storage)
    (directory,) = bookie.storage.live
    path = tmp_path / "checkpoint"
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with monkeypatch.context() as patched, checkpoints._writing:
        patched.setattr(checkpointing, "_WRITE_SECONDS_MAX", 0.0)
        assert checkpoints.damages(directory), "as it was before"
    assert checkpoints.damages(directory)
    assert not checkpoints._writing.locked()

    def fails(*arguments):
        raise MemoryError

    monkeypatch.setattr(checkpointing, "check_checkpoint", iter_then(checkpointing.check_checkpoint, fails))
    with pytest.raises(MemoryError):
        checkpoints.damages(directory)
    assert not checkpoints._writing.locked()
    bookie.storage.close()


def iter_then(first, second):
    """Calls ``first`` once, then ``second``."""
    calls = iter([first])
    return lambda *arguments: next(calls, second)(*arguments)


def test_failed_checkpoint_write_releases_the_write_lock(tmp_path, monkeypatch):
    bookie = Pumped(config(tmp_path))
    bookie.add(5, 0)

    def fails(*arguments):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(checkpointing, "write_checkpoint", fails)
        with pytest.raises(MemoryError):
            run_checkpoint(bookie.storage)
    assert not bookie.storage.checkpoints._writing.locked()
    bookie.storage.close()
