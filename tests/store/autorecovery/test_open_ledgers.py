"""An auditor's counts of ledgers that are not closed and of ledger recoveries that don't end."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.protocol.ledger.ledger_metadata import WRITE_QUORUM_LABEL, Fragment, LedgerMetadata, LedgerState
from bookspark.store.autorecovery import auditor
from bookspark.store.autorecovery.auditor import OpenLedgers
from bookspark.store.metadata.memory.memory_store import MemoryStore

OPEN, IN_RECOVERY, CLOSED = LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED


class Stage:
    """Ledgers in memory, a clock, and an auditor's view that counts what it reads."""

    def __init__(self):
        self.store, self.now, self.read = MemoryStore(), 0.0, []
        real = self.store.read_ledgers

        def noted(ledger_ids, unreadable):
            ids = list(ledger_ids)
            self.read.append(len(ids))
            return real(ids, unreadable)

        self.store.read_ledgers = noted
        self.view = OpenLedgers(self.store, lambda: self.now)

    def make(self, state=OPEN, copies=3):
        wanted = {WRITE_QUORUM_LABEL: b"3"}
        ensemble = ("a", "b", "c")[:copies]
        made = LedgerMetadata(
            self.store.new_ledger_id(), copies, copies, 2, (Fragment(0, ensemble),), custom_metadata=wanted
        )
        self.store.create_ledger(made)
        self.turn(made.ledger_id, state)
        return made.ledger_id

    def turn(self, ledger_id, state):
        found = self.store.read_ledger(ledger_id)
        end = {"last_entry_id": 9, "length": 10} if state is CLOSED else {}
        self.store.write_ledger(replace(found.value, state=state, **end), found.version)

    def look(self, seconds=100.0):
        """Run a pass after ``seconds``: (open, stuck in recovery)."""
        self.now += seconds
        self.view.look()
        return tuple(self.view.figures().values())


def test_open_ledgers_are_counted_until_they_are_closed_or_deleted():
    stage = Stage()
    first = [stage.make(OPEN) for _ in range(3)]
    stage.make(CLOSED)
    assert stage.look() == (3, 0)
    stage.turn(first[0], CLOSED)
    stage.store.delete_ledger(first[1])
    assert stage.look() == (1, 0)


def test_recovery_counts_as_stuck_once_two_passes_saw_it():
    stage = Stage()
    one = stage.make(IN_RECOVERY)
    assert stage.look() == (1, 0)
    assert stage.look(auditor._STANDS_SECONDS) == (1, 1)
    stage.turn(one, CLOSED)
    assert stage.look() == (0, 0)
    other = stage.make(OPEN)
    assert [stage.look(), stage.look()] == [(0, 0), (1, 0)], "a ledger of the look before has its record"
    stage.turn(other, IN_RECOVERY)
    assert [stage.look(), stage.look()] == [(1, 0), (1, 1)]


def test_pass_without_an_answer_of_the_metadata_store_is_made_up_for():
    stage = Stage()
    stage.make(OPEN)
    answering = stage.store.read_ledgers

    def failing(ledger_ids, unreadable):
        raise MetadataStoreError("no answer from ZooKeeper")

    stage.store.read_ledgers = failing
    with pytest.raises(MetadataStoreError):
        stage.look()
    stage.store.read_ledgers = answering
    assert stage.look() == (1, 0)


def test_passes_keep_a_pause_that_grows_with_their_duration():
    stage = Stage()
    stage.make(OPEN)
    assert [stage.look(), stage.look(0.5)] == [(1, 0), (1, 0)] and len(stage.read) == 1
    # A pass that takes 2 s.
    real = stage.store.list_ledgers

    def slow():
        stage.now += 2.0
        return real()

    stage.store.list_ledgers = slow
    stage.view = OpenLedgers(stage.store, lambda: stage.now)
    for _ in range(10):
        stage.look(9.0)
    assert len(stage.read) == 2


def test_pass_reads_a_bounded_number_of_records_and_passes_cover_all(monkeypatch):
    monkeypatch.setattr(auditor, "_READ_MAX", 10)
    stage, choose = Stage(), random.Random(21)
    states = [choose.choice((OPEN, IN_RECOVERY, CLOSED)) for _ in range(200)]
    for state in states:
        stage.make(state)
    for _ in range(20):
        stage.look()
    still = sum(state is not CLOSED for state in states)
    assert stage.look()[0] == still and max(stage.read) <= 20
    for _ in range(40):
        stage.look()
    assert stage.look() == (still, sum(state is IN_RECOVERY for state in states))
    # New ledgers come before old ledgers not read yet.
    stage.view = OpenLedgers(stage.store, lambda: stage.now)
    stage.look()
    new = stage.make(OPEN)
    stage.look()
    stage.look()
    assert new in stage.view._again


def test_only_the_newest_of_very_many_skipped_ids_are_read(monkeypatch):
    monkeypatch.setattr(auditor, "_NEW_MAX", 50)
    stage = Stage()
    stage.look()
    stage.store.skip_ledger_ids(1000)
    stage.make(OPEN)
    stage.look()
    assert stage.look() == (1, 0) and sum(stage.read) <= 60


def test_ledger_with_few_copies_is_marked_once_it_is_closed():
    stage = Stage()
    few, whole = stage.make(OPEN, copies=2), stage.make(OPEN)
    stage.look()
    assert stage.store.underreplication.list_tasks() == []
    stage.turn(few, CLOSED)
    stage.turn(whole, CLOSED)
    stage.look()
    assert stage.store.underreplication.list_tasks() == [few]
    assert stage.store.underreplication.task(few).detail.startswith("it has 2 of 3 copies")
