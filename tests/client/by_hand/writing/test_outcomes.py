"""The outcome of an append, told by one watermark: to whom, when, how often, and where nobody may wait."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from bookspark.client.writing.futures import AppendFuture, SyncFuture, Watermark
from bookspark.client.writing.shared_with_callers import SharedWithCallers
from bookspark.errors import BookKeeperError, InvalidArgumentError, LedgerClosedError, LedgerFencedError
from bookspark.threads import mark_own_thread
from tests.awaiting import await_that
from tests.client.by_hand.noted import Noted

ERROR, OTHER = LedgerFencedError("first"), LedgerFencedError("second")


def test_callbacks_are_called_once_each_in_the_order_of_their_ids():
    watermark, told = Watermark(), []
    for number, entry_id in enumerate((5, 3, 3, 9, 4)):
        watermark.call_when(entry_id, lambda what=(entry_id, number): told.append(what))
    assert watermark.value == -1 and told == []
    watermark.advance(2)
    assert told == []
    watermark.advance(4)
    assert told == [(3, 1), (3, 2), (4, 4)]
    watermark.call_when(4, lambda: told.append("at once"))
    assert told[3:] == ["at once"]
    watermark.advance(5)
    assert told[4:] == [(5, 0)]
    watermark.fail(ERROR)
    assert told[5:] == [(9, 3)]
    watermark.call_when(100, lambda: told.append("failed"))
    assert told[6:] == ["failed"]
    watermark.fail(OTHER)
    assert watermark.error is ERROR and len(told) == 7


def test_only_who_waits_or_is_called_back_costs_an_advance_anything():
    """It is called for each acknowledgement."""
    watermark, tells = Watermark(), []
    tell = Watermark._tell

    class Counted(Watermark):
        __slots__ = ()

        def _tell(self):
            tells.append(1)
            tell(self)

    watermark = Counted()
    watermark.advance(0)
    assert tells == []
    watermark.call_when(2, lambda: None)  # new
    watermark.advance(1)
    watermark.advance(1)  # in the heap
    watermark.advance(2)
    assert len(tells) == 3
    watermark.advance(3)
    assert len(tells) == 3
    # Only somebody who waits.
    watermark._waiters = SimpleNamespace(wake=lambda: tells.append("woken"))
    watermark.advance(4)
    assert tells[3:] == [1, "woken"]


def test_an_error_is_there_before_anybody_is_told():
    watermark, told = Watermark(), []
    watermark.call_when(0, lambda: told.append(watermark.error))
    watermark.fail(ERROR)
    assert told == [ERROR]
    watermark = Watermark()
    watermark.call_when(0, lambda: told.append(watermark.value))
    watermark.advance(0)
    assert told == [ERROR, 0]


def test_a_callback_that_raises_keeps_no_other_from_being_called(caplog):
    watermark, told = Watermark(), []

    def broken():
        raise SystemExit("a defect")

    watermark.call_when(0, broken)
    watermark.call_when(0, lambda: told.append(1))
    watermark.advance(0)
    assert told == [1] and "telling the outcome of an append failed" in caplog.text


def test_a_callback_that_both_sides_see_is_called_by_one_of_them():
    """Whoever registers it may find it due just when the thread that advances the watermark does."""
    told = []

    class Racing(Watermark):
        __slots__ = ("looks",)

        def is_done(self, entry_id):
            self.looks = getattr(self, "looks", 0) + 1
            if self.looks == 2:
                self.advance(entry_id)  # between the two looks
            return super().is_done(entry_id)

    Racing().call_when(3, lambda: told.append(1))
    assert told == [1]
    watermark = Watermark()
    watermark._new.append((0, 0, []))  # whoever registered it has called it
    watermark.call_when(0, lambda: told.append(2))
    watermark.advance(0)
    assert told == [1, 2]


@pytest.mark.parametrize(
    ("value", "error", "done"), [(2, None, False), (3, None, True), (4, None, True), (2, ERROR, True)]
)
def test_an_entry_is_done_at_the_watermark_or_with_an_error(value, error, done):
    watermark = Watermark()
    watermark.value, watermark.error = value, error
    future = AppendFuture(watermark, 3)
    assert watermark.is_done(3) is future.done() is (not future.running()) is done
    assert watermark.wait(lambda: False, 0.0) is (error is not None)
    assert watermark.wait(lambda: True, 0.0) is True
    if done:
        assert future.exception() is (error if value < 3 else None)
        if error and value < 3:
            with pytest.raises(LedgerFencedError):
                future.result(0.0)
        else:
            assert future.result(0.0) == 3
    else:
        for call in (future.result, future.exception):
            with pytest.raises(TimeoutError, match="entry 3 is not acknowledged after 0"):
                call(0.0)
    assert (future.cancel(), future.cancelled()) == (False, False)


def test_who_waits_with_a_limit_goes_on_at_his_entry():
    looks = []

    class Waited(Watermark):
        def wait(self, condition, timeout_seconds):
            for value in (2, 3, 4):
                self.value = value
                looks.append(condition())
            looks.append(timeout_seconds)
            return True

    assert AppendFuture(Waited(), 3).result(7.0) == 3 and looks == [False, True, True, 7.0]


def test_who_waits_without_a_limit_is_woken_by_his_entry():
    watermark, ended = Watermark(), []
    future = AppendFuture(watermark, 3)
    thread = threading.Thread(target=lambda: ended.append(future.result()))
    thread.start()
    await_that(lambda: watermark._new)
    watermark.advance(2)
    assert thread.is_alive() and ended == []
    watermark.advance(3)
    thread.join(60)
    assert ended == [3]


def refuse():
    raise BookKeeperError("it must not wait here")


@pytest.mark.parametrize("timeout", [None, 0.01])
def test_nobody_waits_where_he_must_not_or_in_another_process(timeout):
    watermark = Watermark(refuse)
    future = AppendFuture(watermark, 3)
    with pytest.raises(BookKeeperError, match="must not wait"):
        future.exception(timeout)
    watermark.check_may_wait = lambda: None
    watermark._pid = -1
    for call in (
        lambda: future.exception(timeout),
        lambda: future.add_done_callback(print),
        lambda: watermark.wait(lambda: True, timeout),
        watermark.check_process,
    ):
        with pytest.raises(LedgerClosedError, match="process -1"):
            call()
    assert watermark._new == []


def test_a_callback_is_delivered_and_one_of_the_clients_own_is_told_at_once():
    delivered, told = [], []
    watermark = Watermark(deliver=delivered.append)
    future = AppendFuture(watermark, 3)
    future.add_done_callback(told.append)
    future.tell_at_once(lambda done: told.append(("at once", done)))
    assert (delivered, told) == ([], [])
    watermark.advance(3)
    assert told == [("at once", future)] and len(delivered) == 1
    delivered[0]()
    assert told[1:] == [future]
    future.add_done_callback(told.append)
    assert len(delivered) == 2, "also what is done already is told in the thread for callbacks"
    with pytest.raises(InvalidArgumentError):
        future.add_done_callback("no function")


# -- as watchers see it


class Watcher:
    def __init__(self):
        self.told = []

    def add_result(self, future):
        self.told.append(("result", future))

    def add_exception(self, future):
        self.told.append(("exception", future))


@pytest.mark.parametrize("error", [None, ERROR])
def test_a_watcher_is_told_with_the_outcome_and_in_the_thread_for_callbacks(error):
    delivered = []
    watermark, watcher = Watermark(deliver=delivered.append), Watcher()
    future = AppendFuture(watermark, 3)
    assert future._state == "RUNNING"
    future._waiters.append(watcher)
    watched = future._watched()
    assert future._condition is watched.condition
    watermark.fail(ERROR) if error else watermark.advance(3)
    assert watcher.told == [] and future._state == "RUNNING"
    (tell,) = delivered
    tell()
    assert future._state == "FINISHED" and watcher.told == [("exception" if error else "result", future)]
    assert future._watched() is watched


def test_what_is_done_already_is_finished_as_soon_as_somebody_looks():
    watermark = Watermark()
    watermark.advance(3)
    assert AppendFuture(watermark, 3)._state == "FINISHED"


def test_in_another_process_only_what_is_done_can_be_watched():
    watermark = Watermark()
    done, other = AppendFuture(watermark, 3), AppendFuture(watermark, 4)
    watermark.advance(3)
    watermark._pid = -1
    assert done._state == "FINISHED"
    for _ in range(2):
        # Who looks again must not be left waiting for a state that never changes.
        with pytest.raises(LedgerClosedError):
            other._state  # noqa: B018


def test_a_sync_tells_the_last_entry_that_is_synced():
    watermark = Watermark()
    future = SyncFuture(watermark, 3)
    watermark.advance(7)
    assert future.result() == 7
    with pytest.raises(TimeoutError):
        SyncFuture(watermark, 8).result(0.0)
    watermark.error = ERROR
    with pytest.raises(LedgerFencedError):
        SyncFuture(watermark, 8).result()


def test_the_process_of_a_watermark_is_the_one_that_made_it():
    watermark = Watermark()
    assert watermark._pid == os.getpid() and watermark.error is None
    watermark.check_process()
    watermark.deliver(lambda: None)
    watermark.check_may_wait()


# -- what a handle and its driver share


@pytest.mark.parametrize("volatile", [True, False])
def test_only_a_vd_ledger_has_two_watermarks_and_both_end_with_it(volatile):
    calls = []
    shared = SharedWithCallers(Noted(calls, "outgoing"), "deliver", volatile=volatile)
    assert (shared.next_entry_id, shared.closing, shared.missing, shared.ended.is_set()) == (0, False, None, False)
    assert (shared.acknowledged is shared.confirmed) is not volatile
    mark_own_thread("of the test")
    try:
        for watermark in (shared.acknowledged, shared.confirmed):
            assert watermark.deliver == "deliver"
            with pytest.raises(BookKeeperError):
                watermark.check_may_wait()
    finally:
        mark_own_thread("")
    seen = []
    for watermark in {shared.acknowledged, shared.confirmed}:
        watermark.call_when(0, lambda: seen.append((list(calls), shared.ended.is_set())))
    shared.fail(ERROR)
    # Whoever is told finds nothing waiting; a close that waits ends last, and finds the error.
    assert seen == [([("outgoing.clear",)], False)] * (1 + volatile)
    assert shared.acknowledged.error is shared.confirmed.error is ERROR and shared.ended.is_set()


def test_who_waits_behind_the_end_of_a_ledger_looks_again():
    shared, seen = SharedWithCallers(None, None, volatile=True), []
    shared.confirmed.value = 4
    shared.confirmed._waiters = SimpleNamespace(wake=lambda: seen.append(shared.ended.is_set()))
    shared.end()
    assert seen == [True] and shared.confirmed.value == 4
