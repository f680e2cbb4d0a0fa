"""Losses and answers are processed in bounded steps, which these tests count instead of timing them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from bookspark.protocol.bookie.bookie_ledger import ENTRY_AWAY, ENTRY_LOST, NO_SUCH_ENTRY, BookieLedger, EntriesLost
from bookspark.protocol.ledger.responses import UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.protocol.reading.recovery import _SAY_THAT_THEY_LOST_IT
from bookspark.store.bookie.commit.commit_thread import Passing
from bookspark.store.bookie.disk.index import ChangingRows, LedgerRows, location
from bookspark.store.bookie.holdings import checkpointing
from bookspark.store.bookie.holdings import holdings as holdings_module
from bookspark.store.bookie.holdings.commit_results import _TOLD_A_TURN
from bookspark.store.bookie.holdings.holdings import _LEDGERS_A_STEP, _ROWS_A_STEP, _ROWS_LOOKED_AT, LongPolls
from bookspark.store.bookie.holdings.holdings import _TOLD_A_TURN as _POLLS_A_TURN
from bookspark.store.bookie.holdings.reads import Piece, Stop
from bookspark.store.bookie.serving.maintenance import Maintenance
from bookspark.store.bookie.serving.served_bookie import _ENDED_A_TURN, PollTimers
from bookspark.store.bookie.steps import Steps, run_steps
from bookspark.store.bookie.storage import note_what_is_back
from bookspark.store.wire.entry_batch import ENTRY_OVERHEAD_BYTES
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import everything_kept
from tests.store.bookie.kit import KEY, config, run_checkpoint
from tests.store.bookie.stepped import Stepped, without_threads

RECOVERY = int(Flag.RECOVERY)
LEDGERS = 3 * _LEDGERS_A_STEP


@pytest.fixture(autouse=True)
def stepped():
    with without_threads():
        yield


class Failing:
    """A bookie on two disks, of which disk 1 fails. Disk 1 has the ledgers with odd ids and entries 5..9 of ledger 6, disk 0
    its entries 0..4. ``sweep`` has the remaining steps."""

    def __init__(self) -> None:
        self.disk = MemoryFileSystem("/disk0", "/disk1")
        self.run = Stepped(config("/disk0", "/disk1"), self.disk)
        self.sweep: list[Steps[None]] = []
        self.holdings = self.run.storage.holdings
        self.holdings.carry_through = self.sweep.append
        for ledger_id in (4, 5, LEDGERS + 1):
            self.run.add(ledger_id, 0, 9)
        self.run.add(6, 0, 4)
        self.run.commit()
        index = self.holdings.index
        (row,) = index.get(5).covering(0, 0)
        self.there = row.where
        index.of(6).insert(5, 9, row.where, row.size)
        for ledger_id in range(7, LEDGERS, 2):
            index.of(ledger_id).insert(0, 0, row.where, row.size)
            self.holdings.control.of(ledger_id).replay(EntriesLost(ledger_id, 3, 3))

    def fail(self) -> None:
        directory = self.run.storage.live[1]
        self.run.storage._results._retire(directory, "on purpose")

    def end(self) -> int:
        """Run all steps; returns their number."""
        return sum(1 for steps in self.sweep for _ in steps)


def test_failed_directory_leaves_the_index_in_steps_with_the_same_answers_throughout() -> None:
    """A single step of the loop walked over all ledgers: 2.7 s at 300,000 ledgers."""
    one = Failing()
    one.fail()
    storage = one.run.storage
    assert len(one.holdings.index.get(5)) == 1, "nothing was done yet"
    for _ in range(2):
        assert one.run.read(5, 0, 0) == ([], ENTRY_AWAY) and one.run.read(5, 10, 10)[1] == NO_SUCH_ENTRY
        assert [entry.entry_id for entry in one.run.read(6, 0, 9)[0]] == [0, 1, 2, 3, 4]
        assert one.run.read(6, 5, 5)[1] == one.run.read(6, 0, 9, sparse=True)[1] == ENTRY_AWAY
        assert one.run.read(7, 3, 3)[1] == ENTRY_LOST and one.run.read(7, 0, 0)[1] == ENTRY_AWAY
        assert (
            storage.holdings.last_entry_id(5),
            storage.holdings.last_entry_id(6),
            storage.holdings.last_entry_id(4),
        ) == (-1, 4, 9)
        assert set(storage.holdings.ranges(0, 0, 0, only=False)[0].ledger_ids) == {4, 6}
        held: list[Any] = []
        storage.held_ranges(6, held.append)
        storage.held_ranges(LEDGERS + 1, held.append)
        assert held == [[(0, 4)], []]
        assert one.holdings.lacking(6) == ((5, 9),)
        assert one.end() > (0 if one.holdings.gone else -1)
    assert not one.holdings.gone and storage.status().lacking_ledgers == LEDGERS // 2 - 3 + 3
    assert {ledger_id for ledger_id, _ in storage.lacking(2 * LEDGERS)} == {*range(5, LEDGERS, 2), 6, LEDGERS + 1}


def test_ledger_objects_of_a_failed_directory_are_frozen_in_each_step() -> None:
    """Python's collector walked over all of these objects now and then: 290 ms of the loop at 150,000 ledgers, 1 s at 750,000."""
    one = Failing()
    ledgers: list[int] = []
    one.holdings.made_objects = lambda: ledgers.append(len(one.holdings.control.lost_copies))
    before = len(one.holdings.control.lost_copies)
    one.fail()
    one.end()
    made = [after - before for before, after in pairwise([before, *ledgers])]
    assert len(made) >= 2 and max(made) <= _LEDGERS_A_STEP


