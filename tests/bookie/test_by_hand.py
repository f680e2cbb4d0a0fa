"""Parts of a bookie by themselves, over stand-ins for what is around them."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace

import pytest

from bookspark.bookie.disk.control_state import ControlState
from bookspark.bookie.disk.index import Index, log_of
from bookspark.bookie.disk.log_scan import _BODY_BYTES_MIN, _LAST_BUFFER, FRAME_BYTES_MAX, PREFIX_BYTES, _stated_ends
from bookspark.bookie.holdings.checkpointing import fill
from bookspark.bookie.holdings.reads import PART_BYTES
from bookspark.bookie.offline.dry_run import DryRunFileSystem
from bookspark.bookie.serving.admission import Admission
from bookspark.bookie.serving.connection import Connection
from bookspark.bookie.serving.read_room import ReadRoom
from bookspark.bookie.space.rewriting_process import RewritingProcess
from bookspark.bookie.steps import at_once
from bookspark.testing.memory_files import MemoryFileSystem
from tests.bookie.kit import config
from tests.bookie.stepped import Stepped, without_threads


class Stub(SimpleNamespace):
    """That can stand in a set."""

    __hash__ = object.__hash__


def test_what_is_asked_behind_one_that_holds_nothing_and_has_no_room_waits_if_it_is_long():
    """Long parts that fit into what is free would go on taking the room that the first one needs."""

    async def run():
        first, behind, holder = (Stub(unsent_bytes=0, peer=name) for name in ("first", "behind", "holder"))
        room, begun = ReadRoom(8 * PART_BYTES), []
        room.hold(holder, 7 * PART_BYTES)
        room.ask(first, 6 * PART_BYTES, lambda: begun.append("first"))
        room.ask(behind, 2 * PART_BYTES, lambda: begun.append("behind"))
        room.hold(holder, 5 * PART_BYTES)
        assert begun == []
        room.hold(holder, 0)
        assert begun[0] == "first"

    asyncio.run(run())


def test_a_stranger_that_does_not_greet_in_time_is_ended():
    async def run():
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        admission = Admission(SimpleNamespace(), 1)
        admission.arrived(Stub(origin="here", until=loop.time(), end=ended.set))
        await asyncio.wait_for(ended.wait(), 60)
        assert not admission.strangers

    asyncio.run(run())


def test_a_dry_run_makes_files_and_finds_none_that_is_not_there():
    files = DryRunFileSystem(MemoryFileSystem("/disk"))
    with pytest.raises(FileNotFoundError):
        files.open("/disk/new")
    files.open("/disk/new", create=True).close()
    assert files.open("/disk/new").size() == 0


def test_a_ledger_that_is_out_of_limbo_is_told_no_more():
    state = ControlState()
    state.look_at_limbo(SimpleNamespace(ledger_id=5, limbo=True))
    assert len(state._in_limbo) == 1
    state.look_at_limbo(SimpleNamespace(ledger_id=5, limbo=False))
    assert len(state._in_limbo) == 0


def test_entries_of_rows_that_follow_each_other_are_one_range():
    rows = Index().of(5)
    for first, last in ((0, 1), (2, 5), (7, 7)):
        rows.insert(first, last, 8 * first, 8)
    assert list(rows.ids_of([0, 1, 2])) == [(0, 5), (7, 7)]
    assert list(rows.ids_of([])) == []


def test_the_process_beside_leaves_the_garbage_of_its_parent_to_be_collected():
    process = RewritingProcess()
    try:
        assert gc.get_freeze_count() == 0
    finally:
        process.close()


def test_many_short_ledgers_are_looked_at_in_one_step_of_a_scrub():
    with without_threads():
        run = Stepped(config("/disk"), MemoryFileSystem("/disk"))
        for ledger_id in range(5, 10):
            run.add(ledger_id, 0)
        run.commit()
        log = log_of(run.storage.holdings.index.get(5).where[0])
        assert list(run.storage.scrubbing._pieces([log])) == []


def test_a_started_storage_tells_long_polls_in_turns_of_its_loop():
    """Ten thousand readers of one ledger kept the loop from all others."""
    told, turns = [], []
    with without_threads():
        run = Stepped(config("/disk"), MemoryFileSystem("/disk"))
        run.storage.start(lambda function, *arguments: function(*arguments), turns.append)
        for _ in range(1000):
            run.storage.long_polls.add(5, 0, lambda: told.append(1))
        run.storage.long_polls.reached(5, 0)
        assert 0 < len(told) < 1000
        while turns:
            turns.pop(0)()
        assert len(told) == 1000


@pytest.mark.parametrize("count", [2, 40])
def test_a_boot_knows_how_far_all_copies_are_there(count):
    with without_threads():
        files = MemoryFileSystem("/disk")
        run = Stepped(config("/disk"), files)
        for entry_id in range(count):
            run.add(5, entry_id, last_add_fully_replicated=entry_id - 1, last_add_confirmed=entry_id - 1)
            run.commit()
        again = Stepped(config("/disk"), files)
        assert again.storage.ledger(5).last_add_fully_replicated == count - 2


def test_a_checkpoint_of_a_directory_has_nothing_of_ledgers_that_lie_elsewhere():
    with without_threads():
        run = Stepped(config("/disk"), MemoryFileSystem("/disk"))
        run.add(5, 0)
        run.commit()
        added = {True: [], False: []}
        snapshots = [
            SimpleNamespace(
                holds_all=lambda rows, here=here: here,
                add=lambda *what, here=here: added[here].append(what[0]),
                end=int,
            )
            for here in added
        ]
        at_once(fill(snapshots, lambda ledger_id: None, run.storage.holdings.index, whole=False))
    assert added == {True: [5], False: []}


def test_a_short_answer_does_not_overtake_parts_that_wait():
    connection = Stub(_transport=True, _writing_paused=False, _parts=[], _room=ReadRoom(PART_BYTES))
    assert Connection.takes(connection, 1)
    connection._parts.append((1, print))
    assert not Connection.takes(connection, 1)


@pytest.mark.parametrize("body_bytes", [_BODY_BYTES_MIN - 8, _BODY_BYTES_MIN, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 8])
def test_a_bad_frame_may_have_the_least_and_the_longest_body(body_bytes):
    content = bytearray(2 * PREFIX_BYTES)
    _LAST_BUFFER.pack_into(content, 8 + 40, 0, body_bytes)
    is_possible = body_bytes in (_BODY_BYTES_MIN, FRAME_BYTES_MAX)
    assert _stated_ends(memoryview(content), 8) == [8 + PREFIX_BYTES + body_bytes] * is_possible


@pytest.mark.parametrize("marks", [(0.9, 0.9, 0.98), (0.9, 0.95, 0.95)])
def test_marks_of_a_disk_may_be_the_same(marks):
    low, threshold, recovery = marks
    config(
        "/disk",
        disk_usage_low_water_mark_threshold=low,
        disk_usage_threshold=threshold,
        disk_usage_recovery_threshold=recovery,
    )
