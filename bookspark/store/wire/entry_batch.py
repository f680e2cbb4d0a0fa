"""Entry batches: the unit on the wire and on disk, an Arrow IPC record batch message that also carries the request header.

Law: the log holds the received bytes. A batch frame is one encapsulated Arrow IPC message: a prefix (``batch_prefix``) with
the request's header in a gap at a fixed offset, and a body. So a log is a plain Arrow stream, and a bookie neither parses nor
encodes Arrow::

      0  prefix, 528 bytes              16: the header (112 bytes)
    528  body, each buffer padded to 8: ledger_id, entry_id, last_add_confirmed, length  (n × i64 each)
                                        payload offsets (n+1) × i32, payload, digest offsets (n+1) × i32, digest

Entries of one batch are of one ledger and have consecutive ids. ``length`` is the sum of the ledger's payload bytes up to and
including the entry. The columns are plain, so that every Arrow reader opens a log.

Source: docs/decisions/entry-batches.md; the format is Arrow's "IPC Streaming Format".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple, cast

from crc32c import crc32c

from bookspark.store.wire.batch_prefix import (
    BODY_LENGTH_OFFSET,
    HEADER_END,
    HEADER_OFFSET,
    PREFIX_BYTES,
    PREFIX_START,
    ROWS_OFFSET,
    behind_header,
)
from bookspark.store.wire.columns import Buffer as Buffer
from bookspark.store.wire.columns import ascends, consecutive, from_zero, offsets_of, repeated, values
from bookspark.store.wire.header import HEADER_BYTES, Header, WireError
from bookspark.support.extras import extra_needed

if TYPE_CHECKING:
    import pyarrow

ENTRY_OVERHEAD_BYTES = 4 * 8 + 2 * 4
"""Bytes of an entry in a large batch beside its payload and digest."""
FRAME_BYTES_MAX = 16 << 20
"""Both sides refuse a larger frame."""
PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - (64 << 10)


class Entry(NamedTuple):
    """One entry as written. ``length``: payload bytes of the ledger up to and including this entry."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload: bytes
    digest: bytes


_UNSIGNED = struct.Struct("<I")
_INT = struct.Struct("<i")
_LONG = struct.Struct("<q")
_TWO_INTS = struct.Struct("<ii")
_ONE_ROW = struct.Struct("<qqqqii")
_NO_HEADER = bytes(HEADER_BYTES)
_PADS = [bytes(-size & 7) for size in range(8)]
"""Padding after a buffer, indexed by its size modulo 8."""


def encode(header: Header, columns: Sequence[Buffer], payload: Buffer, digest: Buffer) -> bytearray:
    """One batch frame.

    ``columns`` are the bytes of ledger_id, entry_id, last_add_confirmed, length, payload offsets and digest offsets
    (little-endian i64 × n, and i32 × (n+1) from 0); ``payload`` and ``digest`` the concatenated values.
    """
    return encode_pieces(header, columns, (payload,), len(payload), digest)


def encode_pieces(
    header: Header, columns: Sequence[Buffer], payloads: Sequence[Buffer], payload_bytes: int, digest: Buffer
) -> bytearray:
    """A batch frame as of ``encode``, from payloads in pieces, ``payload_bytes`` in all, so that they are copied only once."""
    ledger_ids, entry_ids, confirmed, lengths, payload_offsets, digest_offsets = columns
    count = len(ledger_ids) >> 3
    after = behind_header(count, payload_bytes, len(digest))
    offsets_pad = _PADS[4 * (count + 1) & 7]
    frame = bytearray().join(
        (
            PREFIX_START, _NO_HEADER, after, ledger_ids, entry_ids, confirmed, lengths,
            payload_offsets, offsets_pad, *payloads, _PADS[payload_bytes & 7],
            digest_offsets, offsets_pad, digest, _PADS[len(digest) & 7],
        )
    )  # fmt: skip
    frame[HEADER_OFFSET:HEADER_END] = header.encode(crc32c(memoryview(frame)[PREFIX_BYTES:]))
    return frame


