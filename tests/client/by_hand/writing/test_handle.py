"""A writer's handle over a driver that does nothing: what it answers, what it submits, and for what it waits."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from itertools import product
from types import SimpleNamespace

import pytest

from bookspark.client.reading.read_handle import HOLD_SECONDS_MAX, UNFOLLOWED_SECONDS, ReadHandle
from bookspark.client.writing import ledger_handle
from bookspark.client.writing.ledger_handle import LedgerHandle
from bookspark.errors import AddTimeoutError, BookKeeperError, EntryTooLargeError, LedgerFencedError
from bookspark.metadata.records.versioned import Versioned
from bookspark.protocol.ledger.ledger_metadata import Replication
from bookspark.protocol.writing.writer_state import State
from bookspark.threads import mark_own_thread
from bookspark.wire.entry_batch import PAYLOAD_BYTES_MAX
from tests.client.unsent import unsent_context
from tests.metadata.kit import ledger

CLOSED = ledger(1).in_recovery().close_at(9, 90)
ERROR = LedgerFencedError("the test")


def handle_of(submitted=None, **choices):
    context = unsent_context()
    submitted = [] if submitted is None else submitted
    context.runtime.io.submit = lambda *call: submitted.append(call)
    context.runtime.io.submit_once = lambda call: submitted.append((call,))
    context.runtime.add_writer = lambda writer: submitted.append(("add_writer", writer))
    made = LedgerHandle(context, ledger(1, **choices), 3, b"")
    made._shared.ended.set()  # so that no test's end is warned of
    del submitted[:]
    return made


def test_a_new_handle_has_its_ledger_watched_and_is_open():
    context, submitted = unsent_context(), []
    context.runtime.add_writer = lambda writer: submitted.append(("add_writer", writer))
    context.runtime.io.submit = lambda *call: submitted.append(call)
    handle = LedgerHandle(context, ledger(1), 3, b"")
    assert sorted(submitted, key=str) == sorted(
        [("add_writer", handle._driver), (handle._driver.want_bookies,)], key=str
    )
    assert (handle.metadata, handle.ledger_id, handle.closed) == (ledger(1), 1, False)
    assert (handle.last_add_confirmed, handle.last_add_pushed, handle.last_add_fully_replicated) == (-1, -1, -1)
    handle._shared.ended.set()


@pytest.mark.parametrize(("write_quorum", "runs"), [(3, [2]), (2, [1, 1])])
def test_only_the_entries_of_a_striped_ledger_go_one_by_one(write_quorum, runs):
    handle = handle_of(write_quorum=write_quorum)
    handle.append_batch_async([b"0", b"1"])
    assert [run.count for run in handle._shared.outgoing.waiting] == runs


# -- what it knows


@pytest.mark.parametrize(("own", "others"), [(4, 7), (7, 4), (-1, -1)])
def test_the_lac_is_the_higher_of_its_own_and_of_what_others_found(own, others):
    handle = handle_of()
    handle._cursors.last_add_confirmed, handle._last_add_confirmed = own, others
    assert handle.last_add_confirmed == handle.last_add_synced == max(own, others)


@pytest.mark.parametrize(("known", "version", "closed"), [(4, 3, True), (3, 3, False), (2, 3, False)])
def test_metadata_is_the_newer_of_what_it_wrote_and_what_it_read(known, version, closed):
    handle = handle_of()
    handle._writer.version, handle._known, handle._cursors.length = version, Versioned(CLOSED, known), 12
    assert handle.metadata.closed is closed
    assert handle.length == (90 if closed else 12)


@pytest.mark.parametrize(("closing", "error", "forked"), list(product([True, False], repeat=3)))
def test_a_handle_is_closed_if_anything_ended_it(closing, error, forked):
    handle = handle_of()
    handle._shared.closing = closing
    handle._shared.acknowledged.error = ERROR if error else None
    handle._pid = -1 if forked else os.getpid()
    assert handle.closed is (closing or error or forked)
    handle._pid = os.getpid()


@pytest.mark.parametrize(("failed", "forked"), list(product([True, False], repeat=2)))
def test_a_writer_decides_the_lac_until_it_has_failed_or_is_another_process(monkeypatch, failed, forked):
    handle = handle_of()
    handle._writer.state = State.FAILED if failed else State.OPEN
    handle._pid = -1 if forked else os.getpid()
    handle._cursors.last_add_confirmed = 4
    seen = []

    def read(self):
        seen.append(self._last_add_confirmed)
        return 7

    def read_entry(self, entry_id, seconds):
        seen.append((entry_id, seconds, self._last_add_confirmed))
        return 7, None

    monkeypatch.setattr(ReadHandle, "read_last_add_confirmed", read)
    monkeypatch.setattr(ReadHandle, "read_last_add_confirmed_and_entry", read_entry)
    handle._await_confirmed = lambda entry_id, deadline: seen.append((entry_id, deadline))
    own = not (failed or forked)
    assert handle.read_last_add_confirmed() == (4 if own else 7)
    # What it confirmed itself counts also where others are asked.
    assert seen == ([] if own else [4])
    del seen[:]
    before = time.monotonic()
    assert handle.read_last_add_confirmed_and_entry(5, 60.0) == (7, None)
    if own:
        entry_id, deadline = seen.pop(0)
        assert entry_id == 5 and before + 60 <= deadline <= time.monotonic() + 60
    ((entry_id, left, confirmed),) = seen
    assert (entry_id, confirmed) == (5, 4) and before + 59 - time.monotonic() <= left <= 60.0
    del seen[:]
    handle._await_confirmed = lambda entry_id, deadline: None
    handle.read_last_add_confirmed_and_entry(5, 0.0)
    assert seen[0][1] == 0.0
    handle._pid = os.getpid()


@pytest.mark.parametrize("why", ["confirmed", "ended", "closed", "late", None])
def test_an_entry_is_waited_for_until_it_is_confirmed_or_never_will_be(why):
    """``None``: then it waits, once, and looks again."""
    handle, follows, waits = handle_of(), [], []
    handle._shared.ended.clear()
    handle._cursors.last_add_confirmed = 5 if why == "confirmed" else 4

    def follow():
        follows.append(1)
        assert len(follows) < 9, "it goes on"
        return True

    def wait(condition, seconds):
        waits.append(seconds)
        assert len(waits) < 9, "it goes on"
        handle._cursors.last_add_confirmed = 5

    handle._follow = follow
    handle._shared.confirmed = SimpleNamespace(wait=wait)
    if why == "ended":
        handle._shared.ended.set()
    if why == "closed":
        handle._known = Versioned(CLOSED, 4)
    handle._await_confirmed(5, time.monotonic() + (-1.0 if why == "late" else 60.0))
    assert len(follows) == len(waits) == (why is None)
    handle._shared.ended.set()


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("left", [1.0, 3600.0])
def test_who_waits_looks_again_after_a_while_and_at_the_end_of_his_time(follows, left):
    handle, waits = handle_of(), []
    handle._shared.ended.clear()

    def wait(condition, seconds):
        waits.append(seconds)
        assert len(waits) < 9, "it goes on"
        handle._shared.ended.set()

    handle._follow, handle._shared.confirmed = lambda: follows, SimpleNamespace(wait=wait)
    handle._await_confirmed(5, time.monotonic() + left)
    (seconds,) = waits
    longest = min(left, HOLD_SECONDS_MAX if follows else UNFOLLOWED_SECONDS)
    assert longest - 0.9 <= seconds <= longest


@pytest.mark.parametrize("why", ["confirmed", "ended", "closed", "unwatched", None])
@pytest.mark.parametrize("follows", [True, False])
def test_who_waits_is_woken_by_what_may_tell_of_the_entry(why, follows):
    handle, woken = handle_of(), []
    handle._shared.ended.clear()
    handle._watching_pid = os.getpid()

    def wait(condition, seconds):
        if why == "confirmed":
            handle._cursors.last_add_confirmed = 5
        if why == "ended":
            handle._shared.ended.set()
        if why == "closed":
            handle._known = Versioned(CLOSED, 4)
        if why == "unwatched":
            handle._watching_pid = 0
        woken.append(condition())
        assert len(woken) < 9, "it goes on"
        handle._shared.ended.set()

    handle._follow, handle._shared.confirmed = lambda: follows, SimpleNamespace(wait=wait)
    handle._await_confirmed(5, time.monotonic() + 60.0)
    assert woken == [why is not None and (why != "unwatched" or follows)]


def test_who_waits_is_woken_once_the_changed_metadata_is_known():
    handle, seen = handle_of(), []
    handle._shared.confirmed = SimpleNamespace(wake=lambda: seen.append(handle._known.value.closed))
    handle._metadata_changed(Versioned(CLOSED, 4))
    assert seen == [True]


# -- appends


def test_each_append_gets_the_next_id_and_has_the_driver_send_it():
    submitted = []
    handle, waited = handle_of(submitted), []
    handle._pressure.wait = lambda *what: waited.append(what)
    futures = [
        handle.append_async(b"12"),
        handle.append_batch_async([b"3", b"45"]),
        handle.append_async(bytearray(b"6")),
    ]
    assert [future.entry_id for future in futures] == [0, 2, 3]
    assert {id(future._watermark) for future in futures} == {id(handle._shared.acknowledged)}
    assert waited == [(-1, 1, 2), (0, 2, 3), (2, 1, 1)]
    assert (handle.last_add_pushed, handle._room.appended) == (3, 6)
    assert submitted == [(handle._driver.pump,)] * 3
    assert [bytes(piece) for piece in handle._shared.outgoing.take().pieces] == [b"12", b"3", b"45", b"6"]
    assert handle.append_batch_async([]).entry_id == -1 and len(submitted) == 3
    handle._shared.acknowledged.advance(6)
    assert handle.append_batch([b"7", b"8"]) == range(4, 6) and handle.append(b"9") == 6
    with pytest.raises(EntryTooLargeError):
        handle.append_async(bytes(PAYLOAD_BYTES_MAX + 1))
    assert handle.append_async(bytes(PAYLOAD_BYTES_MAX)).entry_id == 7


@pytest.mark.parametrize("call", ["append", "append_batch", "close"])
def test_who_must_not_wait_is_refused_before_anything_is_appended_or_closed(call):
    handle = handle_of()
    mark_own_thread("of the test")
    try:
        with pytest.raises(BookKeeperError, match="of the test"):
            getattr(handle, call)(*{"append": [b"0"], "append_batch": [[b"0"]], "close": []}[call])
    finally:
        mark_own_thread("")
    assert handle.last_add_pushed == -1 and not handle._shared.closing


@pytest.mark.parametrize("confirmed", [4, 5])
def test_a_sync_is_asked_for_up_to_the_last_append_unless_that_is_confirmed(confirmed):
    submitted = []
    handle = handle_of(submitted)
    handle._shared.next_entry_id = 6
    handle._cursors.last_add_confirmed = confirmed
    future = handle.sync_async()
    assert submitted == [(handle._driver.sync, 5)] * (confirmed == 4)
    assert future.entry_id == 5 and future._watermark is handle._shared.confirmed
    handle._shared.confirmed.advance(6)
    assert handle.sync() == 6


@pytest.mark.parametrize(("told", "known"), [(4, 7), (7, 4)])
def test_a_flush_tells_the_higher_lac_and_waits_for_all_answers(monkeypatch, told, known):
    handle, asked = handle_of(), []
    monkeypatch.setattr(ledger_handle, "told_lac", lambda *what: asked.append(what) or told)
    handle._last_add_confirmed = known
    assert handle.flush_last_add_confirmed() == 7
    assert asked == [(handle._io, handle._driver, handle._context.config.answer_timeout_seconds + 1.0)]


def test_bookies_are_told_soon_from_the_moment_when_that_is_asked_for():
    handle = handle_of()
    assert handle._driver.tells_soon is False
    handle.tell_last_add_confirmed_soon()
    assert handle._driver.tells_soon is True


@pytest.mark.parametrize("off", [True, False])
def test_who_would_not_wait_is_told_so_at_once(off):
    handle, begun = handle_of(), []
    handle._pressure = SimpleNamespace(is_off=off, wait="wait")
    handle._context.calls = SimpleNamespace(begin=lambda *call: begun.append(call))
    handle._shared.next_entry_id = 6
    future = handle.drain_async()
    assert begun == [("wait", 5, 0, 0)] * (not off)
    assert future is None if begun else future.result() is None


# -- its end


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("ends", ["in time", "late", "never"])
@pytest.mark.parametrize("error", [None, ERROR])
def test_a_close_waits_for_the_end_and_gives_up_when_its_time_is_over(wait, ends, error):
    submitted, waited = [], []
    handle = handle_of(submitted)
    handle._shared.next_entry_id, handle._cursors.last_add_confirmed = 6, 3
    handle._wait_for_end = lambda timeout: waited.append(timeout) or ends == "in time"

    def ended(seconds):
        waited.append((seconds, submitted[-1]))
        if ends == "late":
            handle._writer.state = State.CLOSED

    shared = handle._driver.shared
    handle._shared = SimpleNamespace(
        acknowledged=shared.acknowledged, ended=SimpleNamespace(wait=ended), closing=False, next_entry_id=6
    )
    handle._shared.acknowledged.error = error
    handle._writer.state = State.CLOSED if ends == "in time" else State.OPEN
    if ends == "never":
        with pytest.raises(type(error) if error else AddTimeoutError) as raised:
            handle.close(wait, 7.0)
        assert raised.value.unconfirmed == range(4, 6)
    else:
        handle.close(wait, 7.0)
    driver = handle._driver
    assert submitted == [(driver.give_up,)] * (not wait) + [(driver.pump,)] + [(driver.end,)] * (ends != "in time")
    assert waited == [7.0] + [(15.0, (driver.end,))] * (ends != "in time")
    assert handle._shared.closing is True


def test_a_close_in_a_forked_process_closes_nothing():
    submitted = []
    handle = handle_of(submitted)
    handle._pid = -1
    handle.close()
    assert submitted == [] and not handle._shared.closing


@pytest.mark.parametrize("guaranteed", [True, False])
@pytest.mark.parametrize("timeout", [None, 7.0])
@pytest.mark.parametrize("ended", [True, False])
def test_only_the_close_of_a_guaranteed_ledger_goes_on_trying(guaranteed, timeout, ended, caplog):
    handle, waits = handle_of(replication=Replication.GUARANTEED if guaranteed else Replication.BEST_EFFORT), []

    def wait(seconds):
        waits.append(seconds)
        assert len(waits) < 9, "it goes on"
        return ended or len(waits) == 3

    handle._shared = SimpleNamespace(ended=SimpleNamespace(wait=wait, is_set=lambda: True), closing=False)
    tries_on = guaranteed and timeout is None
    assert handle._wait_for_end(timeout) is (ended or tries_on)
    limit = handle._context.config.add_timeout_seconds if timeout is None else timeout
    assert waits == [limit] * (3 if tries_on and not ended else 1)
    assert caplog.text.count("entries from 0 on are not on 3 bookies") == (2 if tries_on and not ended else 0)


@pytest.mark.parametrize(("in_body", "fails"), list(product([True, False], repeat=2)))
def test_an_error_in_the_body_is_what_is_raised_with_a_note_of_the_close(in_body, fails):
    handle, closes = handle_of(), []

    def close():
        closes.append(1)
        if fails:
            raise LedgerFencedError("of the close")

    handle.close = close
    with suppress(KeyError), pytest.raises(ValueError if in_body else LedgerFencedError) as raised:  # noqa: PT012
        with handle:
            if in_body:
                raise ValueError
        if not fails:
            raise KeyError
    assert closes == [1]
    if in_body:
        assert ["of the close" in note for note in getattr(raised.value, "__notes__", [])] == [True] * fails


def test_a_handle_is_closed_at_the_end_of_an_exit_stack_too():
    """Whoever calls ``__exit__`` without an error's type may give fewer arguments."""
    handle = handle_of()

    def close():
        raise ERROR

    handle.close = close
    for arguments in ((), (None,), (None, None, None)):
        with pytest.raises(LedgerFencedError):
            handle.__exit__(*arguments)


@pytest.mark.filterwarnings("default:ledger 1 was not closed:ResourceWarning")
@pytest.mark.parametrize("why", ["open", "ended", "forked", "finalizing", "not made"])
def test_a_handle_that_is_dropped_open_is_left_and_its_user_warned(monkeypatch, why, recwarn):
    submitted = []
    handle = handle_of(submitted)
    driver = handle._driver
    if why != "ended":
        handle._shared.ended = driver.shared.ended
        driver.shared.ended.clear()
    if why == "forked":
        handle._pid = -1
    if why == "finalizing":
        monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    if why == "not made":
        del handle._driver
    recwarn.clear()
    handle.__del__()
    told = [str(warning.message) for warning in recwarn if "not closed" in str(warning.message)]
    assert submitted == [(driver.drop,)] * (why == "open") and len(told) == (why == "open")
    driver.shared.ended.set()
