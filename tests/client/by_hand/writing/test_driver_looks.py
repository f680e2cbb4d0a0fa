"""A writer's driver: what it looks at now and then, for what it waits, and how it is made."""

from __future__ import annotations

import time
from itertools import product
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import client_config
from bookspark.client.runtime.room import ClientRoom
from bookspark.client.writing import ledger_driver
from bookspark.client.writing.ledger_driver import LedgerDriver
from bookspark.errors import AddTimeoutError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.protocol.writing.writer_events import Sync
from bookspark.threads import Threads
from bookspark.wire.header import Flag
from tests.client.by_hand.noted import Noted
from tests.client.by_hand.writing.test_driver_steps import ENSEMBLE, driver_of
from tests.metadata.kit import ledger

NOW = 1000.0


def looking(calls, **fields):
    """A driver whose steps only note that they are taken."""
    driver = driver_of(calls, _progress_at=NOW, _synced_at=NOW, **fields)
    noted = Noted(calls)
    for name in ("end", "abandon", "pump", "_sync", "_leave_dropped"):
        setattr(driver, name, getattr(noted, name))
    return driver


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("missing", [True, False])
def test_without_progress_an_awaited_ledger_ends_and_so_does_one_with_a_gap(late, awaited, missing):
    calls = []
    driver = looking(calls)
    driver._is_awaited = lambda: awaited
    driver._connections.behind = lambda bookies: ("b9", *bookies)
    driver.shared.missing = 7 if missing else None
    driver._look(now := NOW + (30.5 if late else 29.5))
    assert [call[0] for call in calls] == ["end"] * (awaited and late) + ["hold_ups.look"] * awaited + ["abandon"] * (
        missing and late
    )
    if awaited:
        assert ("hold_ups.look", now, ("b9", *ENSEMBLE)) in calls
    if missing and late:
        assert isinstance(calls[-1][1], AddTimeoutError) and "entry 7" in str(calls[-1][1])


@pytest.mark.parametrize(("held_back", "outgoing"), list(product([True, False], repeat=2)))
def test_what_waits_goes_on_at_a_look(held_back, outgoing):
    calls = []
    driver = looking(calls)
    driver._requests.held_back = {"b1": [1]} if held_back else {}
    driver.shared.outgoing = [b"0"] * outgoing
    driver._look(NOW)
    assert calls == [("requests.send_held_back",)] * held_back + [("pump",)] * outgoing


@pytest.mark.parametrize(("by_time", "due"), list(product([True, False], repeat=2)))
def test_a_sync_by_time_is_asked_for_when_its_time_is_over(by_time, due):
    calls = []
    driver = looking(calls)
    driver._is_synced_by_time = lambda: by_time
    driver._config.sync_interval_seconds = 5.0
    driver._synced_at = NOW - (6.0 if due else 4.0)
    driver._look(NOW)
    assert calls == [("_sync",)] * (by_time and due)


@pytest.mark.parametrize(("dropped", "awaited", "outgoing"), list(product([True, False], repeat=3)))
def test_a_dropped_ledger_is_left_once_nobody_waits_and_nothing_is_to_be_sent(dropped, awaited, outgoing):
    """One that is left sooner has lost what was appended; one that was not dropped is somebody's."""
    calls = []
    driver = looking(calls, _dropped=dropped)
    driver._is_awaited = lambda: awaited
    driver.shared.outgoing = [b"0"] * outgoing
    driver._look(NOW)
    assert (("_leave_dropped",) in calls) is (dropped and not awaited and not outgoing)


@pytest.mark.parametrize(("just_now", "only_waits"), list(product([True, False], repeat=2)))
def test_a_busy_writer_with_nothing_to_do_is_not_looked_at(just_now, only_waits):
    calls = []
    driver = looking(calls)
    driver._only_waits = lambda: only_waits
    driver._look = Noted(calls).look
    driver.tick(now := NOW + (0.05 if just_now else 0.2))
    assert calls == [("look", now)] * (not (just_now and only_waits))