def encode_one(header: Header, length: int, payload: Buffer, digest: Buffer) -> bytes:
    """A frame of the single entry that ``header`` names, with the header's LAC (last add confirmed) in its row."""
    payload_bytes, digest_bytes = len(payload), len(digest)
    body = b"".join(
        (
            _ONE_ROW.pack(
                header.ledger_id, header.first_entry_id, header.last_add_confirmed, length, 0, payload_bytes
            ),
            payload, _PADS[payload_bytes & 7], _TWO_INTS.pack(0, digest_bytes), digest, _PADS[digest_bytes & 7],
        )
    )  # fmt: skip
    after = behind_header(1, payload_bytes, digest_bytes)
    return b"".join((PREFIX_START, header.encode(crc32c(body)), after, body))


def encode_entries(header: Header, entries: Sequence[Entry]) -> bytearray:
    """One batch frame from entries of one ledger with consecutive ids and unchanged digests."""
    ledger_ids, entry_ids, confirmed, lengths, payloads, digests = zip(*entries, strict=True)
    columns = [struct.pack(f"<{len(entries)}q", *numbers) for numbers in (ledger_ids, entry_ids, confirmed, lengths)]
    columns += (offsets_of(map(len, payloads)), offsets_of(map(len, digests)))
    return encode(header, columns, b"".join(payloads), b"".join(digests))


def with_header(frame: Buffer, header: Header) -> tuple[bytes, memoryview]:
    """The frame under another header, in two pieces to send in this order; the body is not copied."""
    view = memoryview(frame)
    packed = header.encode(_UNSIGNED.unpack_from(view, HEADER_OFFSET + 92)[0])
    head = b"".join((PREFIX_START, packed, view[HEADER_END:PREFIX_BYTES]))
    return head, view[PREFIX_BYTES:]


def put_header(frame: memoryview, header: Header) -> None:
    """Replace the header of a frame in place."""
    frame[HEADER_OFFSET:HEADER_END] = header.encode(_UNSIGNED.unpack_from(frame, HEADER_OFFSET + 92)[0])


