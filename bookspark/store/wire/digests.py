"""Digests: the writer's stamp on each entry, by which every reader detects a changed entry.

Law: a digest covers (ledger, entry, LAC, length, payload) as in the entry's row, so the digest of a copied row stays valid.
The writer makes it, each reader checks it, and a bookie does neither. The password yields two keys: the *master key* goes to
bookies and into the metadata; the MAC key never leaves the clients. LAC: last add confirmed.

The digests of BookKeeper's own clients (``BOOKKEEPER_…``) cover the same row in big-endian, are big-endian themselves, and
have their own keys (``bookkeeper_keys``). So the bytes (row, digest, payload) are the entry's body as those clients send it.

One sum checks the CRC32C digests of a batch if its payloads are of one size, short and many. Up to a constant of M's length,
CRC32C(M) is the remainder of the polynomial M·x³² modulo P. So row + payload + digest has the same remainder for every good
entry of that size. Each is multiplied by the power of x that moves it behind its predecessors; the sum is the remainder of one
long message, the batch's payloads overlaid with rows and digests at their places. A power of x has an inverse modulo P, so one
bad entry always changes the sum. Several bad entries cancel out once in 2³² times, as in any CRC32C. If the sum differs, each
entry is checked alone.

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
"""One sum checks batches of at least _FOLDED_MIN payloads of at most _FOLDED_BYTES_MAX bytes. Other batches are faster entry
by entry."""
_KEPT_BYTES_MAX = 1 << 20


def master_key(password: bytes, digest_type: DigestType = DigestType.CRC32C) -> bytes:
    """16 bytes that prove knowledge of ``password`` to a bookie."""
    if digest_type.bookkeepers:
        return kept_key(bookkeeper_master_key(password))
    return hashlib.sha256(b"bookspark ledger\0" + password).digest()[:16]


class Digester:
    """The digest function of a ledger. ``size``: bytes of each digest."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: Buffer) -> bytes:
        """The digest of one row."""
        row = (ledger_id, entry_id, last_add_confirmed, length)
        return self.column([number.to_bytes(8, "little", signed=True) for number in row], (payload,))

    def column(self, columns: Sequence[Buffer], payloads: Iterable[Buffer], heads: Heads | None = None) -> bytes:
        """The digests of many rows, concatenated. ``columns``: the bytes of ledger_id, entry_id, last_add_confirmed and
        length, i64 × n each. ``heads``: the first bytes of each payload, if ``payloads`` lack them."""
        return b""

    def all_match(self, batch: EntryBatch) -> bool:
        """True if all entries carry their digests. Ten times as fast as entry by entry."""
        _, _, offsets, digests = batch.binary_columns()
        if offsets.tobytes() != equal_offsets(batch.count, self.size):
            return False
        return hmac.compare_digest(self.column(_numbers(batch), batch.payloads()), digests)


class _Checksum(Digester):
    def __init__(self, checksum: Callable[..., int]) -> None:
        """``checksum(data, start)``: ``start`` is the checksum of the bytes before ``data``."""
        super().__init__(_SUM.size)
        self._checksum = checksum

    def __call__(self, ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: Buffer) -> bytes:
        # Four times as fast as ``column`` with one row.
        checksum = self._checksum
        return _SUM.pack(checksum(payload, checksum(_ROW.pack(ledger_id, entry_id, last_add_confirmed, length), 0)))

    def column(self, columns: Sequence[Buffer], payloads: Iterable[Buffer], heads: Heads | None = None) -> bytes:
        """The digests of many rows, computed in C: some 0.3 µs a row."""
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
    """The bytes that a digest covers before each payload: its row, and the payload's head."""
    return rows(columns) if heads is None else rows((*columns, *heads.columns), _ROW_BYTES + heads.size)


def _numbers(batch: EntryBatch) -> list[memoryview]:
    return [batch.column(index).cast("B") for index in range(4)]


def _folded(columns: Sequence[Buffer], payload: Buffer, digests: Buffer, count: int, size: int) -> int:
    """One CRC32C over all rows, payloads of ``size`` bytes and digests (see the module's docstring). A row ends where its
    payload begins, and a digest begins where it ends, so both overlap other entries' payloads: they are summed apart."""
    over = _over.of(count, size)
    parts = over.parts
    numbers = [memoryview(column).cast(over.unit) for column in columns]
    for index, place in enumerate(over.rows):
        place[:] = numbers[index // parts][index % parts :: parts]
    over.digests[:] = memoryview(digests).cast("i")
    return crc32c(over.memory) ^ crc32c(bytes(_SUM.size), crc32c(payload))


class _Places:
    """The overlay of ``count`` payloads of ``size`` bytes each: zeros except at the places of rows and digests."""

    def __init__(self, count: int, size: int) -> None:
        self.memory = bytearray((count + 1) * size + _SUM.size)
        view = memoryview(self.memory)
        step = size // _SUM.size
        self.digests = view.cast("i")[2 * step :: step]
        self.unit: Literal["q", "i"] = "q" if size % 8 == 0 else "i"
        width = 8 if self.unit == "q" else 4
        self.parts = 8 // width
        """Units of each number of a row."""
        first, step = size - _ROW_BYTES, size // width
        units = view[first : first + count * size].cast(self.unit)
        self.rows = [units[at : (count - 1) * step + at + 1 : step] for at in range(4 * self.parts)]
        """For each unit of a row its n places."""


class _Over(threading.local):
    """A thread's overlay, reused for the same shape: each use writes the same places. Its allocation and clearing took a tenth
    of a check."""

    def __init__(self) -> None:
        self._shape = (0, 0)
        self._places: _Places

    def of(self, count: int, size: int) -> _Places:
        """The overlay of ``count`` payloads of ``size`` bytes each."""
        if self._shape == (count, size):
            return self._places
        places = _Places(count, size)
        if len(places.memory) <= _KEPT_BYTES_MAX:
            self._shape, self._places = (count, size), places
        return places


_over = _Over()


@lru_cache(maxsize=64)
def _folded_if_good(count: int, size: int) -> int:
    """The result of ``_folded`` for good entries, computed with entries of zeros."""
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
    """A digest of BookKeeper's own clients. ``make(row, payload)`` computes it."""

    def __init__(self, size: int, make: Callable[[bytes, Buffer], bytes]) -> None:
        super().__init__(size)
        self.of_row = make

    def __call__(self, ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: Buffer) -> bytes:
        return self.of_row(_BOOKKEEPERS_ROW.pack(ledger_id, entry_id, last_add_confirmed, length), payload)

    def column(self, columns: Sequence[Buffer], payloads: Iterable[Buffer], heads: Heads | None = None) -> bytes:
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
    """The digest function of a ledger. Only the HMAC types use ``password``."""
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
    """The digest function of a ledger, for repair, which lacks the password. None if the digest needs the password."""
    return None if digest_type in _WITH_PASSWORD else digester(digest_type, b"")


def bookkeepers_digest_of_row(digest_type: DigestType) -> Callable[[bytes, Buffer], bytes] | None:
    """The function (row, payload) → digest for rows as BookKeeper's clients send them. None if it needs the password, or the
    digest type isn't BookKeeper's or is BOOKKEEPER_DUMMY."""
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
    """The id of the first entry of the batch with a wrong digest; None if all match."""
    if batch.count > 1 and digest.all_match(batch):
        return None
    for entry in batch.entries():
        try:
            check(entry, digest)
        except DigestMismatchError:
            return entry.entry_id
    return None
