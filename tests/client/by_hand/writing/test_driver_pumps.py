"""A writer's driver: what goes into which frame, what it waits for, and what follows once all was sent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bookspark.client.writing.kept_frames import KeptFrame
from bookspark.client.writing.outgoing import Outgoing
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.writing.writer_events import Append, Close, Sync
from bookspark.protocol.writing.writer_state import State
from bookspark.wire.digests import digester
from bookspark.wire.entry_batch import EntryBatch
from bookspark.wire.header import Flag, Header, Kind
from tests.client.by_hand.writing.test_driver_steps import driver_of


def pumping(calls, *payloads, **fields):
    """A driver with appends that wait. The machine counts them."""
    driver = driver_of(calls, **fields)
    driver.shared.outgoing = Outgoing(1, digester(DigestType.CRC32C, b""), 1000, striped=False)
    driver.shared.outgoing.put(list(payloads))
    frames = driver.frames = {}
    driver.kept.keep = frames.__setitem__

    def step(event):
        calls.append(("step", event))
        if isinstance(event, Append):
            assert driver.cursors.last_add_pushed + 1 in frames, "it may be sent at once"
            driver.cursors.last_add_pushed += event.count
            driver.kept.under_way += 1

    driver._step = step
    return driver


def test_a_frame_has_the_entries_the_ids_and_what_is_confirmed():
    calls = []
    driver = pumping(calls, b"12", b"345")
    driver.cursors.last_add_pushed = driver.cursors.last_add_acknowledged = 6
    driver.cursors.last_add_confirmed, driver.cursors.last_add_fully_replicated = 5, 3
    driver.cursors.pushed_length = 100
    driver._master_key = b"k" * 16
    driver.pump()
    ((first, kept),) = driver.frames.items()
    batch = EntryBatch(kept.frame)
    entries = list(batch.entries())
    assert first == 7 and [(e.entry_id, bytes(e.payload), e.length) for e in entries] == [
        (7, b"12", 102),
        (8, b"345", 105),
    ]
    assert {e.last_add_confirmed for e in entries} == {5}
    assert kept == KeptFrame(77, kept.frame, 5, None)
    assert calls == [("step", Append(2, 5))]
    traffic = driver._connections.traffic
    assert (traffic.appended_entries, traffic.appended_bytes) == (2, 5)


def test_the_frame_of_a_vd_ledger_is_kept_with_its_header():
    driver = pumping([], b"12", _flags=int(Flag.VOLATILE))
    driver.cursors.last_add_confirmed, driver.cursors.last_add_fully_replicated = -1, -1
    driver.pump()
    assert driver.frames[0].header == Header(Kind.ADD, 77, 1, 0, 0, -1, int(Flag.VOLATILE), 0, -1, master_key=b"")


@pytest.mark.parametrize("state", [state for state in State if state is not State.OPEN])
def test_nothing_is_sent_of_a_ledger_that_is_not_open(state):
    calls = []
    driver = pumping(calls, b"0")
    driver.writer.state = state
    driver.shared.closing = True
    driver.pump()
    driver.shared.outgoing.clear()
    driver.pump()
    assert calls == [] and driver.frames == {}


def test_no_more_frames_are_under_way_than_may_be():
    driver = pumping([], *[bytes(900)] * 5, _frames_max=3)
    driver.pump()
    assert list(driver.frames) == [0, 1, 2] and len(driver.shared.outgoing) == 2


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_appends_wait_for_a_bookie_that_is_behind_if_patience_lasts(behind, waits):
    calls, asked = [], []
    driver = pumping(calls, b"0")
    driver._connections.any_is_behind = lambda bookies: behind
    driver._connections.behind = lambda bookies: ["bookie-2"]
    driver._hold_ups = SimpleNamespace(waits_for=lambda bookies: asked.append(bookies) or waits)
    driver.pump()
    assert (("wake",) in calls, driver.frames == {}) == (behind and waits,) * 2
    assert asked == [["bookie-2"]] * behind


@pytest.mark.parametrize("awaited", [True, False])
def test_the_time_of_an_append_begins_with_it_unless_others_wait_already(awaited):
    driver = pumping([], b"0")
    driver.cursors.last_add_pushed = 3
    driver.cursors.last_add_acknowledged = 2 if awaited else 3
    driver.cursors.last_add_confirmed = 3
    driver.pump()
    assert (driver._progress_at == -100.0) is awaited


def test_a_defect_while_appends_are_sent_ends_the_ledger(caplog):
    driver, abandoned = driver_of([]), []

    def broken():
        raise ZeroDivisionError("a defect")

    driver._pump, driver.abandon = broken, abandoned.append
    driver.pump()
    assert "a defect" in str(abandoned[0]) and "sending what was appended failed" in caplog.text


@pytest.mark.parametrize("wanted", [-1, 3, 4, 5])
@pytest.mark.parametrize("pressed", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_a_sync_is_asked_for_once_all_that_it_is_for_was_sent(wanted, pressed, left):
    calls = []
    driver = pumping(calls, *[b"0"] * left, _sync_wanted=wanted, _pressed=pressed, _frames_max=0)
    driver.cursors.last_add_pushed = 4
    driver.pump()
    syncs = -1 < wanted <= 4 or (pressed and not left)
    assert calls == [("step", Sync())] * syncs
    assert driver._sync_wanted == (wanted if wanted > 4 or not syncs else -1)
    assert driver._pressed is (pressed and left)


@pytest.mark.parametrize("closing", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_a_ledger_is_closed_once_nothing_waits(closing, left):
    calls = []
    driver = pumping(calls, *[b"0"] * left, _frames_max=0)
    driver.shared.closing = closing
    driver.pump()
    assert calls == [("step", Close())] * (closing and not left)
