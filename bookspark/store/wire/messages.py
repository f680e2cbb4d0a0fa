"""Bodies of control frames, for fields without room in the header.

``Acks`` and ``Ranges`` are columns of numbers; the other bodies are JSON, by ``msgspec``.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self, TypeVar

import msgspec

from bookspark.store.wire.header import WireError

_COUNT = struct.Struct("<I")
Message = TypeVar("Message")


def decoded(body: bytes | memoryview, kind: type[Message]) -> Message:
    """A JSON body from another process. Raises WireError if it is no such message, also if it is nested too deep."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"a body that is no {kind.__name__}: {error}") from error


class Acks:
    """Adds answered OK together. Body: their request ids, u64 each. (Single answers would cost more than all other work on a
    small add.)"""

    @staticmethod
    def encode(request_ids: Iterable[int]) -> bytes:
        return array("Q", request_ids).tobytes()

    @staticmethod
    def decode(body: memoryview) -> Sequence[int]:
        """The request ids. Raises WireError."""
        if len(body) % 8:
            raise WireError(f"{len(body)} bytes are no request ids")
        return body.cast("Q")


class Ranges(NamedTuple):
    """Held entries, as columns of equal length. A row is a run of consecutive ids in one batch on disk.

    ``logs`` and ``positions`` locate the batch (log number, position in bytes), ``sizes`` its bytes. Body: u32 row count, 4
    bytes of zeros, then the six i64 columns one after the other.
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


class _Body(msgspec.Struct):
    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Self:
        """Raises WireError."""
        return decoded(body, cls)


class Hello(_Body):
    """The client's introduction in HELLO. An empty body stands for the defaults."""

    client: str = ""
    """The client's name, for log lines and for test faults against a single client. A client with a secret sends it with its
    proof."""
    nonce: bytes = b""
    """32 random bytes: asks the bookie to prove a secret (see ``security``)."""
    proof: bytes = b""
    """The client's proof of the secret that the bookie proved."""

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Hello:
        return decoded(body, cls) if body else cls()


class Challenge(_Body):
    """The answer UNAUTHORIZED to a HELLO with a nonce: the bookie's proofs, and its question for the client's."""

    bookie_id: str
    address: str
    """``host:port`` that the bookie advertises."""
    nonce: bytes
    """32 random bytes."""
    proofs: list[bytes]
    """A proof by each of the bookie's secrets."""

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Challenge:
        try:
            return msgspec.json.decode(body, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"the body of a challenge: {error}") from error


class FetchFrom(_Body):
    """The source of a ``FETCH``."""

    bookie_id: str
    digest_type: str
    """The ledger's digest type, by its name in the metadata."""


class HealingStatus(msgspec.Struct):
    """Progress of a bookie in restoring the losses of a lossy boot."""

    ledgers: int
    """Ledgers that healing examines."""
    ledgers_left: int
    """Ledgers of these that are not examined yet, or could not be healed yet."""
    entries_copied: int
    """Restored entries, including those written back by ledger recovery."""
    bytes_copied: int
    seconds: float
    saw_all: bool = False
    """Every ledger was examined once. Ledgers that are left are retried."""
    entries_lost: int = 0
    """Entries that belong here but that no bookie can supply."""
    lost: list[tuple[int, int, int]] = []
    """The lost entries: ledger id, first and last entry id of each range. The first hundred ranges."""

    @property
    def seconds_left(self) -> float | None:
        """Estimate of the remaining seconds at the present speed. None if no ledger is done yet."""
        done = self.ledgers - self.ledgers_left
        return self.seconds / done * self.ledgers_left if done else None


class CollectionStatus(msgspec.Struct):
    """The last finished garbage collection of a bookie since its start."""

    number: int
    """Collections are counted from 1 at each start."""
    ledgers: int
    bytes_freed: int
    """Disk space gained, less the space used by rewriting."""
    seconds: float
    problem: str = ""
    """Why it was not finished, or the ledgers that it could not judge; "": neither."""
    copies: int = 0
    """Ledgers of which copies were forgotten that the metadata did not name."""