def test_held_ranges_exclude_a_failed_directory_before_its_rows_left_the_index() -> None:
    one = Failing()
    one.fail()
    held: list[Any] = []
    one.run.storage.held_ranges(6, held.append)
    assert held == [[(0, 4)]]


@pytest.mark.parametrize("touched_before", [False, True])
def test_add_replaces_a_copy_in_a_just_failed_directory(touched_before: bool) -> None:
    one = Failing()
    one.fail()
    if touched_before:
        one.run.read(6, 6, 6)
    assert one.run.add(6, 6, flags=RECOVERY) == [] == one.run.add(LEDGERS + 1, 0, 9, flags=RECOVERY)
    one.run.commit()
    one.end()
    assert [entry.entry_id for entry in one.run.read(6, 0, 9, sparse=True)[0]] == [0, 1, 2, 3, 4]
    assert [entry.entry_id for entry in one.run.read(6, 6, 9)[0]] == [6]
    assert len(one.run.read(LEDGERS + 1, 0, 9)[0]) == 10
    one.run.checkpoint()
    assert one.holdings.lacking(6) == ((5, 5), (7, 9)) and one.holdings.lacking(LEDGERS + 1) == ()


def test_sync_fails_for_volatile_entries_in_a_failed_directory() -> None:
    one = Failing()
    one.fail()
    statuses: list[int] = []
    one.run.storage.sync(5, KEY, Assignment(0), statuses.append)
    one.run.commit()
    assert statuses == [Status.IO_ERROR] and one.run.storage.volatile.last_add_synced(5, Assignment(0)) == -1


def test_second_directory_failing_during_the_sweep_is_swept_too() -> None:
    one = Failing()
    one.fail()
    next(one.sweep[0])
    one.holdings.lose_directory(one.run.storage.live[0])
    one.end()
    assert len(one.sweep) == 1 and not one.holdings.gone and one.holdings.index.get(4).last_entry_id == -1


def test_steps_of_a_failed_directory_remove_a_bounded_number_of_rows() -> None:
    one = Failing()
    rows = one.holdings.index.of(9)
    for entry_id in range(1, 3 * _ROWS_LOOKED_AT):
        rows.insert(entry_id, entry_id, one.there + entry_id, 1)
    one.fail()
    assert one.run.read(9, 5, 1 << 40)[1] == ENTRY_AWAY
    assert len(rows) >= 2 * _ROWS_LOOKED_AT - 5, "a request has some thousand rows leave"
    assert one.end() >= 3
    assert len(rows) == 0 and one.holdings.lacking(9) == ((0, 3 * _ROWS_LOOKED_AT - 1),)


def test_entries_of_a_failed_directory_are_away_and_not_lost_for_good() -> None:
    """``--accept-loss`` counted them as lost, although the next start might read the disk again."""
    assert ENTRY_AWAY.reason is UnknownReason.IO_ERROR and ENTRY_AWAY.reason not in _SAY_THAT_THEY_LOST_IT
    one = Failing()
    one.fail()
    one.end()
    ledger = one.run.storage.holdings.ledger(5)
    assert ledger is not None and ledger.away == ((0, 9),) and ledger.lost == ()
    assert not [record for record in ledger.control_records() if isinstance(record, EntriesLost)]


