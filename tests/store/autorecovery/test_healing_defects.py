"""A bookie's healing with unexpected errors and unreachable peers."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from bookspark.errors import LedgerRecoveryError, NoSuchLedgerError
from bookspark.protocol.ledger.actions import ReadAnswered
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.protocol.ledger.responses import Negative, Unknown, UnknownReason
from bookspark.store.autorecovery import healing
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.awaiting import SECONDS_MAX, await_that, stays
from tests.store.metadata.kit import ledger


def test_unhealable_ledger_is_retried_alone(monkeypatch):
    """Each attempt read the metadata of all ledgers again, and the exact check skipped the bookie meanwhile."""
    monkeypatch.setattr(healing, "_RETRY_SECONDS", 0.01)
    limbo, tries, listed = {1: 1, 2: 1}, [], []
    healed = threading.Event()

    def read_ledger(ledger_id):
        tries.append((ledger_id, running.status().saw_all))
        if ledger_id == 1 and tries.count((1, True)) < 3:
            raise LedgerRecoveryError("no peer can be reached")
        raise NoSuchLedgerError(f"no ledger {ledger_id}")

    bookie = SimpleNamespace(
        boot=1,
        bookie_id="b1",
        limbo=lambda: dict(limbo),
        clear_limbo=lambda ledger_id, boot: limbo.pop(ledger_id),
        note_healed=lambda boot: healed.set(),
    )
    metadata = SimpleNamespace(
        list_ledgers=lambda: listed.append("all") or [1, 2, 3, 4],
        read_ledgers=lambda ids, unreadable: listed.append(list(ids)) or [],
        read_ledger=read_ledger,
        read_record=lambda kind, name: None,
    )
    running = healing.Healing(bookie, SimpleNamespace(metadata=metadata, close=lambda: None), 0)
    running.start()
    assert healed.wait(SECONDS_MAX) and running.wait(SECONDS_MAX)
    assert listed == ["all", [3, 4]]
    assert sorted(tries) == [(1, False), (1, True), (1, True), (1, True), (2, False)]
    assert running.status().ledgers_left == 0 and running.status().saw_all
    monkeypatch.setattr(healing, "time", SimpleNamespace(monotonic=lambda: 10.0**9))
    assert running.status().seconds < 10**6, "it did not go on after its end"


def test_stopped_healing_asks_nothing_more_of_its_bookie():
    """The bookie's loop ended meanwhile, and the question without an answer kept its process from ending for a minute."""
    asked, answer, stopped = threading.Event(), threading.Event(), threading.Event()
    questions = []

    def clear_limbo(ledger_id, boot):
        asked.set()
        assert answer.wait(SECONDS_MAX)
        questions.append(stopped.is_set())

    def read_ledger(ledger_id):
        raise NoSuchLedgerError(f"no ledger {ledger_id}")

    bookie = SimpleNamespace(boot=1, bookie_id="b1", limbo=lambda: {1: 1}, clear_limbo=clear_limbo)
    metadata = SimpleNamespace(list_ledgers=list, read_ledger=read_ledger, read_record=lambda kind, name: None)
    running = healing.Healing(bookie, SimpleNamespace(metadata=metadata, close=lambda: None), 0)
    running.start()
    assert asked.wait(SECONDS_MAX)
    stopping = threading.Thread(target=lambda: (running.stop(), stopped.set()))
    stopping.start()
    stays(lambda: not stopped.is_set(), 0.2)
    answer.set()
    stopping.join(SECONDS_MAX)
    assert questions == [False]


def test_exception_at_a_ledger_does_not_end_the_healing(monkeypatch, caplog):
    """The exception ended the thread, and all ledgers stayed in limbo until the bookie's next start."""
    monkeypatch.setattr(healing, "_RETRY_SECONDS", 0.01)
    cleared: set[int] = set()
    healed = threading.Event()
    defects = [ZeroDivisionError("a defect")]

    def read_ledger(ledger_id):
        if ledger_id == 1 and defects:
            raise defects.pop()
        raise NoSuchLedgerError(f"no ledger {ledger_id}")

    bookie = SimpleNamespace(
        boot=1,
        bookie_id="b1",
        limbo=lambda: {ledger_id: 1 for ledger_id in (1, 2) if ledger_id not in cleared},
        clear_limbo=lambda ledger_id, boot: cleared.add(ledger_id),
        note_healed=lambda boot: healed.set(),
    )
    metadata = SimpleNamespace(list_ledgers=list, read_ledger=read_ledger, read_record=lambda kind, name: None)
    running = healing.Healing(bookie, SimpleNamespace(metadata=metadata, close=lambda: None), 0)
    running.start()
    assert healed.wait(SECONDS_MAX)
    assert running.wait(SECONDS_MAX)
    assert cleared == {1, 2}
    assert "ledger 1 is not healed yet because of a defect" in caplog.text


def test_entry_is_noted_as_lost_only_after_every_peer_denied_it(monkeypatch):
    """An unreachable peer may have it."""
    monkeypatch.setattr(healing, "_RETRY_SECONDS", 0.01)
    store = MemoryStore()
    store.create_ledger(ledger(1, state=LedgerState.CLOSED, last_entry_id=0))
    answers = {"bookie-1": Negative(), "bookie-2": Negative(), "bookie-3": Unknown(UnknownReason.UNREACHABLE)}
    lost, healed = [], threading.Event()

    def send(read, put):
        put(ReadAnswered(read.bookie, read.first, read.first - 1, answers[read.bookie]))

    bookie = SimpleNamespace(
        boot=1,
        bookie_id="bookie-1",
        limbo=dict,
        held=lambda ledger_id: [],
        note_lost=lambda ledger_id, ranges: lost.append((ledger_id, ranges)),
        note_healed=lambda boot: healed.set(),
    )
    context = SimpleNamespace(requests=lambda metadata, password: SimpleNamespace(send=send))
    bookkeeper = SimpleNamespace(metadata=store, context=context, close=lambda: None)
    running = healing.Healing(bookie, bookkeeper, 0)
    running.start()
    await_that(lambda: running.status().saw_all)
    assert lost == [] and running.status().ledgers_left == 1 and not healed.is_set()
    answers["bookie-3"] = Negative()
    assert healed.wait(SECONDS_MAX) and running.wait(SECONDS_MAX)
    assert lost == [(1, [(0, 0)])] and running.status().entries_lost == 1
