"""Room, turns and back-pressure counted by hand: each number after each step, and who is woken."""

from __future__ import annotations

import threading
from itertools import product
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.runtime import rate_limit
from bookspark.client.runtime import room as room_module
from bookspark.client.runtime.rate_limit import RateLimit, Turns
from bookspark.client.runtime.room import ClientRoom, LedgerRoom
from bookspark.client.writing.back_pressure import BackPressure
from bookspark.client.writing.kept_frames import KeptFrame, KeptFrames
from bookspark.client.writing.sole_appender import SoleAppender
from bookspark.errors import AddTimeoutError, BookKeeperError, LedgerClosedError
from bookspark.threads import mark_own_thread
from bookspark.wire.columns import Heads
from tests.client.by_hand.noted import Noted
from tests.metadata.kit import ledger


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


# -- back-pressure


class Waiting:
    """Room and a limit that answer as they are told, and note what they are asked."""

    def __init__(self, has_room=True, waits=False, room_comes=True, turn_comes=True, limits=True, granted=0):
        self.calls = []
        self.room = Noted(
            self.calls, "room", appended=5, granted=granted, released=1, ask=self.answering("ask", has_room)
        )
        self.room.wait = self.answering("room.wait", room_comes)
        self.limit = SimpleNamespace(
            limits=limits, would_wait=lambda: waits, wait=self.answering("limit.wait", turn_comes)
        )
        self.cursors = SimpleNamespace(last_add_acknowledged=3, last_add_confirmed=3, last_add_pushed=3)
        context = SimpleNamespace(
            config=ClientConfig(add_timeout_seconds=7.0, bytes_in_flight_max=10, sync_bytes=5),
            runtime=SimpleNamespace(rate_limit=self.limit),
        )
        driver = SimpleNamespace(room=self.room, cursors=self.cursors)
        self.pressure = BackPressure(ledger(1), context, driver)

    def answering(self, name, answer):
        return lambda *what: self.calls.append((name, *what)) or answer

    def turn(self, count, size):
        return ("limit.wait", self.pressure._turns, count, size, 14.0)


@pytest.mark.parametrize(("has_room", "granted", "limits"), list(product([True, False], [5, 6], [True, False])))
def test_an_append_waits_for_room_that_it_was_not_granted_and_for_its_turn(has_room, granted, limits):
    one = Waiting(has_room, granted=granted, limits=limits)
    one.pressure.wait(3, 2, 9)
    calls = [("ask",)] * (granted == 5) + [("room.wait", 14.0)] * (granted == 5 and not has_room)
    assert [call if call[0] != "room.wait" else call[:2] for call in one.calls] == calls + [one.turn(2, 9)] * limits


@pytest.mark.parametrize(("has_room", "behind", "limits"), list(product([True, False], repeat=3)))
def test_an_append_behind_a_gap_asks_as_one(has_room, behind, limits):
    one = Waiting(has_room, limits=limits)
    gap = lambda: behind  # noqa: E731
    one.pressure.wait_behind_gap(3, 9, gap)
    assert one.calls == [("ask", behind)] + [("room.wait", 14.0, gap)] * (not has_room) + [one.turn(1, 9)] * limits


@pytest.mark.parametrize(("has_room", "waits"), list(product([True, False], repeat=2)))
def test_pressure_is_off_if_neither_is_waited_for(has_room, waits):
    assert Waiting(has_room, waits).pressure.is_off is (has_room and not waits)


@pytest.mark.parametrize(
    ("acknowledged", "confirmed", "pushed", "missing"),
    [
        (3, 3, 3, "an acknowledgement; no bookie"),
        (4, 3, 4, "a sync; too few bookies"),
        (4, 4, 4, "their 3 copies"),
    ],
)
@pytest.mark.parametrize("appended", [5, 11, 12])
def test_who_gets_no_room_in_time_is_told_what_is_missing(acknowledged, confirmed, pushed, missing, appended):
    one = Waiting(has_room=False, room_comes=False)
    one.room.appended = appended
    vars(one.cursors).update(last_add_acknowledged=acknowledged, last_add_confirmed=confirmed, last_add_pushed=pushed)
    with pytest.raises(AddTimeoutError) as raised:
        one.pressure.wait(4, 1, 1)
    assert f"ledger 1: {min(appended - 1, 10)} bytes wait for {missing}" in str(raised.value)
    assert ("all ledgers of this client keep" in str(raised.value)) is (appended - 1 <= 10)


