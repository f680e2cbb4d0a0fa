"""What commit threads tell: several answers as one, and what is left to do when nobody listens any more."""

from __future__ import annotations

import itertools

import pytest

from bookspark.store.bookie.commit.completions import AllOf, AnyOf
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.header import Status
from tests.store.bookie.kit import KEY, config

PAIRS = list(itertools.product((Status.OK, Status.IO_ERROR, Status.READ_ONLY, Status.CONFLICT), repeat=2))


# -- several answers as one


@pytest.mark.parametrize("statuses", PAIRS)
def test_one_answer_of_several_is_ok_only_if_all_of_them_are(statuses):
    told = []
    both = AllOf(2, told.append)
    both(statuses[0])
    assert told == []
    both(statuses[1])
    assert len(told) == 1 and told[0] in statuses
    assert (told == [Status.OK]) == (set(statuses) == {Status.OK})


@pytest.mark.parametrize("statuses", PAIRS)
def test_one_answer_of_several_directories_is_ok_if_one_of_them_is_and_tells_when_all_have_ended(statuses):
    told = []
    either = AnyOf(2, told.append)
    either(statuses[0])
    assert told == []
    either(statuses[1])
    assert told == [Status.OK if Status.OK in statuses else Status.IO_ERROR]


# -- threads


def test_a_commit_thread_whose_loop_is_closed_ends_its_work_without_a_word(tmp_path):
    """A bookie that ends hears of no more groups. What was queued is written all the same."""
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
