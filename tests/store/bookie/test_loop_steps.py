"""Bounds on the work of single steps of the event loop, counted instead of timed."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import deque

import pytest
from sortedcontainers import SortedSet

from bookspark.protocol.bookie.bookie_boot import LossyBootNoted
from bookspark.protocol.bookie.bookie_ledger import EntriesLost, LimboCleared, LimboNoted, MasterKeyNoted
from bookspark.store.bookie.disk import control_state, packed_dict
from bookspark.store.bookie.disk.control_state import _PLAIN_LEDGER, LedgersNoted
from bookspark.store.bookie.disk.index import ChangingRows, Index
from bookspark.store.bookie.disk.packed_dict import PackedDict, ascending
from bookspark.store.bookie.holdings.holdings import RANGES_ROWS_MAX
from bookspark.store.bookie.ledgers.held_copies import _ROWS_A_TURN
from bookspark.store.bookie.space.reclaiming import unlimited
from bookspark.store.bookie.steps import Finished, Outcome, Steps, advance
from bookspark.store.wire.header import Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from tests.awaiting import SECONDS_MAX
from tests.store.bookie.kit import LocalRewriter, Pumped, add_frame, config, held_ledgers, run_checkpoint

MANY = 20_000


@pytest.fixture
def storage(tmp_path):
    pumped = Pumped(config(tmp_path))
    yield pumped
    pumped.storage.close()


def test_refused_add_on_a_full_disk_does_not_scan_its_ledger(monkeypatch):
    files = FaultyFileSystem(MemoryFileSystem("/disk"))
    storage = Pumped(config("/disk"), files)
    for entry_id in range(5):
        storage.add(5, entry_id)
    monkeypatch.setattr(ChangingRows, "remove", lambda *_: pytest.fail("it walks over all rows"))
    files.add("write */logs/*.arrows 1 no-space")
    assert storage.add(5, 5, 7) is Status.READ_ONLY
    assert storage.ids(5) == [0, 1, 2, 3, 4]
    monkeypatch.undo()
    storage.storage.close()


def test_range_answers_are_bounded_and_together_complete(storage):
    index = storage.storage.holdings.index
    wanted = []
    for ledger_id in range(0, 3000, 3):
        for entry_id in range(0, 12, 2):
            index.of(ledger_id).insert(entry_id, entry_id, ledger_id, 1)
            wanted.append((ledger_id, entry_id))
    for ledger_id in range(1, 9000, 3):
        index.of(ledger_id)
    found, ledger_id, first = [], 0, 0
    while ledger_id >= 0:
        rows, ledger_id, first = storage.storage.holdings.ranges(ledger_id, first, 1 << 16, only=False)
        assert len(rows.ledger_ids) <= RANGES_ROWS_MAX
        found += zip(rows.ledger_ids, rows.first_entry_ids, strict=True)
    assert found == wanted


def test_limbo_ledgers_are_counted_and_listed(storage):
    control, losses = storage.storage.holdings.control, storage.storage.lossy_boots
    control.replay([LossyBootNoted(1, MANY), *(LimboNoted(ledger_id, 1) for ledger_id in range(0, MANY, 2))])
    assert losses.limbo_count == MANY // 2
    assert storage.run(losses.clear_limbo, 4, 1) is Status.OK
    control.replay([LimboCleared(6, 1)])
    control.forget(8)
    assert losses.limbo_count == MANY // 2 - 3
    assert losses.limbo(1, 4) == [(2, 1), (10, 1), (12, 1), (14, 1)]


def test_ledger_ids_stay_sorted_after_a_collection():
    index = Index()
    for ledger_id in range(MANY):
        index.of(ledger_id)
    for ledger_id in range(0, MANY, 2):
        index.forget(ledger_id)
    assert index.ledger_ids(7, 3) == [7, 9, 11]
    assert index.ledger_ids() == list(range(1, MANY, 2))


def test_held_ranges_of_a_long_ledger_are_computed_in_bounded_turns(storage):
    rows = storage.storage.holdings.index.of(5)
    for entry_id in range(0, 2 * MANY, 2):
        rows.insert(entry_id, entry_id, 1 << 32 | entry_id, 1)
    turns: deque = deque()
    storage.storage._held_copies.start(lambda function, *arguments: turns.append((function, arguments)))
    told: list = []
    storage.storage.held_ranges(5, told.append)
    count = 1
    while turns:
        assert not told
        function, arguments = turns.popleft()
        function(*arguments)
        count += 1
    assert count == MANY // _ROWS_A_TURN + 1
    assert told == [[(entry_id, entry_id) for entry_id in range(0, 2 * MANY, 2)]]


@pytest.mark.parametrize("sealed", [range(6000), (0, 5999)], ids=["one after the other", "with others between"])
def test_reclaiming_step_reads_a_bounded_number_of_rows(storage, monkeypatch, sealed):
    """Finding the rows of a long ledger of single entries, and pointing them at the new log, took steps of 8 and 16 ms."""
    statuses = [storage.submit(add_frame(5, entry_id)) for entry_id in sealed]
    storage.wait(lambda: all(statuses))
    storage.seal()
    statuses = [storage.submit(add_frame(5, entry_id)) for entry_id in range(6000) if entry_id not in sealed]
    storage.wait(lambda: all(statuses))
    looked, row = [], ChangingRows.row
    steps = storage.storage.reclaiming.reclaim(
        LocalRewriter(storage.file_system), 0.0, 64 << 20, unlimited, entry_logs=True
    )

    def counted() -> Steps[list[int]]:
        monkeypatch.setattr(ChangingRows, "row", lambda self, index: (looked.append(1), row(self, index))[1])
        outcome, most = Outcome(), []
        while not isinstance(need := advance(steps, outcome), Finished):
            most.append(len(looked))
            outcome = Outcome((yield need))
            looked.clear()
        return [*most, len(looked)]

    most = storage.steps(counted())
    assert sum(most) >= 6000 and max(most) <= 2200
    assert storage.ids(5) == [*range(6000)]


def test_iteration_over_sorted_ids_tolerates_changes():
    rng = random.Random(7)
    stay = set(range(0, MANY, 3))
    ids = SortedSet(stay)
    found = []
    for number, one in enumerate(ascending(ids)):
        found.append(one)
        if number % 5 == 0:
            other = rng.randrange(MANY)
            (ids.add if rng.random() < 0.7 else ids.discard)(other + (other % 3 == 0))
    assert found == sorted(set(found)) and stay <= set(found)


def test_known_ledgers_are_listed_in_parts_during_changes(storage, monkeypatch):
    """The ids of all ledgers were listed in one step of the loop: 0.35 s for ten million."""
    control = storage.storage.holdings.control
    control.replay(MasterKeyNoted(one, bytes(16)) for one in range(0, 3 * MANY, 3))
    listed, since = [], packed_dict.since

    def noted(ids, start, count=None):
        found = since(ids, start, count)
        listed.append(len(found))
        return found

    monkeypatch.setattr(packed_dict, "since", noted)
    rng, told, held = random.Random(7), set(), storage.storage.garbage_collection.held()
    for records in control.records():
        for record in records:
            assert isinstance(record, LedgersNoted)
            told.update(ledger_id for ledger_id, _ in _PLAIN_LEDGER.iter_unpack(record.ledgers))
        other = rng.randrange(3 * MANY)
        (control.of if rng.random() < 0.7 else control.forget)(other + (other % 3 == 0))
        next(held, None)
    assert told >= set(range(0, 3 * MANY, 3)) and max(listed) <= 4096
    assert held_ledgers(storage.storage) == set(control.ledgers.packed)


def test_first_checkpoint_of_many_ledgers_works_in_bounded_steps(storage, monkeypatch):
    """Its first step sorted all ids, and its last step moved all ledgers: 45 ms at 300,000 ledgers."""
    storage.add(0, 0)
    run_checkpoint(storage.storage)
    holdings = storage.storage.holdings
    (row,) = holdings.index.get(0).covering(0, 0)
    since, asked, at_work = packed_dict.since, [], []
    monkeypatch.setattr(
        packed_dict, "since", lambda ids, start, count=None: asked.append(count) or since(ids, start, count)
    )
    for name in ("_rest", "get"):
        call = getattr(PackedDict, name)
        monkeypatch.setattr(PackedDict, name, lambda *given, call=call: (at_work.append(1), call(*given))[1])
    for _ in range(2):
        for ledger_id in range(1, MANY // 4):
            holdings.control.of(ledger_id)
            holdings.index.of(ledger_id).insert(ledger_id, ledger_id, row.where, row.size)
        for again in range(3):
            storage.storage.checkpoints.outdated()
            steps, touched = storage.storage.checkpoint(), []
            while True:
                at_work.clear()
                try:
                    next(steps)
                except StopIteration as prepared:
                    storage.storage.write_checkpoints(prepared.value)
                    break
                finally:
                    touched.append(len(at_work))
            assert max(touched) <= 1 << 11, "no step touches more"
            assert again == 2 or len(touched) > 2
    assert asked and None not in asked and max(asked) <= 4096
    assert not holdings.index._rows.in_use_count and not len(holdings.index._changed)


def test_replay_of_lost_entries_packs_no_ledgers_on_the_loop(monkeypatch, storage):
    """65,536 ledgers were packed at once, in 237 to 315 ms. A caller that held such a ledger then changed a discarded
    object."""
    control = storage.storage.holdings.control
    monkeypatch.setattr(control_state, "_IN_USE_MAX", 4)
    held = control.of(5)
    monkeypatch.setattr(PackedDict, "rest_all", lambda self: pytest.fail("it packs all of them at once"))
    control.replay(EntriesLost(ledger_id, 0, 0) for ledger_id in range(6, 30))
    held.note(7, 7)
    assert control.ledgers.look(5).last_add_confirmed == 7
    monkeypatch.undo()


def test_bookie_process_sets_its_switch_interval_and_garbage_collector():
    """A commit thread waited 5 ms three times for each group, while steps of background work followed one another on the
    loop."""
    said = "import gc, sys; from bookspark.store.bookie.interpreter import suit_a_bookie as suit; suit(); "
    said += "print(sys.getswitchinterval(), gc.get_threshold()[0], gc.get_freeze_count() > 0)"
    found = subprocess.run(
        [sys.executable, "-c", said], capture_output=True, text=True, check=True, timeout=SECONDS_MAX
    )
    assert found.stdout.split() == ["0.001", "50000", "True"]
