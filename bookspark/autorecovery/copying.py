"""The driver that copies entries, its bandwidth limit and its progress. Replication workers and healing bookies share it.

Law: each copy is counted once, and waits for its bandwidth before it is sent. The deadline holds for each step of a repair and
not for the whole repair, because a ledger may be of any size.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from bookspark.client import BookKeeper
from bookspark.client.runtime.machine_driver import BookieAction, MachineDriver
from bookspark.errors import LedgerRecoveryError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata

STEP_SECONDS_MAX = 120.0
"""A repair that copied nothing for this long is given up. It is tried again later."""
RUN_ENTRIES_MAX = 10_000
"""Entries that one read asks for. One answer holds about a megabyte of them."""


class RepairInterruptedError(LedgerRecoveryError):
    """The process that makes the repair is stopping."""


@dataclass
class CopyProgress:
    """Entries and bytes that were copied since the process began. Thread-safe."""

    entries_copied: int = 0
    bytes_copied: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, entries: int, byte_count: int) -> None:
        with self._lock:
            self.entries_copied += entries
            self.bytes_copied += byte_count


class Bandwidth:
    """A limit in bytes a second for all that ``take`` from it together. 0: no limit."""

    def __init__(self, bytes_per_second: int, stopping: threading.Event) -> None:
        self._bytes_per_second = bytes_per_second
        self._stopping = stopping
        self._lock = threading.Lock()
        self._free_at = 0.0

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


class RepairDriver(MachineDriver):
    """Drives a machine that copies entries of one ledger, in the caller's thread."""

    def __init__(
        self, bookkeeper: BookKeeper, metadata: LedgerMetadata, bandwidth: Bandwidth, progress: CopyProgress
    ) -> None:
        super().__init__(bookkeeper.context, metadata, None, STEP_SECONDS_MAX)
        self._bandwidth = bandwidth
        self._progress = progress

    def resume(self) -> None:
        """Start the deadline of the present step anew, because the last wait was not the bookies' fault."""
        self._mailbox.allow(STEP_SECONDS_MAX)

    def _before(self, action: BookieAction) -> None:
        byte_count = 0
        if isinstance(action, act.SendAdd):
            byte_count = sum(len(batch.frame) for batch in action.entries) * len(action.bookies)
            self._progress.add((action.last - action.first + 1) * len(action.bookies), byte_count)
        self._bandwidth.take(byte_count)
        if byte_count:
            self.resume()
