"""What the outcome of an append is, told to whoever asks and as often as they ask."""

from __future__ import annotations

import traceback

import pytest

from bookspark.client.futures import AppendFuture, Watermark
from bookspark.protocol.errors import LedgerFencedError


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