def test_last_entry_id_of_a_ledger_without_its_tail_is_computed_in_steps() -> None:
    """A single step scanned all rows: 61 ms at a million rows."""
    one = Failing()
    rows = one.holdings.index.of(9)
    for entry_id in range(1, 3 * _ROWS_LOOKED_AT):
        rows.insert(entry_id, entry_id, one.there + entry_id, 1)
    (here,) = one.holdings.index.get(4).covering(0, 0)
    one.holdings.index.of(10).insert(0, 0, here.where, here.size)
    for entry_id in range(1, 3 * _ROWS_LOOKED_AT):
        one.holdings.index.of(10).insert(entry_id, entry_id, one.there + entry_id, 1)
    one.fail()
    for ledger_id, last in ((9, -1), (10, 0)):
        count = len(one.holdings.index.get(ledger_id))
        told = []
        while not told or told[-1] is None:
            told.append(one.run.storage.holdings.last_entry_id(ledger_id))
            before, count = count, len(one.holdings.index.get(ledger_id))
            assert before - count <= _ROWS_LOOKED_AT
        assert told == [None, None, last], "each looked at some thousand rows"
        assert one.run.storage.holdings.last_entry_id(ledger_id) == last
    one.end()
    assert one.holdings.lacking(10) == ((1, 3 * _ROWS_LOOKED_AT - 1),)


def with_many_rows(one: Failing, ledger_id: int) -> LedgerRows:
    rows = one.holdings.index.of(ledger_id)
    for entry_id in range(10, 3 * _ROWS_LOOKED_AT):
        rows.insert(entry_id, entry_id, one.there + entry_id, 1)
    return rows


def test_lacking_entries_are_listed_as_rows_leave_without_a_walk_over_the_ledger() -> None:
    """To list what 256 ledgers lack, a single step scanned all their rows."""
    one = Failing()
    rows = with_many_rows(one, 9)
    one.fail()
    one.run.read(9, 1 << 40, 1 << 40)
    before = len(rows)
    one.run.storage.lacking(2 * LEDGERS)
    assert one.holdings.lacking(9) and len(rows) == before, "only what has left is told"
    one.end()
    told = dict(one.run.storage.lacking(2 * LEDGERS))
    assert told[9][-1] == (10, 3 * _ROWS_LOOKED_AT - 1)


def test_sync_of_a_long_ledger_in_a_failed_directory_is_refused_in_steps() -> None:
    """A single step scanned all rows of the ledger."""
    one = Failing()
    rows = with_many_rows(one, 5)
    statuses: list[int] = []
    one.run.storage.sync(5, KEY, Assignment(0), statuses.append)
    one.end()
    one.fail()
    with_many_rows(one, 11)
    sweep, left = len(one.sweep), len(rows)
    one.run.commit()
    assert len(one.sweep) == sweep + 1 and not statuses
    for _ in one.sweep.pop():
        assert not statuses and left - len(rows) <= 2 * _ROWS_LOOKED_AT
        left = len(rows)
    assert statuses == [Status.IO_ERROR] and len(rows) == 0 and len(one.holdings.index.get(11) or ()) > 0


def test_sync_waits_for_the_rows_of_a_second_failed_directory() -> None:
    one = Failing()
    with_many_rows(one, 8)
    one.fail()
    left: list[bool] = []
    one.holdings.when_left(8, lambda: left.append(True))
    steps = one.sweep.pop()
    (here,) = one.holdings.index.get(4).covering(0, 0)
    one.holdings.index.of(8).insert(0, 0, here.where, here.size)
    next(steps)
    one.holdings.lose_directory(one.run.storage.live[0])
    for _ in steps:
        assert not left
    assert left and one.holdings.lacking(8)[0][0] == 0


