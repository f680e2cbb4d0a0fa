"""Bodies of control frames, for what does not fit into the header.

``Acks`` and ``Ranges`` are columns of numbers; the other bodies are JSON, by ``msgspec``.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from bookspark.store.wire.header import WireError

_COUNT = struct.Struct("<I")


class Acks:
    """Adds that are answered OK. Body: their request ids, u64 each. (An answer for each would cost both sides more than
    everything else about a small add.)"""

    @staticmethod
    def encode(request_ids: Iterable[int]) -> bytes:
        """The body."""
        return array("Q", request_ids).tobytes()

    @staticmethod
    def decode(body: memoryview) -> Sequence[int]:
        """The request ids. Raises WireError."""
        if len(body) % 8:
            raise WireError(f"{len(body)} bytes are no request ids")
        return body.cast("Q")


class Ranges(NamedTuple):
    """What a bookie holds, as columns of equal length. A row is a run of consecutive ids in one batch on disk.

    ``logs`` and ``positions`` tell where the batch lies (log number, position in bytes), ``sizes`` its bytes. Body: u32 row
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

    def append(self, row: tuple[int, int, int, int, int, int]) -> None:
        """Append a row, its values in the columns' order."""
        for column, value in zip(self, row, strict=True):
            column.append(value)

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
    """What a client says of itself in HELLO. With an empty body it says nothing."""

    client: str = ""
    """The client's name, for log lines and for test faults that hit one client only."""
    proof: bytes = b""
    """The proof that it knows the bookie's secret (see ``security``)."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Hello:
        try:
            return msgspec.json.decode(body, type=cls) if body else cls()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"the body of a HELLO: {error}") from error


class FetchFrom(msgspec.Struct):
    """Where a ``FETCH`` gets entries from."""

    bookie_id: str
    digest_type: str
    """The digests of the ledger, by the name that its metadata has for them."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> FetchFrom:
        try:
            return msgspec.json.decode(body, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"the body of a FETCH: {error}") from error


class HealingStatus(msgspec.Struct):
    """How far a bookie has brought back what a lossy boot lost."""

    ledgers: int
    """Number of ledgers that healing looks at."""
    ledgers_left: int
    """Number of these ledgers that are still to be looked at, or could not be healed yet."""
    entries_copied: int
    """Entries that were brought back, also those that ledger recovery wrote back."""
    bytes_copied: int
    """Payload bytes of these entries."""
    seconds: float
    """How long healing has run."""
    saw_all: bool = False
    """Every ledger was looked at once. Those that are left are tried again and again."""
    entries_lost: int = 0
    """Entries that belong here and that no bookie gives."""
    lost: list[tuple[int, int, int]] = []
    """Which these are: ledger id, first and last entry id of each range. The first hundred ranges."""

    @property
    def seconds_left(self) -> float | None:
        """How long healing will still run at its present speed, in seconds. None if no ledger is done yet."""
        done = self.ledgers - self.ledgers_left
        return self.seconds / done * self.ledgers_left if done else None


class CollectionStatus(msgspec.Struct):
    """The last garbage collection of a bookie that is over, since its start."""

    number: int
    """Collections are counted from 1 at each start."""
    ledgers: int
    """Deleted ledgers that were forgotten."""
    bytes_freed: int
    """What the disks got back, less what rewriting took."""
    seconds: float
    problem: str = ""
    """Why it did not come to its end, or which ledgers it could not judge; "": neither."""


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
    """The number of the last such boot of which everything is back."""
    limbo_ledgers: int = 0
    """Ledgers in limbo: entries of them may be missing, so absence proves nothing."""
    failed_directories: dict[str, str] = {}
    """The directories that are not in use, and why."""
    full_directories: dict[str, str] = {}
    """The directories that do not take every add, and why, with what to do about it."""
    read_errors: dict[str, int] = {}
    """How many batches the disk of a directory could not read since the start, for those that had any."""
    lost_copies: int = 0
    """How many copies of batches were found unreadable since the start."""
    lacking_ledgers: int = 0
    """Ledgers of which entries were lost here that are not all back yet."""
    scrub_part: float = 0.0
    """How much of the scrub's round is done, 0 to 1."""
    scrub_began_ms: int = 0
    """When the round began, in ms since 1970. 0: nothing was scrubbed yet."""
    scrub_finished_ms: int = 0
    """When the last whole round ended, in ms since 1970. 0: none did yet."""
    scrub_dead_bytes: int = 0
    """Damaged bytes of logs that hold no entry any more, as the scrub found them since the start. Nothing is lost by them."""
    renewed_files: int = 0
    """How many control logs, checkpoints, notes, markers and cookies were damaged and written anew since the start."""
    healing: HealingStatus | None = None
    """The healing of the last lossy boot, while this process heals it and afterwards. None: this process does not heal."""
    reasons: list[str] = []
    """Why the bookie does not take every add in every directory, and what to do about it: a sentence for each reason."""
    keeper: str = ""
    """Who looks after the bookie's process; "": nobody does."""
    stops_in_seconds: float | None = None
    """When the bookie stops if nobody comes to look after it, in seconds from now. None: somebody looks after it."""
    collection: CollectionStatus | None = None
    """The last garbage collection. None: there was none since the start."""
    version: str = ""
    """The version of Bookspark that the process runs. Empty: one that did not tell it yet."""
    metrics_address: str = ""
    """``host:port`` where Prometheus and probes are answered; "": nowhere."""
    sync_seconds: dict[str, float] = {}
    """How long a sync that adds wait for takes lately, by directory: the median of the last ones, or the time of one that hangs.
    Directories that were synced less than three times in the last minute are left out."""
    clock_ms: int = 0
    """What the clock of the bookie's host tells, in ms since 1970. 0: a version that did not tell it yet."""


class EntryLogFacts(msgspec.Struct, frozen=True, array_like=True):
    """One log of a bookie. Sizes in bytes."""

    number: int
    path: str
    size: int
    synced: int
    """Every byte below this position is durable."""
    sealed: bool
    """Nothing is appended to it any more."""
    rewritten: bool
    """It was made from other logs: sorted, compressed, and without deleted ledgers."""


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


for _kind in (Hello, FetchFrom, BookieStatus, EntryLogs, Limbo):
    # msgspec learns the types now, at import: two threads that make it learn the same type at once crash the process.
    msgspec.json.Decoder(_kind)
