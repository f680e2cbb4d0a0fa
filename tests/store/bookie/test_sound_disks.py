"""Errors that are not the disk's fault retire no disk, and the end of a commit thread ends the bookie with a reason."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from bookspark.store.bookie.commit.commit_thread import GroupWriter
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from tests.store.bookie.kit import Pumped, add_frame, config
from tests.store.bookie.stepped import Stepped, without_threads

VOLATILE = int(Flag.VOLATILE)
ONE = {"flags": VOLATILE, "value": 0, "limit": 1 << 20 | 1 << 10}
EAGER = {"background_sync_bytes": 1, "background_sync_interval_ms": 1}


@pytest.fixture
def disk():
    return MemoryFileSystem("/disk")


@pytest.mark.parametrize("path", ["logs/*.arrows", "unclean*", ""])
@pytest.mark.parametrize("kind", ["open", "create", "sync_directory"])
@pytest.mark.parametrize("journal", [True, False])
def test_too_many_open_files_for_a_moment_retires_no_disk(disk, path, kind, journal):
    with without_threads():
        files = FaultyFileSystem(disk)
        run = Stepped(config(Path("/disk"), journal_write_data=journal, **EAGER), files)
        run.add(5, 0, flags=VOLATILE)
        run.commit()
        files.add(f"{kind} */{path} 1 too-many-files" if path else f"{kind} * 1 too-many-files")
        run.add(5, 1, flags=VOLATILE)
        run.commit()
        run.add(6, 0)
        run.commit()
        assert [directory.retired for directory in run.storage.holdings.directories] == [False]
        files.clear()
        for directory, used in run.storage.disks.measure():
            for _ in run.storage.disks.look(directory, used):
                pass
        run.commit()
        again = run.add(6, 1)
        run.commit()
        assert again == [Status.OK]


def test_background_sync_needs_no_new_file_descriptor(disk):
    files = FaultyFileSystem(disk)
    storage = Pumped(config(Path("/disk"), **EAGER), files)
    assert storage.add(6, 0) is Status.OK
    files.add("open */logs/*.arrows 1.. too-many-files")
    assert storage.add(5, 0, **ONE) is Status.OK
    storage.wait(lambda: storage.storage.bytes_in_flight == 0)
    (stored,) = storage.storage.logs.values()
    assert stored.synced == stored.end and not storage.storage.live[0].retired
    storage.storage.close()


def test_commit_thread_syncs_if_the_sync_thread_cannot_start(disk, monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("sync "):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    storage = Pumped(config(Path("/disk"), **EAGER), disk)
    assert storage.add(6, 0, **ONE) is Status.OK
    storage.wait(lambda: storage.storage.bytes_in_flight == 0)
    assert storage.add(5, 0) is Status.OK
    storage.storage.close()


def test_defect_in_a_group_write_fails_the_group_and_ends_the_bookie(disk, monkeypatch):
    storage = Pumped(config(Path("/disk")), disk)
    told: list[str] = []
    storage.storage.broken = told.append
    monkeypatch.setattr(GroupWriter, "_write", lambda writer, group: 1 // 0)
    assert storage.add(5, 0) is Status.IO_ERROR
    assert storage.add(5, 1) in (Status.IO_ERROR, Status.READ_ONLY)
    assert told == ["/disk can't be written to any more: ZeroDivisionError: integer division or modulo by zero"]
    storage.storage.close()


def test_end_of_a_commit_thread_ends_the_bookie_with_its_reason(disk, monkeypatch):
    storage = Pumped(config(Path("/disk")), disk)
    told = threading.Event()
    why: list[str] = []
    storage.storage.broken = lambda text: (why.append(text), told.set())

    def end(*arguments, **options):
        raise SystemExit("on purpose")

    monkeypatch.setattr(GroupWriter, "commit", end)
    storage.submit(add_frame(5, 0))
    assert told.wait(60)
    assert why == ["the commit thread of /disk ended with SystemExit: on purpose"]