class BookieStatus(msgspec.Struct):
    """A bookie's status, the answer to ``STATUS``. Sizes in bytes."""

    bookie_id: str
    incarnation: int
    pid: int
    directories: list[str]
    ledgers: int
    log_bytes: int
    free_bytes: int
    read_only: bool = False
    lossy_boot: int = 0
    """The last boot that may have lost entries; 0: none."""
    healed_boot: int = 0
    """The last lossy boot whose losses are all restored."""
    limbo_ledgers: int = 0
    """Ledgers in limbo: entries may be missing, so absence proves nothing."""
    failed_directories: dict[str, str] = {}
    """Unused directories, with the reason."""
    full_directories: dict[str, str] = {}
    """Directories that refuse some adds, with the reason and the remedy."""
    read_errors: dict[str, int] = {}
    """Batches that a directory's disk could not read since the start, for directories with such errors."""
    unread_logs: list[str] = []
    """Logs that the disk could not read as a whole at the start. Entries that may lie there are unknown until they are back."""
    unread_copies: int = 0
    """Copies of batches that the disks can't read now. They may be good, and are read again."""
    lost_copies: int = 0
    """Copies of batches that proved damaged since the start."""
    lacking_ledgers: int = 0
    """Ledgers with entries lost here and not all restored yet."""
    scrub_part: float = 0.0
    """Finished part of the scrub's round, 0 to 1."""
    scrub_began_ms: int = 0
    """Start of the round, in ms since 1970, by the metadata store's clock. 0: no round yet."""
    scrub_finished_ms: int = 0
    """End of the last whole round, in ms since 1970. 0: none yet."""
    scrub_dead_bytes: int = 0
    """Damaged log bytes without live entries, counted by the scrub since the start. They are no loss."""
    renewed_files: int = 0
    """Control logs, checkpoints, notes, markers and cookies that were damaged and rewritten since the start."""
    healing: HealingStatus | None = None
    """The healing of the last lossy boot, during and after it. None: this process does not heal."""
    reasons: list[str] = []
    """Why the bookie refuses some adds in some directory, with the remedy: a sentence for each reason."""
    keeper: str = ""
    """The keeper of the bookie's process; "": none."""
    stops_in_seconds: float | None = None
    """Seconds until the bookie stops for lack of a keeper. None: it has a keeper."""
    collection: CollectionStatus | None = None
    """None: none since the start."""
    version: str = ""
    """Version of Bookspark. Empty: a version older than this field."""
    metrics_address: str = ""
    """``host:port`` of metrics and probes; "": none."""
    sync_seconds: dict[str, float] = {}
    """Recent duration of a sync that adds wait for, by directory: the median of the last syncs, or the age of one that hangs.
    A directory needs three syncs in the last minute."""
    read_only_by_change: bool = False
    """A change of the cluster made it read-only, not an operator's own switch."""
    change_order: int = 0
    """Highest order of a change that it obeyed; it refuses lower ones. 0: none."""
    store_ms: int = 0
    """The metadata store's time at the answer, in ms since 1970, not later than it was. 0: the bookie does not know it."""
    clock_ahead_ms: int = 0
    """Least lead of the clock of the bookie's host over the metadata store's; below 0: least lag."""
    certificate_ends: dict[str, int] = {}
    """End of the certificates in use, in ms since 1970, by option: ``tls_certificate``, the first of its file; ``tls_client_ca``,
    the last of its file."""


class EntryLogFacts(msgspec.Struct, frozen=True, array_like=True):
    """One log of a bookie. Sizes in bytes."""

    number: int
    path: str
    size: int
    synced: int
    """Every byte below this position is durable."""
    sealed: bool
    rewritten: bool
    """Made from other logs: sorted, compressed, and without deleted ledgers."""


class EntryLogs(_Body):
    """The answer to ``ENTRY_LOGS``: every log with readable entries, by number."""

    logs: list[EntryLogFacts]


class Limbo(_Body):
    """The answer to ``LIMBO``: ledgers in ascending order, each with the lossy boot of its limbo."""

    ledgers: list[tuple[int, int]]


for _kind in (Hello, Challenge, FetchFrom, BookieStatus, EntryLogs, Limbo):
    # Prepare msgspec's types at import: two threads that prepare the same type at once crash the process.
    msgspec.json.Decoder(_kind)
