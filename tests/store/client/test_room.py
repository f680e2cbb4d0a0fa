"""What the ledgers of one client keep together, and how fast they append together."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from bookspark.store.client.runtime import rate_limit
from bookspark.store.client.runtime.rate_limit import RateLimit, Turns
from bookspark.store.client.runtime.room import ClientRoom, LedgerRoom
from tests.awaiting import await_that

SECONDS = 60.0
KIB = 1024


def fill(room, byte_length=KIB, until=1 << 30):
    """Append as long as there is room; returns the bytes that the ledger keeps."""
    while room.appended < until and (room.appended < room.granted or room.ask()):
        room.appended += byte_length
    return room.appended - room.released


def test_a_ledger_keeps_no_more_than_its_own_bound():
    room = LedgerRoom(ClientRoom(1000 * KIB), 100 * KIB)
    assert 100 * KIB <= fill(room) <= 102 * KIB


@pytest.mark.parametrize("count_of_ledgers", [1, 2, 5, 50])
def test_busy_ledgers_keep_no_more_than_the_client_may_and_share_it(count_of_ledgers):
    client = ClientRoom(10_000 * KIB)
    rooms = [LedgerRoom(client, 10_000 * KIB) for _ in range(count_of_ledgers)]
    for _ in range(1000):
        for room in rooms:
            fill(room, until=room.appended + 32 * KIB)
            if room.appended > room.released:
                room.release(min(16 * KIB, room.appended - room.released))
    kept = [room.appended - room.released for room in rooms]
    assert sum(kept) <= 10_000 * KIB + count_of_ledgers * KIB
    share = 10_000 * KIB / (count_of_ledgers + 1)
    assert all(0.5 * share <= one <= 1.5 * share for one in kept), kept


def test_a_ledger_that_nobody_acknowledges_leaves_room_for_one_that_comes_later():
    client = ClientRoom(1000 * KIB)
    for _ in range(4):
        fill(LedgerRoom(client, 1000 * KIB))
    late = LedgerRoom(client, 1000 * KIB)
    for _ in range(100):
        assert fill(late, until=late.appended + KIB) >= KIB
        late.release(KIB)


def test_what_was_granted_to_a_ledger_comes_back_when_it_keeps_nothing():
    client = ClientRoom(1000 * KIB)
    rooms = [LedgerRoom(client, 1000 * KIB) for _ in range(1000)]
    for room in rooms:
        fill(room, until=room.appended + KIB)
        room.release(KIB)
    assert client.held == 0


def test_a_ledger_that_ends_gives_back_what_it_kept_and_nobody_waits_for_it():
    client = ClientRoom(1000 * KIB)
    room, other = LedgerRoom(client, 1000 * KIB), LedgerRoom(client, 1000 * KIB)
    fill(room)
    fill(other)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(each.wait, SECONDS) for each in (room, other)]
        await_that(lambda: len(client.waiting) == 2)
        room.end()
        assert [each.result(SECONDS) for each in waiting] == [True, True]
    other.end()
    other.release(KIB)  # an ack that came late
    assert client.held == 0


def test_an_append_waits_until_its_own_or_another_ledger_is_acknowledged():
    client = ClientRoom(1000 * KIB)
    full, other = LedgerRoom(client, 1000 * KIB), LedgerRoom(client, 1000 * KIB)
    fill(other)
    fill(full)
    assert not full.wait(0.01)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(full.wait, SECONDS)
        await_that(lambda: client.waiting)
        other.release(other.appended)
        assert waiting.result(SECONDS)


def test_a_ledger_that_has_to_be_synced_to_forget_is_asked_to_when_others_wait():
    """Each waited for bytes that only a sync of another one frees, and none was due: nobody appended."""
    client, pressed = ClientRoom(1000 * KIB), threading.Event()
    volatile, other = LedgerRoom(client, 1000 * KIB), LedgerRoom(client, 1000 * KIB)
    volatile.press_with(pressed.set)
    fill(other)
    assert not other.wait(0.0)
    assert not pressed.is_set(), "it keeps nothing"
    fill(volatile)
    assert not other.wait(0.0)
    assert pressed.is_set()


def test_a_ledger_may_come_and_go_while_those_are_asked_that_keep_something():
    """A signal handler that closed a ledger ended the wait of the append that it interrupted: the dictionary had changed."""

    class Closing(LedgerRoom):
        @property
        def released(self):
            self._client.pressed.pop(self, None)
            return 0

        @released.setter
        def released(self, value):
            pass

    client = ClientRoom(1000 * KIB)
    rooms = [Closing(client, 1000 * KIB) for _ in range(3)]
    for room in rooms:
        room.press_with(lambda: None)
    other = LedgerRoom(client, 1000 * KIB)
    fill(other)
    assert not other.wait(0.0)


def interrupt_at(number):
    """A profile function that interrupts at the end of the ``number``-th call from now on, as a signal may."""
    left = [number]

    def profile(frame, event, argument):
        if event in ("call", "c_return"):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    return profile


def test_an_interrupt_loses_nothing_that_the_io_thread_told():
    """Between taking the release of an append and doing it: the client's room was less for ever."""
    interrupted = 0
    for number in range(1, 40):
        client = ClientRoom(1000 * KIB)
        room, other = LedgerRoom(client, 1000 * KIB), LedgerRoom(client, 1000 * KIB)
        fill(room, until=3 * KIB)
        holding = client.held_alone()
        holding.__enter__()
        for change in (partial(room.release, KIB), partial(room.release, 2 * KIB), other.end):
            told = threading.Thread(target=change)
            told.start()
            told.join(SECONDS)
        sys.setprofile(interrupt_at(number))
        try:
            holding.__exit__(None, None, None)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.setprofile(None)
        del holding
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(room.ask).result(SECONDS), "the lock is free"
        assert room.released == room.appended == 3 * KIB
        assert client.held == room.granted - room.released
    assert interrupted > 10