@pytest.mark.parametrize("what", [None, "waiting", "taken", "held_back", "by time", "behind"])
def test_a_writer_only_waits_if_nothing_of_all_is_there(what):
    driver = driver_of([])
    driver.shared.outgoing = SimpleNamespace(waiting=[1] * (what == "waiting"), taken=[1] * (what == "taken"))
    driver._requests.held_back = {"b1": 1} if what == "held_back" else {}
    driver._config.sync_interval_seconds = 0.5 if what == "by time" else 0.0
    driver._connections.any_is_behind = lambda bookies: bookies == ENSEMBLE and what == "behind"
    assert driver._only_waits() is (what is None)


@pytest.mark.parametrize(("seconds", "confirmed", "by_time"), [(0.0, 3, False), (1.0, 3, True), (1.0, 4, False)])
def test_there_is_something_to_sync_by_time_while_not_all_is_confirmed(seconds, confirmed, by_time):
    driver = driver_of([])
    driver._config.sync_interval_seconds = seconds
    driver.cursors.last_add_pushed, driver.cursors.last_add_confirmed = 4, confirmed
    assert driver._is_synced_by_time() is by_time


@pytest.mark.parametrize(
    ("acknowledged", "confirmed", "sync_awaited", "awaited"),
    [(4, 4, 4, False), (3, 3, -1, True), (4, 2, 1, False), (4, 2, 2, False), (4, 2, 3, True), (3, 2, 3, True)],
)
def test_a_writer_is_awaited_for_an_acknowledgement_or_a_sync(acknowledged, confirmed, sync_awaited, awaited):
    driver = driver_of([], _sync_awaited=sync_awaited)
    driver.cursors.last_add_pushed = 4
    driver.cursors.last_add_acknowledged, driver.cursors.last_add_confirmed = acknowledged, confirmed
    assert driver._is_awaited() is awaited


# -- what the user asks for


@pytest.mark.parametrize("awaited", [True, False])
def test_a_sync_is_for_the_last_of_several_and_is_awaited_before_anything_is_sent(awaited):
    driver, seen = driver_of([]), []
    driver._is_awaited = lambda: awaited
    driver.pump = lambda: seen.append((driver._sync_wanted, driver._sync_awaited))
    before = time.monotonic()
    for entry_id in (4, 2, 7):
        driver.sync(entry_id)
    assert seen == [(4, 4), (4, 4), (7, 7)]
    assert driver._progress_at == -100.0 if awaited else before <= driver._progress_at <= time.monotonic()


def test_a_gap_is_waited_for_from_now_on():
    calls = []
    driver, before = driver_of(calls), time.monotonic()
    driver.watch_gap()
    assert before <= driver._progress_at and calls == [("wake",)]


def test_a_dropped_ledger_is_looked_at_until_it_is_left():
    calls = []
    driver = driver_of(calls)
    driver.drop()
    assert driver._dropped is True and calls == [("wake",)]


@pytest.mark.parametrize(("pending", "outgoing"), list(product([True, False], repeat=2)))
def test_a_ledger_with_appends_under_way_is_given_up_and_no_other(pending, outgoing):
    calls = []
    driver = driver_of(calls)
    driver.cursors.pending = {0: 1} if pending else {}
    driver.shared.outgoing = [b"0"] * outgoing
    driver.give_up()
    assert (("step", act.DeadlinePassed()) in calls) is (pending or outgoing)


@pytest.mark.parametrize("sent", [True, False])
def test_an_append_without_room_has_all_synced_at_once_and_what_waits_for_a_frame_later(sent):
    calls, seen = [], []
    driver = driver_of(calls)

    def pump():
        seen.append(driver._pressed)
        driver._pressed = not sent

    driver.pump = pump
    driver._press()
    assert seen == [True]
    # All that waited was sent, and the sync with it; or what was sent so far is synced.
    assert (("step", Sync()) in calls) is not sent


