"""Slow bookies: how long writers wait for them, and the client's memory meanwhile."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from bookspark.protocol.ledger.actions import BookiesChosen, ChooseBookies, MetadataWritten
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.writing.writer import HeldUp, LedgerWriter
from bookspark.store.client.network.bookie_connection import BookieConnection
from bookspark.store.client.network.connections import Patience
from bookspark.store.client.network.traffic import ClientTraffic
from bookspark.store.client.writing import ledger_driver
from bookspark.store.client.writing.ledger_driver import LedgerDriver
from tests.awaiting import await_that
from tests.store.client.fake_bookie import SECONDS
from tests.store.client.test_connections import MIB
from tests.store.client.test_ledger_driver import BOOKIES, DriverBench
from tests.store.client.unsent import unsent_context

TICK = 0.05


@pytest.fixture
def bench():
    made = DriverBench()
    yield made
    made.close()


def waited(patience, bookie, since, seconds):
    """Spend patience with ``bookie`` for ``seconds``, like a driver; returns the time at the end."""
    ticks = round(seconds / TICK)
    for k in range(ticks + 1):
        patience.spend([bookie], since + k * TICK)
    return since + ticks * TICK


class TestPatience:
    def test_patience_ends_after_its_time_and_not_before(self):
        patience = Patience(2.0)
        now = waited(patience, "b1", 100.0, 1.9)
        assert not patience.is_spent("b1")
        waited(patience, "b1", now, 0.15)
        assert patience.is_spent("b1")
        assert not patience.is_spent("b2")

    def test_patience_recovers_at_a_twentieth_of_the_elapsed_time(self):
        patience = Patience(2.0)
        now = waited(patience, "b1", 0.0, 2.0)
        now += 10.0
        patience.spend(["b1"], now)
        assert not patience.is_spent("b1")
        now = waited(patience, "b1", now, 0.4)
        assert not patience.is_spent("b1")
        waited(patience, "b1", now, 0.15)
        assert patience.is_spent("b1")

    def test_many_ledgers_waiting_at_once_do_not_end_patience_sooner(self):
        patience = Patience(2.0)
        for _ in range(100):
            waited(patience, "b1", 5.0, 0.0)
        assert not patience.is_spent("b1")


class Ledger:
    """A driver on b1, b2 and b3 whose clock and connections the test controls. ``events``: events of its ``LedgerWriter``."""

    def __init__(self, monkeypatch, seconds=1.0):
        self.now, self.events, self.quarantined, self.behind = 100.0, [], [], ()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        context = unsent_context()
        context.runtime.connections = SimpleNamespace(
            patience=Patience(seconds),
            quietest_first=lambda bookies: tuple(sorted(bookies)),
            quarantine=lambda bookie, why: self.quarantined.append(bookie),
            behind=lambda bookies: [bookie for bookie in bookies if bookie in self.behind],
            any_is_behind=lambda bookies: not set(self.behind).isdisjoint(bookies),
            away=lambda bookies: [],
            next_request_id=lambda: 1,
            send_to_all=lambda bookies, request_id, frame, request: None,
            traffic=ClientTraffic(),
        )
        context.runtime.threads = SimpleNamespace(post=lambda *call: None)
        metadata = LedgerMetadata(1, 3, 3, 2, (Fragment(0, BOOKIES),))
        self.driver = LedgerDriver(context, metadata, 0, b"")
        step = self.driver.writer.step
        monkeypatch.setattr(LedgerWriter, "step", lambda writer, event: self.events.append(event) or step(event))

    def append(self):
        self.driver.outgoing.put([b"x"])
        self.driver.pump()

    def acks(self, bookie):
        self.driver.add_acknowledged(bookie, 0, 0)

    def looks(self, seconds, behind=()):
        self.behind = behind
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            self.driver.tick(self.now)

    def waits_for(self, behind):
        """Does an append wait for these bookies?"""
        self.behind = behind
        self.append()
        waits = bool(self.driver.outgoing)
        self.driver.outgoing.clear()
        return waits

    @property
    def held_up(self):
        return [event.bookies for event in self.events if isinstance(event, HeldUp)]


def test_bookies_that_delay_an_entry_are_quarantined_when_patience_ends(monkeypatch):
    ledger = Ledger(monkeypatch)
    ledger.append()
    ledger.acks("b3")
    ledger.looks(1.4)
    assert ledger.held_up == []
    ledger.looks(0.2)
    assert ledger.held_up[0] == ("b1", "b2")
    assert ledger.quarantined == ["b1", "b2"]


def test_no_bookie_is_held_up_if_all_bookies_are_slow(monkeypatch):
    """The cause is then the client's network or every disk: replacing bookies would make it worse."""
    ledger = Ledger(monkeypatch)
    ledger.append()
    ledger.looks(5.0, behind=BOOKIES)
    ledger.looks(5.0, behind=BOOKIES[:2])
    assert ledger.held_up == []
    assert ledger.waits_for(BOOKIES[:2])
    assert not ledger.waits_for(())


