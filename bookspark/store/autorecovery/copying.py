"""The driver that copies entries, with bandwidth limit and progress, shared by replication workers and healing bookies.

Law: each copy is counted once, and waits for its bandwidth before it is sent. All ledgers of a process share one bound of
bytes under way, so that a few large ledgers and many small ones both fill it. The deadline applies to each step of a repair,
because ledgers have any size.

Without a bandwidth limit the entries of a closed ledger are *lent*: each target is asked to fetch them (``fetching``), so that
they do not pass this process. After a failed fetch that ledger's entries are read and added instead.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from bookspark.errors import LedgerRecoveryError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.protocol.repair.entry_copying import RUN_BYTES, Room
from bookspark.store.client import BookKeeper
from bookspark.store.client.network.connections import Answer
from bookspark.store.client.network.ledger_requests import BookieAction
from bookspark.store.client.runtime.client_context import StoreAction, StoreAnswer
from bookspark.store.client.runtime.machine_driver import MachineDriver
from bookspark.store.wire.messages import FetchFrom

log = logging.getLogger(__name__)

STEP_SECONDS_MAX = 120.0
"""A repair without a copied entry for this long is given up, and retried later."""
RUN_ENTRIES_MAX = 10_000
"""Entries requested by one read. An answer holds about a megabyte of them."""


BOOKIES_KNOWN_SECONDS = 1.0
"""Age limit of the list of bookies. The silence of a bookie shows that it left meanwhile."""


UNDER_WAY_BYTES_MAX = 12 << 20
"""Bytes under way for all ledgers of a process, beside one run of each. A single bookie's queue (``bookie_bytes_queued_max``)
can hold all of it."""


class RepairInterruptedError(LedgerRecoveryError):
    """The repairing process is stopping."""


@dataclass
class CopyProgress:
    """Copied entries and bytes since the start of the process. Thread-safe."""

    entries_copied: int = 0
    bytes_copied: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, entries: int, byte_count: int) -> None:
        with self._lock:
            self.entries_copied += entries
            self.bytes_copied += byte_count


class Bandwidth:
    """A limit in bytes a second, shared by all callers of ``take``. 0: no limit."""

    def __init__(self, bytes_per_second: int, stopping: threading.Event) -> None:
        self._bytes_per_second = bytes_per_second
        self._stopping = stopping
        self._lock = threading.Lock()
        self._free_at = 0.0

    @property
    def is_limited(self) -> bool:
        return self._bytes_per_second > 0

    def take(self, byte_count: int) -> None:
        """Wait until ``byte_count`` bytes may be sent. Raises RepairInterruptedError when ``stopping`` is set."""
        if self._bytes_per_second:
            with self._lock:
                begins = max(self._free_at, time.monotonic())
                self._free_at = begins + byte_count / self._bytes_per_second
            self._stopping.wait(begins - time.monotonic())
        if self._stopping.is_set():
            raise RepairInterruptedError(
                "this repair is given up because its process is stopping; another worker will go on with it"
            )


@dataclass(frozen=True)
class _Share(Room):
    taken: dict[int, int] = field(default_factory=dict, compare=False)
    """By ledger, the bytes under way at its last question, with the requested run."""
    ledger_id: int = 0

    def fits(self, held: int, size: int) -> bool:
        # Note first, then sum, so that two concurrent questions don't both get the last room.
        self.taken[self.ledger_id] = held + size
        # Copied to a list, because other threads change the dict.
        if not held or sum(list(self.taken.values())) <= self.bytes_max:
            return True
        self.taken[self.ledger_id] = held
        return False


class Copying:
    """Shared state of all copies of a process: bandwidth, progress, and the room for bytes under way. Thread-safe."""

    def __init__(self, bytes_per_second: int, stopping: threading.Event) -> None:
        self.bandwidth = Bandwidth(bytes_per_second, stopping)
        self.progress = CopyProgress()
        self._taken: dict[int, int] = {}

    @contextmanager
    def room(self, ledger_id: int) -> Iterator[Room]:
        """The room for one ledger's copies, released at the end."""
        try:
            yield _Share(UNDER_WAY_BYTES_MAX, self._taken, ledger_id)
        finally:
            self._taken.pop(ledger_id, None)