@pytest.mark.parametrize("turns_before", range(1, 12, 2))
def test_checkpoint_keeps_the_old_checkpoint_of_a_directory_failing_during_it(
    turns_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new checkpoint lacked the rows that had left the index meanwhile: after a start that could read the directory again, the
    bookie answered "no such entry" for its entries."""
    monkeypatch.setattr(checkpointing, "_WEIGHT_A_STEP", 100)
    one = Failing()
    storage = one.run.storage
    run_checkpoint(storage)
    last = 2 * LEDGERS + 1
    for ledger_id in (5, last):
        one.run.add(ledger_id, 10, 19)
    one.run.commit()
    for ledger_id in range(LEDGERS + 3, 2 * LEDGERS, 2):
        one.holdings.index.of(ledger_id).insert(0, 0, one.there, 1)
    steps = storage.checkpoint()
    for _ in range(turns_before):
        next(steps)
    one.fail()
    sweep = one.sweep.pop()
    try:
        while True:
            next(sweep, None)
            next(steps)
    except StopIteration as taken:
        prepared = taken.value
    assert [directory.path for directory, _ in prepared] == ["/disk0"]
    storage.write_checkpoints(prepared)
    again = Stepped(config("/disk0", "/disk1"), one.disk.crashed(everything_kept))
    for ledger_id in (5, last):
        entries, following = again.read(ledger_id, 10, 19)
        assert [entry.entry_id for entry in entries] == list(range(10, 20)), following


def test_request_steps_do_not_wait_for_maintenance_holding_the_index() -> None:
    """A sync of a long ledger waited behind the walk over the whole index after a directory had failed."""
    one = Failing()
    left: list[bool] = []

    async def run() -> None:
        maintenance = Maintenance(config("/disk0", "/disk1"), one.run.storage, "bookie", None, None)
        maintenance.start()
        with_many_rows(one, 5)
        async with maintenance._index:
            one.fail()
            one.holdings.when_left(5, lambda: left.append(True))
            assert not left
            async with asyncio.timeout(60):
                while not left:
                    await asyncio.sleep(0)
        await maintenance.stop()

    asyncio.run(run())


# -- many losses


def test_many_losses_of_a_ledger_are_merged_in_steps_scanning_rows_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each loss scanned all rows of its ledger, so 10,000 losses took minutes."""
    one = Failing()
    rows = one.holdings.index.of(8)
    count = 2 * _ROWS_A_STEP
    log = one.there >> 32
    for entry_id in range(count):
        rows.insert(entry_id, entry_id, location(log, 1000 + entry_id), 1)
    monkeypatch.setattr(LedgerRows, "numbers_at", lambda *_: pytest.fail("it looks at all rows for one location"))
    merged: list[int] = []
    lose = BookieLedger.lose
    monkeypatch.setattr(BookieLedger, "lose", lambda self, ranges: (merged.append(1), lose(self, ranges))[1])
    bad = [(Piece(8, i, i, location(log, 1000 + i), 1, None), Stop.DAMAGED) for i in range(0, count, 2)]
    steps = sum(1 for _ in one.holdings.lose_bad(bad))
    assert steps == 2 and len(merged) == 2, "the lost ranges of a step are joined at once"
    assert len(rows) == count // 2 and len(one.holdings.lacking(8)) == count // 2


def test_restored_entries_are_noted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Failing()
    calls: list[int] = []
    back = BookieLedger.entries_back
    monkeypatch.setattr(
        BookieLedger, "entries_back", lambda self, held: (calls.append(len(list(held))), back(self, held))[1]
    )
    (row,) = one.holdings.index.get(4).covering(0, 0)
    rows = one.holdings.index.of(8)
    count = 3 * _ROWS_A_STEP
    for entry_id in range(count):
        rows.insert(entry_id, entry_id, row.where, 1)
    one.holdings.control.replay(EntriesLost(8, i, i) for i in range(0, count, 2))
    run_steps(note_what_is_back(one.holdings), lambda: None)
    assert one.holdings.lacking(8) == () and max(calls) <= 2 * _ROWS_A_STEP and len(calls) <= 4


def test_lost_entry_is_restored_only_by_a_durable_copy_in_a_working_directory() -> None:
    """Otherwise the bookie would say after a power cut that it never had the entry."""
    one = Failing()
    one.holdings.control.replay([EntriesLost(4, 10, 10), EntriesLost(5, 0, 9)])

    def lacking(ledger_id: int) -> list[tuple[int, int]]:
        run_steps(note_what_is_back(one.holdings), lambda: None)
        return list(one.holdings.lacking(ledger_id))

    one.run.add(4, 10)
    one.fail()
    assert lacking(4) == [(10, 10)] and lacking(5) == [(0, 9)]
    one.run.commit()
    assert lacking(4) == []


# -- answers


def test_huge_group_is_answered_in_turns_and_in_order() -> None:
    one = Failing()
    turns: deque[Callable[[], None]] = deque()
    results, (directory, other) = one.run.storage._results, one.run.storage.live
    results.start(turns.append)
    told: list[int] = []
    items = [Passing(lambda status, number=number: told.append(number)) for number in range(2 * _TOLD_A_TURN + 7)]
    results.completed(directory.commit, items, 0, None)
    assert told == list(range(_TOLD_A_TURN))
    failed: list[int] = []
    results.completed(other.commit, [Passing(failed.append)], 0, OSError(5, "on purpose"))
    assert other.retired and failed == [], "what a result says counts at once; who waits is told in its turn"
    while turns:
        before = len(told)
        turns.popleft()()
        assert len(told) - before <= _TOLD_A_TURN
    assert told == list(range(len(items))) and failed == [Status.IO_ERROR]
    results.completed(directory.commit, [Passing(told.append)], 0, None)
    assert told[-1] == Status.OK


def test_callback_exception_skips_only_the_rest_of_its_turn() -> None:
    one = Failing()
    turns: deque[Callable[[], None]] = deque()
    results, directory = one.run.storage._results, one.run.storage.live[0]
    results.start(turns.append)
    told: list[int] = []

    def fail(status: int) -> None:
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError):
        results.completed(directory.commit, [Passing(fail), *[Passing(told.append)] * (2 * _TOLD_A_TURN)], 0, None)
    while turns:
        turns.popleft()()
    assert len(told) == _TOLD_A_TURN + 1, "those of its own turn apart"


