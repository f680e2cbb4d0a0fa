"""An open ledger, for writing: the handle of the client that created it. ``LedgerHandleAdv``: the caller gives the entry ids.

Law: ids follow the order of the calls. ``append`` returns once an ack quorum of bookies has the entry: synced on a PD ledger
(persistent durability), in memory on a VD ledger (volatile durability, BP-14). ``sync`` returns once all earlier appends are
synced. The LAC (last add confirmed) covers acknowledged and synced entries; the writer's machine decides it, so all methods
return the same LAC. Every wait has a deadline, but ``close()`` of a guaranteed ledger keeps trying.

An append waits while its ledger keeps more than the client has room for (``Room``), at most twice ``add_timeout_seconds``.

An interrupt (Ctrl-C) at any point leaves an append whole or not made. Don't append or close in a signal handler: set a flag
there. Locks are ordinary ones.

A handle that is dropped without ``close`` is freed once its appends are acknowledged, with a ResourceWarning, as a file is. The
ledger stays open, as after a crash of its writer: perhaps the handle was dropped after an error.

Source: BookKeeper's ``LedgerHandle`` and ``LedgerHandleAdv``; ``protocol.writing.given_ids`` orders appends with given ids.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from bookspark.errors import AddTimeoutError, BookKeeperError, EntryTooLargeError, LedgerClosedError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, Replication
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.writing.given_ids import Given, GivenIds, InOrder, NoMore
from bookspark.protocol.writing.writer import State
from bookspark.store.client.network.connections import Answer
from bookspark.store.client.reading.read_handle import HOLD_SECONDS_MAX, UNFOLLOWED_SECONDS, ReadHandle
from bookspark.store.client.runtime.calls import AwaitableFuture, done_with, in_thread
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.runtime.runtime import defect
from bookspark.store.client.writing.futures import AppendFuture, SyncFuture
from bookspark.store.client.writing.ledger_driver import LedgerDriver, OnFenced
from bookspark.store.client.writing.payloads import PayloadRun, payload_of, payloads_of, runs_of
from bookspark.store.decisions.seam import made
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.wire.columns import Heads
from bookspark.store.wire.entry_batch import PAYLOAD_BYTES_MAX, Entry
from bookspark.support.arguments import EntryId, Payload, WaitSeconds, checks_itself, checks_methods
from bookspark.support.threads import check_may_wait, here

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)


_END_SECONDS = 15.0
"""Time for a close to end after its deadline: one answer of the metadata store."""


@checks_methods
class LedgerHandle(ReadHandle):
    """An open ledger for writing, which ``create_ledger`` returns. Thread-safe. In a forked process it can only read."""

    def __init__(self, context: ClientContext, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        super().__init__(context, metadata, version, password)
        self._pid, self._process = os.getpid(), here.process
        driver = self._driver = LedgerDriver(context, metadata, version, password)
        self._writer, self._cursors, self._pump = driver.writer, driver.cursors, driver.pump
        self._room, self._io = context.runtime.room, context.runtime.io
        striped = metadata.ensemble_size > metadata.write_quorum
        self._split = partial(runs_of, frame_bytes=context.config.frame_bytes, one_each=striped)
        context.runtime.add_writer(driver)
        self._io.submit(driver.want_bookies)

    # -- the ledger's state

    @property
    def last_add_confirmed(self) -> int:
        """The LAC: the highest id such that every entry up to it is acknowledged and synced; −1 if there is none. After the
        writer's failure and another client's recovery: the result of the last ``read_last_add_confirmed``, if higher."""
        return max(self._cursors.last_add_confirmed, self._last_add_confirmed)

    @property
    def last_add_synced(self) -> int:
        """The highest id such that an ack quorum has synced every entry up to it, which is the LAC; −1 if there is none."""
        return self.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """Highest id given to an append; −1 if none."""
        return self._driver.next_entry_id - 1

    @property
    def last_add_fully_replicated(self) -> int:
        """The highest id of a guaranteed ledger up to which each entry is on its whole write set; −1 on other ledgers."""
        return self._cursors.last_add_fully_replicated

    @property
    def length(self) -> int:
        """Payload bytes up to the last confirmed entry."""
        metadata = self.metadata
        return metadata.length if metadata.closed else self._cursors.length

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this handle last wrote or saw it."""
        known, writer = self._known, self._writer
        return known.value if known.version > writer.version else writer.metadata

    def read_last_add_confirmed(self) -> int:
        """The LAC, from this writer, which decides it. No bookie is asked; bookies get it with the next entry.

        Once the writer has failed, another client may recover the ledger and find entries that were not confirmed here. From then
        on, and in a forked process, the bookies are asked, or the metadata of the closed ledger; what this writer had confirmed
        counts as well. A writer that was fenced and has not heard of it tells what it confirmed: no recovery ends the ledger
        before that. Raises ReadError, NoSuchLedgerError and MetadataStoreError, only where others are asked.
        """
        if self._is_writing():
            return self.last_add_confirmed
        self._confirm(self._cursors.last_add_confirmed)
        return super().read_last_add_confirmed()

    def read_last_add_confirmed_and_entry(self, entry_id: EntryId, timeout: WaitSeconds) -> tuple[int, Entry | None]:
        """Wait up to ``timeout`` seconds for ``entry_id`` to be confirmed, by this writer; by others as soon as
        ``read_last_add_confirmed`` would ask them.

        Returns (LAC, the entry), or (LAC, None) if it is not confirmed by then or the ledger was closed before it. Raises
        ReadError if the entry, or the LAC where it is asked for, could not be read; NoSuchEntryError if all replicas say that the
        entry is not there; NoSuchLedgerError if the ledger was deleted; BookKeeperError in a thread of the client's own.
        """
        deadline = time.monotonic() + timeout
        if self._is_writing():
            self._await_confirmed(entry_id, deadline)
        self._confirm(self._cursors.last_add_confirmed)
        return super().read_last_add_confirmed_and_entry(entry_id, max(0.0, deadline - time.monotonic()))

    def _await_confirmed(self, entry_id: int, deadline: float) -> None:
        """Wait until this writer has confirmed the entry, the ledger is closed, by whomever, or the time is over.

        An idle writer learns only from the metadata that another client recovers its ledger."""
        cursors, ended = self._cursors, self._driver.ended
        while True:
            left = deadline - time.monotonic()
            if entry_id <= cursors.last_add_confirmed or ended.is_set() or self._known.value.closed or left <= 0:
                return
            follows = self._follow()
            self._driver.confirmed.wait(
                lambda: (
                    entry_id <= cursors.last_add_confirmed
                    or ended.is_set()
                    or self._known.value.closed
                    or (follows and not self._watching_pid)  # noqa: B023
                ),
                min(left, HOLD_SECONDS_MAX if follows else UNFOLLOWED_SECONDS),
            )

    def _metadata_changed(self, found: Versioned[LedgerMetadata] | None) -> None:
        super()._metadata_changed(found)
        self._driver.confirmed.wake()

    def _is_writing(self) -> bool:
        """Is the writer in this process, and has it not failed?"""
        return os.getpid() == self._pid and self._writer.state is not State.FAILED

    @property
    def closed(self) -> bool:
        """True if nothing can be appended through this handle: it was closed, an error ended it, or it is another process's."""
        driver = self._driver
        return driver.closing or driver.acknowledged.error is not None or os.getpid() != self._pid

    @property
    def _state_told(self) -> str:
        error = self._driver.acknowledged.error
        return (
            super()._state_told
            if error is None or self._writer.state is State.CLOSED
            else f"ended by {type(error).__name__}"
        )

    # -- appends

    @checks_itself
    def append(self, payload: bytes) -> int:
        """Append one entry and return its id once an ack quorum has it: synced, or in memory on a VD_JOURNAL ledger.

        Raises InvalidArgumentError, EntryTooLargeError and LedgerClosedError, and nothing is appended. Raises LedgerFencedError
        if another client opened the ledger, UnauthorizedAccessError if a bookie knows another password, AddTimeoutError after
        ``add_timeout_seconds`` without an acknowledgement, NotEnoughBookiesError if no bookie could take the place of those that
        failed, and MetadataStoreError or NoSuchLedgerError if the ledger's record could not be changed for that; then the entry
        may be part of the ledger or not.
        """
        if type(payload) is not bytes:
            payload = payload_of(payload, "append")
        self._driver.acknowledged.check_may_wait()
        return self.append_async(payload).result()

    @checks_itself
    def append_async(self, payload: bytes) -> AppendFuture:
        """Append one entry without waiting for its acknowledgement; the future's result is its id, or an error of ``append``.

        Waits only while ``bytes_in_flight_max`` bytes are kept. Raises InvalidArgumentError, EntryTooLargeError,
        LedgerClosedError, AddTimeoutError if that wait lasts twice ``add_timeout_seconds``, and the error that ended the ledger,
        if one did.
        """
        if type(payload) is not bytes or len(payload) > PAYLOAD_BYTES_MAX:
            payload = self._payload(payload, "append_async")
        return AppendFuture(self._driver.acknowledged, self._enqueue((payload,), 1, len(payload)))

    @checks_itself
    def append_batch(self, payloads: Sequence[bytes] | pyarrow.BinaryArray) -> range:
        """Append ``payloads`` (a list of bytes, or a pyarrow binary or string array without nulls) as consecutive entries.
        Returns their ids once all are acknowledged.

        Raises InvalidArgumentError for nulls and for what is not binary, and nothing is appended then. Raises the errors of
        ``append`` (EntryTooLargeError, LedgerClosedError, LedgerFencedError, UnauthorizedAccessError, AddTimeoutError,
        NotEnoughBookiesError, MetadataStoreError, NoSuchLedgerError). After one of the last six, any of the entries may be part
        of the ledger.
        """
        payloads = payloads_of(payloads, "append_batch")
        self._driver.acknowledged.check_may_wait()
        last = self.append_batch_async(payloads).result()
        return range(last - len(payloads) + 1, last + 1)

    @checks_itself
    def append_batch_async(self, payloads: Sequence[bytes] | pyarrow.BinaryArray) -> AppendFuture:
        """Append ``payloads`` as ``append_batch`` takes them, without waiting for their acknowledgement.

        The future's result is the id of the last one, or an error; −1 at once if there are none. Waits only while
        ``bytes_in_flight_max`` bytes are kept. Raises InvalidArgumentError, EntryTooLargeError, LedgerClosedError,
        AddTimeoutError if that wait lasts twice ``add_timeout_seconds``, and the error that ended the ledger, if one did.
        """
        payloads = payloads_of(payloads, "append_batch_async")
        runs = self._split(payloads)
        count = len(payloads)
        first = self._enqueue(runs, count, sum(run.byte_length for run in runs)) if count else 0
        return AppendFuture(self._driver.acknowledged, first + count - 1)

    def sync(self, timeout: WaitSeconds | None = None) -> int:
        """Wait until an ack quorum has synced all earlier appends. Returns the last synced entry id: that of the last such
        append, or a later one. On a PD_JOURNAL ledger each append waits for its sync anyway.

        Raises TimeoutError after ``timeout`` seconds; without it, AddTimeoutError after ``add_timeout_seconds`` without progress.
        Raises LedgerFencedError, UnauthorizedAccessError, NotEnoughBookiesError, MetadataStoreError or NoSuchLedgerError if the
        ledger ends before; then what was not synced may be part of it or not. Raises LedgerClosedError in a forked process.
        """
        return self.sync_async().result(timeout)

    def sync_async(self) -> SyncFuture:
        """Begin a ``sync`` without waiting for it; the future's result is the last synced entry id, or an error of ``sync``.
        Raises LedgerClosedError in a forked process."""
        self._check_process()
        last = self.last_add_pushed
        if last > self._cursors.last_add_confirmed:
            self._io.submit(self._driver.sync, last)
        return SyncFuture(self._driver.confirmed, last)

    def flush_last_add_confirmed(self) -> int:
        """Tell the bookies the LAC now (explicit LAC), so that readers see the last entry; returns the LAC.

        An idle writer does so by itself within ``explicit_lac_interval_seconds``. For a closed ledger the metadata has it.
        Raises AddTimeoutError if fewer bookies than an ack quorum took it, LedgerClosedError in a forked process, and the error
        that ended the ledger, if one did.
        """
        self._check_process()
        check_may_wait()
        driver, confirmed, metadata = self._driver, self._cursors.last_add_confirmed, self._writer.metadata
        answers: queue.SimpleQueue[bool | None] = queue.SimpleQueue()

        def answered(bookie: str, answer: Answer) -> None:
            answers.put(isinstance(answer.response, Positive))

        self._io.submit(driver.tell_lac, answered, lambda: answers.put(None))
        acks, deadline = 0, time.monotonic() + self._context.config.answer_timeout_seconds + 1.0
        try:
            for _ in range(metadata.ensemble_size):
                took = answers.get(timeout=max(0.0, deadline - time.monotonic()))
                if took is None:
                    if driver.acknowledged.error is not None:
                        raise driver.acknowledged.error.with_traceback(None)
                    return self.last_add_confirmed
                acks += took
                if acks >= metadata.ack_quorum:
                    return max(confirmed, self._last_add_confirmed)
        except queue.Empty:
            pass
        raise AddTimeoutError(
            f"ledger {self.ledger_id}: only {acks} bookies took the explicit LAC {confirmed}; try again"
        )

    def sole_appender(self, on_fenced: OnFenced | None = None) -> SoleAppender:
        """Appends for a caller that orders them itself and is the only one. Not part of the public API: for a log's producer.

        ``on_fenced``: called if another client fences the ledger (``LedgerDriver``); None: waiting appends fail then."""
        return SoleAppender(self, on_fenced)

    def tell_last_add_confirmed_soon(self) -> None:
        """From now on send the bookies the LAC (explicit LAC) a millisecond after each confirmation unless an entry carries
        it, so that readers see each entry soon after its acknowledgement."""
        self._driver.tells_soon = True

    def close(self, wait: bool = True, timeout: WaitSeconds | None = None) -> None:
        """Wait until all appends are acknowledged and synced, and of a guaranteed ledger on their whole write sets, then close
        the ledger at the last one. Does nothing in a forked process.

        ``wait=False``: unfinished appends fail at once. ``timeout``: the close fails after this many seconds. Without it the
        close fails after ``add_timeout_seconds``; but a guaranteed ledger whose appends are all acknowledged goes on trying
        until each entry is on ``write_quorum`` bookies, however long that takes, and warns in the log.

        Raises AddTimeoutError when the time is over, LedgerFencedError if another client closed or recovers the ledger, or the
        error that ended the ledger (UnauthorizedAccessError, NotEnoughBookiesError, MetadataStoreError, NoSuchLedgerError). The
        ledger may still be open then. Nothing that was confirmed is lost: ``open_ledger`` recovers and closes it. The error's
        ``unconfirmed`` has the ids that were not confirmed.
        """
        if os.getpid() != self._pid:
            return
        driver = self._driver
        check_may_wait()
        with self._room.lock:
            driver.closing = True
        if not wait:
            self._io.submit(driver.give_up)
        self._io.submit(driver.pump)
        if not self._wait_for_end(timeout):
            self._io.submit(driver.end)
            driver.ended.wait(_END_SECONDS)
        if self._writer.state is not State.CLOSED:
            error = driver.acknowledged.error or AddTimeoutError(
                f"ledger {self.ledger_id}: the close did not end in time"
            )
            error.unconfirmed = range(self.last_add_confirmed + 1, self.last_add_pushed + 1)
            raise error.with_traceback(None)

    close_async = in_thread(close)

    def drain_async(self) -> AwaitableFuture[None]:
        """A future that is done once ``append_async`` need not wait for room: await it before appends in a coroutine, as with the
        ``drain`` of asyncio's streams. Its error is AddTimeoutError if that lasts twice ``add_timeout_seconds``, or
        LedgerClosedError in a forked process. Raises BookKeeperError if the client was closed."""
        self._check_process()
        if self._has_room():
            return done_with(None)
        return self._calls.begin(self._wait_for_room, self._has_room)

    def __exit__(self, *exc_info: object) -> None:
        """Close the ledger. If that fails after an error in the ``with`` body, the body's error is raised, with a note of it."""
        failed = exc_info[1] if len(exc_info) > 1 else None
        try:
            self.close()
        except BookKeeperError as error:
            if not isinstance(failed, BaseException):
                raise
            failed.add_note(f"ledger {self.ledger_id} could not be closed either: {error}")

    def __del__(self) -> None:
        # Any thread may run this finalizer, also the I/O thread, at any point. It must not wait.
        driver: LedgerDriver | None = getattr(self, "_driver", None)
        if driver is None or os.getpid() != self._pid or sys.is_finalizing():
            return
        if not driver.ended.is_set():
            self._io.submit(driver.drop)
            warnings.warn(
                f"ledger {driver.ledger_id} was not closed; use it in a with statement, or call close()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    # -- inside, in callers' threads

    def _wait_for_end(self, timeout: float | None) -> bool:
        ended, limit = self._driver.ended, self._context.config.add_timeout_seconds
        if timeout is not None or self.metadata.replication is not Replication.GUARANTEED:
            return ended.wait(limit if timeout is None else timeout)
        # Appends that are not acknowledged have their own deadline, so this wait goes on.
        while not ended.wait(limit):
            log.warning(
                "ledger %d: its close goes on trying, for entries from %d on are not on %d bookies yet",
                self.ledger_id,
                self.last_add_fully_replicated + 1,
                self.metadata.write_quorum,
            )
        return True

    def _payload(self, payload: bytes, method: str) -> bytes:
        """``payload`` as bytes. Raises InvalidArgumentError and EntryTooLargeError."""
        if type(payload) is not bytes:
            payload = payload_of(payload, method)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise EntryTooLargeError(
                f"ledger {self.ledger_id}: an entry of {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} fit, split it"
            )
        return payload

    def _enqueue(self, items: Sequence[bytes | PayloadRun], count: int, byte_length: int) -> int:
        """Give ``count`` entries the next ids, in one run, and submit them; returns the first id."""
        driver, room = self._driver, self._room
        if self._process is not here.process:
            self._check_process()
        kept = driver.appended - driver.released
        if kept > 0 and kept > room.bytes_max - room.appended + room.released:
            self._wait_for_room(self._has_room)
        put = driver.outgoing.put
        with room.lock:
            # Python delivers an interrupt after a call only, so these lines run together or not at all.
            if driver.closing or driver.acknowledged.error is not None:
                raise self._why_ended()
            first = driver.next_entry_id
            driver.next_entry_id = first + count
            driver.appended += byte_length
            room.appended += byte_length
            put(items)
        self._io.submit_once(self._pump)
        return first

    def _has_room(self) -> bool:
        return self._room.has_room(self._driver.appended - self._driver.released)

    def _wait_for_room(self, has_room: Callable[[], bool]) -> None:
        """Wait until ``has_room()``. Raises AddTimeoutError after twice ``add_timeout_seconds``, and BookKeeperError in a thread
        of the client's own."""
        check_may_wait()
        if has_room() or self._room.wait(has_room, 2 * self._context.config.add_timeout_seconds):
            return
        cursors = self._cursors
        if cursors.last_add_acknowledged < self.last_add_pushed:
            missing = "an acknowledgement; no bookie makes progress"
        elif cursors.last_add_confirmed < cursors.last_add_pushed:
            missing = "a sync; too few bookies make progress"
        else:
            copies = self.metadata.write_quorum
            missing = f"their {copies} copies; bring back the bookies of the ensemble, or start more"
        raise AddTimeoutError(
            f"ledger {self.ledger_id}: {self._driver.appended - self._driver.released} bytes wait for {missing} (all ledgers of "
            f"this client keep {self._room.held} of {self._room.bytes_max} bytes, bytes_in_flight_max)"
        )

    def _why_ended(self) -> BookKeeperError:
        error = self._driver.acknowledged.error
        if self._driver.closing or error is None:
            return LedgerClosedError(f"ledger {self.ledger_id} is closed; append to a new one")
        return error.with_traceback(None)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise LedgerClosedError(
                f"ledger {self.ledger_id} was created by process {self._pid}; a ledger has one writer, create another one here"
            )


@checks_methods
class LedgerHandleAdv(LedgerHandle):
    """An open ledger for writing whose entry ids the caller gives; ``create_ledger_adv`` returns it. Thread-safe.

    Ids start at 0 and have no gaps in the end. They may be given in any order, by several threads; appends are acknowledged in
    the order of their ids.
    """

    def __init__(self, context: ClientContext, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        super().__init__(context, metadata, version, password)
        # ``Room.lock`` guards all four.
        self._ids = made(GivenIds, metadata.ledger_id)
        self._waiting: dict[int, bytes] = {}
        self._bytes_behind_gap = 0
        self._changes = False

    def append_at(self, entry_id: EntryId, payload: Payload) -> int:
        """Append one entry under ``entry_id`` and return the id once an ack quorum has it, and all entries before it.

        Waits for those entries. Raises DuplicateEntryIdError if the id was given before, and ConfigurationError if it can't be an
        id; then nothing is appended. Raises the errors of ``append`` (EntryTooLargeError, LedgerClosedError, LedgerFencedError,
        UnauthorizedAccessError, AddTimeoutError, NotEnoughBookiesError, MetadataStoreError, NoSuchLedgerError). AddTimeoutError
        also says that an entry before this one was not appended within ``add_timeout_seconds``, and LedgerClosedError that it was
        missing when the ledger was closed.
        """
        check_may_wait()
        return self.append_at_async(entry_id, payload).result()

    def append_at_async(self, entry_id: EntryId, payload: Payload) -> AppendFuture:
        """Append one entry under ``entry_id`` without waiting for its acknowledgement; the future's result is the id, or an error
        of ``append_at``.

        Waits while the client has no room (``bytes_in_flight_max``); the next entry in order does not wait for those behind it.
        Raises DuplicateEntryIdError, ConfigurationError, EntryTooLargeError, LedgerClosedError, AddTimeoutError if that wait
        lasts twice ``add_timeout_seconds``, and the error that ended the ledger, if one did.
        """
        payload = self._payload(payload, "append_at_async")
        self._check_process()
        driver, room, byte_length = self._driver, self._room, len(payload)

        def has_room() -> bool:
            in_order = entry_id <= driver.next_entry_id
            return room.has_room(driver.appended - driver.released - (self._bytes_behind_gap if in_order else 0))

        if not has_room():
            self._wait_for_room(has_room)
        with self._change():
            if driver.closing or driver.acknowledged.error is not None:
                raise self._why_ended()
            actions = self._ids.step(Given(entry_id))
            self._waiting[entry_id] = payload
            driver.appended += byte_length
            room.appended += byte_length
            self._bytes_behind_gap += byte_length
            for action in actions:
                assert isinstance(action, InOrder)
                entries = [self._waiting.pop(k) for k in range(action.first, action.last + 1)]
                self._bytes_behind_gap -= sum(map(len, entries))
                driver.next_entry_id += len(entries)
                driver.outgoing.put(entries)
            was_missing, driver.missing = driver.missing, driver.next_entry_id if self._waiting else None
        if actions:
            room.waiting.wake()
            self._io.submit_once(self._pump)
        if was_missing != driver.missing:
            self._io.submit(driver.watch_gap)
        return AppendFuture(driver.acknowledged, entry_id)

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Hold the lock. An interrupt inside ends the ledger: entries may be out of ``_waiting`` and unsent, and no later entry
        may get their ids. Raises BookKeeperError in a signal handler that interrupted a change."""
        with self._room.lock:
            if self._changes:
                raise BookKeeperError(
                    f"ledger {self.ledger_id}: this signal handler interrupted an append; set a flag there, and append later"
                )
            self._changes = True
            try:
                yield
            except BookKeeperError:
                # Nothing has changed.
                raise
            except BaseException as error:
                self._driver.closing = True
                self._io.submit(self._driver.abandon, defect(self.ledger_id, error))
                raise
            finally:
                self._changes = False

    def sync_async(self) -> SyncFuture:
        """As ``LedgerHandle.sync_async``, for all appends but those that wait for an earlier entry. Raises LedgerClosedError in a
        forked process."""
        return super().sync_async()

    def close(self, wait: bool = True, timeout: WaitSeconds | None = None) -> None:
        """Close the ledger as ``LedgerHandle.close`` does, and with its errors (AddTimeoutError, LedgerFencedError,
        UnauthorizedAccessError, NotEnoughBookiesError, MetadataStoreError, NoSuchLedgerError). Its last entry is the last one
        before the first gap: appends behind it fail with LedgerClosedError.
        """
        if os.getpid() != self._pid:
            # The parent's lock may have been held at the fork.
            return
        driver, room = self._driver, self._room
        with self._change():
            # From here on nothing fills the gap.
            driver.closing = True
            self._ids.step(NoMore())
            left = sorted(self._waiting)
            self._waiting.clear()
            if driver.acknowledged.error is None:  # else the I/O thread takes them off
                driver.appended -= self._bytes_behind_gap
                room.appended -= self._bytes_behind_gap
            self._bytes_behind_gap = 0
            driver.missing = None
        room.waiting.wake()
        try:
            super().close(wait, timeout)
        finally:
            if left:
                driver.acknowledged.fail(
                    LedgerClosedError(
                        f"ledger {self.ledger_id} was closed before entry {driver.next_entry_id} was appended: {len(left)} "
                        f"entries after it, up to {left[-1]}, are not part of the ledger"
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


class SoleAppender:
    """Appends to one ledger by a caller that orders them itself: a log's producer. ``LedgerHandle.sole_appender`` makes it.

    Law: the caller holds its own lock around every call here and around the handle's ``close``, and appends only through this
    object. The caller checks the arguments and refuses a forked process, so an append makes no future and checks nothing."""

    __slots__ = ("_handle", "_pump", "_room", "_split", "_submit_once", "acknowledged", "driver")

    def __init__(self, handle: LedgerHandle, on_fenced: OnFenced | None) -> None:
        self._handle, self.driver, self._room = handle, handle._driver, handle._room
        self._submit_once, self._split, self._pump = handle._io.submit_once, handle._split, handle._pump
        self.acknowledged = handle._driver.acknowledged
        self.driver.on_fenced = on_fenced

    def append(self, payload: bytes) -> None:
        """Append one entry, with the id ``driver.next_entry_id``. Waits and raises as ``LedgerHandle.append_async``."""
        driver, room, byte_length = self.driver, self._room, len(payload)
        kept = driver.appended - driver.released
        if kept > 0 and kept > room.bytes_max - room.appended + room.released:
            self._handle._wait_for_room(self._handle._has_room)
        with room.lock:
            # As in ``LedgerHandle._enqueue``.
            if driver.closing or driver.acknowledged.error is not None:
                raise self._handle._why_ended()
            driver.next_entry_id += 1
            driver.appended += byte_length
            room.appended += byte_length
            driver.outgoing.put((payload,))
        self._submit_once(self._pump)

    def send(self) -> None:
        """Submit the appends again, because an interrupt may have prevented it."""
        self._submit_once(self._pump)

    def append_all(self, payloads: list[bytes], heads: Heads | None = None) -> int:
        """Append several, each behind its head if there are heads, with ids from ``driver.next_entry_id`` on. Returns their bytes
        together. Waits and raises as ``LedgerHandle.append_batch_async``."""
        runs = self._split(payloads, heads=heads)
        byte_length = sum(run.byte_length for run in runs)
        self._handle._enqueue(runs, len(payloads), byte_length)
        return byte_length
