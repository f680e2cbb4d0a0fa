"""Dangers of stopping bookies, foreseen from an index of fragments: the same as from all records, with few reads."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pyarrow
import pytest

from bookspark.errors import ConfigurationError, ReadError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.changes.observed import Fragments, placed
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.repair.stopping import Danger
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.store.autorecovery import stopping
from bookspark.store.autorecovery.stopping import Index, dangers, foreseen
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from tests.protocol.test_both_say_the_same_of_a_stop import BOOKIES, some, some_ledger
from tests.store.autorecovery.kit import NAMES


class Stage:
    """A stand-in for a client, and an index of its cluster."""

    def __init__(self) -> None:
        self.metadata, self.fragments = MemoryStore(), Fragments()
        self.limbo: dict[str, set[int]] = {}
        self.held: dict[str, list[tuple[int, int, int]]] = {}
        self.silent: set[str] = set()
        self.read: list[int] = []
        real = self.metadata.read_ledgers

        def noted(ledger_ids, unreadable):
            self.read += list(ledger_ids)
            return real(ledger_ids, unreadable)

        self.metadata.read_ledgers = noted

    def bookies(self, names, down=()):
        for name in names:
            self.metadata.write_cookie(Cookie(name, ("/d",), "instance", "nonce"), None)
            if name not in down:
                self.metadata.register_bookie(BookieRegistration(name, "h:1", 1))

    def ledger(self, metadata: LedgerMetadata) -> None:
        self.metadata.create_ledger(metadata)
        self.fragments.put(metadata.ledger_id, placed(metadata))

    def bookie_status(self, bookie):
        if bookie in self.silent:
            raise ReadError(f"bookie {bookie} did not answer")
        return SimpleNamespace(limbo_ledgers=len(self.limbo.get(bookie, ())), lacking_ledgers=int(bookie in self.held))

    def list_limbo(self, bookie):
        return sorted(self.limbo[bookie])

    def list_ranges(self, bookie, ledger_id=None):
        rows = self.held.get(bookie, [])
        return pyarrow.table(dict(zip(NAMES, zip(*rows, strict=True) if rows else ([], [], []), strict=True)))

    def foresees(self, *bookies, unreadable=None):
        return foreseen(self, bookies, self.index(unreadable or {}))

    def index(self, unreadable=()):
        known = sorted(self.fragments.ledgers())
        return Index(self.fragments.by_shape(), self.fragments, dict(unreadable), known)


def closed(ledger_id, ensemble="abc", ack_quorum=2, **more):
    fields = {"state": LedgerState.CLOSED, "last_entry_id": 9, "length": 10, **more}
    return LedgerMetadata(ledger_id, 3, 3, ack_quorum, (Fragment(0, tuple(ensemble)),), **fields)


@pytest.mark.parametrize("seed", range(60))
def test_index_foresees_the_same_dangers_as_a_read_of_all_records(seed):
    choose = random.Random(seed)
    stage = Stage()
    down = some(choose, 0.1)
    stage.bookies(BOOKIES, down)
    stage.silent = some(choose, 0.05)
    limbo, lacking = some(choose, 0.15), some(choose, 0.15)
    for ledger_id in range(choose.randint(1, 30)):
        one = replace(some_ledger(choose), ledger_id=ledger_id)
        if one.closed and choose.random() < 0.1:
            whom = tuple(sorted(one.bookies())[: choose.randint(1, 3)])
            loss = Loss(LossKind.ENTRIES, 0, choose.randint(0, 9), whom)
            one = replace(one, accepted_loss=AcceptedLoss("me", 1, whom, (loss,)))
        stage.ledger(one)
        for bookie in limbo:
            if choose.random() < 0.3:
                stage.limbo.setdefault(bookie, set()).add(ledger_id)
        for bookie in lacking | limbo:
            if choose.random() < 0.8:
                stage.held.setdefault(bookie, []).append((ledger_id, 0, 30))
    for _ in range(4):
        stopped = tuple(sorted(some(choose, 0.3)))
        assert sorted(map(str, stage.foresees(*stopped).dangers)) == sorted(map(str, dangers(stage, stopped)))


def test_no_record_is_read_if_every_entry_keeps_its_quorum():
    stage = Stage()
    stage.bookies("abcd")
    for ledger_id in range(50):
        stage.ledger(closed(ledger_id, choose_three(ledger_id)))
    found = stage.foresees("a")
    assert (found.dangers, found.looked_at, stage.read) == ([], 0, [])
    assert dangers(stage, ["a"]) == [] and len(stage.read) == 50


def choose_three(number):
    return [name for at, name in enumerate("abcd") if at != number % 4]


def test_reads_are_bounded_if_very_many_ledgers_are_in_danger(monkeypatch):
    monkeypatch.setattr(stopping, "LOOKED_AT_MAX", 10)
    stage = Stage()
    stage.bookies("abcd")
    for ledger_id in range(100):
        stage.ledger(closed(ledger_id))
    stage.ledger(closed(100, ack_quorum=1))
    stage.ledger(LedgerMetadata(101, 2, 2, 1, (Fragment(0, ("a", "b")),), LedgerState.CLOSED, 9, 10))
    found = stage.foresees("a", "b")
    assert len(stage.read) == found.looked_at == len(found.dangers) == 10 and found.doubtful == 101
    # Ledger 101 would have no copy left, so it comes first.
    assert found.dangers[0].ledger_id == 101


def test_reads_continue_until_a_ledger_in_danger(monkeypatch):
    monkeypatch.setattr(stopping, "LOOKED_AT_MAX", 10)
    stage = Stage()
    stage.bookies("abcd")
    for ledger_id in range(95):
        # Without entries none can be lost.
        stage.ledger(closed(ledger_id, last_entry_id=-1, length=0))
    stage.ledger(closed(95))
    found = stage.foresees("a", "b")
    assert [one.ledger_id for one in found.dangers] == [95] and found.looked_at == 96


def test_ledger_made_after_the_index_is_read():
    stage = Stage()
    stage.bookies("abcd")
    old = stage.metadata.new_ledger_id()
    stage.ledger(closed(old, "bcd"))
    new = stage.metadata.new_ledger_id()
    stage.metadata.create_ledger(closed(new, "abc", ack_quorum=3))
    assert [one.ledger_id for one in stage.foresees("a").dangers] == [new]


def test_open_ledger_moved_after_the_index_is_read():
    stage = Stage()
    stage.bookies("abcd")
    before = LedgerMetadata(7, 3, 3, 3, (Fragment(0, ("b", "c", "d")),))
    stage.ledger(before)
    index = stage.index()
    stage.metadata.write_ledger(replace(before, fragments=(Fragment(0, ("a", "b", "c")),)), 0)
    assert {one.ledger_id for one in foreseen(stage, ["a"], index).dangers} == {7}


def test_ledger_closing_during_the_question_stays_in_danger():
    """The console's watch changes the index meanwhile: a ledger that closed matched neither of its shapes and counted as safe."""
    stage = Stage()
    stage.bookies("abc")
    stage.ledger(LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("a", "b", "c")),)))
    index = stage.index()
    stage.metadata.write_ledger(closed(7), 0)
    stage.fragments.put(7, placed(closed(7)))
    assert {one.ledger_id for one in foreseen(stage, ["a", "b"], index).dangers} == {7}


