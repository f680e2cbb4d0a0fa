"""A reader's handle, and how a ledger is opened, over stand-ins: what is asked, in which order, and what is known after it."""

from __future__ import annotations

import os
from itertools import product
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.reading import read_handle
from bookspark.client.reading.range_reading import Delivered
from bookspark.client.reading.read_handle import HOLD_SECONDS_MAX, UNFOLLOWED_SECONDS, ReadHandle
from bookspark.errors import (
    MetadataStoreError,
    NoSuchLedgerError,
    ReadError,
)
from bookspark.metadata.records.versioned import Versioned
from bookspark.metadata.short_waits import patience_seconds
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Positive
from tests.metadata.kit import ledger

OPEN, CLOSED = ledger(1), ledger(1).in_recovery().close_at(9, 90)
FAILURE = MetadataStoreError("deaf")


def handle_of(metadata=OPEN, **context):
    return ReadHandle(SimpleNamespace(**({"config": ClientConfig()} | context)), metadata, 3, b"")


class Machine:
    """Answers ``start`` and each event with the next of its lists of actions; notes the events."""

    def __init__(self, *actions, **fields):
        self.actions, self.events, self.given = list(actions), [], None
        vars(self).update({"next_entry_id": 7, "last_add_confirmed": 5, "entries": None, "delivered_by": "b1"} | fields)

    def __call__(self, kind, *given, **named):
        """In place of ``made``."""
        self.given = (given, named)
        return self

    def start(self):
        return self.actions.pop(0)

    def step(self, event):
        self.events.append(event)
        return self.actions.pop(0)


class Box:
    """A mailbox of which the test has filled the events: what is allowed is noted with them."""

    def __init__(self, *events):
        self.events, self.notes = list(events), []

    def __call__(self, seconds):
        self.notes.append(("made", seconds))
        return self

    def put(self, event):
        self.events.append(event)

    def allow(self, seconds):
        self.notes.append(("allow", seconds))

    def left_seconds(self):
        return 20.0

    def take(self):
        self.notes.append("take")
        return self.events.pop(0)


# -- what it knows


def test_a_handle_knows_the_last_entry_of_a_closed_ledger_and_none_of_an_open_one():
    assert (handle_of().last_add_confirmed, handle_of().length, handle_of().ledger_id) == (-1, 0, 1)
    assert (handle_of(CLOSED).last_add_confirmed, handle_of(CLOSED).length) == (9, 90)


def test_the_lac_never_goes_back():
    handle = handle_of()
    for told, known in ((4, 4), (2, 4), (7, 7)):
        handle.confirm(told)
        assert handle.last_add_confirmed == known


@pytest.mark.parametrize(
    ("first", "last", "taken"),
    [(0, None, (0, 4)), (2, 4, (2, 4)), (0, 3, (0, 3)), (3, 2, (3, 2)), (5, None, (5, 4)), (3, 1, None), (0, 5, None)],
)
def test_only_confirmed_entries_are_read(first, last, taken):
    handle = handle_of()
    handle.confirm(4)
    handle._entries = lambda *read: read
    if taken is None:
        with pytest.raises(ReadError):
            handle.read(first, last)
    else:
        assert handle.read(first, last) == taken


@pytest.mark.parametrize(("first", "last", "taken"), [(0, 9, True), (3, 3, True), (3, 2, False)])
def test_any_range_is_read_unconfirmed(first, last, taken):
    handle = handle_of()
    handle._entries = lambda *read: read
    if taken:
        assert handle.read_unconfirmed(first, last) == (first, last)
    else:
        with pytest.raises(ReadError, match="no range"):
            handle.read_unconfirmed(first, last)


@pytest.mark.parametrize(("version", "known"), [(2, False), (3, False), (4, True)])
def test_only_a_newer_record_is_learned_and_a_close_is_believed_in_any_case(version, known):
    handle = handle_of()
    handle._learn(Versioned(CLOSED, version))
    assert handle.metadata.closed is known and handle.last_add_confirmed == 9
    handle = handle_of()
    handle._learn(Versioned(ledger(1).in_recovery(), 4))
    assert handle.last_add_confirmed == -1


