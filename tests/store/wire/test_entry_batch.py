"""Entry batches have the same bytes as pyarrow's, and a receiver accepts only batches that an encoder would make."""

from __future__ import annotations

import contextlib
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.store.wire.batch_prefix import HEADER_END, HEADER_OFFSET, PREFIX_BYTES
from bookspark.store.wire.entry_batch import Entry, EntryBatch, arrow_schema, encode_entries, encode_one, with_header
from bookspark.store.wire.frames import parse_frame
from bookspark.store.wire.header import HEADER_BYTES, Header, Kind, WireError

rows = st.lists(st.tuples(st.binary(max_size=70), st.binary(max_size=33)), min_size=1, max_size=9)


def entries_of(rows, ledger_id=7, first=3, lac=1):
    length, entries = 0, []
    for entry_id, (payload, digest) in enumerate(rows, first):
        length += len(payload)
        entries.append(Entry(ledger_id, entry_id, lac, length, payload, digest))
    return entries


def frame_of(entries, **fields):
    header = Header(Kind.ADD, 99, entries[0].ledger_id, entries[0].entry_id, entries[-1].entry_id, 1, **fields)
    return encode_entries(header, entries)


def checked(frame):
    parsed = parse_frame(memoryview(frame))
    return EntryBatch.checked(parsed.batch, parsed.header, parsed.body_crc)


@given(rows)
def test_frame_is_byte_for_byte_a_message_of_pyarrow_around_its_header(rows):
    entries = entries_of(rows)
    frame = frame_of(entries)
    schema = arrow_schema()
    columns = [pa.array([getattr(e, name) for e in entries], schema.field(name).type) for name in schema.names]
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, schema)
    writer.write_batch(pa.record_batch(columns, schema=schema))
    start = sink.tell()
    writer.write_batch(pa.record_batch(columns, schema=schema))
    theirs = sink.getvalue().to_pybytes()[start:]
    marker, size, root, zero = struct.unpack_from("<4I", theirs)
    header = frame[HEADER_OFFSET:HEADER_END]
    assert len(header) == HEADER_BYTES and zero == 0
    assert frame == struct.pack("<4I", marker, size + HEADER_BYTES, root + HEADER_BYTES, 0) + header + theirs[16:]


@given(st.binary(max_size=70), st.binary(max_size=33))
def test_encoder_of_a_single_entry_makes_the_same_bytes(payload, digest):
    entries = entries_of([(payload, digest)])
    header = Header(Kind.ADD, 99, 7, 3, 3, 1)
    assert encode_one(header, len(payload), payload, digest) == encode_entries(header, entries)


@given(rows)
def test_entries_survive_their_encoding(rows):
    entries = entries_of(rows)
    batch = checked(frame_of(entries))
    assert list(batch.entries()) == entries
    assert batch.to_arrow().to_pylist() == [entry._asdict() for entry in entries]
    assert [(i, n, bytes(p)) for i, n, p in batch.contents()] == [(e.entry_id, e.length, e.payload) for e in entries]
    assert batch.entry(entries[-1].entry_id) == entries[-1]


@given(rows, st.data())
def test_slice_holds_the_unchanged_rows(rows, data):
    entries = entries_of(rows)
    start = data.draw(st.integers(0, len(entries) - 1))
    stop = data.draw(st.integers(start, len(entries) - 1))
    first, last = entries[start].entry_id, entries[stop].entry_id
    sliced = checked(frame_of(entries)).slice(first, last, Header(Kind.READ, 5, 7, first, last))
    assert list(checked(sliced).entries()) == entries[start : stop + 1]


@given(rows)
def test_replaced_header_leaves_the_body_unchanged(rows):
    frame = frame_of(entries_of(rows))
    answer = Header(Kind.READ, 1234, 7, 3, 2 + len(rows), 8, last_add_synced=4, incarnation=2**63 + 1)
    head, body = with_header(frame, answer)
    parsed = parse_frame(memoryview(head + bytes(body)))
    assert parsed.header == answer
    assert list(EntryBatch.checked(parsed.batch, parsed.header, parsed.body_crc).entries()) == entries_of(rows)


def test_every_flipped_bit_of_a_frame_is_detected():
    frame = frame_of(entries_of([(b"one", b"abcd"), (b"", b"efgh"), (b"three", b"ijkl")]))
    assert len(list(checked(frame).entries())) == 3
    for position in range(len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            with pytest.raises(WireError):
                checked(bytes(damaged))


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: [entries[0], entries[1]._replace(entry_id=9)],
        lambda entries: [entries[0], entries[1]._replace(ledger_id=9)],
        lambda entries: [entries[0]._replace(entry_id=4), entries[1]._replace(entry_id=3)],
        lambda entries: entries[:1],
        lambda entries: [*entries, entries[1]._replace(entry_id=5)],
    ],
)
def test_rows_contradicting_the_header_are_refused(change):
    entries = entries_of([(b"one", b"abcd"), (b"two", b"efgh")])
    header = Header(Kind.ADD, 1, 7, 3, 4)
    with pytest.raises(WireError):
        checked(encode_entries(header, change(entries)))


@given(st.binary(max_size=900))
def test_damaged_batch_raises_only_a_wire_error(noise):
    frame = bytearray(frame_of(entries_of([(b"one", b"abcd")] * 3)))
    frame[PREFIX_BYTES : PREFIX_BYTES + len(noise)] = noise
    parsed = parse_frame(memoryview(frame_of(entries_of([(b"one", b"abcd")] * 3))))
    with pytest.raises(WireError):
        EntryBatch.checked(bytes(frame), parsed.header, parsed.body_crc ^ 1)
    from crc32c import crc32c

    view = memoryview(bytes(frame))
    with contextlib.suppress(WireError):
        EntryBatch.checked(view, parsed.header, crc32c(view[PREFIX_BYTES:]))
