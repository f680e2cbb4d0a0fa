"""Parts of a bookie by themselves, over stand-ins for what is around them."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace

import pytest

from bookspark.bookie.disk import index_block
from bookspark.bookie.disk.control_state import ControlState
from bookspark.bookie.disk.entry_log import EntryLog
from bookspark.bookie.disk.file_system import _IOV_MAX, write_all
from bookspark.bookie.disk.index import Index, Row, location, log_of
from bookspark.bookie.disk.index_block import BlockBuilder
from bookspark.bookie.disk.log_scan import _BODY_BYTES_MIN, _LAST_BUFFER, FRAME_BYTES_MAX, PREFIX_BYTES, _stated_ends
from bookspark.bookie.holdings import boot, reads
from bookspark.bookie.holdings.checkpointing import fill
from bookspark.bookie.holdings.reads import PART_BYTES, LogFiles
from bookspark.bookie.offline.dry_run import DryRunFileSystem
from bookspark.bookie.serving.admission import Admission
from bookspark.bookie.serving.connection import Connection
from bookspark.bookie.serving.read_room import ReadRoom
from bookspark.bookie.space.rewriting_process import RewritingProcess
from bookspark.bookie.steps import at_once
from bookspark.protocol.bookie.bookie_boot import HealedNoted, LossyBootNoted
from bookspark.protocol.bookie.garbage_collection import CollectionNoted
from bookspark.protocol.bookie.read_only_switch import ReadOnlySwitched
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.wire.header import Flag
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


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_boot_knows_how_far_all_copies_are_there(count, rewritten):
    with without_threads():
        files = MemoryFileSystem("/disk")
        run = Stepped(config("/disk"), files)
        for entry_id in range(1, count + 1):
            run.add(5, entry_id, last_add_fully_replicated=entry_id - 1, last_add_confirmed=entry_id - 1)
            run.commit()
        if rewritten:
            run.seal()
            run.reclaim()
            for path in [path for path in files.files() if "checkpoint" in path]:
                files.lose(path)
        ledger = Stepped(config("/disk"), files).storage.ledger(5)
        assert ledger.last_add_fully_replicated == ledger.last_add_confirmed == count - 1


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


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("mark", LossyBootNoted(3, 10)),
        ("healed", HealedNoted(3)),
        ("collected", CollectionNoted(9)),
        ("switch", ReadOnlySwitched(2, True)),
    ],
)
def test_of_records_of_the_whole_bookie_the_highest_is_kept(name, record):
    state = ControlState()
    state.replay([record])
    assert getattr(state, name) == record
    state.replay([record._replace(**{record._fields[0]: 1})])
    assert getattr(state, name) == record


@pytest.mark.parametrize(
    "request_of_6",
    [
        lambda run: run.add(6, 1),
        lambda run: run.add(6, 0),
        lambda run: run.add(6, 1, flags=Flag.RECOVERY),
        lambda run: run.fence(6),
        lambda run: run.confirm(6, 0),
    ],
    ids=["add", "the same add again", "recovery's add", "fence", "explicit LAC"],
)
def test_a_granted_request_takes_its_ledger_out_of_those_that_are_about_to_be_forgotten(request_of_6):
    with without_threads():
        run = Stepped(config("/disk"), MemoryFileSystem("/disk"))
        run.add(6, 0)
        run.commit()
        suspects = run.storage.holdings.control.suspects
        suspects.update((5, 6))
        request_of_6(run)
        assert suspects == {5}


@pytest.mark.parametrize("packed", [False, True])
def test_a_boot_that_removes_rows_leaves_a_ledger_packed_or_in_use_as_it_was(packed):
    """What is packed and in use at once would be told by the bytes, although the rows in use have changed since."""
    index = Index()
    rows = index.of(5)
    rows.insert(0, 0, location(1, 0), 8)
    rows.insert(1, 1, location(2, 0), 8)
    if packed:
        content = rows.to_bytes()
        index = Index()
        index.put(5, memoryview(content))
    assert list(index.remove_at_boot({2: 0})) == [(5, [Row(1, 1, location(2, 0), 8)])]
    assert (index.get(5).last_entry_id, index._rows.in_use_count) == (0, not packed)
    index.changing(5).remove(location(1, 0), location(1, 0))
    assert not index.holds_any(5)


def test_the_log_that_was_not_read_for_longest_is_closed_when_too_many_are_open(monkeypatch):
    monkeypatch.setattr(reads, "_OPEN_FILES_MAX", 2)
    logs = LogFiles(lambda number: f"log {number}")
    for number in (1, 2, 1, 3):
        assert logs.get(number) == f"log {number}"
    assert [logs.is_open(number) for number in (1, 2, 3)] == [True, False, True]


@pytest.mark.parametrize(("limit", "most"), [("_LEDGERS_MAX", 2), ("_BYTES_MAX", 48)])
def test_a_block_of_the_index_is_full_with_as_much_as_it_may_have(monkeypatch, limit, most):
    monkeypatch.setattr(index_block, limit, most)
    builder = BlockBuilder()
    builder.add((5, -1, -1, 0, 1), bytes(24))
    assert not builder.is_full
    builder.add((6, -1, -1, 0, 1), bytes(24))
    assert builder.is_full


def test_the_room_of_a_log_that_was_begun_is_taken_by_nobody_else():
    files = MemoryFileSystem("/disk", "/disk/logs", capacity_bytes=1 << 20)
    log = EntryLog(files, "/disk", 1)
    log.create(1 << 19)
    files.capacity_bytes -= files.free_bytes("/disk")
    end = log.write([bytes(1 << 18)], log.end)
    assert end > 1 << 18


def test_what_a_short_write_left_is_written_after_it_and_a_write_of_nothing_is_an_error():
    files = FaultyFileSystem(MemoryFileSystem("/disk"), "write * 1.. short:3")
    file = files.open("/disk/file", create=True)
    assert write_all(file, [b"0123", b"", b"4567"], 2) == 10
    assert file.read(10, 0) == b"\0\0" + b"01234567"
    files.clear()
    files.add("write * 1.. short:0")
    with pytest.raises(OSError, match="wrote nothing"):
        write_all(file, [b"0123"], 0)


def test_no_write_has_more_buffers_than_the_system_takes_and_none_is_left_out():
    """The kernel takes 1,024 and refuses more (EINVAL)."""
    files = MemoryFileSystem("/disk")
    file, counts = files.open("/disk/file", create=True), []
    counted = SimpleNamespace(
        write=lambda buffers, position: (counts.append(len(buffers)), file.write(buffers, position))[1]
    )
    buffers = [b"%04d" % number for number in range(2 * _IOV_MAX + 1)]
    assert write_all(counted, buffers, 0) == 4 * len(buffers)
    assert counts == [_IOV_MAX, _IOV_MAX, 1] and file.read(1 << 20, 0) == b"".join(buffers)


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_as_before_after_a_boot_and_what_it_made_is_old(monkeypatch, was_enabled):
    """What stays frozen is never collected: a process that opens one bookie after the other would keep all of them."""
    monkeypatch.setattr(boot, "_MANY_OBJECTS", -1)
    assert gc.isenabled()
    try:
        if not was_enabled:
            gc.disable()
        with boot._collector_paused():
            made = [[]]
            assert not gc.isenabled()
        assert gc.isenabled() is was_enabled and gc.get_freeze_count() == 0
        assert any(one is made for one in gc.get_objects(generation=2)) is was_enabled
    finally:
        gc.enable()
