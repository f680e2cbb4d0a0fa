"""Encoding and decoding of ranges and acknowledgements."""

from __future__ import annotations

from array import array

import pytest

from bookspark.store.wire.header import WireError
from bookspark.store.wire.messages import Acks, Ranges


def test_ranges_survive_their_encoding():
    ranges = Ranges(*(array("q", (i, i + 1, -1)) for i in range(6)))
    assert Ranges.decode(memoryview(ranges.encode())) == ranges
    assert Ranges.decode(memoryview(Ranges.empty().encode())) == Ranges.empty()


@pytest.mark.parametrize("cut", [0, 3, 8, 30])
def test_cut_ranges_are_refused(cut):
    body = Ranges(*(array("q", (1, 2)) for _ in range(6))).encode()
    with pytest.raises(WireError):
        Ranges.decode(memoryview(body[:cut]))


def test_acks_are_request_ids_of_eight_bytes():
    body = Acks.encode([1, (1 << 64) - 1])
    assert body == (1).to_bytes(8, "little") + b"\xff" * 8
    assert list(Acks.decode(memoryview(body))) == [1, (1 << 64) - 1]
    assert list(Acks.decode(memoryview(b""))) == []


def test_cut_acks_are_refused():
    with pytest.raises(WireError):
        Acks.decode(memoryview(Acks.encode([1, 2])[:-1]))
