"""Digests: a writer puts one on each entry, so that every reader can tell whether the entry is what was written.

Law: a digest covers (ledger, entry, LAC, length, payload) as they stand in the entry's row, so the digest of a copied row stays
valid. The writer makes it, each reader checks it, and a bookie does neither. Two keys come from the password: the *master key* is
shown to bookies and kept in the metadata; the MAC key never leaves the clients. LAC: last add confirmed.

The digests of BookKeeper's own clients (``BOOKKEEPER_…``) cover the same row in big-endian, are big-endian themselves, and have
keys of their own (``bookkeeper_keys``). So the bytes (row, digest, payload) are the entry's body as those clients send it.

The CRC32C digests of a whole batch are checked by one sum, where its payloads are of one size, short and many. CRC32C(M) is, but
for a constant of M's length, the remainder of the polynomial M·x³² modulo P. So row + payload + digest has the same remainder for
every good entry of that size. The sum of all of these, each times the power of x that moves it behind those before it, is the
remainder of one long message: the payloads as they lie in the batch, and over them rows and digests at their places. A power of x
has an inverse modulo P, so one bad entry always changes the sum, and several bad ones leave it as it is once in 2³² times, as any
CRC32C does. If the sum is another one, each entry is checked by itself.

Source: BookKeeper's ``DigestManager`` and ``MacDigestManager``. HMAC_SHA1 has their algorithm, but our row and key.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from operator import concat
from typing import Literal
from zlib import crc32

from crc32c import crc32c

from bookspark.errors import DigestMismatchError
from bookspark.protocol.ledger.bookkeeper_keys import bookkeeper_mac_key, bookkeeper_master_key, kept_key
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.store.wire.columns import Buffer, Heads, equal_offsets, rows, size_of_each
from bookspark.store.wire.entry_batch import Entry, EntryBatch

_ROW = struct.Struct("<qqqq")
_BOOKKEEPERS_ROW = struct.Struct(">qqqq")
_SUM = struct.Struct("<I")
_WITH_PASSWORD = frozenset((DigestType.HMAC, DigestType.HMAC_SHA1, DigestType.BOOKKEEPER_HMAC))
_JOINED_BYTES_MAX = 2048
"""Payloads up to about this size are copied behind their rows: a second call for each would cost more."""
_ROW_BYTES = _ROW.size
_FOLDED_BYTES_MAX = 4096
_FOLDED_MIN = 16
"""Batches of at least so many payloads of at most so many bytes are checked by one sum. Others are quicker one by one."""
_KEPT_BYTES_MAX = 1 << 20


def master_key(password: bytes, digest_type: DigestType = DigestType.CRC32C) -> bytes:
    """16 bytes that prove knowledge of ``password`` to a bookie."""
    if digest_type.bookkeepers:
        return kept_key(bookkeeper_master_key(password))
    return hashlib.sha256(b"bookspark ledger\0" + password).digest()[:16]


class Digester:
    """The digest function of a ledger; ``size`` is that of each of its digests, in bytes."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: Buffer) -> bytes:
        """The digest of one row."""
        row = (ledger_id, entry_id, last_add_confirmed, length)
        return self.column([number.to_bytes(8, "little", signed=True) for number in row], (payload,))

    def column(self, columns: Sequence[Buffer], payloads: Iterable[Buffer], heads: Heads | None = None) -> bytes:
        """The digests of many rows, one after the other. ``columns`` are the bytes of ledger_id, entry_id, last_add_confirmed and
        length, i64 × n each. ``heads``: what comes first in each payload, if ``payloads`` have it not."""
        return b""

    def all_match(self, batch: EntryBatch) -> bool:
        """Do all entries carry their digests? To check them together is ten times as quick as one by one."""
        _, _, offsets, digests = batch.binary_columns()
        if offsets.tobytes() != equal_offsets(batch.count, self.size):
            return False
        return hmac.compare_digest(self.column(_numbers(batch), batch.payloads()), digests)


