"""Room, turns and back-pressure counted by hand: each number after each step, and who is woken."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from bookspark.client.runtime import rate_limit
from bookspark.client.runtime import room as room_module
from bookspark.client.runtime.rate_limit import RateLimit, Turns
from bookspark.client.runtime.room import ClientRoom, LedgerRoom


class Latch:
    """Nobody sleeps. ``then`` is done in place of it."""

    then = None

    def __init__(self):
        self.was_set, self.waits = False, []

    def set(self):
        self.was_set = True

    def wait(self, seconds):
        self.waits.append(seconds)
        Latch.waited.append(seconds)
        assert len(Latch.waited) < 9, "it goes on"
        if Latch.then is not None:
            Latch.then()
        return self.was_set


@pytest.fixture
def latches(monkeypatch):
    monkeypatch.setattr(room_module, "Latch", Latch)
    Latch.waited, Latch.then = [], None
    yield Latch
    Latch.then = None


def test_a_new_room_keeps_nothing_and_grants_a_piece():
    client = ClientRoom(6400)
    room = LedgerRoom(client, 1000)
    assert (room.appended, room.granted, room.released, client.held, client.waiting, client.pressed) == (
        0,
        0,
        0,
        0,
        {},
        {},
    )
    assert room.ask() and (room.granted, client.held) == (100, 100)


@pytest.mark.parametrize(
    ("bytes_max", "client_max", "appended", "others", "granted"),
    [
        (1000, 6400, 0, 0, 100),  # a piece of the client's
        (1000, 6400, 980, 0, 1000),  # what is left of its own
        (1000, 6400, 300, 6000, None),  # the others have it
        (1000, 6400, 300, 5750, 325),  # half of what the others left
        (1000, 6400, 1000, 0, 1000),
        (1000, 6400, 1001, 0, None),
        (9000, 6400, 3200, 0, 3200),
        (9000, 6400, 3201, 0, None),
    ],
)
def test_what_is_granted_is_the_least_of_three_bounds(bytes_max, client_max, appended, others, granted):
    client = ClientRoom(client_max)
    client.held = others
    room = LedgerRoom(client, bytes_max)
    room.appended = appended
    assert room.ask() is (granted is not None)
    expected = appended if granted is None else granted
    assert (room.granted, client.held) == (expected, others + expected)
    assert room.ask() is (granted is not None), "to ask twice changes nothing for the worse"


def test_what_keeps_nothing_may_append_whatever_the_others_keep():
    client = ClientRoom(6400)
    client.held = 9999
    room = LedgerRoom(client, 1000)
    assert room.ask()
    room.appended += 1
    assert not room.ask()
    room.release(1)
    assert room.ask()


def test_behind_a_gap_more_counts_and_nothing_is_granted():
    client = ClientRoom(6400)
    room = LedgerRoom(client, 1000)
    room.keep_behind_gap(900)
    assert client.held == 900 and room.ask(behind_gap=True) and (room.granted, client.held) == (0, 900)
    room.keep_behind_gap(200)
    assert not room.ask(behind_gap=True) and room.ask()
    room.keep_behind_gap(-1100)
    assert client.held == room.granted and room.ask(behind_gap=True)
    room.end()
    room.keep_behind_gap(5)
    assert client.held == 0


def test_what_is_released_comes_back_and_what_was_granted_once_nothing_is_kept():
    client = ClientRoom(6400)
    room = LedgerRoom(client, 1000)
    room.ask()
    room.appended = 60
    room.release(20)
    assert (room.released, room.granted, client.held) == (20, 100, 80)
    room.release(40)
    assert (room.released, room.granted, client.held) == (60, 60, 0)


@pytest.mark.parametrize("how", ["release", "end"])
def test_who_waits_is_woken_if_he_may_go_on_and_stays_if_not(how):
    client = ClientRoom(6400)
    room = LedgerRoom(client, 1000)
    room.appended = 10
    go, stay = Latch(), Latch()
    Latch.waited = []
    client.waiting = {go: lambda: True, stay: lambda: False}
    room.release(10) if how == "release" else room.end()
    assert (go.was_set, stay.was_set, list(client.waiting)) == (True, False, [stay])


def test_the_end_gives_back_all_and_lets_everybody_go_on():
    client = ClientRoom(6400)
    room = LedgerRoom(client, 1000)
    room.press_with(lambda: None)
    room.ask()
    room.appended = 60
    room.keep_behind_gap(30)
    room.release(20)
    room.end()
    assert (client.held, client.pressed) == (0, {}) and room.has_room() and room.ask() and room.wait(0.0)
    room.appended = 5000
    assert room.has_room()
    room.release(60)
    room.end()
    assert (client.held, room.released) == (0, 80) and room.ask()


def test_who_waits_has_others_forget_what_they_keep_and_waits_out_his_time(latches):
    client, pressed = ClientRoom(1000), []
    room, keeps, empty = (LedgerRoom(client, 1000) for _ in range(3))
    for each in (keeps, empty):
        each.press_with(lambda each=each: pressed.append(each))
    keeps.appended = 1
    room.appended = 1001
    assert not room.wait(60.0)
    assert pressed == [keeps] and len(latches.waited) == 1 and 59.0 < latches.waited[0] <= 60.0
    assert client.waiting == {}
    assert not room.wait(-1.0) and latches.waited[1] == 0.0


def test_who_is_woken_looks_again_and_who_is_late_looks_once_more(latches):
    client = ClientRoom(1000)
    room = LedgerRoom(client, 1000)
    room.appended = 1001
    latches.then = lambda: room.release(1001)
    assert room.wait(60.0) and len(latches.waited) == 1 and client.waiting == {}
    room.appended += 1001
    behind = []
    latches.then = lambda: setattr(room, "released", room.appended)  # as if he was woken too late
    assert room.wait(60.0, lambda: behind.append(1)) and client.waiting == {}
    assert len(behind) == 2


def test_what_is_told_is_done_at_once_or_by_who_holds_the_lock_and_each_once():
    client, done = ClientRoom(1000), []
    client.tell(lambda: done.append(1))
    assert done == [1]
    client._told.append(lambda: done.append(2))
    with client.held_alone():
        # What was told before it is done before anything is looked at.
        assert done == [1, 2]
    with pytest.raises(ZeroDivisionError), client.held_alone():  # noqa: PT012
        client._told.append(lambda: done.append(3))
        raise ZeroDivisionError
    assert done == [1, 2, 3] and not client._told
    # A change that a signal handler has done meanwhile, with more, is not taken for another one.
    later = lambda: done.append("later")  # noqa: E731

    def interrupted():
        done.append(4)
        client._told.popleft()
        client._told.append(later)

    client.tell(interrupted)
    assert done == [1, 2, 3, 4, "later"]
    client.tell(lambda: client._told.popleft())
    assert not client._told

    def broken():
        client._told.clear()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.tell(broken)
    assert threading.Thread(target=client._lock.acquire, args=(False,)) and client._lock.acquire(blocking=False)


# -- turns


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]

    class Changed:
        notified = 0
        waits: list[float] = []  # noqa: RUF012

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def wait(self, seconds):
            Changed.waits.append(seconds)
            assert len(Changed.waits) < 9, "it goes on"
            now[0] += seconds

        def notify_all(self):
            Changed.notified += 1

    Changed.waits = []
    monkeypatch.setattr(rate_limit, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(rate_limit.threading, "Condition", Changed)
    now.append(Changed)
    return now


@pytest.mark.parametrize(
    ("entries", "bytes_", "count", "size", "cost"),
    [(10, 0, 3, 999, 0.3), (0, 1000, 3, 500, 0.5), (10, 1000, 3, 500, 0.5), (10, 1000, 9, 500, 0.9)],
)
def test_an_append_costs_the_dearer_of_its_entries_and_its_bytes(clock, entries, bytes_, count, size, cost):
    limit, turns = RateLimit(entries, bytes_), Turns()
    assert limit.limits and not limit.would_wait()
    assert limit.wait(turns, count, size, 60.0)
    # An idle client has saved a tenth of a second.
    assert turns.next_at == pytest.approx(cost) and limit._free_at == pytest.approx(99.9 + cost)
    assert limit.would_wait() is (cost > 0.1) and limit._waiting == {} and limit._by_thread == {}
    clock[1].waits.clear()
    assert limit.wait(turns, count, size, 60.0)
    assert clock[1].waits == ([pytest.approx(cost - 0.1)] if cost > 0.1 else [])
    assert clock[1].notified == 2


def test_a_limit_of_nothing_makes_nobody_wait(clock):
    limit = RateLimit(0, 0)
    limit._free_at, limit._waiting = 1e9, {(0.0, 0): 1.0}
    assert not limit.limits and not limit.would_wait()
    assert RateLimit(1, 0).limits and RateLimit(0, 1).limits


def test_who_comes_while_others_wait_would_wait(clock):
    limit = RateLimit(10, 0)
    limit._waiting[(0.0, 9)] = 0.1
    assert limit.would_wait()


def test_a_turn_that_does_not_come_in_time_is_given_back(clock):
    limit, turns = RateLimit(1, 0), Turns()
    assert limit.wait(turns, 100, 0, 60.0)
    assert not limit.wait(turns, 5, 0, 10.0)
    assert clock[1].waits == [10.0] and turns.next_at == 100.0 and limit._waiting == {} and limit._by_thread == {}


def test_the_ledger_that_had_less_goes_first_and_an_untaken_turn_is_given_by_another(clock):
    limit, greedy, modest = RateLimit(1, 0), Turns(), Turns()
    assert limit.wait(greedy, 10, 0, 60.0)
    # Somebody else waits whose turn is first, and does not take it: it is given a little late.
    limit._waiting[(3.0, 77)] = 2.0
    clock[1].waits.clear()
    assert limit.wait(greedy, 1, 0, 60.0)
    assert clock[1].waits == [pytest.approx(9.95), pytest.approx(1.95)] or sum(clock[1].waits) == pytest.approx(
        11.95, abs=0.1
    )
    assert limit._virtual == 10.0
    # Who comes later does not begin before what has been given.
    assert limit.wait(modest, 1, 0, 60.0) and modest.next_at == 11.0


def test_a_signal_handler_goes_before_what_it_interrupted(clock):
    limit, turns = RateLimit(1, 0), Turns()
    me = threading.get_ident()
    interrupted = (5.0, 3)
    limit._by_thread[me], limit._waiting[interrupted] = interrupted, 1.0
    assert limit.wait(turns, 1, 0, 60.0)
    assert list(limit._waiting) == [interrupted] and limit._by_thread == {me: interrupted}
