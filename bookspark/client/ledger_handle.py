"""An open ledger, for writing: the handle of the one client that created it.

Law: ids are given out in the order of the calls; ``append`` returns once the protocol's ``LedgerWriter`` confirmed the entry.
Only the I/O thread steps that machine and gathers: what is appended while frames are under way goes out together in the next
one, what is appended to an idle ledger goes out at once. Memory is bounded by ``bytes_in_flight_max``; every wait has a
deadline.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from array import array
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, repeat
from typing import TYPE_CHECKING

from bookspark.client.connections import Answer, OnAnswer
from bookspark.client.futures import AppendFuture, Watermark
from bookspark.client.payloads import PayloadRun, runs_of
from bookspark.client.read_handle import ReadHandle
from bookspark.client.requests import StoreAction
from bookspark.protocol import actions as act
from bookspark.protocol.ensemble_change import ChangeMode
from bookspark.protocol.errors import AddTimeoutError, EntryTooLargeError, LedgerClosedError
from bookspark.protocol.ledger_metadata import LedgerMetadata
from bookspark.protocol.responses import Positive, Unknown, UnknownReason
from bookspark.protocol.writer import Append, BookieBack, BookiesChanged, Close, LedgerWriter, State, WriterEvent
from bookspark.wire.digests import digester
from bookspark.wire.entry_batch import ENTRY_OVERHEAD_BYTES, PAYLOAD_BYTES_MAX, encode, offsets_of
from bookspark.wire.frames import control_frame
from bookspark.wire.header import Flag, Header, Kind

if TYPE_CHECKING:
    import pyarrow

    from bookspark.client.bookkeeper import BookKeeper

_RETRY_SECONDS = 0.1
_END_SECONDS = 15.0
"""What a close that is out of time may take to end: one answer of the metadata store."""
_FINAL = (UnknownReason.FENCED, UnknownReason.UNAUTHORIZED, UnknownReason.UNREACHABLE)


class LedgerHandle(ReadHandle):
    """What ``create_ledger`` returns. Thread-safe; in a forked process it can only read."""

    def __init__(self, bookkeeper: BookKeeper, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        super().__init__(bookkeeper, metadata, version, password)
        self._pid = os.getpid()
        changes = ChangeMode.DELAYED if bookkeeper.config.delay_ensemble_change else ChangeMode.AT_ONCE
        self._writer = LedgerWriter(metadata, version, changes)
        self._watermark = Watermark()
        self._digest = digester(metadata.digest_type, password)
        self._ensemble = metadata.last_fragment.ensemble
        self._striped = metadata.ensemble_size > metadata.write_quorum
        self._ended = threading.Event()
        # Shared with the callers' threads, under the lock:
        self._lock = threading.Lock()
        self._waiting: deque[bytes | PayloadRun] = deque()
        self._next_entry_id = 0
        self._appended_bytes = 0
        self._closing = False
        self._pump_scheduled = False
        # The I/O thread's own:
        self._frames: dict[int, tuple[int, bytes]] = {}
        self._told_lac = -1
        self._progress_at = time.monotonic()
        self._retrying: set[str] = set()
        runtime = bookkeeper.runtime
        self._io, self._connections, self._threads = runtime.io, runtime.connections, runtime.threads
        runtime.add_writer(self)
        self._io.submit(self._want_bookies)

    # -- for users

    @property
    def last_add_confirmed(self) -> int:
        return self._writer.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """The highest id that an append was given; −1 if there was none."""
        return self._next_entry_id - 1

    @property
    def length(self) -> int:
        """Payload bytes up to the last confirmed entry."""
        return self._writer.length

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    def append(self, payload: bytes) -> int:
        """Append one entry and return its id once an ack quorum has it, synced.

        Raises LedgerFencedError, LedgerClosedError, AddTimeoutError, UnauthorizedAccessError, EntryTooLargeError.
        """
        return self.append_async(payload).result()

    def append_async(self, payload: bytes) -> AppendFuture:
        """Append one entry; the future's result is its id. Waits only while ``bytes_in_flight_max`` are unacknowledged."""
        if not isinstance(payload, bytes):
            payload = bytes(memoryview(payload))
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise EntryTooLargeError(
                f"ledger {self.ledger_id}: an entry of {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} fit, split it"
            )
        return AppendFuture(self._watermark, self._enqueue((payload,), 1, len(payload)))

    def append_batch(self, payloads: Sequence[bytes] | pyarrow.BinaryArray) -> range:
        """Append all of ``payloads`` (a list of bytes, or a pyarrow binary or string array without nulls) as consecutive
        entries; returns their ids once all are acknowledged. Raises as ``append`` does; some may have been appended then."""
        last = self.append_batch_async(payloads).result()
        return range(last - len(payloads) + 1, last + 1)

    def append_batch_async(self, payloads: Sequence[bytes] | pyarrow.BinaryArray) -> AppendFuture:
        """The same without waiting; the future's result is the id of the last one (−1 at once if there are none)."""
        runs = runs_of(payloads, self._bookkeeper.config.frame_bytes, self._striped)
        count = len(payloads)
        first = self._enqueue(runs, count, sum(run.byte_length for run in runs)) if count else 0
        return AppendFuture(self._watermark, first + count - 1)

    def flush_last_add_confirmed(self) -> int:
        """Tell the bookies the LAC now (explicit LAC), so that readers see the last entry; returns it.

        An idle writer does so by itself within ``explicit_lac_interval_seconds``. Raises AddTimeoutError if not at least an
        ack quorum of bookies took it.
        """
        confirmed = self.last_add_confirmed
        answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._io.submit(self._tell_lac, lambda answer: answers.put(isinstance(answer.response, Positive)))
        taken = 0
        deadline = time.monotonic() + self._bookkeeper.config.answer_timeout_seconds + 1.0
        try:
            for _ in self._ensemble:
                taken += answers.get(timeout=max(0.0, deadline - time.monotonic()))
                if taken >= self._writer.metadata.ack_quorum:
                    return confirmed
        except queue.Empty:
            pass
        raise AddTimeoutError(
            f"ledger {self.ledger_id}: only {taken} bookies took the explicit LAC {confirmed}; try again"
        )

    def close(self, wait: bool = True, timeout: float | None = None) -> None:
        """Wait for all appends, then close the ledger at the last one.

        With ``wait=False``, what is not acknowledged at this moment fails. Raises, within ``timeout`` seconds (default: the
        add timeout), what the appends failed with, or LedgerFencedError if another client closed it elsewhere. The ledger is
        then still open or being recovered: ``open_ledger`` closes it.
        """
        if os.getpid() != self._pid:
            return
        limit = self._bookkeeper.config.add_timeout_seconds if timeout is None else timeout
        with self._lock:
            self._closing = True
        if not wait:
            self._io.submit(self._give_up_pending)
        self._io.submit(self._pump)
        try:
            if not self._ended.wait(limit):
                self._io.submit(self._step, act.DeadlinePassed())
                self._ended.wait(_END_SECONDS)
        finally:
            self._bookkeeper.runtime.remove_writer(self)
            self._io.submit(self._unwant_bookies)
        if self._writer.state is not State.CLOSED:
            raise self._watermark.error or AddTimeoutError(f"ledger {self.ledger_id}: the close did not end in time")

    # -- from callers' threads

    def _enqueue(self, items: Sequence[bytes | PayloadRun], count: int, byte_length: int) -> int:
        """Give ``count`` entries the next ids, in one run, and let them be sent; returns the first id."""
        self._make_room()
        with self._lock:
            if self._closing:
                raise LedgerClosedError(f"ledger {self.ledger_id} is closed; append to a new one")
            if self._watermark.error is not None:
                raise self._watermark.error
            first = self._next_entry_id
            self._next_entry_id += count
            self._appended_bytes += byte_length
            self._waiting.extend(items)
            schedule = not self._pump_scheduled
            self._pump_scheduled = True
        if schedule:
            self._io.submit(self._pump)
        return first

    def _make_room(self) -> None:
        """Back-pressure: wait while too much is unacknowledged."""
        if os.getpid() != self._pid:
            raise LedgerClosedError(
                f"ledger {self.ledger_id} was created by process {self._pid}; a ledger has one writer, create another one here"
            )
        config, writer = self._bookkeeper.config, self._writer
        limit = config.bytes_in_flight_max
        if self._appended_bytes - writer.length > limit and not self._watermark.wait(
            lambda: self._appended_bytes - writer.length <= limit, config.add_timeout_seconds * 2
        ):
            raise AddTimeoutError(
                f"ledger {self.ledger_id}: {limit} bytes are unacknowledged; no bookie makes progress"
            )

    # -- in the I/O thread

    def _want_bookies(self) -> None:
        for bookie in self._ensemble:
            self._connections.want(bookie, self._bookie_back)

    def _unwant_bookies(self) -> None:
        for bookie in self._ensemble:
            self._connections.unwant(bookie, self._bookie_back)

    def _bookie_back(self, bookie: str) -> None:
        self._step(BookieBack(bookie))

    def tick(self, now: float) -> None:
        """Called now and then by the client: deadlines, and the explicit LAC of an idle writer."""
        config, writer = self._bookkeeper.config, self._writer
        quiet = now - self._progress_at
        if writer.pending and quiet > config.add_timeout_seconds:
            self._step(act.DeadlinePassed())
        elif (
            not writer.pending
            and writer.last_add_confirmed > self._told_lac
            and quiet > config.explicit_lac_interval_seconds
        ):
            self._tell_lac(lambda answer: None)

    def _pump(self) -> None:
        """Send what waits, as long as not too many frames are under way."""
        config, writer = self._bookkeeper.config, self._writer
        frames_max = config.frames_in_flight_max * (len(self._ensemble) if self._striped else 1)
        self._pump_scheduled = False
        while self._waiting and writer.state is State.OPEN and len(writer.pending) < frames_max:
            run = self._gather(config.frame_bytes)
            if not writer.pending:
                self._progress_at = time.monotonic()
            first = writer.last_add_pushed + 1
            frame = self._encode(first, run)
            self._frames[first] = frame
            self._step(Append(run.count, run.byte_length))
        if self._closing and not self._waiting and writer.state is State.OPEN:
            self._step(Close())

    def _give_up_pending(self) -> None:
        if self._writer.pending or self._waiting:
            self._step(act.DeadlinePassed())

    def _gather(self, byte_limit: int) -> PayloadRun:
        """The next frame's entries: a run as it was appended, or single appends that wait, up to the frame size."""
        item = self._waiting.popleft()
        if isinstance(item, PayloadRun):
            return item
        payloads = [item]
        size = len(item)
        while self._waiting and not self._striped:
            item = self._waiting[0]
            if isinstance(item, PayloadRun) or size + len(item) + ENTRY_OVERHEAD_BYTES * len(payloads) > byte_limit:
                break
            payloads.append(item)
            size += len(item)
            self._waiting.popleft()
        return PayloadRun(offsets_of(map(len, payloads)), b"".join(payloads), payloads)

    def _encode(self, first: int, run: PayloadRun) -> tuple[int, bytes]:
        count, confirmed, ledger_id = run.count, self._writer.last_add_confirmed, self.ledger_id
        ids = range(first, first + count)
        start = self._writer.pushed_length
        lengths = list(accumulate(run.sizes(), initial=start))[1:]
        digests = list(map(self._digest, repeat(ledger_id), ids, repeat(confirmed), lengths, run.payloads()))
        header = Header(
            Kind.ADD,
            self._connections.next_request_id(),
            ledger_id,
            first,
            first + count - 1,
            confirmed,
            last_add_fully_replicated=self._writer.last_add_fully_replicated,
            master_key=self._writer.metadata.master_key,
        )
        columns = (
            array("q", (ledger_id,)).tobytes() * count,
            array("q", ids).tobytes(),
            array("q", (confirmed,)).tobytes() * count,
            array("q", lengths).tobytes(),
            run.offsets,
            offsets_of(map(len, digests)),
        )
        return header.request_id, encode(header, columns, run.data, b"".join(digests))

    def _step(self, event: WriterEvent) -> None:
        for action in self._writer.step(event):
            match action:
                case act.SendAdd():
                    self._send(action)
                case act.Confirm():
                    self._confirmed(action.last_add_confirmed)
                case act.ReadMetadata() | act.WriteMetadata() | act.ChooseBookies():
                    self._threads.submit(self._ask_store, action)
                case act.EnsembleChanged():
                    self._unwant_bookies()
                    self._ensemble = action.metadata.last_fragment.ensemble
                    self._want_bookies()
                case act.Finish():
                    self._ended.set()
                case act.Fail():
                    self._watermark.fail(action.error)
                    self._waiting.clear()
                    self._frames.clear()
                    self._ended.set()

    def _ask_store(self, action: StoreAction) -> None:
        """Do what the machine asks of the metadata store, in a thread that may wait for it."""
        answer = self._bookkeeper.answer_from_store(self.ledger_id, action)
        self._io.submit(self._step, answer)

    def bookies_changed(self) -> None:
        """There may be bookies by now that were missing before."""
        self._step(BookiesChanged())

    def _confirmed(self, last_add_confirmed: int) -> None:
        self._progress_at = time.monotonic()
        while self._frames and (first := next(iter(self._frames))) <= last_add_confirmed:
            del self._frames[first]
        self._watermark.advance(last_add_confirmed)
        if self._waiting or self._closing:
            self._pump()

    def _send(self, action: act.SendAdd) -> None:
        request_id, frame = self._frames[action.first]
        self._told_lac = max(self._told_lac, action.last_add_confirmed)
        for bookie in action.bookies:
            answered = self._on_answer(bookie, action.first, action.last)
            self._connections.send(bookie, request_id, frame, answered, self._bookkeeper.config.answer_timeout_seconds)

    def _on_answer(self, bookie: str, first: int, last: int) -> OnAnswer:
        def answered(answer: Answer) -> None:
            response = answer.response
            if isinstance(response, Unknown) and response.reason not in _FINAL and bookie not in self._retrying:
                # Reached, but not able now (too much at once, a disk that failed): asked again while the append still waits.
                self._retrying.add(bookie)
                self._io.loop.call_later(_RETRY_SECONDS, self._retry, bookie)
            self._step(act.AddAnswered(bookie, first, last, response))

        return answered

    def _retry(self, bookie: str) -> None:
        self._retrying.discard(bookie)
        self._bookie_back(bookie)

    def _tell_lac(self, answered: OnAnswer) -> None:
        confirmed = self._told_lac = self._writer.last_add_confirmed
        for bookie in self._ensemble:
            header = Header(
                Kind.WRITE_LAC,
                self._connections.next_request_id(),
                self.ledger_id,
                last_add_confirmed=confirmed,
                flags=Flag.NONE,
                master_key=self._writer.metadata.master_key,
            )
            timeout = self._bookkeeper.config.answer_timeout_seconds
            self._connections.send(bookie, header.request_id, control_frame(header), answered, timeout)
