"""Answers of OK that wait until the record behind them is durable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bookspark.protocol.bookie.bookie_ledger import NO_SUCH_ENTRY
from bookspark.store.bookie.disk.control_log import decode_records
from bookspark.store.bookie.disk.control_state import ControlState
from bookspark.store.bookie.holdings.disk_marks import Takes
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import nothing_kept
from tests.store.bookie.kit import KEY, config
from tests.store.bookie.stepped import Stepped, without_threads

SETTINGS = config(Path("/a"), Path("/b"))
NO_ROOM = "write */control.log 1.. no-space"


def fence(run, answers):
    run.storage.fence(5, KEY, answers.append)


def confirm(run, answers, entry_id=4):
    run.storage.write_last_add_confirmed(5, KEY, entry_id, answers.append)


def knows(asked, run):
    ledger = run.storage.holdings.ledger(5)
    if ledger is None or ledger.master_key != KEY:
        return False
    return ledger.fenced if asked is fence else ledger.last_add_confirmed == 4


@pytest.fixture
def disk():
    with without_threads():
        yield MemoryFileSystem("/a", "/b")


@pytest.fixture
def files(disk):
    return FaultyFileSystem(disk)


@pytest.mark.parametrize("asked", [fence, confirm])
@pytest.mark.parametrize("known", [False, True], ids=["first contact", "known ledger"])
def test_repeated_request_for_an_unwritten_record_is_never_answered_ok(disk, files, asked, known):
    run = Stepped(SETTINGS, files)
    if known:
        run.add(5, 0, 5)
        run.commit()
    files.add(NO_ROOM)
    answers: list[int] = []
    for _ in range(3):
        asked(run, answers)
        run.commit()
        run.commit()
    assert answers == [Status.IO_ERROR] * 3
    assert not knows(asked, Stepped(SETTINGS, disk.crashed(nothing_kept)))


@pytest.mark.parametrize("asked", [fence, confirm])
def test_repeated_request_writes_the_record_once_there_is_room(disk, files, asked):
    run = Stepped(SETTINGS, files)
    files.add(NO_ROOM)
    answers: list[int] = []
    asked(run, answers)
    run.commit()
    files.clear()
    run.commit()
    asked(run, answers)
    run.commit()
    assert answers == [Status.IO_ERROR, Status.OK]
    assert knows(asked, Stepped(SETTINGS, disk.crashed(nothing_kept))), "the key that came with the first try too"


@pytest.mark.parametrize("asked", [fence, confirm])
def test_repeated_request_waits_for_the_write_under_way(disk, files, asked):
    run = Stepped(SETTINGS, files)
    answers: list[int] = []
    asked(run, answers)
    asked(run, answers)
    assert answers == []
    run.commit()
    assert answers == [Status.OK] * 2
    assert knows(asked, Stepped(SETTINGS, disk.crashed(nothing_kept)))


class Queue:
    """A directory whose writes end as the test decides."""

    def __init__(self):
        self.commit = self
        self.items = []

    def submit(self, item):
        self.items.append(item)


def test_later_control_record_does_not_hide_the_loss_of_an_earlier_record():
    directory, state = Queue(), ControlState()
    records = ControlRecords(state, [directory])
    records.is_open = True
    ledger = state.of(5)
    answers: list[int] = []
    records.note(ledger, ledger.write_last_add_confirmed(KEY, 3).records, answers.append)
    records.note(ledger, ledger.write_last_add_confirmed(KEY, 4).records, answers.append)
    directory.items[0].done(Status.IO_ERROR)
    directory.items[1].done(Status.OK)
    assert answers == [Status.IO_ERROR] * 2, "the key that the first one fixed is lost"
    records.note(ledger, (), answers.append)
    content = directory.items[2].content
    assert decode_records(content, len(content))[1:] == list(ledger.control_records())
    directory.items[2].done(Status.OK)
    assert answers[2:] == [Status.OK]


def test_duplicate_of_an_add_without_room_is_not_answered_ok() -> None:
    """The disk check saw a full disk before the loop knew of the failed write. The item that seals the log of a full disk ended
    the refusal, and the duplicate's wait for the copy succeeded, although there was no copy."""
    files = FaultyFileSystem(MemoryFileSystem("/disk"))
    with without_threads():
        run = Stepped(config("/disk"), files)
        run.add(5, 0)
        run.commit()
        (directory,) = run.storage.live
        posted: deque[Callable[[], Any]] = deque()
        thread: Any = directory.commit
        thread.told = (lambda function, *arguments: posted.append(partial(function, *arguments))), thread.told[1]
        files.add("write */logs/*.arrows 1 no-space")
        first = run.add(5, 1)
        thread.step()
        run.storage.disks.take_less(directory, Takes.RECOVERY, "it is full")
        again = run.add(5, 1, flags=Flag.RECOVERY)
        while posted or thread.queued:
            thread.step()
            while posted:
                posted.popleft()()
        assert first == again == [Status.READ_ONLY]
        assert run.read(5, 1, 1) == ([], NO_SUCH_ENTRY)
