"""Joined short batches have the same rows, in as few batches as the bounds allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookspark.store.bookie.serving.connection import JOINED_BYTES_MAX, SHORT_BYTES_MAX, joined, runs
from bookspark.store.wire.entry_batch import Entry, EntryBatch, encode_entries
from bookspark.store.wire.frames import parse_frame
from bookspark.store.wire.header import Header, Kind

_values = st.tuples(st.binary(max_size=40), st.binary(max_size=33))
_groups = st.lists(st.lists(_values, min_size=1, max_size=5), min_size=1, max_size=8)


def _batch(first: int, values: list[tuple[bytes, bytes]]) -> EntryBatch:
    entries = [Entry(7, n, n - 2, 100 * n, payload, digest) for n, (payload, digest) in enumerate(values, first)]
    return EntryBatch(encode_entries(Header(Kind.ADD, 1, 7, first, entries[-1].entry_id), entries))


def _batches(groups: list[list[tuple[bytes, bytes]]], first: int = 0) -> list[EntryBatch]:
    found: list[EntryBatch] = []
    for values in groups:
        found.append(_batch(first, values))
        first += len(values)
    return found


@given(_groups)
def test_joined_batch_equals_a_batch_of_the_same_rows(groups: list[list[tuple[bytes, bytes]]]) -> None:
    batches = _batches(groups, 3)
    header = Header(Kind.READ, 9, 7, 3, batches[-1].last_entry_id)
    rows = [entry for batch in batches for entry in batch.entries()]
    frame = joined(batches, header)
    assert frame == encode_entries(header, rows)
    parsed = parse_frame(memoryview(frame))
    assert parsed.batch is not None
    assert list(EntryBatch.checked(parsed.batch, parsed.header, parsed.body_crc).entries()) == rows


def _spans(batches: list[EntryBatch]) -> list[list[int]]:
    return [[batch.first_entry_id for batch in run] for run in runs(batches)]


def test_long_batches_and_gaps_end_a_run() -> None:
    small, large = [(b"x", b"")], [(bytes(SHORT_BYTES_MAX), b"")]
    batches = [*_batches([small, small, large, small, small]), *_batches([small, small], 9)]
    assert _spans(batches) == [[0, 1], [2], [3, 4], [9, 10]]
    assert _spans([]) == []


def test_run_of_joined_batches_is_bounded_in_bytes() -> None:
    batches = _batches([[(bytes(4000), b"")]] * 200)
    sizes = [sum(len(batch.frame) for batch in run) for run in runs(batches)]
    assert len(sizes) > 2 and max(sizes) <= JOINED_BYTES_MAX
    assert [first for run in _spans(batches) for first in run] == list(range(200))
