"""What the outcome of an append is, told to whoever asks and as often as they ask."""

from __future__ import annotations

import traceback

import pytest

from bookspark.client.writing.futures import AppendFuture, Watermark
from bookspark.errors import BookKeeperError, LedgerClosedError, LedgerFencedError


def test_an_error_does_not_collect_those_who_heard_it():
    """Each frame in its traceback keeps what it works on: a caller that went on trying kept every payload."""
    watermark = Watermark()
    watermark.fail(LedgerFencedError("fenced"))
    lengths = set()
    for _ in range(10):
        with pytest.raises(LedgerFencedError) as caught:
            AppendFuture(watermark, 1).result()
        lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(lengths) == 1


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_callback_is_told_the_outcome_and_not_let_wait_for_another(timeout):
    watermark, told = Watermark(lambda: True), []
    futures = [AppendFuture(watermark, entry_id) for entry_id in range(2)]
    for future in futures:
        future.add_done_callback(lambda done: told.append(done.exception(timeout)))
    watermark.advance(0)
    with pytest.raises(BookKeeperError, match="must not wait"):
        futures[1].exception(timeout)
    error = LedgerClosedError("the end")
    watermark.fail(error)
    assert told == [None, error]
