"""What a bookie began beside itself has ended with it."""

from __future__ import annotations

import os
import threading

import pytest

from bookspark.bookie.space.rewriting_process import RewritingProcess
from tests.bookie.kit import Pumped, config


def test_the_forker_is_gone_and_no_zombie_is_left_when_the_rewriting_process_is_closed():
    process = RewritingProcess()
    worker = process.worker_pid()
    assert process.worker_pid() == worker
    process.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(process._forker, 0)
    process.close()


def test_a_closed_storage_has_no_thread_left(tmp_path):
    before = set(threading.enumerate())
    run = Pumped(config(tmp_path, journal_write_data=False, background_sync_bytes=1))
    for entry_id in range(3):
        run.add(5, entry_id)
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert f"commit {tmp_path}" in names and f"sync {tmp_path}" in names
    run.storage.close()
    assert {thread.name for thread in set(threading.enumerate()) - before} <= {"bookie metadata"}
    assert all(directory.commit.ended for directory in run.storage.holdings.directories)
