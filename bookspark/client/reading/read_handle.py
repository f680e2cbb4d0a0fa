"""An open ledger, for reading.

Law: ``read`` returns only confirmed entries, each as its writer made it, in id order and without a gap; it returns, or raises,
within its deadlines. Reading never fences. The handle follows the ledger's metadata: while the ledger is not closed by a watch,
afterwards by reading it again when an entry is missed. Who waits for the next entry goes on without the metadata store, as the
bookies tell of it; that the ledger was closed, or has other bookies, is heard once the store answers again.

Sources: bookkeeper-overview, "Reading"; BP-14 for ``read_unconfirmed``; docs/decisions/three-valued-answers.md for when an
entry may be called absent.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from bookspark.client.network.ledger_requests import LedgerRequests, Mailbox
from bookspark.client.reading.range_reading import read_range
from bookspark.errors import BookKeeperError, MetadataStoreError, ReadError
from bookspark.metadata.store import Versioned
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookspark.protocol.reading.reader import LacRead, LacWait, RangeRead
from bookspark.wire.entry_batch import Entry, EntryBatch, arrow_schema

if TYPE_CHECKING:
    import pyarrow

    from bookspark.client.bookkeeper import BookKeeper


_HOLD_SECONDS_MAX = 30.0
"""A long poll asks anew so often, so that bookies that failed meanwhile are asked again."""
_UNFOLLOWED_SECONDS = 10.0
"""A metadata store that did not answer is asked again after so long: each time, whoever waits for an entry waits for it too."""

log = logging.getLogger(__name__)


class ReadHandle:
    """What ``open_ledger`` and ``open_ledger_no_recovery`` return. Thread-safe; may be used in a forked process."""

    def __init__(self, bookkeeper: BookKeeper, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        self._bookkeeper = bookkeeper
        self._password = password
        self._learning = threading.Lock()
        self._learning_pid = os.getpid()
        self._known = Versioned(metadata, version)
        self._watching_pid = 0
        """The process whose watch keeps ``_known`` up to date; 0: none does."""
        self._follow_at = 0.0
        """Before this moment, the metadata store need not be asked to watch again."""
        self._polls: set[Mailbox] = set()
        """Long polls under way, which want to know of changed metadata at once."""
        self._delivered_by: str | None = None
        self._last_add_confirmed = metadata.last_entry_id if metadata.closed else NO_ENTRY

    @property
    def ledger_id(self) -> int:
        return self._known.value.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this handle last saw it."""
        return self._known.value

    @property
    def last_add_confirmed(self) -> int:
        """The highest id that this handle knows to be confirmed; −1 if none is."""
        return self._last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the closed ledger; 0 while it is not closed."""
        return self._known.value.length

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
        """The LAC, asked of the bookies now (or read from the metadata, if the ledger is closed). Raises ReadError.

        Bookies that hang cost ``speculative_read_delay_ms`` at most, if any other tells; what they alone know is missing then.
        """
        if not self.metadata.closed:
            self._watch()
            self._refresh()
        if not self.metadata.closed:
            config = self._bookkeeper.config
            longest = config.answer_timeout_seconds + 1.0
            delay = config.speculative_read_delay_ms / 1000 or longest
            mailbox = Mailbox(min(delay, longest))
            requests = self._requests()
            machine = LacRead(self.metadata)
            actions = machine.start()
            while not any(isinstance(action, act.Finish) for action in actions):
                for action in actions:
                    if isinstance(action, act.Fail):
                        raise action.error
                    if isinstance(action, act.SendReadLac):
                        requests.read_lac(action, mailbox.put)
                event: act.Event | act.ReadIsLate = mailbox.take()
                if isinstance(event, act.DeadlinePassed) and delay < longest:
                    event, delay = act.ReadIsLate(), longest
                    mailbox.allow(longest)
                assert isinstance(event, act.LacAnswered | act.ReadIsLate | act.DeadlinePassed)
                actions = machine.step(event)
            self._confirm(machine.last_add_confirmed)
        return self._last_add_confirmed

    def read_last_add_confirmed_and_entry(self, entry_id: int, timeout: float) -> tuple[int, Entry | None]:
        """Wait up to ``timeout`` seconds for ``entry_id`` to be confirmed (long poll: the bookies hold the answer, and the entry
        comes with it unless it is a long one).

        Returns (LAC, the entry), or (LAC, None) if it is not confirmed by then or the ledger was closed before it. Raises
        ReadError if no bookie of the ledger's last ensemble tells its LAC.
        """
        deadline = time.monotonic() + timeout
        came: list[EntryBatch] | None = None
        while entry_id > self._last_add_confirmed and not self.metadata.closed:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            came = self._long_poll(entry_id, left)
        if entry_id > self._last_add_confirmed:
            return self._last_add_confirmed, None
        return self._last_add_confirmed, came[0].entry(entry_id) if came else next(self._entries(entry_id, entry_id))

    def confirm(self, entry_id: int) -> None:
        """Take ``entry_id`` for confirmed, for a caller who knows it from elsewhere: a commit entry that names it is proof."""
        self._confirm(entry_id)

    def close(self) -> None:
        """Nothing has to be released; here so that reading and writing handles are used alike."""

    def __enter__(self) -> Self:
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

    def _requests(self) -> LedgerRequests:
        return self._bookkeeper.requests(self.metadata, self._password)

    def _entries(self, first: int, last: int) -> Iterator[Entry]:
        for batch in self._batches(first, last):
            yield from batch.entries()

    def _batches(self, first: int, last: int) -> Iterator[EntryBatch]:
        order = self._bookkeeper.read_order(self._delivered_by)
        machine = RangeRead(self.metadata, first, last, order, rereads_metadata=True, reads_ahead=True)
        for batches in read_range(machine, self._requests(), self._read_again, self._bookkeeper.config):
            self._delivered_by = machine.delivered_by
            self._confirm(batches.last_add_confirmed)
            yield from batches.entries

    def _long_poll(self, entry_id: int, seconds: float) -> list[EntryBatch] | None:
        """Wait for a while until ``entry_id`` is confirmed or the ledger closed; this handle knows of it then. Returns the entry,
        if it came along."""
        mailbox = Mailbox(seconds)
        self._polls.add(mailbox)
        try:
            follows = self._follow()
            mailbox.allow(min(mailbox.left_seconds(), _HOLD_SECONDS_MAX if follows else _UNFOLLOWED_SECONDS))
            requests = self._requests()
            machine = LacWait(self.metadata, entry_id)
            actions = machine.start()
            while not any(isinstance(action, act.Finish) for action in actions):
                looks = False
                for action in actions:
                    if isinstance(action, act.Fail):
                        raise action.error
                    if isinstance(action, act.SendReadLac):
                        requests.read_lac(action, mailbox.put, mailbox.left_seconds())
                    looks = isinstance(action, act.ReadMetadata)
                event = self._read_again() if looks else mailbox.take()
                if isinstance(event, act.MetadataConflict):
                    self._follow()
                    event = act.MetadataRead(*self._known)
                assert isinstance(event, act.LacAnswered | act.MetadataRead | act.MetadataFailed | act.DeadlinePassed)
                actions = machine.step(event)
            self._confirm(machine.last_add_confirmed)
        finally:
            self._polls.discard(mailbox)
        entries: list[EntryBatch] | None = machine.entries
        return entries

    # -- metadata

    def _follow(self) -> bool:
        """Watch the metadata, and know it as it was then or later; False if the store does not answer. Raises
        NoSuchLedgerError."""
        if time.monotonic() < self._follow_at:
            return False
        try:
            if self._watch():
                self._refresh()
                for mailbox in list(self._polls):  # others on this handle took it for followed already
                    mailbox.put(act.MetadataRead(*self._known))
        except MetadataStoreError as error:
            log.warning("ledger %d is read on without its metadata: %s", self.ledger_id, error)
            self._watching_pid = 0
            self._follow_at = time.monotonic() + _UNFOLLOWED_SECONDS
            return False
        return True

    def _watch(self) -> bool:
        """Follow the metadata from now on, in this process; False if that is done already."""
        if self._watching_pid == os.getpid():
            return False
        self._watching_pid = (
            os.getpid()
        )  # before it listens: that the watch is lost may be told at any moment from then on
        try:
            self._bookkeeper.runtime.ledger_watches.listen(self.ledger_id, self._metadata_changed)
        except BaseException:
            self._watching_pid = 0
            raise
        return True

    def _metadata_changed(self, found: Versioned[LedgerMetadata] | None) -> None:
        """From the metadata store's thread. None: it is not watched any more."""
        if found is None:
            self._watching_pid = 0
        else:
            self._learn(found)
        for mailbox in list(self._polls):
            mailbox.put(act.MetadataConflict() if found is None else act.MetadataRead(*found))

    def _refresh(self) -> None:
        """Read the metadata again. Its LAC counts at once if the ledger was closed meanwhile."""
        self._learn(self._bookkeeper.metadata.read_ledger(self.ledger_id))

    def _read_again(self) -> act.MetadataRead | act.MetadataFailed:
        try:
            self._refresh()
        except BookKeeperError as error:
            return act.MetadataFailed(error)
        return act.MetadataRead(*self._known)

    def _learn(self, found: Versioned[LedgerMetadata]) -> None:
        if self._learning_pid != os.getpid():  # the parent's lock may have been held at the fork
            self._learning, self._learning_pid = threading.Lock(), os.getpid()
        with self._learning:
            if found.version > self._known.version:
                self._known = found
        if found.value.closed:
            self._confirm(found.value.last_entry_id)