def test_long_polls_reached_together_are_answered_in_turns() -> None:
    polls, turns, told = LongPolls(), deque(), []
    polls.start(turns.append)
    numbers = [polls.add(5, 3, lambda number=number: told.append(number)) for number in range(2 * _POLLS_A_TURN + 7)]
    polls.reached(5, 3)
    assert told == list(range(_POLLS_A_TURN))
    polls.remove(5, numbers[-1])
    polls.reached(5, 4)
    while turns:
        turns.popleft()()
    assert sorted(told) == list(range(len(numbers) - 1)), "each once, but for the one that was taken away"
    assert holdings_module.RANGES_ROWS_MAX <= _ROWS_LOOKED_AT


def test_huge_group_without_room_leaves_the_index_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows left the index in a single step. Until they have left, the directory must refuse adds: a duplicate that waits for
    such a row would be acknowledged."""
    disk = MemoryFileSystem("/disk0")
    files = FaultyFileSystem(disk)
    run = Stepped(config("/disk0"), files)
    run.add(5, 0)
    run.commit()
    turns: deque[Callable[[], None]] = deque()
    run.storage._results.start(turns.append)
    dropped: list[int] = []
    drop = ChangingRows.drop
    monkeypatch.setattr(ChangingRows, "drop", lambda rows, *where: (dropped.append(1), drop(rows, *where))[1])
    answers = [run.add(5, entry_id) for entry_id in range(1, 2 * _TOLD_A_TURN + 9)]
    files.add("write */logs/*.arrows 1 no-space")
    run.commit()
    assert len(dropped) == _TOLD_A_TURN
    again = run.add(5, len(answers), flags=RECOVERY)
    run.commit()
    while turns:
        before = len(dropped)
        turns.popleft()()
        assert len(dropped) - before <= _TOLD_A_TURN
    run.commit()
    assert len(dropped) == len(answers), "the rows of the last one are of its first write"
    assert answers == [[Status.READ_ONLY]] * len(answers) and again == [Status.READ_ONLY]
    assert run.storage.holdings.last_entry_id(5) == 0 and run.read(5, 1, 1) == ([], NO_SUCH_ENTRY)
    assert run.storage.holdings.recent == {} and run.storage.bytes_in_flight == 0


@pytest.mark.parametrize("last", [2, 3])
def test_duplicate_of_an_add_without_room_is_not_acknowledged_as_durable(last: int) -> None:
    """An entry came twice: before the loop knew of the lack of room, and before it knew that the first copy was refused. The
    duplicate waited behind the seal, which succeeded, and got OK, but its entry was nowhere. The same happened if the duplicate
    had another entry with it and the disk had room again by then."""
    files = FaultyFileSystem(MemoryFileSystem("/disk0"))
    run = Stepped(config("/disk0"), files)
    run.add(5, 0)
    run.commit()
    thread: Any = run.storage.live[0].commit
    posted: deque[Callable[[], None]] = deque()
    thread.told = (lambda *call: posted.append(partial(*call)), thread.told[1])
    first = run.add(5, 1)
    files.add("write */logs/*.arrows 1 no-space")
    thread.step()
    behind = run.add(5, 2, flags=RECOVERY)
    posted.popleft()()
    run_steps(run.storage.disks.look(run.storage.live[0], 0.1), lambda: None)
    again = run.add(5, 2, last, flags=RECOVERY)
    held: list[Any] = []
    run.storage.held_ranges(5, held.append)
    thread.step()
    while posted:
        posted.popleft()()
        thread.step()
    assert first == behind == [Status.READ_ONLY] and run.read(5, 2, 2) == ([], NO_SUCH_ENTRY)
    assert again == [Status.READ_ONLY] and held == [None]


def test_directory_with_a_failed_seal_is_writable_after_the_first_check() -> None:
    """The check's own seal was refused, as it named no failure: the directory stayed full until the next check."""
    files = FaultyFileSystem(MemoryFileSystem("/disk0"))
    run = Stepped(config("/disk0"), files)
    (directory,) = run.storage.live
    run.add(5, 0)
    run.commit()
    for entry_id in (1, 2):
        files.add("write */logs/*.synced 1.. no-space")
        refused = run.add(5, entry_id)
        run.commit()
        assert refused == [Status.READ_ONLY] and run.storage.disks.read_only
        files.clear()
        run_steps(run.storage.disks.look(directory, 0.1), lambda: None)
        run.commit()
        assert not run.storage.disks.read_only
        answer = run.add(5, entry_id)
        run.commit()
        assert answer == [Status.OK]


