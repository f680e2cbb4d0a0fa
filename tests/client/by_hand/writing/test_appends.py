"""Appends, syncs and flushes of a writer's handle over a driver that does nothing: what each submits, waits for and refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bookspark.client.writing import ledger_handle
from bookspark.errors import BookKeeperError, EntryTooLargeError, LedgerClosedError, LedgerFencedError
from bookspark.threads import mark_own_thread
from bookspark.wire.entry_batch import PAYLOAD_BYTES_MAX
from tests.client.by_hand.writing.test_handle import ERROR, handle_of


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


@pytest.mark.parametrize("error", [None, ERROR])
@pytest.mark.parametrize("append", ["append_async", "append_batch_async"])
def test_nothing_is_appended_to_a_ledger_that_is_closed_or_has_failed(append, error):
    submitted = []
    handle = handle_of(submitted)
    handle._shared.closing, handle._shared.acknowledged.error = error is None, error
    with pytest.raises(LedgerClosedError if error is None else LedgerFencedError):
        getattr(handle, append)([b"0"] if "batch" in append else b"0")
    # What ended it is told as it is, and a close before it.
    assert type(handle._why_ended()) is (LedgerClosedError if error is None else LedgerFencedError)
    assert (handle.last_add_pushed, handle._room.appended, bool(handle._shared.outgoing), submitted) == (
        -1,
        0,
        False,
        [],
    )
    handle._shared.closing = True
    assert isinstance(handle._why_ended(), LedgerClosedError)