def test_in_a_forked_process_a_handle_has_a_lock_of_its_own():
    handle = handle_of()
    before = handle._learning
    handle._learn(Versioned(OPEN, 4))
    assert handle._learning is before
    handle._learning_pid = -1
    handle._learn(Versioned(OPEN, 5))
    assert handle._learning is not before and handle._learning_pid == os.getpid()


def test_requests_are_made_once_in_each_process():
    made = []
    runtime = SimpleNamespace()
    handle = handle_of(runtime=runtime, requests=lambda *what: made.append(what) or len(made))
    assert [handle._requests(), handle._requests()] == [1, 1] and made == [(OPEN, b"")]
    handle._context.runtime = SimpleNamespace()
    assert handle._requests() == 2


# -- following the metadata


class Poll:
    """The mailbox of a long poll."""

    def __init__(self, put):
        self.put = put


class Watches:
    def __init__(self, error=None):
        self.error, self.calls = error, []

    def listen(self, *what):
        self.calls.append((*what, patience_seconds()))
        if self.error:
            raise self.error


@pytest.mark.parametrize(("watched", "anew"), list(product([True, False], repeat=2)))
def test_the_record_is_read_after_the_watch_is_set_or_if_that_is_asked_for(watched, anew):
    watches, polled = Watches(), []
    reads = []
    store = SimpleNamespace(read_ledger=lambda ledger_id: reads.append(len(watches.calls)) or Versioned(CLOSED, 4))
    handle = handle_of(runtime=SimpleNamespace(ledger_watches=watches), store=store)
    handle._polls[Poll(polled.append)] = None
    handle._watching_pid = os.getpid() if watched else 0
    assert handle._follow(anew=anew) is True
    assert watches.calls == [(1, handle._metadata_changed, 1.0)] * (not watched)
    assert reads == [int(not watched)] * (not watched or anew)
    # Other long polls did not read it.
    assert polled == [act.MetadataRead(CLOSED, 4)] * len(reads)
    assert handle._watching_pid == os.getpid() and handle._follow_pause == 0.0


def test_a_store_that_does_not_answer_is_left_alone_for_a_while_and_watched_anew_then(monkeypatch, caplog):
    now, watches = [1000.0], Watches(FAILURE)
    monkeypatch.setattr(read_handle, "time", SimpleNamespace(monotonic=lambda: now[0]))
    handle = handle_of(runtime=SimpleNamespace(ledger_watches=watches), store=None)
    for pause in (2.5, 5.0, 10.0, 10.0):
        assert handle._follow() is False and handle._watching_pid == 0
        assert (handle._follow_pause, handle._follow_at) == (pause, now[0] + pause)
        count = len(watches.calls)
        now[0] += pause - 0.1
        assert handle._follow() is False and len(watches.calls) == count
        now[0] += 0.1
    assert [patience for *_, patience in watches.calls] == [1.0, 0.25, 0.5, 1.0]
    watches.error = None
    handle._context.store = SimpleNamespace(read_ledger=lambda ledger_id: Versioned(CLOSED, 4))
    assert handle._follow() is True and handle.metadata.closed
    assert "reading goes on without its metadata" in caplog.text


def test_a_ledger_that_is_gone_is_told_to_who_follows_it():
    handle = handle_of(runtime=SimpleNamespace(ledger_watches=Watches(NoSuchLedgerError("gone"))))
    with pytest.raises(NoSuchLedgerError):
        handle._follow()
    assert handle._watching_pid == 0


@pytest.mark.parametrize("found", [None, Versioned(CLOSED, 4)])
def test_a_change_is_told_to_each_long_poll_and_the_loss_of_the_watch_too(found):
    handle, told = handle_of(), []
    handle._watching_pid = os.getpid()
    for _ in range(2):
        handle._polls[Poll(lambda event: told.append((event, handle.metadata.closed)))] = None
    handle._metadata_changed(found)
    event = act.MetadataConflict() if found is None else act.MetadataRead(CLOSED, 4)
    assert told == [(event, found is not None)] * 2
    assert handle._watching_pid == (0 if found is None else os.getpid())


