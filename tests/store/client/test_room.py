"""The limit on the unacknowledged bytes of all ledgers of a client."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bookspark.store.client.runtime.runtime import Room
from bookspark.store.client.writing.ledger_handle import LedgerHandleAdv
from tests.awaiting import await_that
from tests.store.client.unsent import unsent_context
from tests.store.metadata.kit import ledger

SECONDS = 60.0
KIB = 1024


class Writer:
    """An open ledger, seen by ``Room``."""

    def __init__(self, room):
        self.room, self.appended, self.released = room, 0, 0

    @property
    def kept(self):
        return self.appended - self.released

    def has_room(self):
        return self.room.has_room(self.kept)

    def fill(self, until=1 << 30):
        """Append as long as there is room; returns the kept bytes."""
        while self.appended < until and self.has_room():
            self.appended += KIB
            self.room.appended += KIB
        return self.kept

    def release(self, byte_length):
        self.released += byte_length
        self.room.release(byte_length)

    def wait(self, seconds=SECONDS):
        return self.room.wait(self.has_room, seconds)


@pytest.mark.parametrize("count_of_ledgers", [1, 2, 5, 50])
def test_busy_ledgers_stay_within_the_clients_limit_and_share_it(count_of_ledgers):
    room = Room(10_000 * KIB)
    writers = [Writer(room) for _ in range(count_of_ledgers)]
    for _ in range(1000):
        for writer in writers:
            writer.fill(until=writer.appended + 32 * KIB)
            if writer.kept:
                writer.release(min(16 * KIB, writer.kept))
    kept = [writer.kept for writer in writers]
    assert sum(kept) <= 10_000 * KIB + count_of_ledgers * KIB
    share = 10_000 * KIB / (count_of_ledgers + 1)
    assert all(0.5 * share <= one <= 1.5 * share for one in kept), kept


def test_unacknowledged_ledgers_leave_room_for_a_later_ledger():
    room = Room(1000 * KIB)
    for _ in range(4):
        Writer(room).fill()
    late = Writer(room)
    for _ in range(100):
        assert late.fill(until=late.appended + KIB) >= KIB
        late.release(KIB)


def test_ended_ledger_frees_its_room_and_wakes_waiting_appends():
    room = Room(1000 * KIB)
    ending, other = Writer(room), Writer(room)
    ending.fill()
    other.fill()
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(each.wait) for each in (ending, other)]
        await_that(lambda: len(room.waiting) == 2)
        room.forget(ending)
        assert [each.result(SECONDS) for each in waiting] == [True, True]
    room.forget(other)
    assert room.held == 0


def test_append_waits_until_another_ledgers_bytes_are_acknowledged():
    room = Room(1000 * KIB)
    full, other = Writer(room), Writer(room)
    other.fill()
    full.fill()
    assert not full.wait(0.01)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(full.wait)
        await_that(lambda: room.waiting)
        other.release(other.appended)
        assert waiting.result(SECONDS)


def test_volatile_ledger_is_asked_to_sync_when_other_ledgers_wait():
    """Each ledger waited for bytes that only a sync of another ledger frees, and without appends no sync was due."""
    room, pressed = Room(1000 * KIB), threading.Event()
    volatile, other = Writer(room), Writer(room)
    room.pressed[volatile] = pressed.set
    volatile.fill()
    other.fill()
    assert not other.wait(0.0)
    assert pressed.is_set()
    room.forget(volatile)
    pressed.clear()
    other.fill()
    assert not other.wait(0.0)
    assert not pressed.is_set(), "a ledger that has ended"


@pytest.fixture
def adv():
    made = LedgerHandleAdv(unsent_context(), ledger(2), 0, b"")
    yield made
    made._driver.ended.set()


def test_entries_behind_a_gap_take_room_and_never_block_the_missing_entry(adv):
    """Such entries did not count, so n such handles kept n times half of a ledger's limit."""
    room = adv._context.runtime.room
    room.bytes_max = 1000
    adv.append_at_async(2, b"x" * 700)
    assert room.held == 700
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(adv.append_at_async, 3, b"x" * 10)
        await_that(lambda: room.waiting)
        adv.append_at_async(0, b"x" * 10)
        adv.append_at_async(1, b"x" * 10)
        assert not waiting.done()
        adv._driver.released += 720  # done by the I/O thread at an acknowledgement
        room.release(720)
        assert waiting.result(SECONDS).entry_id == 3
    assert room.held == 10
    assert adv.last_add_pushed == 3


def test_entries_behind_a_gap_free_their_room_at_a_close(adv):
    room, ended = adv._context.runtime.room, adv._driver.ended
    adv.append_at_async(0, b"x" * 10)
    adv.append_at_async(2, b"x" * 700)
    assert room.held == 710
    ended.set()
    with pytest.raises(Exception, match="did not end in time"):
        adv.close(timeout=0.01)
    assert room.held == 10
