"""Combined answers of commit threads, and their end after the event loop is closed."""

from __future__ import annotations

import itertools

import pytest

from bookspark.store.bookie.commit.completions import AllOf, AnyOf
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.header import Status
from tests.store.bookie.kit import KEY, config

PAIRS = list(itertools.product((Status.OK, Status.IO_ERROR, Status.READ_ONLY, Status.CONFLICT), repeat=2))


# -- combined answers


@pytest.mark.parametrize("statuses", PAIRS)
def test_combined_answer_of_all_is_ok_only_if_every_answer_is_ok(statuses):
    told = []
    both = AllOf(2, told.append)
    both(statuses[0])
    assert told == []
    both(statuses[1])
    assert len(told) == 1 and told[0] in statuses
    assert (told == [Status.OK]) == (set(statuses) == {Status.OK})


@pytest.mark.parametrize("statuses", PAIRS)
def test_combined_answer_of_any_waits_for_all_and_needs_an_ok(statuses):
    told = []
    either = AnyOf(2, told.append)
    either(statuses[0])
    assert told == []
    either(statuses[1])
    assert told == [Status.OK if Status.OK in statuses else Status.IO_ERROR]


# -- threads


def test_commit_thread_finishes_its_work_silently_after_the_loop_is_closed(tmp_path):
    """A stopping bookie gets no more completions; queued records are written all the same."""
    storage, broken = Storage(config(tmp_path), RealFileSystem()).open(), []
    storage.broken = broken.append

    def closed(function, *arguments):
        raise RuntimeError("Event loop is closed")

    storage.start(closed)
    storage.fence(1, KEY, lambda status: None)
    [directory] = storage.holdings.directories
    storage.close()
    assert directory.commit.ended and not broken
    again = Storage(config(tmp_path), RealFileSystem()).open()
    assert again.holdings.control.known(1).fenced
    again.close()
