"""What repairs share, whoever makes them: the driver of their machines, the bandwidth that they may take, and how far they
are.

Law: each copy is counted once and paid for before it is sent; a repair has so long for each step that gets on, and not for
the whole, as a ledger may be of any size.
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
"""So long without a copy, and a repair is given up, to be tried again."""
RUN_ENTRIES_MAX = 10_000
"""Entries that are asked for at once; an answer holds about a megabyte of them."""


class RepairInterruptedError(LedgerRecoveryError):
    """Whoever makes the repairs is stopping."""


@dataclass
class CopyProgress:
    """Since the process began; from any thread."""

    entries_copied: int = 0
    bytes_copied: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, entries: int, byte_count: int) -> None:
        with self._lock:
            self.entries_copied += entries
            self.bytes_copied += byte_count


class Bandwidth:
    """So many bytes a second, of all who ``take`` from it together; 0: as many as there are."""

    def __init__(self, bytes_per_second: int, stopping: threading.Event) -> None:
        self._bytes_per_second = bytes_per_second
        self._stopping = stopping
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, byte_count: int) -> None:
        """Wait until it is this one's turn. Raises RepairInterruptedError when ``stopping`` is set."""
        if self._bytes_per_second:
            with self._lock:
                begins = max(self._free_at, time.monotonic())
                self._free_at = begins + byte_count / self._bytes_per_second
            self._stopping.wait(begins - time.monotonic())
        if self._stopping.is_set():
            raise RepairInterruptedError("this repair is given up, as its process is stopping; another goes on with it")


class RepairDriver(MachineDriver):
    """Drives a machine that copies entries of one ledger."""

    def __init__(
        self, bookkeeper: BookKeeper, metadata: LedgerMetadata, bandwidth: Bandwidth, progress: CopyProgress
    ) -> None:
        super().__init__(bookkeeper.context, metadata, None, STEP_SECONDS_MAX)
        self._bandwidth = bandwidth
        self._progress = progress

    def resume(self) -> None:
        """The machine was left waiting: its time begins anew."""
        self._mailbox.allow(STEP_SECONDS_MAX)

    def _before(self, action: BookieAction) -> None:
        byte_count = 0
        if isinstance(action, act.SendAdd):
            byte_count = sum(len(batch.frame) for batch in action.entries) * len(action.bookies)
            self._progress.add((action.last - action.first + 1) * len(action.bookies), byte_count)
        self._bandwidth.take(byte_count)
        if byte_count:
            self.resume()