class _Checksum(Digester):
    def __init__(self, checksum: Callable[..., int]) -> None:
        """``checksum(data, start)``: ``start`` is the checksum of what comes before ``data``."""
        super().__init__(_SUM.size)
        self._checksum = checksum

    def __call__(self, ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: Buffer) -> bytes:
        # Four times as quick as ``column`` with one row.
        checksum = self._checksum
        return _SUM.pack(checksum(payload, checksum(_ROW.pack(ledger_id, entry_id, last_add_confirmed, length), 0)))

    def column(self, columns: Sequence[Buffer], payloads: Iterable[Buffer], heads: Heads | None = None) -> bytes:
        """The digests of many rows. All of it runs in C, and costs some 0.3 µs a row."""
        lengths = memoryview(columns[-1]).cast("q")
        first = _with_heads(columns, heads)
        if lengths[-1] - lengths[0] <= _JOINED_BYTES_MAX * len(lengths):
            sums = tuple(map(self._checksum, map(concat, first, payloads)))
        else:
            sums = tuple(map(self._checksum, payloads, map(self._checksum, first, repeat(0))))
        return struct.pack(f"<{len(sums)}I", *sums)


class _Crc32c(_Checksum):
    def __init__(self) -> None:
        super().__init__(crc32c)

    def all_match(self, batch: EntryBatch) -> bool:
        count = batch.count
        offsets, payload, digest_offsets, digests = batch.binary_columns()
        size = size_of_each(offsets, len(payload)) if count >= _FOLDED_MIN else None
        if size is None or size % _SUM.size or not _ROW_BYTES + self.size <= size <= _FOLDED_BYTES_MAX:
            return super().all_match(batch)
        if digest_offsets.tobytes() != equal_offsets(count, self.size):
            return False
        return _folded(_numbers(batch), payload, digests, count, size) == _folded_if_good(count, size)


def _with_heads(columns: Sequence[Buffer], heads: Heads | None) -> Iterator[bytes]:
    """What a digest covers before each payload: its row, and the payload's head."""
    return rows(columns) if heads is None else rows((*columns, *heads.columns), _ROW_BYTES + heads.size)


def _numbers(batch: EntryBatch) -> list[memoryview]:
    return [batch.column(index).cast("B") for index in range(4)]