def test_what_waits_for_an_earlier_entry_is_kept_by_the_client():
    client = ClientRoom(1000 * KIB)
    given, other = LedgerRoom(client, 1000 * KIB), LedgerRoom(client, 1000 * KIB)
    given.keep_behind_gap(900 * KIB)
    assert fill(other) <= 60 * KIB
    assert not given.ask(behind_gap=True)
    assert given.ask(), "the entry for which they wait goes on"
    given.keep_behind_gap(-900 * KIB)
    assert given.ask(behind_gap=True)
    given.keep_behind_gap(10 * KIB)
    given.end()
    other.end()
    assert client.held == 0


def test_an_append_that_waits_behind_a_gap_goes_on_once_it_is_the_next_one():
    client, behind = ClientRoom(1000 * KIB), [True]
    given = LedgerRoom(client, 1000 * KIB)
    given.keep_behind_gap(900 * KIB)
    given.ask()
    given.appended += KIB
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(given.wait, SECONDS, lambda: behind[0])
        await_that(lambda: client.waiting)
        behind[0] = False
        given.release(KIB)  # the entries before it are acknowledged
        assert waiting.result(SECONDS)


# -- rates


@pytest.fixture
def clock(monkeypatch):
    """Time passes as far as somebody waits for it."""
    now = [100.0]

    class Changed(threading.Condition):
        def wait(self, timeout=None):
            now[0] += max(timeout, 0.0)

    monkeypatch.setattr(rate_limit.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(rate_limit.threading, "Condition", Changed)
    return now


@pytest.mark.parametrize(("count_of_entries", "byte_length"), [(10, 0), (1, 100_000), (10, 100_000)])
def test_no_more_is_appended_than_the_limits_allow(clock, count_of_entries, byte_length):
    limit, turns, began = RateLimit(100, 1_000_000), Turns(), clock[0]
    for _ in range(100):
        assert limit.wait(turns, count_of_entries, byte_length, SECONDS)
    assert clock[0] - began == pytest.approx(9.9 - 0.1, abs=0.15)


def test_without_a_limit_nobody_waits():
    assert not RateLimit(0, 0).limits
    assert not RateLimit(0, 0).would_wait()


def test_a_turn_that_does_not_come_in_time_is_no_turn_and_costs_nothing(clock):
    limit, turns = RateLimit(1, 0), Turns()
    assert limit.wait(turns, 100, 0, SECONDS)
    before = turns.next_at
    assert not limit.wait(turns, 1, 0, 10.0)
    assert turns.next_at == before
    assert limit.wait(turns, 1, 0, 100.0)


def test_ledgers_share_a_limit_whatever_the_size_of_their_appends():
    """One that appends batches got as much more as its batches are larger, when each had a turn after the other. Each appends
    from several threads: one that the machine wakes late is no ledger that wants less."""
    limit, ended = RateLimit(0, 4_000_000), threading.Event()
    sizes = {"large": 40_000, "small": 4_000, "smaller": 1_000}
    appended, turns, lock = dict.fromkeys(sizes, 0), {name: Turns() for name in sizes}, threading.Lock()

    def append(name):
        while not ended.is_set():
            assert limit.wait(turns[name], 1, sizes[name], SECONDS)
            with lock:
                appended[name] += sizes[name]

    with ThreadPoolExecutor(4 * len(sizes)) as threads:
        done = [threads.submit(append, name) for name in 4 * [*sizes]]
        await_that(lambda: sum(appended.values()) > 2_000_000)
        told = dict(appended)
        ended.set()
        for each in done:
            each.result(SECONDS)
    assert max(told.values()) < 3 * min(told.values()), told
