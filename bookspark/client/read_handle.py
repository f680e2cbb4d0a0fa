"""An open ledger, for reading.

Law: ``read`` returns only confirmed entries, each as its writer made it, in id order and without a gap; it returns, or raises,
within its deadlines. Reading never fences.

Sources: bookkeeper-overview, "Reading"; BP-14 for ``read_unconfirmed``; design.md section 5 for when an entry may be called
absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bookspark.client.requests import LedgerRequests, Mailbox
from bookspark.protocol import actions as act
from bookspark.protocol.errors import NoSuchEntryError, ReadError
from bookspark.protocol.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookspark.protocol.reader import LacRead, RangeRead
from bookspark.protocol.responses import Positive
from bookspark.wire.entry_batch import Entry, EntryBatch, arrow_schema

if TYPE_CHECKING:
    import pyarrow

    from bookspark.client.bookkeeper import BookKeeper


class ReadHandle:
    """What ``open_ledger`` and ``open_ledger_no_recovery`` return. Thread-safe; may be used in a forked process."""

    def __init__(self, bookkeeper: BookKeeper, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        self._bookkeeper = bookkeeper
        self._metadata = metadata
        self._version = version
        self._password = password
        self._last_add_confirmed = metadata.last_entry_id if metadata.closed else NO_ENTRY

    @property
    def ledger_id(self) -> int:
        return self._metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this handle last saw it."""
        return self._metadata

    @property
    def last_add_confirmed(self) -> int:
        """The highest id that this handle knows to be confirmed; −1 if none is."""
        return self._last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the closed ledger; 0 while it is not closed."""
        return self._metadata.length

    def read(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first..last`` (default: up to the LAC). Raises ReadError at once if ``last`` is beyond the LAC.

        While iterating: NoSuchEntryError if all replicas say that an entry is not there, ReadError if none could be read.
        """
        return self._entries(*self._confirmed_range(first, last))

    def read_unconfirmed(self, first: int, last: int) -> Iterator[Entry]:
        """The entries ``first..last`` whether or not they are confirmed: what is not, may be gone at the next read (BP-14)."""
        if first < 0 or last < first:
            raise ReadError(f"ledger {self.ledger_id}: {first}..{last} is no range of entry ids")
        return self._entries(first, last)

    def read_batches(self, first: int = 0, last: int | None = None) -> pyarrow.RecordBatchReader:
        """The same as ``read``, as Arrow record batches on the memory they were received in (see ``wire.entry_batch``)."""
        import pyarrow

        batches = self._batches(*self._confirmed_range(first, last))
        return pyarrow.RecordBatchReader.from_batches(arrow_schema(), (batch.to_arrow() for batch in batches))

    def read_last_add_confirmed(self) -> int:
        """The LAC, asked of the bookies now (or read from the metadata, if the ledger is closed). Raises ReadError."""
        if not self._metadata.closed:
            self._refresh()
        if not self._metadata.closed:
            mailbox = Mailbox(self._bookkeeper.config.answer_timeout_seconds + 1.0)
            requests = self._requests()
            machine = LacRead(self._metadata)
            actions = machine.start()
            while not any(isinstance(action, act.Finish) for action in actions):
                for action in actions:
                    if isinstance(action, act.Fail):
                        raise action.error
                    if isinstance(action, act.SendReadLac):
                        requests.read_lac(action, mailbox.put)
                event = mailbox.take()
                if not isinstance(event, act.LacAnswered):
                    raise ReadError(f"ledger {self.ledger_id}: its bookies did not tell the LAC in time; try again")
                actions = machine.step(event)
            self._confirm(machine.last_add_confirmed)
        return self._last_add_confirmed

    def read_last_add_confirmed_and_entry(self, entry_id: int, timeout: float) -> tuple[int, Entry | None]:
        """Wait up to ``timeout`` seconds for ``entry_id`` to be confirmed (long poll: the bookies hold the answer).

        Returns (LAC, the entry), or (LAC, None) if it is not confirmed by then or the ledger was closed before it.
        """
        mailbox = Mailbox(timeout)
        if entry_id > self._last_add_confirmed and not self._metadata.closed:
            # A close tells no bookie anything, so the metadata is watched beside the bookies.
            self._bookkeeper.metadata.watch_ledger(self.ledger_id, lambda: mailbox.put(act.MetadataConflict()))
            self._refresh()
        if entry_id > self._last_add_confirmed and not self._metadata.closed:
            requests = self._requests()
            for bookie in self._metadata.last_fragment.ensemble:
                question = act.SendReadLac(bookie)
                requests.read_lac(question, mailbox.put, wait_for=entry_id, wait_seconds=timeout)
            while entry_id > self._last_add_confirmed and not self._metadata.closed:
                event = mailbox.take()
                if isinstance(event, act.DeadlinePassed):
                    break
                if isinstance(event, act.LacAnswered):
                    self._confirm(event.last_add_confirmed)
                else:
                    self._refresh()
        if entry_id > self._last_add_confirmed:
            return self._last_add_confirmed, None
        return self._last_add_confirmed, next(self._entries(entry_id, entry_id))

    def confirm(self, entry_id: int) -> None:
        """Take ``entry_id`` for confirmed, for a caller who knows it from elsewhere: a commit entry that names it is proof."""
        self._confirm(entry_id)

    def close(self) -> None:
        """Nothing has to be released; here so that reading and writing handles are used alike."""

    def __enter__(self) -> ReadHandle:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- inside

    def _confirm(self, last_add_confirmed: int) -> None:
        self._last_add_confirmed = max(self._last_add_confirmed, last_add_confirmed)

    def _confirmed_range(self, first: int, last: int | None) -> tuple[int, int]:
        confirmed = self.last_add_confirmed
        if last is None:
            last = confirmed
        if first < 0 or last < first - 1:
            raise ReadError(f"ledger {self.ledger_id}: {first}..{last} is no range of entry ids")
        if last > confirmed:
            raise ReadError(
                f"ledger {self.ledger_id}: entry {last} is beyond the last confirmed one, {confirmed}; "
                "ask read_last_add_confirmed() whether there is more by now"
            )
        return first, last

    def _refresh(self) -> None:
        """Read the metadata again. Its LAC counts at once if the ledger was closed meanwhile."""
        self._metadata, self._version = self._bookkeeper.metadata.read_ledger(self.ledger_id)
        if self._metadata.closed:
            self._confirm(self._metadata.last_entry_id)

    def _requests(self) -> LedgerRequests:
        return self._bookkeeper.requests(self._metadata, self._password)

    def _entries(self, first: int, last: int) -> Iterator[Entry]:
        for batch in self._batches(first, last):
            yield from batch.entries()

    def _batches(self, first: int, last: int) -> Iterator[EntryBatch]:
        """Run the read; on an open ledger that changed meanwhile (its ensemble, its state), once more from where it stopped."""
        before: LedgerMetadata | None = None
        while True:
            try:
                for batch in self._batches_once(first, last):
                    first = batch.last_entry_id + 1
                    yield batch
                return
            except (NoSuchEntryError, ReadError):
                if self._metadata.closed or self._metadata == before:
                    raise
                before = self._metadata
                self._refresh()

    def _batches_once(self, first: int, last: int) -> Iterator[EntryBatch]:
        requests = self._requests()
        machine = RangeRead(self._metadata, first, last, preference=self._bookkeeper.read_preference)
        actions = machine.start()
        # Each request has its own time limit, so an answer always comes; the mailbox only guards against a defect.
        timeout = self._bookkeeper.config.answer_timeout_seconds + self._bookkeeper.config.connect_timeout_seconds + 5.0
        while True:
            mailbox = Mailbox(timeout)
            for action in actions:
                match action:
                    case act.SendRead():
                        requests.read(action, mailbox.put)
                    case act.Deliver():
                        yield from action.entries
                    case act.Fail():
                        raise action.error
                    case act.Finish():
                        return
            event = mailbox.take()
            if not isinstance(event, act.ReadAnswered):
                raise ReadError(f"ledger {self.ledger_id}: no answer within {timeout:g} s")
            if isinstance(event.following, Positive) and event.following.value is not None:
                self._confirm(event.following.value.last_add_confirmed)
            actions = machine.step(event)