def test_long_polls_with_the_same_deadline_end_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each poll had a timer, and all timers ran in a single turn of the loop."""

    async def run() -> None:
        loop, ended = asyncio.get_running_loop(), []
        over = loop.create_future()
        timers = PollTimers()
        turns: list[int] = []
        now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now)
        count = 3 * _ENDED_A_TURN
        added = [timers.add(0.25, partial(ended.append, number)) for number in range(count)]
        timers.add(0.5, lambda: over.set_result(None))
        timers.remove(timers.add(0.1, lambda: pytest.fail("it was removed")))
        timers.remove(added[0])
        monkeypatch.undo()

        def look() -> None:
            turns.append(len(ended))
            if not over.done():
                loop.call_soon(look)

        look()
        await over
        assert sorted(ended) == list(range(1, count)) and turns[-1] == count - 1
        assert max(after - before for before, after in pairwise(turns)) <= _ENDED_A_TURN
        assert not timers._by_time and not timers._times and timers._timer is None
        timers.remove(added[1])

    asyncio.run(run())


def test_lost_batch_of_a_long_ledger_is_located_without_scanning_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scan took about 10 ms of the loop in a ledger of a million rows."""
    run = Stepped(config("/disk"), MemoryFileSystem("/disk"))
    holdings = run.storage.holdings
    for entry_id in (11, 14, 15):
        run.add(5, entry_id)
    # The index has only the new entries of this batch: 10, 12 to 13, 16 to 19.
    run.add(5, 10, 19)
    for entry_id in range(20, 90):
        run.add(5, entry_id)
    run.commit()
    looked_at: list[int | None] = []
    numbers_at = LedgerRows.numbers_at

    def counted(rows: LedgerRows, where: int, near: int = 0, within: int | None = None) -> list[int]:
        looked_at.append(within)
        assert numbers_at(rows, where, near, within) == numbers_at(rows, where)
        return numbers_at(rows, where, near, within)

    monkeypatch.setattr(LedgerRows, "numbers_at", counted)
    for entry_id in (13, 50):
        pieces = run.storage.holdings.plan_read(5, entry_id, entry_id, 0, sparse=False).pieces
        holdings.read_ended(pieces, Stop.DAMAGED)
        assert looked_at.pop() == pieces[0].size // ENTRY_OVERHEAD_BYTES
    assert holdings.lacking(5) == ((10, 10), (12, 13), (16, 19), (50, 50))
    assert [entry.entry_id for entry in run.read(5, 10, 19, sparse=True)[0]] == []
    assert [entry.entry_id for entry in run.read(5, 14, 15)[0]] == [14, 15]


def test_started_storage_answers_long_polls_in_turns_of_its_loop():
    """Ten thousand readers of a ledger blocked the loop for all other clients."""
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
