"""Ledger handles that record their calls and results in a ``History``.

Law: errors are not hidden. An error of a handle is recorded and raised.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookspark.errors import BookKeeperError, NoSuchEntryError
from bookspark.store.client.reading.read_handle import ReadHandle
from bookspark.store.client.writing.futures import AppendFuture
from bookspark.store.client.writing.ledger_handle import LedgerHandle
from bookspark.support.arguments import EntryId, LastEntryId, Payload, WaitSeconds, checks_methods
from bookspark.testing.history import Event, EventKind, History


@checks_methods
class RecordedWriter:
    """The only user of a ``LedgerHandle``, with the handle's calls and errors. All appends come from one thread, so that
    their ids are known before the call. ``client`` is the writer's name in the history."""

    def __init__(self, history: History, client: str, handle: LedgerHandle) -> None:
        self.handle = handle
        self._history = history
        self._client = client
        self._next_entry_id = 0

    def append_async(self, payload: Payload) -> AppendFuture:
        """Append an entry. The outcome is recorded once known."""
        return self.append_batch_async([payload])

    def append(self, payload: Payload) -> int:
        """Append an entry and return its id."""
        return self.append_async(payload).result()

    def append_batch_async(self, payloads: Sequence[Payload]) -> AppendFuture:
        """Append at least one entry, as a batch."""
        first = self._next_entry_id
        last = first + len(payloads) - 1
        for entry_id, payload in enumerate(payloads, first):
            self._record(EventKind.APPENDED, entry_id, payload)
        self._next_entry_id = last + 1
        try:
            future = self._append(payloads)
        except BookKeeperError as error:
            self._record_outcome(first, last, error)
            raise
        assert future.entry_id == last, "a ledger has one writer, and this is its one user"
        future.tell_at_once(lambda done: self._record_outcome(first, last, done.exception()))
        return future

    def close(self, timeout: WaitSeconds | None = None) -> None:
        """Close the ledger, and record its last entry and length."""
        self.handle.close(timeout=timeout)
        metadata = self.handle.metadata
        self._history.record(
            Event(
                EventKind.CLOSED_BY_WRITER,
                self._client,
                metadata.ledger_id,
                metadata.last_entry_id,
                length=metadata.length,
            )
        )

    def _append(self, payloads: Sequence[bytes]) -> AppendFuture:
        if len(payloads) == 1:
            return self.handle.append_async(payloads[0])
        return self.handle.append_batch_async(payloads)

    def _record_outcome(self, first: EntryId, last: LastEntryId, error: BookKeeperError | None) -> None:
        for entry_id in range(first, last + 1):
            if error is None or entry_id <= self.handle.last_add_confirmed:
                self._record(EventKind.ACKED, entry_id)
            else:
                self._record(EventKind.FAILED, entry_id, note=f"{type(error).__name__}: {error}")

    def _record(self, kind: EventKind, entry_id: int, payload: bytes = b"", note: str = "") -> None:
        self._history.record(Event(kind, self._client, self.handle.ledger_id, entry_id, payload, note=note))


@checks_methods
class RecordedReader:
    """The only user of a ``ReadHandle``, with the handle's calls and errors. ``client`` is the observer's name in the history,
    different for each handle."""

    def __init__(self, history: History, client: str, handle: ReadHandle) -> None:
        self.handle = handle
        self._history = history
        self._client = client
        self.saw()

    def saw(self) -> None:
        """Record the handle's current last add confirmed (LAC), and the end of a closed ledger."""
        metadata = self.handle.metadata
        if metadata.closed:
            self._record(EventKind.CLOSED, metadata.last_entry_id, length=metadata.length)
        self._record(EventKind.LAC, self.handle.last_add_confirmed)

    def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the LAC."""
        confirmed = self.handle.read_last_add_confirmed()
        self.saw()
        return confirmed

    def wait_for(self, entry_id: EntryId, timeout: WaitSeconds) -> bool:
        """Wait up to ``timeout`` seconds for an entry. Returns whether it came."""
        since = self._history.now()
        try:
            _, entry = self.handle.read_last_add_confirmed_and_entry(entry_id, timeout)
        except NoSuchEntryError as error:
            self._record(EventKind.ABSENT, entry_id, since=since, note=str(error))
            raise
        self.saw()
        if entry is not None:
            self._record(EventKind.READ, entry.entry_id, entry.payload)
        return entry is not None

    def read(self, first: EntryId, last: LastEntryId) -> int:
        """Read the entries ``first..last``. Returns their number."""
        since, following = self._history.now(), first
        try:
            for entry in self.handle.read(first, last):
                self._record(EventKind.READ, entry.entry_id, entry.payload)
                following = entry.entry_id + 1
        except NoSuchEntryError as error:
            self._record(EventKind.ABSENT, following, since=since, note=str(error))
            raise
        if following <= last:
            self._record(EventKind.ABSENT, following, since=since, note="the read ended before it")
        return following - first

    def _record(
        self, kind: EventKind, entry_id: int, payload: bytes = b"", length: int = 0, since: int = 0, note: str = ""
    ) -> None:
        self._history.record(Event(kind, self._client, self.handle.ledger_id, entry_id, payload, length, note, since))
