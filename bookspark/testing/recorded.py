"""Ledger handles that write down what they do and see in a ``History``.

Law: nothing is hidden: what a handle raises is raised here too, after it was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookspark.client.reading.read_handle import ReadHandle
from bookspark.client.writing.futures import AppendFuture
from bookspark.client.writing.ledger_handle import LedgerHandle
from bookspark.errors import BookKeeperError, NoSuchEntryError
from bookspark.testing.history import Event, History, Kind


class RecordedWriter:
    """The one user of a ``LedgerHandle``: appends come from one thread, so that ids can be told before the call."""

    def __init__(self, history: History, client: str, handle: LedgerHandle) -> None:
        self.handle = handle
        self._history = history
        self._client = client
        self._next_entry_id = 0

    def append_async(self, payload: bytes) -> AppendFuture:
        """``LedgerHandle.append_async``; the outcome is recorded when it is there."""
        return self.append_batch_async([payload])

    def append(self, payload: bytes) -> int:
        return self.append_async(payload).result()

    def append_batch_async(self, payloads: Sequence[bytes]) -> AppendFuture:
        """``LedgerHandle.append_batch_async``, of at least one entry."""
        first = self._next_entry_id
        last = first + len(payloads) - 1
        for entry_id, payload in enumerate(payloads, first):
            self._record(Kind.APPENDED, entry_id, payload)
        self._next_entry_id = last + 1
        try:
            future = self._append(payloads)
        except BookKeeperError as error:
            self._record_outcome(first, last, error)
            raise
        assert future.entry_id == last, "a ledger has one writer, and this is its one user"
        future.add_done_callback(lambda done: self._record_outcome(first, last, done.exception()))
        return future

    def close(self, timeout: float | None = None) -> None:
        """``LedgerHandle.close``, with the end that it has then."""
        self.handle.close(timeout=timeout)
        metadata = self.handle.metadata
        self._history.record(
            Event(
                Kind.CLOSED_BY_WRITER, self._client, metadata.ledger_id, metadata.last_entry_id, length=metadata.length
            )
        )

    def _append(self, payloads: Sequence[bytes]) -> AppendFuture:
        if len(payloads) == 1:
            return self.handle.append_async(payloads[0])
        return self.handle.append_batch_async(payloads)

    def _record_outcome(self, first: int, last: int, error: BookKeeperError | None) -> None:
        for entry_id in range(first, last + 1):
            if error is None or entry_id <= self.handle.last_add_confirmed:
                self._record(Kind.ACKED, entry_id)
            else:
                self._record(Kind.FAILED, entry_id, note=f"{type(error).__name__}: {error}")

    def _record(self, kind: Kind, entry_id: int, payload: bytes = b"", note: str = "") -> None:
        self._history.record(Event(kind, self._client, self.handle.ledger_id, entry_id, payload, note=note))


class RecordedReader:
    """A ``ReadHandle``. ``client`` names this observer, so it is another one for each handle."""

    def __init__(self, history: History, client: str, handle: ReadHandle) -> None:
        self.handle = handle
        self._history = history
        self._client = client
        self.saw()

    def saw(self) -> None:
        """Record the LAC, or the end if the ledger is closed, that the handle knows by now."""
        metadata = self.handle.metadata
        if metadata.closed:
            self._record(Kind.CLOSED, metadata.last_entry_id, length=metadata.length)
        self._record(Kind.LAC, self.handle.last_add_confirmed)

    def read_last_add_confirmed(self) -> int:
        confirmed = self.handle.read_last_add_confirmed()
        self.saw()
        return confirmed

    def wait_for(self, entry_id: int, timeout: float) -> bool:
        """``read_last_add_confirmed_and_entry``; whether the entry came."""
        since = self._history.now()
        try:
            _, entry = self.handle.read_last_add_confirmed_and_entry(entry_id, timeout)
        except NoSuchEntryError as error:
            self._record(Kind.ABSENT, entry_id, since=since, note=str(error))
            raise
        self.saw()
        if entry is not None:
            self._record(Kind.READ, entry.entry_id, entry.payload)
        return entry is not None

    def read(self, first: int, last: int) -> int:
        """Read the entries ``first..last``; returns how many there were."""
        since, following = self._history.now(), first
        try:
            for entry in self.handle.read(first, last):
                self._record(Kind.READ, entry.entry_id, entry.payload)
                following = entry.entry_id + 1
        except NoSuchEntryError as error:
            self._record(Kind.ABSENT, following, since=since, note=str(error))
            raise
        if following <= last:
            self._record(Kind.ABSENT, following, since=since, note="the read ended before it")
        return following - first

    def _record(
        self, kind: Kind, entry_id: int, payload: bytes = b"", length: int = 0, since: int = 0, note: str = ""
    ) -> None:
        self._history.record(Event(kind, self._client, self.handle.ledger_id, entry_id, payload, length, note, since))
