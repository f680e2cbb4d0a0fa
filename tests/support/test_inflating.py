"""Bytes from strangers are inflated up to the bound of their writer: the sizes are read before any memory is taken."""

from __future__ import annotations

import random
import struct

import pyarrow
import pyarrow.ipc
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bookspark.support.inflating import ArrowSizes, InflationError, arrow_sizes, inflated

MAX = 1 << 20


def message(columns: dict[str, list[object]], compression: str | None = None) -> bytes:
    """A record batch message as pyarrow writes it."""
    batch = pyarrow.record_batch(columns)
    stream = pyarrow.BufferOutputStream()
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_stream(stream, batch.schema, options=options) as writer:
        writer.write_batch(batch)
        end = stream.tell()
    return stream.getvalue().to_pybytes()[batch.schema.serialize().size : end]


def test_frame_is_inflated_up_to_the_bound() -> None:
    pack = zstandard.ZstdCompressor().compress
    assert inflated(pack(bytes(MAX)), MAX) == bytes(MAX)
    with pytest.raises(InflationError, match="would inflate to 1,048,577; at most 1,048,576"):
        inflated(pack(bytes(MAX + 1)), MAX)


def test_frame_without_a_size_or_with_a_wrong_one_is_refused() -> None:
    without = zstandard.ZstdCompressor(write_content_size=False).compress(b"content" * 100)
    with pytest.raises(InflationError, match="does not say its size"):
        inflated(without, MAX)
    wrong = bytearray(zstandard.ZstdCompressor().compress(b"content" * 100))
    wrong[5] ^= 1
    for strange in (bytes(wrong), b"", b"no frame at all"):
        with pytest.raises(InflationError):
            inflated(strange, MAX)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_sizes_of_a_message_are_those_of_its_buffers(compression: str | None) -> None:
    columns = {"number": list(range(1000)), "text": ["row"] * 1000, "list": [[1, None]] * 1000}
    found = arrow_sizes(message(columns, compression), MAX, 1000)
    nbytes = pyarrow.record_batch(columns).nbytes
    assert found.rows == 1000
    assert nbytes <= found.inflated_bytes <= nbytes + 64 * 10


def test_message_that_would_inflate_to_more_than_the_bound_is_refused() -> None:
    large = message({"text": ["0" * (2 * MAX)]}, "zstd")
    assert len(large) < 10_000
    with pytest.raises(InflationError, match="would inflate to more than 1,048,576"):
        arrow_sizes(large, MAX, 1)


def test_message_of_too_many_rows_or_values_is_refused() -> None:
    """Rows and values of Arrow's null type take no bytes at all."""
    with pytest.raises(InflationError, match="10,000 rows; at most 9,999"):
        arrow_sizes(message({"nothing": [None] * 10_000}), MAX, 9_999)
    nothing = message({"list": [[None] * 1_000]})
    with pytest.raises(InflationError, match="a column of 1,000 values"):
        arrow_sizes(nothing, 100, 1)


def test_declared_size_of_a_buffer_counts_before_the_buffer_is_read() -> None:
    made = bytearray(message({"text": ["0" * 1000]}, "zstd"))
    at = made.rindex(struct.pack("<q", 1000))
    struct.pack_into("<q", made, at, 1 << 40)
    with pytest.raises(InflationError, match="would inflate to more"):
        arrow_sizes(made, MAX, 1)
    struct.pack_into("<q", made, at, -2)
    with pytest.raises(InflationError, match="a buffer of -2 bytes"):
        arrow_sizes(made, MAX, 1)


def test_other_messages_are_no_rows() -> None:
    schema = pyarrow.schema([("number", pyarrow.int64())]).serialize().to_pybytes()
    for strange in (schema, b"", b"\xff" * 8, b"\xff\xff\xff\xff" + bytes(4), bytes(100)):
        with pytest.raises(InflationError):
            arrow_sizes(strange, MAX, 1)


@settings(max_examples=300)
@given(seed=st.integers(0, 1 << 32), compressed=st.booleans())
def test_damaged_message_is_refused_or_as_small_as_the_bound(seed: int, compressed: bool) -> None:
    chance = random.Random(seed)
    made = bytearray(message({"number": [1, 2, 3], "text": ["a", None, "c"]}, "zstd" if compressed else None))
    for _ in range(chance.choice((1, 2, 8))):
        struct.pack_into(
            "<i", made, 4 * chance.randrange(len(made) // 4), chance.choice((0, 1, -1, 1 << 30, -(1 << 31)))
        )
    try:
        found = arrow_sizes(made[: chance.choice((len(made), chance.randrange(len(made))))], MAX, 100)
    except InflationError:
        return
    assert isinstance(found, ArrowSizes) and found.rows <= 100 and found.inflated_bytes <= MAX