def test_appends_wait_for_a_bookie_behind_only_until_patience_ends(monkeypatch):
    ledger = Ledger(monkeypatch)
    ledger.append()
    assert ledger.waits_for(["b2"])
    ledger.looks(0.9, behind=["b2"])
    assert ledger.waits_for(["b2"])
    ledger.looks(0.2, behind=["b2"])
    assert not ledger.waits_for(["b2"])
    assert ledger.held_up[-1] == ("b2",)


def test_slow_bookie_outside_the_ack_quorum_is_not_held_up(monkeypatch):
    ledger = Ledger(monkeypatch)
    ledger.append()
    ledger.acks("b2")
    ledger.acks("b3")
    ledger.looks(5.0)
    assert ledger.held_up == []


def test_hanging_bookie_takes_bounded_client_memory_and_stops_no_append(bench):
    """BookKeeper #3497: without back-pressure, a client keeps all bytes that a hanging bookie has not read. Here a bookie that
    was cut off was sent everything again while the client reconnected: 64 MiB more each time."""
    hangs, *_ = [bench.bookie(bookie_id) for bookie_id in BOOKIES]
    # Without the explicit LAC: its frame of 120 bytes would wait for the next connection.
    bench.open(bytes_in_flight_max=16 * MIB, bookie_stall_seconds=1.0, explicit_lac_interval_seconds=3600.0)
    driver = bench.driver()
    bench.append(driver, b"")
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 0, SECONDS)
    hangs.taking.clear()
    kept = 0
    for first in range(1, 101, 10):
        bench.append(driver, *[bytes(MIB)] * 10)
        assert driver.acknowledged.wait(lambda last=first + 9: driver.acknowledged.value == last, SECONDS)
        kept = max(kept, bench.in_loop(lambda: kept_for(bench, driver, "b1")))
    assert driver.acknowledged.error is None
    assert kept <= 5 * MIB
    await_that(lambda: "b1" in bench.connections._missed, what="the bookie that hangs is cut off")
    bench.append(driver, *[bytes(MIB)] * 10)
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 110, SECONDS)
    assert bench.in_loop(lambda: kept_for(bench, driver, "b1")) == 0
    hangs.taking.set()
    await_that(lambda: bench.in_loop(lambda: "b1" in bench.connections._ready), what="it is connected to again")
    bench.append(driver, b"")
    await_that(
        lambda: any(header.first_entry_id == 111 for header in came(hangs)), what="it is sent what is appended now"
    )


def test_bookie_that_stays_behind_is_replaced_before_its_answer_times_out(bench, monkeypatch):
    """A bookie that reads a little was never cut off, and its writers waited for it until an answer timed out."""
    monkeypatch.setattr(BookieConnection, "_check_stall", lambda connection, taken_before: None)

    def choose_b4(metadata, action):
        return BookiesChosen(("b4",)) if isinstance(action, ChooseBookies) else MetadataWritten(1)

    hangs, *_ = [bench.bookie(bookie_id) for bookie_id in (*BOOKIES, "b4")]
    bench.open(bytes_in_flight_max=16 * MIB, bookie_stall_seconds=1.0, answer_timeout_seconds=1000)
    driver = bench.driver(answer_from_store=choose_b4)
    bench.append(driver, b"")
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 0, SECONDS)
    hangs.taking.clear()
    bench.append(driver, *[bytes(MIB)] * 40)
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 40, SECONDS)
    await_that(lambda: driver.writer.metadata.last_fragment.ensemble == ("b4", "b2", "b3"), what="b1 is replaced")


def kept_for(bench, driver, bookie_id):
    """Bytes that the client keeps for a bookie: on its connection, for the next connection, and held back."""
    connections = bench.connections
    connection, attempt = connections._ready.get(bookie_id), connections._connecting.get(bookie_id)
    held_back = driver._held_back.get(bookie_id, ())
    return (
        (0 if connection is None else connection._transport.get_write_buffer_size())
        + (0 if attempt is None else attempt.bytes_waiting)
        + sum(len(driver._frames[add.first].frame) for add in held_back if add.first in driver._frames)
    )


def came(bookie):
    """Headers received by the bookie since the last call."""
    return [bookie.headers.get() for _ in range(bookie.headers.qsize())]


def test_adds_held_back_for_a_bookie_are_dropped_when_released(bench, monkeypatch):
    """Such adds were dropped only when the bookie read again: for a bookie that stays behind, every add was kept."""
    slow, *_ = [bench.bookie(bookie_id) for bookie_id in BOOKIES]
    monkeypatch.setattr(ledger_driver, "_MOMENT_SECONDS", 0.0)
    bench.open(bytes_in_flight_max=16 * MIB, bookie_stall_seconds=SECONDS)
    driver = bench.driver()
    bench.append(driver, b"")
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 0, SECONDS)
    slow.taking.clear()
    bench.connections.patience = Patience(0.0)  # the bookie is known to be slow
    for first in range(1, 101, 10):
        bench.append(driver, *[bytes(MIB)] * 10)
        assert driver.acknowledged.wait(lambda last=first + 9: driver.acknowledged.value == last, SECONDS)
    assert bench.in_loop(lambda: len(driver._held_back.get("b1", ()))) <= 10
