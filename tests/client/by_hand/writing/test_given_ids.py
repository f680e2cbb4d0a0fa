"""A handle whose ids the caller gives, over a driver that does nothing: what goes out, what waits, and what a close leaves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bookspark.client.writing.futures import Watermark
from bookspark.client.writing.ledger_handle import LedgerHandle
from bookspark.client.writing.ledger_handle_adv import LedgerHandleAdv
from bookspark.errors import (
    AddTimeoutError,
    BookKeeperError,
    DuplicateEntryIdError,
    LedgerClosedError,
    LedgerFencedError,
)
from bookspark.threads import check_may_wait, mark_own_thread
from tests.client.unsent import unsent_context
from tests.metadata.kit import ledger


class Loose(Watermark):
    """A watermark of which the test may replace methods."""


class Bench:
    """A handle, what it has submitted, put, and asked of its back-pressure."""

    def __init__(self):
        context = unsent_context()
        self.calls, self.woken = [], []
        context.runtime.io.submit = lambda *call: self.calls.append(("submit", *call))
        context.runtime.io.submit_once = lambda call: self.calls.append(("once", call))
        self.handle = LedgerHandleAdv(context, ledger(1), 3, b"")
        self.handle._shared.ended.set()
        self.driver, self.shared = self.handle._driver, self.handle._shared
        self.asked = []
        self.handle._pressure = SimpleNamespace(
            wait=lambda *what: self.asked.append(("wait", *what)),
            wait_behind_gap=lambda last, size, behind: self.asked.append(("gap", last, size, behind())),
        )
        self.shared.acknowledged = Loose(check_may_wait)
        self.shared.acknowledged.wake = lambda: self.woken.append(self.shared.next_entry_id)
        del self.calls[:]

    def sent(self):
        out = list(self.shared.outgoing.waiting)
        del self.shared.outgoing.waiting[:]
        return out

    def kept(self):
        """What waits for an earlier entry, and how much room is taken for it and for appends."""
        room = self.handle._room
        return dict(self.handle._waiting), self.handle._waiting_bytes, room._behind_gap, room.appended


@pytest.fixture
def bench():
    return Bench()


def test_entries_go_out_in_the_order_of_their_ids_and_those_behind_a_gap_wait(bench):
    handle, watch_gap, pump = bench.handle, ("submit", bench.driver.watch_gap), ("once", bench.driver.pump)
    assert handle.append_at_async(2, b"22").entry_id == 2
    assert (bench.sent(), bench.kept(), bench.shared.missing) == ([], ({2: b"22"}, 2, 2, 0), 0)
    assert bench.calls == [watch_gap] and bench.asked == [("gap", -1, 2, True)] and bench.woken == []
    handle.append_at_async(3, b"333")
    assert bench.kept() == ({2: b"22", 3: b"333"}, 5, 5, 0) and bench.calls == [watch_gap]
    handle.append_at_async(0, b"0")
    assert (bench.sent(), bench.kept(), bench.shared.missing) == ([b"0"], ({2: b"22", 3: b"333"}, 5, 5, 1), 1)
    assert bench.asked[-1] == ("wait", -1, 1, 1) and bench.woken == [1]
    # That another entry is missing now is watched from now on.
    assert bench.calls == [watch_gap, pump, watch_gap]
    future = handle.append_at_async(1, b"1")
    assert (bench.sent(), bench.kept(), bench.shared.missing) == ([b"1", b"22", b"333"], ({}, 0, 0, 7), None)
    assert bench.shared.next_entry_id == 4 and bench.calls[3:] == [pump, watch_gap] and bench.woken == [1, 4]
    handle.append_at_async(4, bytearray(b"4"))
    assert bench.sent() == [b"4"] and bench.calls[5:] == [pump]
    bench.shared.acknowledged.advance(4)
    assert future.result() == 1


def test_an_id_is_given_once_and_what_is_refused_changes_nothing(bench):
    bench.handle.append_at_async(0, b"0")
    bench.handle.append_at_async(2, b"2")
    before = bench.kept()
    for entry_id in (0, 2):
        with pytest.raises(DuplicateEntryIdError):
            bench.handle.append_at_async(entry_id, b"again")
    assert bench.kept() == before and not bench.shared.closing and not bench.handle._changing
    bench.handle.append_at_async(1, b"1")
    assert bench.sent() == [b"0", b"1", b"2"]


@pytest.mark.parametrize("error", [None, LedgerFencedError("the test")])
def test_nothing_is_appended_to_a_ledger_that_is_closed_or_failed(bench, error):
    bench.shared.closing, bench.shared.acknowledged.error = error is None, error
    for entry_id in (0, 5):
        with pytest.raises(LedgerClosedError if error is None else LedgerFencedError):
            bench.handle.append_at_async(entry_id, b"0")
    assert bench.kept() == ({}, 0, 0, 0) and bench.calls == []


def test_an_append_that_must_not_wait_is_refused_before_its_id_is_given(bench):
    mark_own_thread("of the test")
    try:
        with pytest.raises(BookKeeperError, match="of the test"):
            bench.handle.append_at(0, b"0")
    finally:
        mark_own_thread("")
    bench.shared.acknowledged.value = 0
    assert bench.handle.append_at(0, b"0") == 0


@pytest.mark.parametrize(
    ("entry_id", "size", "kept", "closing", "error", "goes"),
    [
        (9, 100, 0, False, False, True),  # nothing waits yet, however large it is
        (9, 4, 6, False, False, True),
        (9, 5, 6, False, False, False),
        (0, 5, 6, False, False, True),  # the missing one
        (9, 5, 6, True, False, True),  # to be refused
        (9, 5, 6, False, True, True),
    ],
)
def test_so_much_may_wait_behind_a_gap_and_no_more(bench, entry_id, size, kept, closing, error, goes):
    bench.handle._waiting_bytes, bench.handle._waiting_bytes_max = kept, 10
    bench.shared.closing = closing
    bench.shared.acknowledged.error = LedgerFencedError("the test") if error else None
    assert bench.handle._may_go_on(entry_id, size) is goes
    waits = []
    bench.shared.acknowledged.wait = lambda condition, seconds: waits.append((condition(), seconds))
    if goes:
        bench.handle._wait_behind_the_gap(entry_id, size)
        assert waits == []
    else:
        with pytest.raises(AddTimeoutError, match="6 bytes wait for entry 0, which was not appended"):
            bench.handle._wait_behind_the_gap(entry_id, size)
        assert waits == [(False, 60.0)]
        looks = []

        def wait(condition, seconds):
            for waiting in (6, 5):
                bench.handle._waiting_bytes = waiting
                looks.append(condition())
            return True

        bench.shared.acknowledged.wait = wait
        bench.handle._wait_behind_the_gap(entry_id, size)
        assert looks == [False, True]


def test_half_of_the_bytes_in_flight_may_wait_behind_a_gap(bench):
    assert bench.handle._waiting_bytes_max == bench.handle._context.config.bytes_in_flight_max // 2
    assert (bench.handle._waiting_bytes, bench.handle._changing) == (0, False)


def test_who_comes_in_between_makes_an_append_wait_again(bench):
    """Two waited, and there was room for one."""
    handle, waits = bench.handle, []

    def wait(entry_id, size):
        waits.append((entry_id, size))
        assert len(waits) < 9, "it goes on"
        if len(waits) == 1:
            handle._waiting_bytes = handle._waiting_bytes_max
        else:
            handle._waiting_bytes = 0

    handle._wait_behind_the_gap = wait
    handle.append_at_async(3, b"33")
    assert waits == [(3, 2), (3, 2)] and handle._waiting == {3: b"33"}


# -- alone


def test_a_signal_handler_in_the_middle_of_an_append_is_refused_and_nothing_ended(bench):
    handle = bench.handle
    with handle._alone():
        assert handle._changing is True
        with pytest.raises(BookKeeperError, match="this signal handler interrupted"):
            handle.append_at_async(0, b"0")
        assert handle._changing is True
    assert handle._changing is False and not bench.shared.closing


@pytest.mark.parametrize(("error", "ends"), [(BookKeeperError("refused"), False), (KeyboardInterrupt(), True)])
def test_only_an_interrupt_in_the_middle_of_an_append_ends_the_ledger(bench, error, ends):
    with pytest.raises(type(error)), bench.handle._alone():
        raise error
    assert bench.shared.closing is ends and bench.handle._changing is False
    assert [call[:2] for call in bench.calls] == [("submit", bench.driver.abandon)] * ends


# -- the end


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("gap", [True, False])
def test_a_close_ends_before_the_gap_and_what_waits_behind_it_fails(bench, monkeypatch, fails, gap):
    handle, closes = bench.handle, []
    handle.append_at_async(0, b"0")
    futures = [handle.append_at_async(entry_id, b"late") for entry_id in (5, 3)] if gap else []
    del bench.woken[:]

    def close(self, wait, timeout):
        closes.append((wait, timeout, bench.shared.closing, bench.kept(), bench.shared.missing, list(bench.woken)))
        assert bench.shared.acknowledged.error is None, "what is before the gap may still be acknowledged"
        bench.shared.acknowledged.value = 0
        if fails:
            raise LedgerFencedError("of the close")

    monkeypatch.setattr(LedgerHandle, "close", close)
    if fails:
        with pytest.raises(LedgerFencedError):
            handle.close(False, 7.0)
    else:
        handle.close(False, 7.0)
    assert closes == [(False, 7.0, True, ({}, 0, 0, 1), None, [1])]
    for future in futures:
        with pytest.raises(LedgerClosedError, match="before entry 1 was appended: 2 entries after it, up to 5"):
            future.result(0.0)
    assert (bench.shared.acknowledged.error is not None) is gap
    with pytest.raises(LedgerClosedError):
        handle.append_at_async(1, b"1")


def test_a_close_in_a_forked_process_closes_nothing(bench):
    bench.handle._pid = -1
    bench.handle.close()
    with pytest.raises(LedgerClosedError, match="process -1"):
        bench.handle.append_at_async(0, b"0")
    assert not bench.shared.closing and bench.calls == [] and bench.asked == []


@pytest.mark.parametrize("method", ["append", "append_async", "append_batch", "append_batch_async"])
def test_an_append_without_an_id_is_refused(bench, method):
    with pytest.raises(BookKeeperError, match="need an id"):
        getattr(bench.handle, method)([b"0"] if "batch" in method else b"0")
    assert bench.sent() == []