class _Lent(NamedTuple):
    """Entries that stay on ``bookie_id`` until their target fetches them."""

    bookie_id: str


class RepairDriver(MachineDriver):
    def __init__(
        self, bookkeeper: BookKeeper, metadata: LedgerMetadata, copying: Copying, *, lends: bool = False
    ) -> None:
        """``lends``: let the targets fetch entries themselves where they can."""
        super().__init__(bookkeeper.context, metadata, None, STEP_SECONDS_MAX)
        self._bandwidth = copying.bandwidth
        self._progress = copying.progress
        self.lends = lends and metadata.closed and not copying.bandwidth.is_limited
        self._read_bytes: int | None = None
        """Approximate limit of one answer to a read, once long runs of lent entries are read here instead."""

    def resume(self) -> None:
        """Restart the deadline of the present step after a wait that was not the bookies' fault."""
        self._mailbox.allow(STEP_SECONDS_MAX)

    def _ask_store(self, action: StoreAction) -> StoreAnswer:
        return self._context.answer_from_store(self._metadata, action, BOOKIES_KNOWN_SECONDS)

    def _send(self, action: BookieAction) -> None:
        match action:
            case act.SendRead(bookie, first, last, False, False) if self.lends and first < last:
                self._mailbox.put(act.ReadAnswered(bookie, first, last, Positive(), _Lent(bookie)))
            case act.SendAdd(bookies, first, entries=_Lent()):
                for bookie in bookies:
                    self._fetch(bookie, action, first)
            case act.SendRead() if self._read_bytes is not None:
                self._requests.read(action, self._mailbox.put, self._read_bytes)
            case _:
                super()._send(action)

    def _fetch(self, target: str, action: act.SendAdd, first: int, fetched_bytes: int = 0) -> None:
        """Let ``target`` fetch the lent entries from ``first`` on. ``fetched_bytes``: already fetched."""

        def answered(answer: Answer) -> None:
            header = answer.header
            if (
                not isinstance(answer.response, Positive)
                or header is None
                or not first <= header.last_entry_id <= action.last
            ):
                self._mailbox.put(self._not_fetched(target, action, first, answer))
                return
            byte_count = fetched_bytes + header.value
            if header.last_entry_id < action.last:
                self.resume()
                self._fetch(target, action, header.last_entry_id + 1, byte_count)
                return
            self._progress.add(action.last - action.first + 1, byte_count)
            self._mailbox.put(act.AddAnswered(target, action.first, action.last, Positive()))

        source = FetchFrom(action.entries.bookie_id, self._metadata.digest_type.value)
        self._requests.fetch(target, action, source, first, answered)

    def _not_fetched(self, target: str, action: act.SendAdd, first: int, answer: Answer) -> act.AddAnswered:
        """Read and add entries from here on, which shows the bookie at fault. A run refused this way is halved, and read
        again."""
        self.lends = False
        # Runs of lent entries may be long.
        self._read_bytes = RUN_BYTES
        said = bytes(answer.body).decode(errors="replace")
        why = f"{target} could not fetch entry {first}: {said or answer.response}"
        log.info("ledger %d: %s; it is read and added instead", self._metadata.ledger_id, why)
        return act.AddAnswered(target, action.first, action.last, Unknown(UnknownReason.IO_ERROR, why))

    def _before(self, action: BookieAction) -> None:
        byte_count = 0
        if isinstance(action, act.SendAdd) and isinstance(action.entries, _Lent):
            self.resume()
        elif isinstance(action, act.SendAdd):
            byte_count = sum(len(batch.frame) for batch in action.entries) * len(action.bookies)
            self._progress.add(sum(batch.count for batch in action.entries) * len(action.bookies), byte_count)
        self._bandwidth.take(byte_count)
        if byte_count:
            self.resume()
