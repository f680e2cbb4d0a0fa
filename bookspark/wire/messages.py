"""Bodies of control frames, where the header is not enough: JSON by ``msgspec``; ``Acks`` and ``Ranges`` are columns."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from bookspark.wire.header import WireError

_COUNT = struct.Struct("<I")


class Acks:
    """Adds that are OK. Body: their request ids, u64 each. An answer each would cost either side more than all the rest of a
    small add."""

    @staticmethod
    def encode(request_ids: Iterable[int]) -> bytes:
        return array("Q", request_ids).tobytes()

    @staticmethod
    def decode(body: memoryview) -> Sequence[int]:
        """Raises WireError."""
        if len(body) % 8:
            raise WireError(f"{len(body)} bytes are no request ids")
        return body.cast("Q")


class Ranges(NamedTuple):
    """What a bookie holds, as columns of equal length: one row a run of consecutive ids in one batch on disk.

    ``logs`` and ``positions`` are the location (entry log number, byte offset), ``sizes`` the batch's bytes. Body: u32 row
    count, 4 bytes of zeros, then the six i64 columns one after the other.
    """

    ledger_ids: array[int]
    first_entry_ids: array[int]
    last_entry_ids: array[int]
    logs: array[int]
    positions: array[int]
    sizes: array[int]

    @classmethod
    def empty(cls) -> Ranges:
        return cls(*(array("q") for _ in range(6)))

    def encode(self) -> bytes:
        return b"".join((_COUNT.pack(len(self.ledger_ids)), bytes(4), *(column.tobytes() for column in self)))

    @classmethod
    def decode(cls, body: memoryview) -> Ranges:
        count = _COUNT.unpack_from(body, 0)[0] if len(body) >= 8 else -1
        if len(body) != 8 + 48 * count:
            raise WireError(f"{len(body)} bytes are not {count} ranges")
        columns = (array("q", body[8 + 8 * count * i : 8 + 8 * count * (i + 1)].cast("q")) for i in range(6))
        return cls(*columns)


class Hello(msgspec.Struct):
    """What a client says of itself in HELLO; a body may be empty, then nothing was said."""

    client: str = ""
    """Its name, for people who look for it in logs, and for faults that are meant for one client."""
    proof: bytes = b""
    """That it knows the bookie's secret (see ``security``)."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Hello:
        try:
            return msgspec.json.decode(body, type=cls) if body else cls()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"the body of a HELLO: {error}") from error


class HealingStatus(msgspec.Struct):
    """How far a bookie is with bringing back what a lossy boot lost: the attempt of now, and what was copied since it began."""

    ledgers: int
    """All that are looked at, and those among them that are still to be, or could not be healed yet."""
    ledgers_left: int
    entries_copied: int
    """With what ledger recovery wrote back."""
    bytes_copied: int
    seconds: float

    @property
    def seconds_left(self) -> float | None:
        """If it goes on as it did; None if there is nothing to tell it from."""
        done = self.ledgers - self.ledgers_left
        return self.seconds / done * self.ledgers_left if done else None


class BookieStatus(msgspec.Struct):
    """What ``STATUS`` tells of a bookie. Sizes in bytes."""

    bookie_id: str
    incarnation: int
    pid: int
    directories: list[str]
    ledgers: int
    log_bytes: int
    free_bytes: int
    read_only: bool = False
    lossy_boot: int = 0
    """The number of the last boot after which entries may have been lost; 0: there was none."""
    healed_boot: int = 0
    """The last such boot of which everything is back."""
    limbo_ledgers: int = 0
    """Ledgers that entries may be missing of, and that absence proves nothing of."""
    healing: HealingStatus | None = None
    """Of the last lossy boot, while this process heals it, and afterwards."""


class EntryLogFacts(msgspec.Struct, frozen=True, array_like=True):
    """One log of a bookie. Sizes in bytes."""

    number: int
    path: str
    size: int
    synced: int
    """Below it every byte is durable."""
    sealed: bool
    """Nothing is appended to it any more."""
    rewritten: bool
    """It was made of other logs: sorted, compressed, without what had been deleted by then."""


class EntryLogs(msgspec.Struct):
    """What ``ENTRY_LOGS`` tells: every log that entries are read from, by number."""

    logs: list[EntryLogFacts]

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


class Limbo(msgspec.Struct):
    """What ``LIMBO`` tells: ledgers, ascending, and the lossy boot that each is in limbo for."""

    ledgers: list[tuple[int, int]]

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


for _kind in (Hello, BookieStatus, EntryLogs, Limbo):
    # Learnt now: two threads that have msgspec learn the same type at once crash the process.
    msgspec.json.Decoder(_kind)