class EntryBatch:
    """A view of one batch frame. It reads entries by raw offsets, without pyarrow, and copies on demand only.

    ``EntryBatch(frame)`` trusts the bytes, for example those of a bookie's own log after their checks. ``EntryBatch.checked``
    is for bytes from outside.
    """

    __slots__ = ("count", "first_entry_id", "frame")

    def __init__(self, frame: Buffer) -> None:
        self.frame = memoryview(frame)
        self.count: int = _LONG.unpack_from(self.frame, ROWS_OFFSET)[0]
        self.first_entry_id: int = _LONG.unpack_from(self.frame, PREFIX_BYTES + 8 * self.count)[0]

    @classmethod
    def checked(cls, frame: Buffer, header: Header, body_crc: int) -> EntryBatch:
        """The batch of ``frame``. Raises WireError unless the frame is exactly the output of ``encode`` for ``header``:
        checksum, sizes, ids, offsets."""
        view = memoryview(frame)
        body = view[PREFIX_BYTES:]
        if crc32c(body) != body_crc:
            raise WireError("body checksum does not match")
        first, last = header.first_entry_id, header.last_entry_id
        count, body_bytes = last - first + 1, len(body)
        if first < 0 or count < 1 or body_bytes < count * ENTRY_OVERHEAD_BYTES:
            raise WireError(f"entries {first}..{last} do not fit the batch")
        # A bookie runs this for every add, so the code is one straight line, and compares bytes instead of decoding numbers.
        if count == 1:
            return cls._checked_one(view, body, header)
        offsets_bytes = 4 * (count + 1)
        at_payload_offsets = PREFIX_BYTES + 32 * count
        (payload_bytes,) = _INT.unpack_from(view, at_payload_offsets + 4 * count)
        at_digest_offsets = at_payload_offsets + ((offsets_bytes + 7) & -8) + ((payload_bytes + 7) & -8)
        if payload_bytes < 0 or at_digest_offsets + offsets_bytes > len(view):
            raise WireError("payload offsets lie outside of the batch")
        (digest_bytes,) = _INT.unpack_from(view, at_digest_offsets + 4 * count)
        prefix = bytes(view[:PREFIX_BYTES])
        after = behind_header(count, payload_bytes, max(digest_bytes, 0))
        if prefix[:HEADER_OFFSET] != PREFIX_START or prefix[HEADER_END:] != after or digest_bytes < 0:
            raise WireError("the batch's Arrow message does not fit its sizes")
        if _LONG.unpack_from(prefix, BODY_LENGTH_OFFSET)[0] != body_bytes:
            raise WireError(f"a batch body of {body_bytes} bytes is not as long as its message says")
        if bytes(body[8 * count : 16 * count]) != consecutive(first, count):
            raise WireError(f"entry ids are not {first}..{last}")
        if bytes(body[: 8 * count]) != repeated(header.ledger_id, count):
            raise WireError(f"not all entries are of ledger {header.ledger_id}")
        if not all(
            ascends(view[at : at + offsets_bytes].cast("i"), total)
            for at, total in ((at_payload_offsets, payload_bytes), (at_digest_offsets, digest_bytes))
        ):
            raise WireError("offsets of a binary column do not ascend")
        batch = cls.__new__(cls)
        batch.frame, batch.count, batch.first_entry_id = view, count, first
        return batch

    @classmethod
    def _checked_one(cls, view: memoryview, body: memoryview, header: Header) -> EntryBatch:
        """``checked`` for a batch of one entry whose body checksum and least size are checked: the rest in two reads."""
        first, body_bytes = header.first_entry_id, len(body)
        ledger_id, entry_id, _, _, payload_start, payload_bytes = _ONE_ROW.unpack_from(body)
        at_digest_offsets = _ONE_ROW.size + ((payload_bytes + 7) & -8)
        if payload_bytes < 0 or at_digest_offsets + _TWO_INTS.size > body_bytes:
            raise WireError("payload offsets lie outside of the batch")
        digest_start, digest_bytes = _TWO_INTS.unpack_from(body, at_digest_offsets)
        prefix = bytes(view[:PREFIX_BYTES])
        after = behind_header(1, payload_bytes, max(digest_bytes, 0))
        if prefix[:HEADER_OFFSET] != PREFIX_START or prefix[HEADER_END:] != after or digest_bytes < 0:
            raise WireError("the batch's Arrow message does not fit its sizes")
        if at_digest_offsets + _TWO_INTS.size + ((digest_bytes + 7) & -8) != body_bytes:
            raise WireError(f"a batch body of {body_bytes} bytes is not as long as its message says")
        if ledger_id != header.ledger_id or entry_id != first:
            raise WireError(f"not entry {first} of ledger {header.ledger_id}")
        if payload_start or digest_start:
            raise WireError("offsets of a binary column do not ascend")
        batch = cls.__new__(cls)
        batch.frame, batch.count, batch.first_entry_id = view, 1, first
        return batch

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + self.count - 1

    @property
    def ledger_id(self) -> int:
        ledger_id: int = _LONG.unpack_from(self.frame, PREFIX_BYTES)[0]
        return ledger_id

    @property
    def length(self) -> int:
        """The ledger's payload bytes up to and including the last entry."""
        return self.column(3)[-1]

    def binary_columns(self) -> tuple[memoryview, memoryview, memoryview, memoryview]:
        """Payload offsets, payload, digest offsets and digest; offsets are views of i32."""
        body, count = self.frame[PREFIX_BYTES:], self.count
        size = 4 * (count + 1)
        padded = (size + 7) & -8
        at = 32 * count
        payload_offsets = body[at : at + size].cast("i")
        at += padded
        payload_bytes = payload_offsets[count]
        payload = body[at : at + payload_bytes]
        at += (payload_bytes + 7) & -8
        digest_offsets = body[at : at + size].cast("i")
        at += padded
        return payload_offsets, payload, digest_offsets, body[at : at + digest_offsets[count]]

    def column(self, index: int) -> memoryview:
        """A column of numbers, by its index in ``Entry``: 0 to 3."""
        start = PREFIX_BYTES + 8 * self.count * index
        return self.frame[start : start + 8 * self.count].cast("q")

    def entry(self, entry_id: int) -> Entry:
        """The entry of this id, which must be in the batch, copied."""
        if self.count == 1:
            return self._only_entry()
        # Five times as fast as through the columns.
        frame, count = self.frame, self.count
        at = PREFIX_BYTES + 8 * (entry_id - self.first_entry_id)
        ledger_id, confirmed, length = (_LONG.unpack_from(frame, at + 8 * count * column)[0] for column in (0, 2, 3))
        nth, offsets_bytes = 4 * (entry_id - self.first_entry_id), (4 * (count + 1) + 7) & -8
        at = PREFIX_BYTES + 32 * count
        found: list[bytes] = []
        for _ in ("payload", "digest"):
            start, stop = _TWO_INTS.unpack_from(frame, at + nth)
            (total,) = _INT.unpack_from(frame, at + 4 * count)
            at += offsets_bytes
            found.append(bytes(frame[at + start : at + stop]))
            at += (total + 7) & -8
        return Entry(ledger_id, entry_id, confirmed, length, *found)

    def entries(self, first: int | None = None, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first..last`` (default: all), copied."""
        if self.count == 1:
            return iter((self._only_entry(),))
        start = 0 if first is None else first - self.first_entry_id
        stop = self.count if last is None else last - self.first_entry_id + 1
        payload_offsets, payload, digest_offsets, digest = self.binary_columns()
        rows = zip(
            *(self.column(i)[start:stop] for i in range(4)),
            *(
                values(memoryview(from_zero(part)).cast("i"), data[part[0] : part[-1]].tobytes())
                for part, data in (
                    (payload_offsets[start : stop + 1], payload),
                    (digest_offsets[start : stop + 1], digest),
                )
            ),
            strict=True,
        )
        return map(new_entry, rows)

    def _only_entry(self) -> Entry:
        """The entry of a batch of one. Five times as fast as through the columns."""
        frame = self.frame
        ledger_id, entry_id, confirmed, length, _, payload_bytes = _ONE_ROW.unpack_from(frame, PREFIX_BYTES)
        at_payload = PREFIX_BYTES + _ONE_ROW.size
        at_digest = at_payload + ((payload_bytes + 7) & -8) + _TWO_INTS.size
        digest_bytes = _TWO_INTS.unpack_from(frame, at_digest - _TWO_INTS.size)[1]
        return Entry(
            ledger_id,
            entry_id,
            confirmed,
            length,
            bytes(frame[at_payload : at_payload + payload_bytes]),
            bytes(frame[at_digest : at_digest + digest_bytes]),
        )

    def payloads(self) -> Iterator[bytes] | Iterator[memoryview]:
        """The payload of each entry: a view, or a copy if short."""
        payload_offsets, payload, _, _ = self.binary_columns()
        return values(payload_offsets, payload)

    def contents(self) -> Iterator[tuple[int, int, bytes | memoryview]]:
        """(entry id, length, payload) of each entry; copies are equal if these are."""
        return zip(range(self.first_entry_id, self.last_entry_id + 1), self.column(3), self.payloads(), strict=True)

    def slice(self, first: int, last: int, header: Header) -> bytearray:
        """A new frame with the verbatim rows ``first..last`` under ``header``."""
        return encode(header, *self.columns(first, last))

    def columns(self, first: int, last: int) -> tuple[list[Buffer], memoryview, memoryview]:
        """The rows ``first..last`` as arguments of ``encode``: columns, payload, digest."""
        payload_offsets, payload, digest_offsets, digest = self.binary_columns()
        start, stop = first - self.first_entry_id, last - self.first_entry_id + 1
        columns: list[Buffer] = [self.column(i)[start:stop].cast("B") for i in range(4)]
        columns += (from_zero(offsets[start : stop + 1]) for offsets in (payload_offsets, digest_offsets))
        return (
            columns,
            payload[payload_offsets[start] : payload_offsets[stop]],
            digest[digest_offsets[start] : digest_offsets[stop]],
        )

    def to_arrow(self) -> pyarrow.RecordBatch:
        """The whole batch as an Arrow record batch with ``arrow_schema()``, on the frame's own memory."""
        import pyarrow

        return pyarrow.ipc.read_record_batch(pyarrow.py_buffer(self.frame), arrow_schema())


new_entry = cast(Callable[[Iterable[object]], Entry], partial(tuple.__new__, Entry))
"""``Entry._make`` without the cost of a Python call."""


@cache
def arrow_schema() -> pyarrow.Schema:
    """Columns ledger_id, entry_id, last_add_confirmed, length: int64; payload, digest: binary. No column is nullable."""
    with extra_needed("reading Arrow batches"):
        import pyarrow

    names = ("ledger_id", "entry_id", "last_add_confirmed", "length")
    fields = [pyarrow.field(name, pyarrow.int64(), nullable=False) for name in names]
    fields += [pyarrow.field(name, pyarrow.binary(), nullable=False) for name in ("payload", "digest")]
    return pyarrow.schema(fields)