@pytest.mark.parametrize("error", [None, FAILURE])
def test_a_record_that_is_read_again_is_an_event_and_so_is_a_failure(error):
    def read(ledger_id):
        if error:
            raise error
        return Versioned(CLOSED, 2)  # older than what it knows

    handle = handle_of(store=SimpleNamespace(read_ledger=read))
    assert handle._read_again() == (act.MetadataFailed(error) if error else act.MetadataRead(OPEN, 3))


# -- reading the LAC


def lac_read(monkeypatch, machine, box, closed=False, **config):
    asked = []
    requests = SimpleNamespace(read_lac=lambda action, put, *seconds: asked.append((action, put, *seconds)))
    handle = handle_of(
        CLOSED if closed else OPEN, config=ClientConfig(**config), requests=lambda *what: requests, runtime=1
    )
    followed = []
    handle._follow = lambda anew: followed.append(anew)
    monkeypatch.setattr(read_handle, "Mailbox", box)
    monkeypatch.setattr(read_handle, "made", machine)
    return handle, asked, followed


LAC = act.LacAnswered("b1", Positive(), 5)
ASK = act.SendReadLac("b1")


def test_the_bookies_are_asked_for_the_lac_and_it_is_what_the_machine_says(monkeypatch):
    box, machine = Box(LAC, LAC), Machine([ASK], [], [act.Finish()])
    handle, asked, followed = lac_read(monkeypatch, machine, box)
    assert handle.read_last_add_confirmed() == 5
    assert asked == [(ASK, box.put)] and machine.events == [LAC, LAC] and followed == [True]
    assert box.notes == [("made", 0.5), "take", "take"] and machine.given == ((OPEN,), {})


@pytest.mark.parametrize("delay_ms", [500, 0])
def test_who_is_late_is_waited_for_longer_once(monkeypatch, delay_ms):
    late = act.DeadlinePassed()
    box, machine = Box(late, late, LAC), Machine([], [], [], [act.Finish()])
    handle, _, _ = lac_read(monkeypatch, machine, box, speculative_read_delay_ms=delay_ms, answer_timeout_seconds=7.0)
    assert handle.read_last_add_confirmed() == 5
    first = [act.ReadIsLate(), late] if delay_ms else [late, late]
    assert machine.events == [*first, LAC]
    assert box.notes == [("made", 0.5 if delay_ms else 8.0), "take"] + [("allow", 8.0)] * bool(delay_ms) + [
        "take",
        "take",
    ]


def test_a_machine_that_fails_is_an_error(monkeypatch):
    handle, _, _ = lac_read(monkeypatch, Machine([act.Fail(ReadError("nobody"))]), Box())
    with pytest.raises(ReadError, match="nobody"):
        handle.read_last_add_confirmed()


@pytest.mark.parametrize("closes", [True, False])
def test_of_a_closed_ledger_nobody_is_asked(monkeypatch, closes):
    handle, asked, followed = lac_read(monkeypatch, Machine([ASK]), Box(), closed=not closes)
    if closes:
        handle._follow = lambda anew: handle._learn(Versioned(CLOSED, 4))
    assert handle.read_last_add_confirmed() == 9 and asked == [] and followed == []


# -- long polls


@pytest.mark.parametrize("follows", [True, False])
def test_a_long_poll_holds_no_longer_than_it_may_and_is_told_of_meanwhile(monkeypatch, follows):
    box, machine = Box(LAC), Machine([ASK], [act.Finish()], entries=["entry"])
    handle, asked, _ = lac_read(monkeypatch, machine, box)
    polls = []
    handle._follow = lambda: polls.append(list(handle._polls)) or follows
    assert handle._long_poll(5, 60.0) == ["entry"]
    assert asked == [(ASK, box.put, 20.0)] and handle.last_add_confirmed == 5 and machine.given == ((OPEN, 5), {})
    assert polls == [[box]] and handle._polls == {}
    assert box.notes == [("made", 60.0), ("allow", 20.0 if follows else UNFOLLOWED_SECONDS), "take"]
    assert HOLD_SECONDS_MAX > 20.0


