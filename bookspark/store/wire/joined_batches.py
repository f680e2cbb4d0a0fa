"""Short batches that follow one another, made one.

Law: the rows are those of the batches, verbatim and in order, so every digest stays valid. Only whole batches are joined, of one
ledger, with consecutive ids.

Who adds entry by entry leaves a batch for each add in the log. Whoever gets such a batch parses a header, compares a prefix and
checks two checksums, which costs a reader twenty times what it costs to join the batch to its neighbours here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct

from bookspark.store.wire.batch_prefix import PREFIX_BYTES
from bookspark.store.wire.columns import Buffer, consecutive, offsets_of, repeated
from bookspark.store.wire.entry_batch import EntryBatch, encode_pieces
from bookspark.store.wire.header import Header

SHORT_BYTES_MAX = 8 << 10
"""Longer batches stay as they are."""
JOINED_BYTES_MAX = 256 << 10
"""About the longest batch that short ones are made into."""

_ROW = Struct("<qqqqii")
"""The only row of a batch of one: ledger, entry, last add confirmed, length, and the payload's offsets."""
_TWO_INTS = Struct("<ii")


def runs(batches: Iterable[EntryBatch]) -> Iterator[list[EntryBatch]]:
    """The batches in order, with those together that are to be joined."""
    run: list[EntryBatch] = []
    size = after = 0
    for batch in batches:
        bytes_more = len(batch.frame)
        short = bytes_more <= SHORT_BYTES_MAX
        if run and (not short or batch.first_entry_id != after or size + bytes_more > JOINED_BYTES_MAX):
            yield run
            run, size = [], 0
        run.append(batch)
        if short:
            size, after = size + bytes_more, batch.first_entry_id + batch.count
        else:
            yield run
            run, size = [], 0
    if run:
        yield run


def joined(batches: Sequence[EntryBatch], header: Header) -> bytearray:
    """One frame under ``header`` with the rows of ``batches``, which follow one another."""
    confirmed: list[Buffer] = []
    lengths: list[Buffer] = []
    payload_sizes: list[int] = []
    payloads: list[Buffer] = []
    digest_sizes: list[int] = []
    digests: list[Buffer] = []
    for batch in batches:
        count = batch.count
        if count == 1:
            frame = batch.frame
            payload_bytes = _ROW.unpack_from(frame, PREFIX_BYTES)[5]
            at = PREFIX_BYTES + _ROW.size
            confirmed.append(frame[PREFIX_BYTES + 16 : PREFIX_BYTES + 24])
            lengths.append(frame[PREFIX_BYTES + 24 : PREFIX_BYTES + 32])
            payloads.append(frame[at : at + payload_bytes])
            at += (payload_bytes + 7) & -8
            digest_bytes = _TWO_INTS.unpack_from(frame, at)[1]
            at += _TWO_INTS.size
            digests.append(frame[at : at + digest_bytes])
            payload_sizes.append(payload_bytes)
            digest_sizes.append(digest_bytes)
            continue
        confirmed.append(batch.column(2).cast("B"))
        lengths.append(batch.column(3).cast("B"))
        payload_offsets, payload, digest_offsets, digest = batch.binary_columns()
        payload_sizes += _sizes(payload_offsets.tolist())
        digest_sizes += _sizes(digest_offsets.tolist())
        payloads.append(payload)
        digests.append(digest)
    first, total = batches[0], len(payload_sizes)
    columns = (
        repeated(first.ledger_id, total),
        consecutive(first.first_entry_id, total),
        b"".join(confirmed),
        b"".join(lengths),
        offsets_of(payload_sizes),
        offsets_of(digest_sizes),
    )
    return encode_pieces(header, columns, payloads, sum(payload_sizes), b"".join(digests))


def _sizes(offsets: Sequence[int]) -> Iterable[int]:
    return map(int.__sub__, offsets[1:], offsets)
