"""An open ledger, for writing under entry ids that the caller gives.

Law: as in ``ledger_handle``; ``protocol.writing.given_ids`` decides which entry goes out when. Entries that wait for an earlier
one take at most half of ``bytes_in_flight_max``; the next one in order never waits for them. If the missing entry does not come
within ``add_timeout_seconds`` without any progress, the ledger's handle fails, as no wait is without a deadline.

Source: BookKeeper's ``LedgerHandleAdv``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from bookspark.errors import AddTimeoutError, BookKeeperError, LedgerClosedError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.writing.given_ids import Given, GivenIds, InOrder, NoMore
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.runtime.open_writer import defect
from bookspark.store.client.writing.futures import AppendFuture, SyncFuture
from bookspark.store.client.writing.ledger_handle import LedgerHandle
from bookspark.store.decisions.seam import made
from bookspark.support.arguments import EntryId, Payload, WaitSeconds, checks_methods

if TYPE_CHECKING:
    import pyarrow


@checks_methods
class LedgerHandleAdv(LedgerHandle):
    """An open ledger for writing whose entry ids the caller gives; ``create_ledger_adv`` returns it. Thread-safe.

    Ids start at 0 and have no gaps in the end. They may be given in any order, by several threads; appends are acknowledged in
    the order of their ids.
    """

    def __init__(self, context: ClientContext, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        super().__init__(context, metadata, version, password)
        self._ids = made(GivenIds, metadata.ledger_id)
        self._waiting: dict[int, bytes] = {}
        """The entries that wait for an earlier one. Guarded by ``_lock``, as ``_ids`` and ``_waiting_bytes`` are."""
        self._waiting_bytes = 0
        self._waiting_bytes_max = context.config.bytes_in_flight_max // 2
        self._changing = False
        """Is somebody changing this? Only a signal handler can ask that while it is so."""

    def append_at(self, entry_id: EntryId, payload: Payload) -> int:
        """Append one entry under ``entry_id`` and return the id once an ack quorum has it, and all entries before it.

        Waits for those entries. Raises DuplicateEntryIdError if the id was given before, and ConfigurationError if it can't be an
        id; then nothing is appended. Raises the errors of ``append`` (EntryTooLargeError, LedgerClosedError, LedgerFencedError,
        UnauthorizedAccessError, AddTimeoutError, NotEnoughBookiesError, MetadataStoreError, NoSuchLedgerError). AddTimeoutError
        also says that an entry before this one was not appended within ``add_timeout_seconds``, and LedgerClosedError that it was
        missing when the ledger was closed.
        """
        self._shared.acknowledged.check_may_wait()
        return self.append_at_async(entry_id, payload).result()

    def append_at_async(self, entry_id: EntryId, payload: Payload) -> AppendFuture:
        """Append one entry under ``entry_id`` without waiting for its acknowledgement; the future's result is the id, or an error
        of ``append_at``.

        Waits only while ``bytes_in_flight_max`` bytes are kept, or half of that waits for an earlier entry. Raises
        DuplicateEntryIdError, ConfigurationError, EntryTooLargeError, LedgerClosedError, AddTimeoutError if that wait lasts twice
        ``add_timeout_seconds``, and the error that ended the ledger, if one did.
        """
        payload = self._payload(payload, "append_at_async")
        self._check_process()
        if entry_id > self._shared.next_entry_id:
            self._pressure.wait_behind_gap(
                self.last_add_pushed, len(payload), lambda: entry_id > self._shared.next_entry_id
            )
        else:
            self._pressure.wait(self.last_add_pushed, 1, len(payload))
        shared = self._shared
        while True:
            self._wait_behind_the_gap(entry_id, len(payload))
            with self._alone():
                if shared.closing or shared.acknowledged.error is not None:
                    raise self._why_ended()
                if not self._may_go_on(entry_id, len(payload)):
                    # Others were faster.
                    continue
                actions = self._ids.step(Given(entry_id))
                self._waiting[entry_id] = payload
                more_waits = len(payload)
                for action in actions:
                    assert isinstance(action, InOrder)
                    entries = [self._waiting.pop(k) for k in range(action.first, action.last + 1)]
                    byte_length = sum(map(len, entries))
                    more_waits -= byte_length
                    self._shared.next_entry_id += len(entries)
                    self._room.appended += byte_length
                    shared.outgoing.put(entries)
                if more_waits:
                    self._keep_waiting(more_waits)
                was_missing, shared.missing = shared.missing, self._shared.next_entry_id if self._waiting else None
            break
        if actions:
            shared.acknowledged.wake()
            self._io.submit_once(self._pump)
        if was_missing != shared.missing:
            self._io.submit(self._driver.watch_gap)
        return AppendFuture(shared.acknowledged, entry_id)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock. Raises BookKeeperError in a signal handler that came while the main thread held it: what it guards may
        be half changed then."""
        with self._lock:
            if self._changing:
                raise BookKeeperError(
                    f"ledger {self.ledger_id}: this signal handler interrupted an append with a given id; have another thread "
                    "do it"
                )
            self._changing = True
            try:
                yield
            except BookKeeperError:
                # Nothing has changed.
                raise
            except BaseException as error:
                # An interrupt: entries may have been taken from those that wait and not been put. No later one may get their ids.
                self._shared.closing = True
                self._io.submit(self._driver.abandon, defect(self.ledger_id, error))
                raise
            finally:
                self._changing = False

    def _keep_waiting(self, byte_length: int) -> None:
        """So many bytes more wait for an earlier entry; or fewer, if it is negative."""
        self._waiting_bytes += byte_length
        self._room.keep_behind_gap(byte_length)

    def _may_go_on(self, entry_id: int, byte_length: int) -> bool:
        """May so much more wait for an earlier entry, or has nothing to wait?"""
        shared = self._shared
        free = self._waiting_bytes == 0 or self._waiting_bytes + byte_length <= self._waiting_bytes_max
        return free or entry_id <= self._shared.next_entry_id or shared.closing or shared.acknowledged.error is not None

    def _wait_behind_the_gap(self, entry_id: int, byte_length: int) -> None:
        """Wait until ``_may_go_on``."""
        if self._may_go_on(entry_id, byte_length):
            return
        if not self._shared.acknowledged.wait(
            lambda: self._may_go_on(entry_id, byte_length), self._context.config.add_timeout_seconds * 2
        ):
            raise AddTimeoutError(
                f"ledger {self.ledger_id}: {self._waiting_bytes} bytes wait for entry {self._shared.next_entry_id}, which was "
                "not appended"
            )

    def sync_async(self) -> SyncFuture:
        """As ``LedgerHandle.sync_async``, for all appends but those that wait for an earlier entry. Raises LedgerClosedError in a
        forked process."""
        return super().sync_async()

    def close(self, wait: bool = True, timeout: WaitSeconds | None = None) -> None:
        """Close the ledger as ``LedgerHandle.close`` does, and with its errors (AddTimeoutError, LedgerFencedError,
        UnauthorizedAccessError, NotEnoughBookiesError, MetadataStoreError, NoSuchLedgerError). Its last entry is the last one
        before the first gap: appends behind it fail with LedgerClosedError.

        Raises BookKeeperError in a signal handler that interrupted an append with an id: nobody can tell then whether that entry
        comes before the end. Have another thread close it, or let the handler raise.
        """
        if os.getpid() != self._pid:
            # The parent's lock may have been held at the fork.
            return
        with self._alone():
            # From here on nothing fills the gap.
            self._shared.closing = True
            self._ids.step(NoMore())
            left = sorted(self._waiting)
            self._waiting.clear()
            self._keep_waiting(-self._waiting_bytes)
            self._shared.missing = None
        self._shared.acknowledged.wake()
        try:
            super().close(wait, timeout)
        finally:
            if left:
                missing = self._shared.next_entry_id
                self._shared.acknowledged.fail(
                    LedgerClosedError(
                        f"ledger {self.ledger_id} was closed before entry {missing} was appended: {len(left)} entries after "
                        f"it, up to {left[-1]}, are not part of the ledger"
                    )
                )

    # -- appends without an id

    def append(self, payload: bytes) -> NoReturn:
        """Refused: this ledger's entries need an id. Raises BookKeeperError."""
        raise self._no_id()

    def append_async(self, payload: bytes) -> NoReturn:
        """Refused, as ``append`` is. Raises BookKeeperError."""
        raise self._no_id()

    def append_batch(self, payloads: Sequence[bytes] | pyarrow.BinaryArray) -> NoReturn:
        """Refused, as ``append`` is. Raises BookKeeperError."""
        raise self._no_id()

    def append_batch_async(self, payloads: Sequence[bytes] | pyarrow.BinaryArray) -> NoReturn:
        """Refused, as ``append`` is. Raises BookKeeperError."""
        raise self._no_id()

    def _no_id(self) -> BookKeeperError:
        return BookKeeperError(
            f"ledger {self.ledger_id} was created with create_ledger_adv, and its entries need an id: use "
            "append_at(entry_id, payload)"
        )
