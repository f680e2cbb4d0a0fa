"""The end of a bookie's threads and child processes when it closes."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import struct
import threading

import pytest

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_boot import METADATA_UNKNOWN
from bookspark.store.bookie.checks import check_control_log
from bookspark.store.bookie.commit.commit_thread import CommitThread
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.disk.rewritten_log import adopt
from bookspark.store.bookie.disk.synced_note import SyncedNote
from bookspark.store.bookie.ledgers.metadata_looks import MetadataLooks, Question
from bookspark.store.bookie.space.rewriting import Job, LedgerFacts, NoRewriterError, SealedLog
from bookspark.store.bookie.space.rewriting_process import RewritingProcess, _receive
from bookspark.store.bookie.storage import DiskThreads
from bookspark.store.wire.messages import Ranges
from bookspark.support.threads import BackOff
from bookspark.testing.memory_files import MemoryFileSystem
from tests.store.bookie.kit import Pumped, config


def test_closed_rewriting_process_leaves_no_forker_and_no_zombie():
    process = RewritingProcess()
    worker = process.worker_pid()
    assert process.worker_pid() == worker
    process.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(process._forker, 0)
    process.close()


def test_closed_storage_leaves_no_thread(tmp_path):
    before = set(threading.enumerate())
    run = Pumped(config(tmp_path, journal_write_data=False, background_sync_bytes=1))
    for entry_id in range(3):
        run.add(5, entry_id)
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert f"commit {tmp_path}" in names and f"sync {tmp_path}" in names
    run.storage.close()
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"bookie metadata"}
    assert all(directory.commit.ended for directory in run.storage.holdings.directories)


def test_close_of_a_storage_raises_if_its_disk_does_not_answer(tmp_path, monkeypatch):
    run = Pumped(config(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(CommitThread, "join", lambda thread, seconds: seconds != 60.0)
        with pytest.raises(StorageError, match="does not answer"):
            run.storage.close()
    for directory in run.storage.holdings.directories:
        assert directory.commit.join(60)


def test_rewritten_log_shorter_than_its_end_is_not_adopted(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "00000007.arrow").write_bytes(b"ARR")
    assert adopt(RealFileSystem(), str(tmp_path), 7) is None


def test_rewriting_process_reports_errors_and_backs_off_after_dead_workers(tmp_path):
    now = [0.0]
    process = RewritingProcess(clock=lambda: now[0])
    try:
        worker = process.worker_pid()
        for _ in range(2):
            with pytest.raises(FileNotFoundError, match="No such file"):
                process.rewrite(Job(str(tmp_path / "none"), 9, [], Ranges.empty().encode(), {}, 0))
        (tmp_path / "logs").mkdir()
        rows = Ranges.empty()
        rows.append((5, 0, 0, 3, 400, 656))
        job = Job(
            str(tmp_path),
            9,
            [SealedLog(3, str(tmp_path / "zeros"))],
            rows.encode(),
            {5: LedgerFacts(-1, -1, bytes(16))},
            0,
        )
        (tmp_path / "zeros").write_bytes(bytes(2000))
        made = process.rewrite(job)
        assert (list(made.rows.ledger_ids), list(made.damaged.positions), made.size) == (
            [],
            [400],
            (tmp_path / "logs/00000009.arrow.new").stat().st_size,
        )
        assert process.worker_pid() == worker
        for pause in (1.0, 2.0, 4.0):
            os.kill(process.worker_pid(), signal.SIGKILL)
            with pytest.raises(OSError):
                process.rewrite(job)
            now[0] += pause - 0.001
            with pytest.raises(NoRewriterError, match="not time yet") as refused:
                process.rewrite(job)
            assert refused.value.errno == errno.EAGAIN
            now[0] += 0.001
            assert process.worker_pid() != worker
        process._pauses = BackOff(290.0, 300.0)
        os.kill(process.worker_pid(), signal.SIGKILL)
        with pytest.raises(OSError):
            process.rewrite(job)
        now[0] += 290.0
        assert process.rewrite(job).size == made.size
        os.kill(process._forker, signal.SIGKILL)
        os.waitpid(process._forker, 0)
        process._worker.connection.close()
        process._worker = None
        with pytest.raises(NoRewriterError, match="until the bookie is restarted"):
            process.rewrite(job)
    finally:
        process.close()


def test_rewriting_process_messages_may_arrive_in_pieces_but_not_cut_short():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("<Q", 6) + b"abc")
        sender = threading.Thread(target=theirs.sendall, args=(b"def" + struct.pack("<Q", 3) + b"x",))
        sender.start()
        assert _receive(ours) == b"abcdef"
        sender.join()
        theirs.close()
        with pytest.raises(ConnectionResetError, match="has ended"):
            _receive(ours)


def _stands(of):
    """Close ``of`` while its call in a thread blocks until ``released``; the close must not wait for the call."""
    begun, released = threading.Event(), threading.Event()

    def stand(*arguments):
        begun.set()
        assert released.wait(60)

    closing = threading.Thread(target=of(stand, begun))
    closing.start()
    closing.join(60)
    is_over = not closing.is_alive()
    released.set()
    closing.join(60)
    return is_over


def test_close_waits_for_neither_metadata_nor_disk():
    def metadata_looks(stand, begun):
        looks = MetadataLooks()
        looks.start(lambda call: None)
        looks.ask(Question("a ledger", stand, METADATA_UNKNOWN), lambda: None, lambda status: None)
        assert begun.wait(60)
        return looks.close

    def disk_threads(stand, begun):
        threads = DiskThreads(lambda log: None)
        threads.run(0, stand)
        assert begun.wait(60)
        return threads.close

    for of in (metadata_looks, disk_threads):
        assert _stands(of), of.__name__


@pytest.mark.parametrize(("content", "noted"), [(b"", False), (b"", True), (b"x", False)])
def test_empty_control_log_without_a_note_is_no_damage(content, noted):
    disk = MemoryFileSystem("/a")
    disk.open("/a/control.log", create=True).write([content], 0)
    if noted:
        SyncedNote(disk, "/a/control.synced", 0).write(0, 0)
    _, damages = check_control_log(disk, "/a", expected=True)
    assert [damage.what for damage in damages if "note" in damage.what] == [
        "its synced note is missing or fails its checks"
    ] * (content != b"")


def test_rewriting_process_does_not_freeze_the_garbage_of_its_parent():
    process = RewritingProcess()
    try:
        assert gc.get_freeze_count() == 0
    finally:
        process.close()