def test_only_the_newest_of_very_many_new_ids_are_read(monkeypatch):
    monkeypatch.setattr(stopping, "LOOKED_AT_MAX", 10)
    stage = Stage()
    stage.bookies("abc")
    stage.metadata.skip_ledger_ids(1000)
    assert stage.foresees("a").dangers == [] and len(stage.read) == 10


def test_bookie_lacking_entries_by_a_task_does_not_count_as_a_copy():
    stage = Stage()
    stage.bookies("abc")
    stage.ledger(closed(1))
    stage.held["b"] = []
    stage.bookie_status = lambda bookie: SimpleNamespace(limbo_ledgers=0, lacking_ledgers=0)
    assert stage.foresees("a").dangers == []
    stage.metadata.underreplication.mark([Mark(1, {"b": Reason.LACKS})])
    assert stage.foresees("a").dangers == [Danger(1, 0, 9, 1, 2, "too few copies would be left")]


def test_unreadable_record_is_a_danger_unless_the_index_names_other_bookies():
    stage = Stage()
    stage.bookies("abcdef")
    stage.ledger(closed(1, "def"))
    found = stage.foresees("a", unreadable={1: "a task of another", 2: "nobody knows whom it names"})
    assert [(one.ledger_id, one.why) for one in found.dangers] == [(2, "nobody knows whom it names")]


def test_unknown_bookie_is_refused():
    stage = Stage()
    stage.bookies("abc")
    with pytest.raises(ConfigurationError):
        stage.foresees("x")
