"""Appends to an open ledger by one caller that orders them itself: a log's producer, whose lock orders rows already.

Law: as for ``LedgerHandle`` in everything but this: no lock is taken, so the caller holds one of its own around every call here
and around ``close`` of the handle, and appends by nothing else. Arguments are not judged, and a forked process is not refused:
the caller does both. A signal handler may close the handle at any point; it appends nothing there.
"""

from __future__ import annotations

from collections.abc import Callable

from bookspark.errors import BookKeeperError
from bookspark.store.client.writing.back_pressure import BackPressure
from bookspark.store.client.writing.ledger_driver import LedgerDriver
from bookspark.store.client.writing.payloads import PayloadRun
from bookspark.store.client.writing.shared_with_callers import SharedWithCallers
from bookspark.store.wire.columns import Heads


class SoleAppender:
    """Appends to one ledger; ``LedgerHandle.sole_appender`` makes it. For one thread at a time."""

    __slots__ = ("_pressure", "_pump", "_room", "_split", "_submit_once", "_why_ended", "acknowledged", "shared")

    def __init__(
        self,
        shared: SharedWithCallers,
        driver: LedgerDriver,
        pressure: BackPressure,
        submit_once: Callable[[Callable[[], None]], None],
        split: Callable[..., list[PayloadRun]],
        why_ended: Callable[[], BookKeeperError],
    ) -> None:
        self.shared = shared
        """What the handle and its driver share: the next entry's id is there."""
        self.acknowledged = shared.acknowledged
        self._room, self._pressure, self._pump = driver.room, pressure, driver.pump
        self._submit_once, self._split, self._why_ended = submit_once, split, why_ended

    def append(self, payload: bytes) -> None:
        """Append one entry, which gets the id ``shared.next_entry_id``. Waits, and raises, as ``LedgerHandle.append_async``."""
        shared, room, byte_length = self.shared, self._room, len(payload)
        if room.appended >= room.granted or self._pressure.limits:
            self._pressure.wait(shared.next_entry_id - 1, 1, byte_length)
        # No call from here to the last one: a signal handler that closes comes before all of it or after all of it.
        if shared.closing or shared.acknowledged.error is not None:
            raise self._why_ended()
        shared.next_entry_id += 1
        room.appended += byte_length
        shared.outgoing.put((payload,))
        self._submit_once(self._pump)

    def send(self) -> None:
        """Have what was appended sent. Each append does so, but an interrupt of the last one may have come before that."""
        self._submit_once(self._pump)

    def append_all(self, payloads: list[bytes], heads: Heads) -> int:
        """Append several, each behind its head, which get ids from ``shared.next_entry_id`` on. Returns how many bytes they have
        together. Waits, and raises, as ``LedgerHandle.append_batch_async``."""
        shared, room, count, runs = self.shared, self._room, len(payloads), self._split(payloads, heads=heads)
        byte_length = sum(run.byte_length for run in runs)
        self._pressure.wait(shared.next_entry_id - 1, count, byte_length)
        # As in ``append``.
        if shared.closing or shared.acknowledged.error is not None:
            raise self._why_ended()
        shared.next_entry_id += count
        room.appended += byte_length
        shared.outgoing.put(runs)
        self._submit_once(self._pump)
        return byte_length