def _folded(columns: Sequence[Buffer], payload: Buffer, digests: Buffer, count: int, size: int) -> int:
    """One CRC32C over all rows, payloads of ``size`` bytes and digests (see above). A row ends where its payload begins, and a
    digest begins where its payload ends, so that rows and digests lie over other entries' payloads. Both are summed up apart."""
    over = _over.of(count, size)
    parts = over.parts
    numbers = [memoryview(column).cast(over.unit) for column in columns]
    for index, place in enumerate(over.rows):
        place[:] = numbers[index // parts][index % parts :: parts]
    over.digests[:] = memoryview(digests).cast("i")
    return crc32c(over.memory) ^ crc32c(bytes(_SUM.size), crc32c(payload))


class _Places:
    """Memory for what lies over ``count`` payloads of ``size`` bytes each, with zeros but at the places of rows and digests."""

    def __init__(self, count: int, size: int) -> None:
        self.memory = bytearray((count + 1) * size + _SUM.size)
        view = memoryview(self.memory)
        step = size // _SUM.size
        self.digests = view.cast("i")[2 * step :: step]
        self.unit: Literal["q", "i"] = "q" if size % 8 == 0 else "i"
        width = 8 if self.unit == "q" else 4
        self.parts = 8 // width
        """A number of a row is so many units."""
        first, step = size - _ROW_BYTES, size // width
        units = view[first : first + count * size].cast(self.unit)
        self.rows = [units[at : (count - 1) * step + at + 1 : step] for at in range(4 * self.parts)]
        """Of each unit of a row its places, n of them."""


class _Over(threading.local):
    """A thread's memory for what lies over payloads. Each use with the same numbers writes the same places, and what is between
    them stays zero: to make it and clear it took a tenth of a check."""

    def __init__(self) -> None:
        self._shape = (0, 0)
        self._places: _Places

    def of(self, count: int, size: int) -> _Places:
        """The memory for ``count`` payloads of ``size`` bytes each."""
        if self._shape == (count, size):
            return self._places
        places = _Places(count, size)
        if len(places.memory) <= _KEPT_BYTES_MAX:
            self._shape, self._places = (count, size), places
        return places


_over = _Over()


@lru_cache(maxsize=64)
def _folded_if_good(count: int, size: int) -> int:
    """What ``_folded`` is of good entries: that of entries of zeros."""
    digest = _SUM.pack(crc32c(bytes(_ROW_BYTES + size)))
    return _folded([bytes(8 * count)] * 4, bytes(count * size), digest * count, count, size)


class _Mac(Digester):
    def __init__(self, password: bytes, algorithm: str) -> None:
        self._keyed = hmac.new(hashlib.sha256(b"bookspark mac\0" + password).digest(), digestmod=algorithm)
        super().__init__(self._keyed.digest_size)

    def column(self, columns: Sequence[Buffer], payloads: Iterable[Buffer], heads: Heads | None = None) -> bytes:
        return b"".join(map(self._one, _with_heads(columns, heads), payloads))

    def _one(self, row: bytes, payload: Buffer) -> bytes:
        running = self._keyed.copy()
        running.update(row)
        running.update(payload)
        return running.digest()


class _BookKeepers(Digester):
    """A digest of BookKeeper's own clients. ``make(row, payload)`` is the digest."""

    def __init__(self, size: int, make: Callable[[bytes, Buffer], bytes]) -> None:
        super().__init__(size)
        self.of_row = make

    def __call__(self, ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: Buffer) -> bytes:
        return self.of_row(_BOOKKEEPERS_ROW.pack(ledger_id, entry_id, last_add_confirmed, length), payload)

    def column(self, columns: Sequence[Buffer], payloads: Iterable[Buffer], heads: Heads | None = None) -> bytes:
        """The digests of many rows."""
        big = map(_BOOKKEEPERS_ROW.pack, *(memoryview(column).cast("B").cast("q") for column in columns))
        if heads is not None:
            big = map(bytes.__add__, big, heads.each())
        return b"".join(map(self.of_row, big, payloads))


def _bookkeepers(digest_type: DigestType, password: bytes) -> Digester:
    if digest_type is DigestType.BOOKKEEPER_CRC32C:
        return _BookKeepers(4, lambda row, payload: struct.pack(">I", crc32c(payload, crc32c(row))))
    if digest_type is DigestType.BOOKKEEPER_CRC32:
        return _BookKeepers(8, lambda row, payload: struct.pack(">Q", crc32(payload, crc32(row))))
    keyed = hmac.new(bookkeeper_mac_key(password), digestmod="sha1")

    def mac(row: bytes, payload: Buffer) -> bytes:
        running = keyed.copy()
        running.update(row)
        running.update(payload)
        return running.digest()

    return _BookKeepers(keyed.digest_size, mac)


def digester(digest_type: DigestType, password: bytes) -> Digester:
    """The digest function of a ledger. ``password`` counts for the HMAC types only."""
    if digest_type in (DigestType.DUMMY, DigestType.BOOKKEEPER_DUMMY):
        return Digester(0)
    if digest_type.bookkeepers:
        return _bookkeepers(digest_type, password)
    if digest_type is DigestType.CRC32C:
        return _Crc32c()
    if digest_type is DigestType.CRC32:
        return _Checksum(crc32)
    return _Mac(password, "sha256" if digest_type is DigestType.HMAC else "sha1")


def digester_without_password(digest_type: DigestType) -> Digester | None:
    """The digest function of a ledger, for repair, which does not know the password. None if the digest needs one."""
    return None if digest_type in _WITH_PASSWORD else digester(digest_type, b"")


def bookkeepers_digest_of_row(digest_type: DigestType) -> Callable[[bytes, Buffer], bytes] | None:
    """What makes the digest of a row, as BookKeeper's clients send it, and its payload. None if that takes the password, or if
    there is none."""
    found = digester_without_password(digest_type)
    return found.of_row if isinstance(found, _BookKeepers) else None


def check(entry: Entry, digest: Digester) -> None:
    """Raise DigestMismatchError unless the entry carries the digest of its own content."""
    expected = digest(entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length, entry.payload)
    if not hmac.compare_digest(expected, entry.digest):
        raise DigestMismatchError(
            f"ledger {entry.ledger_id}, entry {entry.entry_id}: the digest does not match; the entry was damaged, "
            "or the digest type or password is not the writer's"
        )


def first_mismatch(batch: EntryBatch, digest: Digester) -> int | None:
    """The id of the first entry in the batch that does not carry the digest of its own content, None if all do."""
    if batch.count > 1 and digest.all_match(batch):
        return None
    for entry in batch.entries():
        try:
            check(entry, digest)
        except DigestMismatchError:
            return entry.entry_id
    return None