def test_each_bookie_of_the_ensemble_is_wanted_and_left_with_the_same_function():
    """With another one nothing would end, and a dropped ledger be told of its bookies for ever."""
    wanted, left = [], []
    driver = driver_of([])
    driver._requests = SimpleNamespace(bookie_back="back")
    driver._connections = SimpleNamespace(
        want=lambda *call: wanted.append(call), unwant=lambda *call: left.append(call)
    )
    driver.want_bookies()
    driver.leave()
    assert wanted == left == [(bookie, "back") for bookie in ENSEMBLE]


# -- how it is made


def made(monkeypatch=None, config=None, **choices):
    """A driver, and what its machine was made with."""
    calls, given = [], []
    runtime = SimpleNamespace(
        io=Noted(calls, "io"), connections=None, threads=None, callbacks=Threads(0, ""), room=ClientRoom(1 << 30),
        wake=lambda writer: calls.append(("wake", writer)),
    )  # fmt: skip
    context = SimpleNamespace(config=client_config(**config or {}), runtime=runtime)
    if monkeypatch is not None:
        machine = ledger_driver.made
        monkeypatch.setattr(
            ledger_driver, "made", lambda *what, **named: given.append((what, named)) or machine(*what, **named)
        )
    return LedgerDriver(context, ledger(1, **choices), 5, b""), calls, given


@pytest.mark.parametrize("delayed", [True, False])
def test_the_machine_is_made_with_the_clients_choices(monkeypatch, delayed):
    driver, _, given = made(
        monkeypatch,
        {"delay_ensemble_change": delayed, "sync_bytes": 1234, "explicit_lac_interval_seconds": 7.0},
    )
    mode = ChangeMode.DELAYED if delayed else ChangeMode.AT_ONCE
    assert given == [((LedgerWriter, ledger(1), 5, mode, 1234), {"explicit_lac_interval_seconds": 7.0})]
    assert driver.cursors is driver.writer.cursors and driver.ledger_id == 1 and driver._ensemble == ENSEMBLE


@pytest.mark.parametrize(
    ("choices", "frames", "keeps", "flags", "pressed"),
    [
        ({}, 8, False, Flag.NONE, False),
        ({"write_quorum": 2}, 24, False, Flag.NONE, False),
        ({"replication": Replication.GUARANTEED}, 8, True, Flag.NONE, False),
        ({"ledger_type": LedgerType.VD_JOURNAL}, 8, False, Flag.VOLATILE, True),
    ],
    ids=["plain", "striped", "guaranteed", "vd"],
)
def test_a_driver_is_what_its_ledger_needs(choices, frames, keeps, flags, pressed):
    driver, calls, _ = made(**choices)
    assert (driver._frames_max, driver._keeps_confirmed, driver._flags) == (frames, keeps, int(flags))
    assert driver.shared.outgoing._striped is (frames == 24)
    assert (driver.shared.confirmed is not driver.shared.acknowledged) is pressed
    press = driver._context.runtime.room.pressed
    assert list(press) == [driver.room] * pressed
    for call in press.values():
        call()
    assert calls == [("io.submit", driver._press)] * pressed
    driver._wake()
    assert calls[-1] == ("wake", driver)


def test_a_new_driver_waits_for_nothing_and_owes_nothing():
    before = time.monotonic()
    driver, _, _ = made()
    assert before <= driver._progress_at == driver._synced_at <= time.monotonic()
    assert (driver._sync_wanted, driver._sync_awaited, driver.tells_soon) == (-1, -1, False)
    assert not driver._is_awaited() and not driver._is_synced_by_time()
    assert not (driver._pressed or driver._will_tell or driver._dropped)
    driver.shared.missing = None
    assert driver.kept._room is driver.room and driver._hold_ups._step == driver._held_up
    assert driver._requests._step == driver._step and driver._requests._kept is driver.kept


@pytest.mark.parametrize(("add", "lac", "just_now"), [(30.0, 0.5, 0.1), (0.02, 0.5, 0.02), (30.0, 0.03, 0.03)])
def test_just_now_is_no_longer_than_any_deadline(add, lac, just_now):
    driver, _, _ = made(config={"add_timeout_seconds": add, "explicit_lac_interval_seconds": lac})
    assert driver._just_now_seconds == just_now