def test_a_long_poll_reads_the_record_where_the_machine_wants_it_and_watches_anew_where_the_watch_is_lost(monkeypatch):
    box = Box(act.MetadataConflict(), LAC)
    machine = Machine([ASK, act.ReadMetadata()], [], [], [act.Finish()])
    handle, _, _ = lac_read(monkeypatch, machine, box)
    follows = []
    handle._follow = lambda: follows.append(1)
    handle._read_again = lambda: act.MetadataFailed(FAILURE)
    handle._long_poll(5, 60.0)
    assert machine.events == [act.MetadataFailed(FAILURE), act.MetadataRead(OPEN, 3), LAC] and len(follows) == 2


def test_a_long_poll_that_fails_is_told_of_nothing_any_more(monkeypatch):
    handle, _, _ = lac_read(monkeypatch, Machine([act.Fail(ReadError("nobody"))]), Box())
    handle._follow = lambda: True
    with pytest.raises(ReadError):
        handle._long_poll(5, 60.0)
    assert handle._polls == {}


@pytest.mark.parametrize("how", ["known", "with it", "without it", "never", "closed"])
def test_an_entry_is_waited_for_until_it_is_confirmed_or_the_time_is_over(monkeypatch, how):
    handle, polls = handle_of(CLOSED if how == "closed" else OPEN), []
    if how == "known":
        handle.confirm(9)
    wanted = 12 if how == "closed" else 9
    now = [100.0]
    monkeypatch.setattr(read_handle, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def poll(entry_id, seconds):
        polls.append((entry_id, seconds))
        assert len(polls) < 9, "it goes on"
        now[0] += 4.0
        if len(polls) == 2 and how != "never":
            handle.confirm(10)
            return [SimpleNamespace(entry=lambda i: f"came {i}")] if how == "with it" else None
        return None

    handle._long_poll, handle._entries = poll, lambda first, last: iter([f"read {first}..{last}"])
    lac, entry = handle.read_last_add_confirmed_and_entry(wanted, 10.0)
    assert polls == {"known": [], "closed": [], "never": [(9, 10.0), (9, 6.0), (9, 2.0)]}.get(
        how, [(9, 10.0), (9, 6.0)]
    )
    expected = {
        "known": (9, "read 9..9"), "with it": (10, "came 9"), "without it": (10, "read 9..9"), "never": (-1, None),
        "closed": (9, None),
    }  # fmt: skip
    assert (lac, entry) == expected[how]


# -- reading entries


def test_entries_are_those_of_the_batches_of_the_range():
    handle, asked = handle_of(), []
    batches = [SimpleNamespace(entries=lambda: iter("ab")), SimpleNamespace(entries=lambda: iter("c"))]
    handle._batches = lambda *what: asked.append(what) or iter(batches)
    assert list(handle._entries(2, 5)) == ["a", "b", "c"] and asked == [(2, 5)]


def test_what_is_delivered_is_confirmed_and_who_delivered_is_asked_first_again(monkeypatch):
    machine, asked = Machine(), []
    handle = handle_of(read_order=lambda by: asked.append(by) or "order", requests=lambda *what: "requests", runtime=1)
    monkeypatch.setattr(read_handle, "made", machine)

    def read(*what):
        assert what == (machine, "requests", handle._read_again, handle._context.config)
        yield Delivered(["a", "b"], 6)
        yield Delivered(["c"], 4)

    monkeypatch.setattr(read_handle, "read_range", read)
    assert list(handle._batches(2, 5)) == ["a", "b", "c"] and handle.last_add_confirmed == 6
    assert machine.given == ((OPEN, 2, 5, "order"), {"rereads_metadata": True, "reads_ahead": True})
    list(handle._batches(2, 5))
    assert asked == [None, "b1"]
