"""What a tick of the client does for a writer that makes progress all the time, and which acks its machine need not hear."""

from __future__ import annotations

from collections import deque

import pytest

from bookspark.client.network.connections import Answer
from bookspark.client.writing.writer_requests import _SentAdd
from bookspark.protocol.ledger.actions import SendAdd
from bookspark.protocol.ledger.ledger_metadata import LedgerType
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.writing.writer_events import HeldUp
from tests.client.fake_bookie import SECONDS
from tests.client.test_ledger_driver import BOOKIES, DriverBench

DUE = {
    "waits": set(),
    "syncs": {"_sync"},
    "sends what was held back": {"send_held_back"},
    "is held up": {"look"},
    "pumps": {"pump"},
}


@pytest.fixture
def bench():
    made = DriverBench()
    yield made
    made.close()


@pytest.mark.parametrize("what", DUE)
def test_a_tick_of_a_busy_writer_does_what_can_not_wait_for_a_pause(bench, monkeypatch, what):
    """A writer that gets acks all the time is looked at in short. There may never be a pause."""
    for bookie_id in BOOKIES:
        bench.bookie(bookie_id)
    bench.open(sync_interval_seconds=1000.0 if what == "syncs" else 0.0)
    driver = bench.driver(ledger_type=LedgerType.VD_JOURNAL if what == "syncs" else LedgerType.PD_JOURNAL)
    done = []
    for owner, name in (
        (driver, "_sync"), (driver._requests, "send_held_back"), (driver._hold_ups, "look"), (driver, "pump"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, lambda *_, name=name: done.append(name))

    def tick():
        done.clear()
        driver.cursors.last_add_pushed = 0
        driver._progress_at = driver._synced_at + 2000.0
        if what == "sends what was held back":
            driver._requests.held_back["b1"] = deque()
        elif what == "is held up":
            monkeypatch.setattr(bench.connections, "any_is_behind", lambda bookies: True)
        elif what == "pumps":
            driver.shared.outgoing.put([b"1"])
        goes_on = driver.tick(driver._progress_at)
        driver.cursors.last_add_pushed = -1
        driver.shared.outgoing.clear()
        driver._requests.held_back.clear()
        return goes_on, set(done)

    goes_on, done_then = bench.in_loop(tick)
    assert goes_on and DUE[what] <= done_then and bool(done_then) is (what != "waits")


@pytest.mark.parametrize("trouble", ["no answer", "held up"])
def test_the_machine_need_not_hear_the_last_ack_unless_a_bookie_has_failed(bench, monkeypatch, trouble):
    """Such an ack changes nothing in it; but of a bookie that failed it tells that it takes adds again."""
    for bookie_id in BOOKIES:
        bench.bookie(bookie_id)
    bench.open(delay_ensemble_change=True)
    driver = bench.driver()
    bench.append(driver, b"0")
    assert driver.shared.acknowledged.wait(lambda: driver.shared.acknowledged.value == 0, SECONDS)
    add = _SentAdd(driver._requests, SendAdd(BOOKIES, 0, 0, -1), SECONDS)

    def heard():
        """Is the last ack of entry 0 heard?"""
        events = []
        with monkeypatch.context() as patch:
            patch.setattr(driver._requests, "_step", events.append)
            driver._requests.add_acknowledged("b3", 0, 0)
        return bool(events)

    assert not bench.in_loop(heard)
    if trouble == "held up":
        bench.in_loop(driver._hold_ups._step, HeldUp(("b3",)))
    else:
        bench.in_loop(add.tell, "b3", Answer(Unknown(UnknownReason.TIMEOUT)))
    assert bench.in_loop(lambda: driver.writer._changes.failed) == {"b3"}
    assert bench.in_loop(heard)
