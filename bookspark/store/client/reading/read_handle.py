"""An open ledger, for reading.

Law: ``read`` returns only confirmed entries, each as its writer made it, in id order and without a gap. It returns or raises
within its deadlines. Reads never fence. No text of a handle shows a password or a master key.

The handle follows the ledger's metadata: by a watch while the ledger is open; after its close, by a read when an entry is
missing. Long polls and reads of the LAC (last add confirmed) continue while the metadata store does not answer, because the
bookies serve both. They wait a second for the store, and then leave it alone for a while. The handle learns of a close, or of new
bookies, when the store answers again.

Sources: bookkeeper-overview, "Reading"; BP-14 for ``read_unconfirmed``; docs/decisions/three-valued-answers.md for the proof that
an entry is absent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from bookspark.errors import BookKeeperError, MetadataStoreError, ReadError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.reading.lac_read import LacRead
from bookspark.protocol.reading.lac_wait import LacWait
from bookspark.protocol.reading.range_read import RangeRead
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.ledger_requests import LedgerRequests
from bookspark.store.client.network.mailbox import Mailbox
from bookspark.store.client.runtime.calls import AwaitableFuture, Calls, in_thread
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.decisions.seam import made
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.metadata.short_waits import waits_at_most
from bookspark.store.wire.entry_batch import Entry, EntryBatch, arrow_schema
from bookspark.support.arguments import EntryId, LastEntryId, WaitSeconds, checks_methods
from bookspark.support.extras import extra_needed
from bookspark.support.threads import Latch, end_of_polls

if TYPE_CHECKING:
    import pyarrow

    from bookspark.store.client.runtime.runtime import Runtime

log = logging.getLogger(__name__)


# -- The driver of ``RangeRead``


_SPARE_SECONDS = 5.0


class Delivered(NamedTuple):
    """Consecutive entries, and a last add confirmed (LAC) that came with them."""

    entries: list[EntryBatch]
    last_add_confirmed: int


def read_range(
    machine: RangeRead,
    requests: LedgerRequests,
    read_metadata: Callable[[], act.MetadataRead | act.MetadataFailed],
    config: ClientConfig,
) -> Iterator[Delivered]:
    """Yield the entries that the machine delivers, until it has finished. Raises the machine's error.

    Law: the machine decides; the driver adds only clock and transport. While the caller uses one answer, at most the next request
    is under way. Each request has its own time limit, so every wait ends.

    ``read_metadata`` reads the ledger's metadata again and blocks until it has it.
    """
    # This wait is longer than the request's own time limit: it only guards against a defect.
    longest = config.answer_timeout_seconds + config.connect_timeout_seconds + _SPARE_SECONDS
    delay = config.speculative_read_delay_ms / 1000 or longest
    mailbox = Mailbox(longest)
    actions = machine.start()
    confirmed = NO_ENTRY
    while True:
        for action in actions:
            if isinstance(action, act.SendRead):
                requests.read(action, mailbox.put)
        for action in actions:
            match action:
                case act.Deliver():
                    yield Delivered(action.entries, confirmed)
                case act.ReadMetadata():
                    mailbox.put(read_metadata())
                case act.Fail():
                    raise action.error
                case act.Finish():
                    return
        mailbox.allow(delay)
        event = mailbox.take()
        if isinstance(event, act.DeadlinePassed):
            actions = machine.step(act.ReadIsLate(machine.next_entry_id)) if delay < longest else []
            if actions:
                continue
            mailbox.allow(longest)
            event = mailbox.take()
        if not isinstance(event, act.ReadAnswered | act.MetadataRead | act.MetadataFailed):
            raise ReadError(f"entry {machine.next_entry_id}: no replica answered within {longest:g} s; try again")
        if isinstance(event, act.ReadAnswered) and isinstance(event.following, Positive) and event.following.value:
            confirmed = max(confirmed, event.following.value.last_add_confirmed)
        actions = machine.step(event)


# -- The handle for reading


HOLD_SECONDS_MAX = 30.0
"""A long poll is repeated after this time, so that bookies that failed meanwhile are asked again."""
_STORE_SECONDS = 1.0
"""Longest wait for the metadata store before a handle continues without it."""
UNFOLLOWED_SECONDS, _UNFOLLOWED_SECONDS_MAX = 2.5, 10.0
"""Pause before a silent metadata store is asked again: doubles from the first value up to the second. Each attempt blocks a long
poll for a tenth of the last pause."""


@checks_methods
class ReadHandle:
    """A ledger opened for reading by ``BookKeeper.open_ledger`` or ``open_ledger_no_recovery``.

    ::

        reader = bookkeeper.open_ledger_no_recovery(ledger_id)
        for entry in reader.read():
            print(entry.entry_id, entry.payload)

    Entry ids start at 0. The last add confirmed (LAC) is the highest readable id; −1 while there is none.

    Thread-safe, usable in a forked process, and without anything to close. Methods may also raise BookKeeperError, if the client
    was closed, and TooManyRequestsError, if a bookie refuses more requests.
    """

    def __init__(self, context: ClientContext, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        self._context = context
        self._password = password
        self._learning = threading.RLock()
        self._learning_pid = os.getpid()
        self._known = Versioned(metadata, version)
        self._watching_pid = 0
        """The process whose watch keeps ``_known`` up to date; 0: none."""
        self._follow_at = self._follow_pause = 0.0
        """Time of the next attempt to watch, and the pause before it; 0 if the metadata store answered last."""
        self._polls: dict[Mailbox, None] = {}
        """Running long polls; changed metadata is passed to each."""
        self._delivered_by: str | None = None
        self._asks: tuple[Runtime, LedgerRequests] | None = None
        """This process's runtime, and the ledger's requests through it."""
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
        """The highest entry id that this handle knows to be confirmed (LAC); −1 if there is none. Sends no request, unlike
        ``read_last_add_confirmed``."""
        return self._last_add_confirmed

    @property
    def length(self) -> int:
        """Sum of all payloads of the closed ledger, in bytes; 0 while the ledger is open."""
        return self._known.value.length

    @property
    def closed(self) -> bool:
        """True if this handle knows that the ledger is closed: its last entry is final."""
        return self.metadata.closed

    def read(self, first: EntryId = 0, last: LastEntryId | None = None) -> Iterator[Entry]:
        """Read confirmed entries, in id order. Fetches about 2 MiB ahead of the iteration.

        Arguments:
            first: the id of the first entry.
            last: the id of the last entry, inclusive; None: the LAC that this handle knows.

        Raises, at once:
            ReadError: ``first..last`` is no range of entry ids, or ``last`` is beyond the LAC that this handle knows.

        Raises, during the iteration:
            NoSuchEntryError: every bookie that could hold an entry denies it.
            ReadError: no replica of an entry gave a definite answer within ``answer_timeout_seconds``; the entry may well exist.
            NoSuchLedgerError: the ledger was deleted meanwhile.
            UnauthorizedAccessError: the bookies know another password.
        """
        return self._entries(*self._confirmed_range(first, last))

    def read_unconfirmed(self, first: EntryId, last: EntryId) -> Iterator[Entry]:
        """Read entries, confirmed or not (BP-14). An unconfirmed entry may be gone at the next read.

        Arguments:
            first: the id of the first entry.
            last: the id of the last entry, inclusive. It may be beyond the LAC.

        Raises, at once:
            ReadError: ``first..last`` is no range of entry ids.

        Raises, during the iteration:
            NoSuchEntryError: every bookie that could hold an entry denies it.
            ReadError: no replica of an entry gave a definite answer within ``answer_timeout_seconds``.
            NoSuchLedgerError: the ledger was deleted meanwhile.
            UnauthorizedAccessError: the bookies know another password.
        """
        if first < 0 or last < first:
            raise ReadError(f"ledger {self.ledger_id}: {first}..{last} is no range of entry ids")
        return self._entries(first, last)

    def read_batches(self, first: EntryId = 0, last: LastEntryId | None = None) -> pyarrow.RecordBatchReader:
        """Read confirmed entries as Arrow record batches, in the memory that received them: without a copy.

        The columns are ledger_id, entry_id, last_add_confirmed and length (int64; the length of the ledger up to the entry, in
        bytes), payload and digest (binary).

        Arguments:
            first: the id of the first entry.
            last: the id of the last entry, inclusive; None: the LAC that this handle knows.

        Raises, at once:
            ReadError: ``first..last`` is no range of entry ids, or ``last`` is beyond the LAC that this handle knows.

        Raises, during the iteration:
            NoSuchEntryError: every bookie that could hold an entry denies it.
            ReadError: no replica of an entry gave a definite answer within ``answer_timeout_seconds``.
            NoSuchLedgerError: the ledger was deleted meanwhile.
            UnauthorizedAccessError: the bookies know another password.
        """
        with extra_needed("read_batches"):
            import pyarrow

        batches = self._batches(*self._confirmed_range(first, last))
        return pyarrow.RecordBatchReader.from_batches(arrow_schema(), (batch.to_arrow() for batch in batches))

    def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the last add confirmed (LAC), and return it; −1 if nothing is confirmed.

        For a closed ledger the metadata has the answer: its last entry. A hanging bookie delays the answer by
        ``speculative_read_delay_ms`` if another bookie answers; a LAC that only the hanging bookie knows is then missed. A
        ZooKeeper that does not answer delays some of the calls, by at most a second; meanwhile the handle does not learn of a
        close.

        Raises:
            ReadError: no bookie of the ledger's last ensemble told its LAC within ``answer_timeout_seconds``.
            NoSuchLedgerError: the ledger was deleted.
            UnauthorizedAccessError: the bookies know another password.
        """
        if not self.metadata.closed:
            self._follow(anew=True)
        if not self.metadata.closed:
            config = self._context.config
            longest = config.answer_timeout_seconds + 1.0
            delay = config.speculative_read_delay_ms / 1000 or longest
            mailbox = Mailbox(min(delay, longest))
            requests = self._requests()
            machine = made(LacRead, self.metadata)
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

    def read_last_add_confirmed_and_entry(self, entry_id: EntryId, timeout: WaitSeconds) -> tuple[int, Entry | None]:
        """Wait until an entry is confirmed, and return the last add confirmed (LAC) and the entry.

        This is a long poll: the bookies delay their response until they know that the entry is confirmed. The response brings the
        entry too, unless it is large.

        Arguments:
            entry_id: the entry to wait for, for example ``last_add_confirmed + 1``.
            timeout: longest wait, in seconds.

        Returns:
            (LAC, entry); or (LAC, None) if the entry is not confirmed within ``timeout``, or the ledger was closed before it.

        Raises:
            ReadError: no bookie of the ledger's last ensemble tells its LAC, or the entry could not be read.
            NoSuchEntryError: every bookie that could hold the entry denies it.
            NoSuchLedgerError: the ledger was deleted.
            UnauthorizedAccessError: the bookies know another password.
        """
        deadline = time.monotonic() + timeout
        came: list[EntryBatch] | None = None
        ended = end_of_polls()
        while entry_id > self._last_add_confirmed and not self.metadata.closed and not ended.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            came = self._long_poll(entry_id, left, ended)
        if entry_id > self._last_add_confirmed:
            return self._last_add_confirmed, None
        return self._last_add_confirmed, came[0].entry(entry_id) if came else next(self._entries(entry_id, entry_id))

    def read_async(self, first: EntryId = 0, last: LastEntryId | None = None) -> AwaitableFuture[list[Entry]]:
        """Begin ``read`` in a thread of the client. Returns an awaitable future of the list of entries, which are all in memory
        then, or of an error of ``read``. Raises BookKeeperError if the client was closed."""
        return self._calls.begin(lambda: list(self.read(first, last)))

    def read_unconfirmed_async(self, first: EntryId, last: LastEntryId) -> AwaitableFuture[list[Entry]]:
        """Begin ``read_unconfirmed`` as ``read_async`` begins ``read``. Raises BookKeeperError if the client was closed."""
        return self._calls.begin(lambda: list(self.read_unconfirmed(first, last)))

    read_last_add_confirmed_async = in_thread(read_last_add_confirmed)
    read_last_add_confirmed_and_entry_async = in_thread(read_last_add_confirmed_and_entry)

    def confirm(self, entry_id: LastEntryId) -> None:
        """Raise the handle's LAC to ``entry_id``. The caller has proof that the entry is confirmed, for example a log's commit
        that names it."""
        self._confirm(entry_id)

    def close(self) -> None:
        """Do nothing: a handle for reading holds nothing. Both kinds of handle can be used in ``with``."""

    def __repr__(self) -> str:
        ledger_id, confirmed = self.metadata.ledger_id, self.last_add_confirmed
        return f"<{type(self).__name__}: ledger {ledger_id}, {self._state_told}, last add confirmed {confirmed}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} can't be pickled: it belongs to a client in this process. Pickle the BookKeeper client and "
            "the ledger's id, and open the ledger there; its metadata and its entries can be pickled"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- inside

    @property
    def _calls(self) -> Calls:
        return self._context.calls

    @property
    def _state_told(self) -> str:
        return self.metadata.state.value

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
        """Created once in each process: otherwise a read of one entry would take a tenth longer."""
        runtime = self._context.runtime
        if self._asks is None or self._asks[0] is not runtime:
            self._asks = runtime, self._context.requests(self.metadata, self._password)
        return self._asks[1]

    def _entries(self, first: int, last: int) -> Iterator[Entry]:
        for batch in self._batches(first, last):
            yield from batch.entries()

    def _batches(self, first: int, last: int) -> Iterator[EntryBatch]:
        order = self._context.read_order(self._delivered_by)
        machine = made(RangeRead, self.metadata, first, last, order, rereads_metadata=True, reads_ahead=True)
        for batches in read_range(machine, self._requests(), self._read_again, self._context.config):
            self._delivered_by = machine.delivered_by
            self._confirm(batches.last_add_confirmed)
            yield from batches.entries

    def _long_poll(self, entry_id: int, seconds: float, ended: Latch) -> list[EntryBatch] | None:
        """Wait until the entry is confirmed, the ledger is closed, the time is over, or ``ended`` is set. Returns the entry if it
        came with the answer."""
        mailbox = Mailbox(seconds)
        self._polls[mailbox] = None
        with contextlib.ExitStack() as at_end:
            at_end.callback(self._polls.pop, mailbox, None)
            at_end.enter_context(ended.calling(lambda: mailbox.put(act.DeadlinePassed())))
            follows = self._follow()
            mailbox.allow(min(mailbox.left_seconds(), HOLD_SECONDS_MAX if follows else UNFOLLOWED_SECONDS))
            requests = self._requests()
            machine = made(LacWait, self.metadata, entry_id)
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
        entries: list[EntryBatch] | None = machine.entries
        return entries

    # -- metadata

    def _follow(self, *, anew: bool = False) -> bool:
        """Watch the metadata, and read it after the watch is set. ``anew``: read it even if it is watched, because a watch may be
        late. Returns False if the store does not answer. Raises NoSuchLedgerError."""
        if time.monotonic() < self._follow_at:
            return False
        try:
            with waits_at_most(self._follow_pause / 10 or _STORE_SECONDS):
                news = self._watch() or anew
                if news:
                    self._refresh()
            if news:
                # Other long polls of this handle skipped the read because the metadata was watched.
                for mailbox in list(self._polls):
                    mailbox.put(act.MetadataRead(*self._known))
        except MetadataStoreError as error:
            log.warning("ledger %d: reading goes on without its metadata: %s", self.ledger_id, error)
            self._watching_pid = 0
            self._follow_pause = min(max(2 * self._follow_pause, UNFOLLOWED_SECONDS), _UNFOLLOWED_SECONDS_MAX)
            self._follow_at = time.monotonic() + self._follow_pause
            return False
        self._follow_pause = 0.0
        return True

    def _watch(self) -> bool:
        """Watch the metadata from now on, in this process. Returns False if it is watched already."""
        if self._watching_pid == os.getpid():
            return False
        # Set before ``listen``: from then on, the loss of the watch may be reported at any moment.
        self._watching_pid = os.getpid()
        try:
            self._context.runtime.ledger_watches.listen(self.ledger_id, self._metadata_changed)
        except BaseException:
            self._watching_pid = 0
            raise
        return True

    def _metadata_changed(self, found: Versioned[LedgerMetadata] | None) -> None:
        """Called from the metadata store's thread. ``found`` is None if the watch was lost."""
        if found is None:
            self._watching_pid = 0
        else:
            self._learn(found)
        for mailbox in list(self._polls):
            mailbox.put(act.MetadataConflict() if found is None else act.MetadataRead(*found))

    def _refresh(self) -> None:
        """Read the metadata again. The last entry of a closed ledger becomes the LAC."""
        self._learn(self._context.store.read_ledger(self.ledger_id))

    def _read_again(self) -> act.MetadataRead | act.MetadataFailed:
        try:
            self._refresh()
        except BookKeeperError as error:
            return act.MetadataFailed(error)
        return act.MetadataRead(*self._known)

    def _learn(self, found: Versioned[LedgerMetadata]) -> None:
        # In a forked process a new lock: another thread of the parent may have held the old lock at the fork.
        if self._learning_pid != os.getpid():
            self._learning, self._learning_pid = threading.RLock(), os.getpid()
        with self._learning:
            if found.version > self._known.version:
                self._known = found
        if found.value.closed:
            self._confirm(found.value.last_entry_id)
