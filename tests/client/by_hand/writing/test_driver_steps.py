"""A writer's driver: what it does for each action of its machine, and what it tells that machine."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from bookspark.client.writing.futures import Watermark
from bookspark.client.writing.ledger_driver import LedgerDriver
from bookspark.errors import LedgerClosedError, LedgerFencedError, MetadataStoreError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import Fragment
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.protocol.ledger.transitions import IllegalEventError
from bookspark.protocol.writing.writer_events import Abandon, BookiesChanged, Idle, Sync, TellLac
from bookspark.protocol.writing.writer_state import State
from tests.client.by_hand.noted import Noted
from tests.metadata.kit import ledger

ENSEMBLE = ("bookie-1", "bookie-2", "bookie-3")
OTHERS = ledger(1, fragments=(Fragment(0, ("b1", "b2", "b4")),))
ERROR = LedgerFencedError("the test")


class Machine:
    """Answers each event with the next of ``answers``: actions, or an error; then with nothing."""

    def __init__(self, calls, *answers):
        self._calls, self._answers = calls, list(answers)
        self.state, self.owes_explicit_lac, self.metadata = State.OPEN, False, ledger(1)

    def step(self, event):
        self._calls.append(("step", event))
        answer = self._answers.pop(0) if self._answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer


def driver_of(calls, *answers, **fields):
    """A driver over stand-ins that only note, with a machine that answers with ``answers``."""
    driver = LedgerDriver.__new__(LedgerDriver)
    noted = Noted(calls)
    vars(driver).update(
        {
            "writer": Machine(calls, *answers),
            "cursors": SimpleNamespace(
                last_add_pushed=-1, last_add_acknowledged=-1, last_add_confirmed=-1, last_add_fully_replicated=-1,
                pushed_length=0, pending={},
            ),
            "shared": Noted(
                calls, "shared", acknowledged=Watermark(), confirmed=Watermark(), outgoing=[], closing=False, missing=None
            ),
            "room": noted.room,
            "kept": Noted(calls, "kept", under_way=0),
            "ledger_id": 1,
            "tells_soon": False,
            "_master_key": b"",
            "_flags": 0,
            "_keeps_confirmed": False,
            "_frames_max": 8,
            "_ensemble": ENSEMBLE,
            "_wake": noted.wake,
            "_progress_at": -100.0,
            "_synced_at": -100.0,
            "_sync_wanted": -1,
            "_sync_awaited": -1,
            "_just_now_seconds": 0.1,
            "_pressed": False,
            "_will_tell": False,
            "_dropped": False,
            "_context": Noted(calls, "context", closed=False),
            "_config": SimpleNamespace(
                add_timeout_seconds=30.0, sync_interval_seconds=0.0, explicit_lac_interval_seconds=0.1
            ),
            "_runtime": noted.runtime,
            "_io": noted.io,
            "_connections": Noted(
                calls, "connections", traffic=SimpleNamespace(ensemble_changes=0, appended_entries=0, appended_bytes=0),
                any_is_behind=lambda bookies: False, behind=lambda bookies: (), next_request_id=lambda: 77,
            ),
            "_threads": noted.threads,
            "_requests": Noted(calls, "requests", held_back={}, all_well=True),
            "_hold_ups": noted.hold_ups,
        }
        | fields
    )  # fmt: skip
    return driver


def done_for(action, **fields):
    """What is called for an action, without the event that it answers and the wake that follows."""
    calls = []
    driver = driver_of(calls, [action], **fields)
    assert driver._step(Sync())
    assert calls[:2] == [("step", Sync()), ("wake",)]
    return driver, calls[2:]


# -- for each action


@pytest.mark.parametrize(
    ("action", "call"),
    [
        (act.SendAdd(ENSEMBLE, 0, 0, -1), "requests.send_add"),
        (act.SendSync(ENSEMBLE, Assignment(0, 3, ((0, 1, 2),))), "requests.send_sync"),
        (act.SendLac(ENSEMBLE, 4), "requests.send_lac"),
    ],
    ids=["add", "sync", "lac"],
)
def test_what_is_for_bookies_is_asked_of_them(action, call):
    assert done_for(action)[1] == [(call, action)]


@pytest.mark.parametrize("action", [act.ReadMetadata(), act.WriteMetadata(ledger(1), 0), act.ChooseBookies((), ())])
def test_the_store_is_asked_in_a_thread_that_may_wait(action):
    driver, calls = done_for(action)
    assert calls == [("threads.post", driver._ask_store, action)]


def test_an_acknowledgement_advances_one_watermark_and_a_confirmation_both():
    driver, calls = done_for(act.Acknowledge(4))
    assert (driver.shared.acknowledged.value, driver.shared.confirmed.value) == (4, -1)
    assert calls == [("kept.acknowledged", 4)]
    driver, calls = done_for(act.Confirm(4))
    assert (driver.shared.acknowledged.value, driver.shared.confirmed.value) == (4, 4)
    assert sorted(calls) == [("kept.acknowledged", 4), ("kept.release", 4)]
    assert driver._progress_at > 0


def test_a_guaranteed_ledgers_content_is_kept_until_all_have_it_and_who_waits_for_that_looks_again():
    looked = []
    driver, calls = done_for(act.Confirm(4), _keeps_confirmed=True)
    assert ("kept.release", 4) not in calls and driver.shared.confirmed.value == 4
    acknowledged = Noted(looked, value=7)
    driver = driver_of(looked, [act.Release(4)], shared=SimpleNamespace(acknowledged=acknowledged))
    driver._step(Sync())
    # First the content goes: who is woken would find no room, and sleep on.
    assert looked[2:] == [("kept.release", 4), ("advance", 7)]


def test_a_watermark_does_not_go_back_when_an_acknowledgement_leads_to_a_later_one():
    """To send what waits may be answered at once, with the confirmation of more."""
    driver = driver_of([], [act.Confirm(4)])
    driver.shared.closing = True
    driver.pump = lambda: driver.shared.confirmed.advance(9)
    driver._step(Sync())
    assert driver.shared.confirmed.value == 9


@pytest.mark.parametrize(
    ("soon", "told_already", "calls_later"), [(True, False, 1), (True, True, 0), (False, False, 0), (False, True, 0)]
)
def test_a_confirmation_is_told_soon_once_where_that_is_wanted(soon, told_already, calls_later):
    driver, calls = done_for(act.Confirm(4), tells_soon=soon, _will_tell=told_already)
    assert [call for call in calls if call[0] == "io.loop.call_later"] == [
        ("io.loop.call_later", 0.001, driver._tell_soon)
    ] * calls_later
    assert driver._will_tell is (told_already or soon)


def test_with_another_ensemble_the_bookies_of_the_old_one_are_left_and_those_of_the_new_one_kept():
    driver, calls = done_for(act.EnsembleChanged(OTHERS, 1))
    back = driver._requests.bookie_back
    names = ("b1", "b2", "b4")
    assert [call[:2] for call in calls] == [
        *(("connections.unwant", b) for b in ENSEMBLE),
        ("requests.keep_only", names),
        *(("connections.want", b) for b in names),
    ]
    assert all(type(call[2]) is type(back) for call in calls if call[0] != "requests.keep_only")
    assert (driver._ensemble, driver._connections.traffic.ensemble_changes) == (names, 1)


def test_a_ledger_that_ended_is_left_and_all_who_wait_are_told():
    driver, calls = done_for(act.Finish(ledger(1), 1))
    assert [call[0] for call in sorted(calls, key=lambda call: call[0])] == [
        *["connections.unwant"] * 3,
        "room.end",
        "runtime.remove_writer",
        "shared.end",
    ]
    assert ("runtime.remove_writer", driver) in calls


def test_a_ledger_that_failed_keeps_nothing_and_who_is_given_room_finds_the_error():
    """Who is let go on would append to a ledger that sends nothing any more."""
    _, calls = done_for(act.Fail(ERROR))
    assert sorted(call[0] for call in calls) == [
        *["connections.unwant"] * 3, "kept.clear", "requests.clear", "room.end", "runtime.remove_writer", "shared.fail"
    ]  # fmt: skip
    assert calls.index(("shared.fail", ERROR)) < calls.index(("room.end",))


def test_a_step_tells_whether_anything_follows():
    assert driver_of([], [act.SendLac((), 0)])._step(Idle(1.0, 1.0)) is True
    assert driver_of([])._step(Idle(1.0, 1.0)) is False


# -- what the machine is told


@pytest.mark.parametrize(
    ("event", "actions", "wakes"),
    [
        (act.AddAnswered("b1", 0, 0, Positive()), [], False),
        (act.AddAnswered("b1", 0, 0, Positive()), [act.SendLac((), 0)], True),
        (Sync(), [], True),
        (Sync(), [act.SendLac((), 0)], True),
    ],
)
def test_only_an_ack_from_which_nothing_follows_leaves_a_writer_at_rest(event, actions, wakes):
    calls = []
    assert driver_of(calls, actions)._stepped(event) == actions
    assert (("wake",) in calls) is wakes


def test_an_event_that_the_machine_refuses_ends_the_ledger_unless_a_bookies_word_can_be_doubted(caplog):
    calls, answered = [], act.AddAnswered("b1", 0, 0, Positive())
    doubted = act.AddAnswered("b1", 0, 0, Positive(7))
    driver = driver_of(calls, IllegalEventError(State.OPEN, answered), [act.SendLac((), 0)])
    driver._requests.not_believed = lambda event, error: doubted
    assert driver._stepped(answered) == [act.SendLac((), 0)]
    assert calls[:2] == [("step", answered), ("step", doubted)]

    def refuse(event, error):
        raise error

    calls.clear()
    driver = driver_of(calls, ZeroDivisionError("a defect"), [act.Fail(ERROR)])
    driver._requests.not_believed = refuse
    assert driver._stepped(Sync()) == [act.Fail(ERROR)]
    assert isinstance(calls[1][1], Abandon) and "a defect" in str(calls[1][1].error)
    assert "Sync" in caplog.text


@pytest.mark.parametrize(
    ("call", "event"),
    [
        (lambda driver: driver.bookies_changed(), BookiesChanged()),
        (lambda driver: driver.end(), act.DeadlinePassed()),
        (lambda driver: driver.abandon(ERROR), Abandon(ERROR)),
        (lambda driver: driver._sync(), Sync()),
    ],
)
def test_what_is_asked_for_comes_to_the_machine(call, event):
    calls = []
    call(driver_of(calls))
    assert calls[0] == ("step", event)


def test_a_bookie_that_held_others_up_is_not_well_before_the_machine_hears_of_it():
    """What the machine has sent at once must be heard of, whatever it is."""
    driver = driver_of([])
    seen = []
    driver._step = lambda event: seen.append((event, driver._requests.all_well))
    driver._held_up("held up")
    assert seen == [("held up", False)]


def test_a_sync_is_noted_with_the_time_when_it_was_asked_for():
    driver, before = driver_of([]), time.monotonic()
    driver._sync()
    assert before <= driver._synced_at <= time.monotonic()


# -- the metadata store's answers


@pytest.mark.parametrize("answer", [act.MetadataConflict(), act.MetadataFailed(MetadataStoreError("gone"))])
def test_an_answer_of_the_store_comes_to_the_machine_and_a_failure_only_after_a_pause(answer):
    calls = []
    driver = driver_of(calls)
    asked = []
    driver._context.answer_from_store = lambda *question: asked.append(question) or answer
    driver._ask_store(act.ReadMetadata())
    assert asked == [(driver.writer.metadata, act.ReadMetadata())]
    later = isinstance(answer, act.MetadataFailed)
    assert calls == [("io.submit_later", 0.1, driver._step, answer) if later else ("io.submit", driver._step, answer)]


@pytest.mark.parametrize("closed", [True, False])
def test_a_defect_where_the_store_is_asked_ends_the_ledger_of_a_client_that_is_open(closed, caplog):
    calls = []
    driver = driver_of(calls)
    driver._context.closed = closed

    def broken(*question):
        raise SystemExit("of a store")

    driver._context.answer_from_store = broken
    driver._ask_store(act.ReadMetadata())
    if closed:
        assert calls == []
    else:
        ((name, function, error),) = calls
        assert (name, function) == ("io.submit", driver.abandon) and "of a store" in str(error)


# -- the LAC without an entry


def test_an_explicit_lac_is_sent_to_whom_the_machine_says_and_of_an_ended_ledger_nothing_is():
    sent = act.SendLac(ENSEMBLE, 4)
    for actions in ([sent], [], [act.Confirm(4), sent]):
        calls, ended = [], []
        driver_of(calls, actions).tell_lac("answered", lambda ended=ended: ended.append(1))
        assert [call for call in calls if call[0].startswith("requests")] == [
            ("requests.send_lac", sent, "answered")
        ] * (sent in actions)
        assert len(ended) == (not actions)
        calls = []
        driver_of(calls, actions)._send_lac()
        assert [call for call in calls if call[0].startswith("requests")] == [("requests.send_lac", sent)] * bool(
            actions
        )
    assert calls[0] == ("step", TellLac())


@pytest.mark.parametrize("owes", [True, False])
@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("outgoing", [True, False])
def test_a_confirmation_is_told_soon_only_if_no_entry_tells_it(owes, awaited, outgoing):
    calls = []
    driver = driver_of(calls, _will_tell=True)
    driver.writer.owes_explicit_lac = owes
    driver.shared.outgoing = [b"0"] * outgoing
    driver.cursors.last_add_pushed = 0 if awaited else -1
    driver._tell_soon()
    assert driver._will_tell is False
    assert (("step", TellLac()) in calls) is (owes and not awaited and not outgoing)


def test_a_writer_tells_how_long_it_has_been_idle():
    calls = []
    driver = driver_of(calls, [act.SendLac((), 0)], _progress_at=10.0)
    assert driver.tell_idle_lac(15.0) is True
    assert calls[0] == ("step", Idle(15.0, 5.0))
    assert not driver.is_quiet(10.05) and driver.is_quiet(10.2)


def test_a_dropped_ledger_tells_its_lac_before_it_ends():
    """The machine that has ended tells nobody anything."""
    calls = []
    driver_of(calls)._leave_dropped()
    events = [call[1] for call in calls if call[0] == "step"]
    assert events[0] == TellLac() and isinstance(events[1].error, LedgerClosedError)
