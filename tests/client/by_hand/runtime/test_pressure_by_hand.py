"""Back-pressure, a sole appender and kept frames counted by hand: what is asked, waited for and told."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.writing.back_pressure import BackPressure
from bookspark.client.writing.kept_frames import KeptFrame, KeptFrames
from bookspark.client.writing.sole_appender import SoleAppender
from bookspark.errors import AddTimeoutError, BookKeeperError, LedgerClosedError
from bookspark.threads import mark_own_thread
from bookspark.wire.columns import Heads
from tests.client.by_hand.noted import Noted
from tests.metadata.kit import ledger

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