@pytest.mark.parametrize(("pushed", "missing"), [(3, "a sync"), (4, "an acknowledgement")])
def test_behind_a_gap_too_it_is_told_what_is_missing(pushed, missing):
    one = Waiting(has_room=False, room_comes=False)
    vars(one.cursors).update(last_add_acknowledged=3, last_add_confirmed=2)
    with pytest.raises(AddTimeoutError, match=missing):
        one.pressure.wait_behind_gap(pushed, 1, lambda: True)


def test_who_gets_no_turn_in_time_is_told_the_limits():
    with pytest.raises(AddTimeoutError, match="did not get its turn in 14 s"):
        Waiting(turn_comes=False).pressure.wait(4, 1, 1)


@pytest.mark.parametrize(("has_room", "waits"), list(product([True, False], repeat=2)))
def test_only_who_would_wait_is_refused_where_nobody_may(has_room, waits):
    one = Waiting(has_room, waits)
    mark_own_thread("of the test")
    try:
        if has_room and not waits:
            one.pressure.wait(4, 1, 1)
        else:
            with pytest.raises(BookKeeperError, match="of the test"):
                one.pressure.wait(4, 1, 1)
    finally:
        mark_own_thread("")
    assert all(call[0] == "ask" for call in one.calls) or (has_room and not waits)


# -- a sole appender


@pytest.mark.parametrize(("granted", "limits"), list(product([5, 6], [True, False])))
def test_a_sole_appender_waits_only_without_room_or_with_a_limit(granted, limits):
    calls = []
    shared = SimpleNamespace(
        acknowledged=SimpleNamespace(error=None), closing=False, next_entry_id=7, outgoing=Noted(calls, "outgoing")
    )
    room = SimpleNamespace(appended=5, granted=granted)
    runs = [SimpleNamespace(byte_length=4), SimpleNamespace(byte_length=5)]
    split = lambda payloads, heads: calls.append(("split", payloads, heads)) or runs  # noqa: E731
    noted = Noted(calls)
    appender = SoleAppender(
        shared, SimpleNamespace(room=room, pump="pump"), Noted(calls, "pressure", limits=limits), noted.submit_once, split,
        lambda: LedgerClosedError("closed"),
    )  # fmt: skip
    appender.append(b"123")
    waits = [("pressure.wait", 6, 1, 3)] * (granted == 5 or limits)
    assert calls == [*waits, ("outgoing.put", (b"123",)), ("submit_once", "pump")]
    assert (shared.next_entry_id, room.appended, appender.acknowledged) == (8, 8, shared.acknowledged)
    del calls[:]
    heads = Heads((), 0)
    assert appender.append_all([b"1", b"2", b"3"], heads) == 9
    assert calls == [
        ("split", [b"1", b"2", b"3"], heads), ("pressure.wait", 7, 3, 9), ("outgoing.put", runs), ("submit_once", "pump"),
    ]  # fmt: skip
    assert (shared.next_entry_id, room.appended) == (11, 17)
    del calls[:]
    appender.send()
    assert calls == [("submit_once", "pump")]


# -- kept frames


def test_frames_are_kept_until_they_are_released_and_under_way_until_they_are_acknowledged():
    calls = []
    kept = KeptFrames(Noted(calls, "room"))
    assert kept.oldest_under_way() == (-1, None) and kept.under_way == 0
    for first, size in ((0, 10), (2, 20), (5, 30)):
        kept.keep(first, KeptFrame(first, b"", size))
    kept.heard(2)
    kept.heard(9)
    assert kept.under_way == 3 and kept.oldest_under_way() == (0, None)
    kept.acknowledged(1)
    first, heard_at = kept.oldest_under_way()
    assert first == 2 and heard_at is not None
    kept.heard(2)
    assert kept.oldest_under_way() == (2, heard_at), "the first one counts"
    kept.acknowledged(2)
    kept.heard(0)
    assert kept.oldest_under_way() == (5, None) and kept.under_way == 1 and 0 in kept and kept[0].byte_length == 10
    kept.release(4)
    assert calls == [("room.release", 30)] and 2 not in kept and 5 in kept
    kept.release(4)
    kept.release(5)
    assert calls[1:] == [("room.release", 0), ("room.release", 30)]
    kept.keep(7, KeptFrame(7, b"", 1))
    kept.clear()
    assert kept.under_way == 0 and 7 not in kept
