"""The I/O thread's half of an open ledger: it steps the protocol's ``LedgerWriter`` and does what that asks for.

Law: only the I/O thread steps the machine; what the machine says to the user becomes a watermark, and its end an event that a
close waits for. What is appended while frames are under way goes out together in the next one, what is appended to an idle
ledger goes out at once. Nothing decides here: a bookie's answer becomes an event with nothing added but, of a VD ledger, what
the bookie has synced.

Whoever waits, waits with a deadline: appends that are not acknowledged, and syncs that were asked for, end the handle after
``add_timeout_seconds`` without progress. What only waits for more copies (a guaranteed ledger's last ones) or for the next sync
does not.

What is to be sent again may be more than a bookie can take in: it goes to each as fast as it is taken in, from the frames that
are kept anyway.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from functools import partial

from bookspark.client.network.connections import Answer, OnBookiesAnswer, Question, Request
from bookspark.client.network.ledger_requests import sync_report
from bookspark.client.runtime.client_context import ClientContext
from bookspark.client.runtime.open_writer import defect
from bookspark.client.runtime.store_actions import StoreAction
from bookspark.client.writing.explicit_lac import ExplicitLac
from bookspark.client.writing.futures import Watermark
from bookspark.client.writing.kept_frames import KeptFrame, KeptFrames
from bookspark.client.writing.outgoing import Outgoing
from bookspark.client.writing.retries import Retries
from bookspark.errors import BookKeeperError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.ledger.responses import Unknown
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer import (
    Abandon,
    Append,
    BookieBack,
    BookiesChanged,
    Close,
    LedgerWriter,
    PassedOver,
    State,
    Sync,
    WriterEvent,
)
from bookspark.wire.digests import digester
from bookspark.wire.frames import control_frame
from bookspark.wire.header import Flag, Header, Kind

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1


class _SentAdd(Request):
    """One object for all that has to be remembered of an add under way: there may be thousands, and Python's collector looks at
    each of them again and again."""

    __slots__ = ("_driver", "assignment", "first", "last")

    def __init__(self, driver: LedgerDriver, action: act.SendAdd, timeout_seconds: float) -> None:
        super().__init__(timeout_seconds)
        self._driver = driver
        self.first = action.first
        self.last = action.last
        self.assignment = action.assignment

    def answered(self, bookie_id: str, answer: Answer) -> None:
        self._driver.add_answered(bookie_id, self, answer)


class LedgerDriver:
    """What a ``LedgerHandle`` hands its appends to. Everything is the I/O thread's, but for what is said to be for all."""

    def __init__(self, context: ClientContext, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        config, runtime = context.config, context.runtime
        changes = ChangeMode.DELAYED if config.delay_ensemble_change else ChangeMode.AT_ONCE
        self.writer = LedgerWriter(metadata, version, changes, config.sync_bytes)
        self.cursors = self.writer.cursors
        """May be looked at by all."""
        self.acknowledged = Watermark(lambda: runtime.io.here)
        """For all."""
        self.confirmed = self.acknowledged
        """For all: the LAC, which on a PD ledger is what is acknowledged."""
        if metadata.ledger_type is LedgerType.VD_JOURNAL:
            self.confirmed = Watermark(lambda: runtime.io.here)
        self.ended = threading.Event()
        """For all: set once the ledger is closed, or never will be by this handle."""
        self.closing = False
        """For all: close once nothing waits."""
        striped = metadata.ensemble_size > metadata.write_quorum
        digest = digester(metadata.digest_type, password)
        self.outgoing = Outgoing(metadata.ledger_id, digest, config.frame_bytes, striped=striped)
        """For all."""
        self.pump_scheduled = False
        """For all: ``pump`` will run; whoever makes it true submits that."""
        self.kept = KeptFrames()
        """Its ``released_bytes`` may be looked at by all."""
        self.ledger_id, self._master_key = metadata.ledger_id, metadata.master_key
        self._flags = Flag.NONE if self.confirmed is self.acknowledged else Flag.VOLATILE
        self._keeps_confirmed = metadata.replication is Replication.GUARANTEED
        self._frames_max = config.frames_in_flight_max * (metadata.ensemble_size if striped else 1)
        self._ensemble = metadata.last_fragment.ensemble
        self._wake = partial(runtime.wake, self)
        self._explicit_lac = ExplicitLac(self.cursors, config.explicit_lac_interval_seconds, self._send_lac, self._wake)
        self._progress_at = self._synced_at = time.monotonic()
        self._sync_wanted = self._sync_awaited = NO_ENTRY
        """The ids up to which a sync has still to be asked for, and is waited for."""
        self._retries = Retries(partial(self._send_again, incarnation=0))
        self._held_back: dict[str, deque[act.SendAdd]] = {}
        """Adds for bookies that have enough to take in; never empty ones."""
        self._context, self._config, self._runtime = context, config, runtime
        self._io, self._connections, self._threads = runtime.io, runtime.connections, runtime.threads

    # -- bookies

    def want_bookies(self) -> None:
        """Keep connections to the ensemble."""
        for bookie in self._ensemble:
            self._connections.want(bookie, self._bookie_back)

    def leave(self) -> None:
        """No more deadlines and connections for this ledger."""
        self._runtime.remove_writer(self)
        self.unwant_bookies()

    def unwant_bookies(self) -> None:
        for bookie in self._ensemble:
            self._connections.unwant(bookie, self._bookie_back)

    def bookies_changed(self) -> None:
        """There may be bookies by now that were missing before."""
        self._step(BookiesChanged())

    def _bookie_back(self, bookie: str, incarnation: int) -> None:
        self._retries.took(bookie)
        self._send_again(bookie, incarnation)

    def _send_again(self, bookie: str, incarnation: int) -> None:
        self._held_back.pop(bookie, None)  # the machine sends again all that the bookie has not acknowledged
        self._explicit_lac.missed(bookie)
        self._step(BookieBack(bookie, incarnation))

    # -- what the user asks for

    def pump(self) -> None:
        """Send what waits, as long as not too many frames are under way."""
        try:
            self._pump()
        except Exception as error:  # what was taken and not sent has an id: the next entry must not get it
            log.exception("ledger %d: sending what was appended failed", self.ledger_id)
            self.abandon(defect(self.ledger_id, error))

    def _pump(self) -> None:
        writer, cursors = self.writer, self.cursors
        self.pump_scheduled = False
        while self.outgoing and writer.state is State.OPEN and self.kept.under_way < self._frames_max:
            if self._connections.any_is_behind(self._ensemble):
                self._wake()
                break  # ``tick`` goes on
            if not self._is_awaited():
                self._progress_at = time.monotonic()
            run = self.outgoing.take()
            first = cursors.last_add_pushed + 1
            header = Header(
                Kind.ADD,
                self._connections.next_request_id(),
                self.ledger_id,
                first,
                first + run.count - 1,
                cursors.last_add_confirmed,
                self._flags,
                last_add_fully_replicated=cursors.last_add_fully_replicated,
                master_key=self._master_key,
            )
            frame = self.outgoing.encode(header, run, cursors.pushed_length)
            self.kept.keep(KeptFrame(header, frame, run.byte_length))
            self._step(Append(run.count, run.byte_length))
        if NO_ENTRY < self._sync_wanted <= cursors.last_add_pushed:
            self._sync_wanted = NO_ENTRY
            self._sync()
        if self.closing and not self.outgoing and writer.state is State.OPEN:
            self._step(Close())

    def sync(self, entry_id: int) -> None:
        """Have everything up to ``entry_id`` confirmed; ``confirmed`` tells when it is."""
        if not self._is_awaited():
            self._progress_at = time.monotonic()
        self._sync_wanted = max(self._sync_wanted, entry_id)
        self._sync_awaited = max(self._sync_awaited, entry_id)
        self.pump()

    def give_up(self) -> None:
        """Whatever is not done now will not be done by this handle."""
        if self.cursors.pending or self.outgoing:
            self.end()

    def end(self) -> None:
        """The time is over."""
        self._step(act.DeadlinePassed())

    def tell_lac(self, answered: OnBookiesAnswer) -> None:
        """Tell each bookie the LAC without an entry (explicit LAC); ``answered`` is called once for each."""
        self._explicit_lac.tell(self._ensemble, answered)

    def tick(self, now: float, *, may_tell: bool) -> bool:
        """Called now and then by the client unless ``at_rest``: deadlines, syncs by time, and (``may_tell``) the explicit LAC of
        an idle writer. True if that was told."""
        config = self._config
        told = False
        quiet = now - self._progress_at
        if self._is_awaited():
            if quiet > config.add_timeout_seconds:
                self.end()
        elif may_tell and quiet > config.explicit_lac_interval_seconds:
            bookies = self._explicit_lac.due(self._ensemble, now)
            if bookies:
                self._explicit_lac.tell(bookies)
                told = True
        if self._held_back:
            self._send_held_back()
        if self.outgoing:
            self.pump()
        if self._is_synced_by_time() and now - self._synced_at > config.sync_interval_seconds:
            self._sync()
        return told

    @property
    def at_rest(self) -> bool:
        """There is nothing for ``tick`` to do until the writer is woken."""
        return not (
            self._is_awaited()
            or self.outgoing
            or self._held_back
            or self._is_synced_by_time()
            or self._explicit_lac.owes(self._ensemble)
        )

    def _is_synced_by_time(self) -> bool:
        """Is there something to sync once ``sync_interval_seconds`` are over?"""
        cursors = self.cursors
        return self._config.sync_interval_seconds > 0 and cursors.last_add_confirmed < cursors.last_add_pushed

    def _is_awaited(self) -> bool:
        """Does somebody wait for an acknowledgement or a sync?"""
        cursors = self.cursors
        return (
            cursors.last_add_acknowledged < cursors.last_add_pushed or cursors.last_add_confirmed < self._sync_awaited
        )

    def _sync(self) -> None:
        self._synced_at = time.monotonic()
        self._step(Sync())

    # -- what the machine asks for

    def _step(self, event: WriterEvent) -> None:
        self._wake()
        for action in self.writer.step(event):
            match action:
                case act.SendAdd():
                    self._send_add(action)
                case act.SendSync():
                    self._send_sync(action)
                case act.Acknowledge(entry_id):
                    self._acknowledged(entry_id)
                case act.Confirm(entry_id):
                    if not self._keeps_confirmed:
                        self.kept.release(entry_id)
                    self.confirmed.advance(entry_id)
                    self._acknowledged(entry_id)
                case act.Release(entry_id):
                    self.kept.release(entry_id)
                    self.acknowledged.advance(self.acknowledged.value)  # there is room again
                case act.ReadMetadata() | act.WriteMetadata() | act.ChooseBookies():
                    self._threads.submit(self._ask_store, action)
                case act.EnsembleChanged():
                    self.unwant_bookies()
                    self._ensemble = action.metadata.last_fragment.ensemble
                    self._held_back = {b: adds for b, adds in self._held_back.items() if b in self._ensemble}
                    self.want_bookies()
                case act.Finish():
                    self.ended.set()
                case act.Fail():
                    self._fail(action.error)

    def abandon(self, error: BookKeeperError) -> None:
        """End the handle; the ledger stays as it is."""
        self._step(Abandon(error))

    def _fail(self, error: BookKeeperError) -> None:
        """Nothing more will be acknowledged; whoever waits is told ``error``. Nobody need close the handle to be rid of it."""
        self.outgoing.clear()
        self.kept.clear()
        self._held_back.clear()
        self.acknowledged.fail(error)
        self.confirmed.fail(error)
        self.leave()
        self.ended.set()

    def _acknowledged(self, entry_id: int) -> None:
        """Also at a confirmation, which on a VD ledger comes after a higher acknowledgement."""
        self._progress_at = time.monotonic()
        self.acknowledged.advance(max(entry_id, self.acknowledged.value))
        self.kept.acknowledged(entry_id)
        if self.outgoing or self.closing:
            self.pump()

    def _ask_store(self, action: StoreAction) -> None:
        """Do what the machine asks of the metadata store, in a thread that may wait for it."""
        try:
            answer = self._context.answer_from_store(self.writer.metadata, action)
        except Exception as error:  # the machine would wait for its answer for ever
            log.exception("ledger %d: %r failed", self.ledger_id, action)
            self._io.submit(self.abandon, defect(self.ledger_id, error))
            return
        if isinstance(answer, act.MetadataFailed):  # it may be asked again at once, and fail at once
            self._io.submit(self._io.loop.call_later, _RETRY_SECONDS, self._step, answer)
        else:
            self._io.submit(self._step, answer)

    def _send_add(self, action: act.SendAdd) -> None:
        if self._held_back or self._connections.any_is_behind(action.bookies):
            for bookie in action.bookies:
                self._held_back.setdefault(bookie, deque()).append(action)
            self._send_held_back()
        else:
            self._send_add_to(action.bookies, action)

    def _send_held_back(self) -> None:
        """As much as the bookies can take in; ``tick`` goes on. What the machine is done with by now was forgotten."""
        for bookie in list(self._held_back):
            while (adds := self._held_back.get(bookie)) and not self._connections.any_is_behind((bookie,)):
                action = adds.popleft()
                if not adds:
                    del self._held_back[bookie]
                if action.first in self.kept:
                    self._send_add_to((bookie,), action)
                else:
                    self._step(PassedOver(bookie))

    def _send_add_to(self, bookies: Iterable[str], action: act.SendAdd) -> None:
        kept = self.kept[action.first]
        header = kept.header
        self._explicit_lac.told(header.last_add_confirmed, header.last_add_fully_replicated)
        add = _SentAdd(self, action, self._config.answer_timeout_seconds)
        if action.assignment is None:
            self._connections.send_to_all(bookies, header.request_id, kept.frame, add)
        else:  # what is said to be synced is so of this assignment: an answer to an earlier add must not pass for this one's
            request_id = self._connections.next_request_id()
            self._connections.send_to_all(bookies, request_id, kept.assigned(action.assignment, request_id), add)

    def add_answered(self, bookie: str, add: _SentAdd, answer: Answer) -> None:
        response = answer.response
        if type(response) is Unknown:
            self._retries.refused(bookie, response)
        else:
            self._retries.took(bookie)
        report = None if add.assignment is None else sync_report(answer, add.assignment)
        self._step(act.AddAnswered(bookie, add.first, add.last, response, report))

    def _send_sync(self, action: act.SendSync) -> None:
        header = Header(Kind.SYNC, self._connections.next_request_id(), self.ledger_id, master_key=self._master_key)
        header = header.with_assignment(action.assignment)
        self._request(action.bookies, header, partial(self._sync_answered, action))

    def _sync_answered(self, action: act.SendSync, bookie: str, answer: Answer) -> None:
        self._retries.refused(bookie, answer.response)
        self._step(act.SyncAnswered(bookie, answer.response, sync_report(answer, action.assignment)))

    def _send_lac(self, bookies: Iterable[str], answered: OnBookiesAnswer) -> None:
        header = Header(
            Kind.WRITE_LAC,
            self._connections.next_request_id(),
            self.ledger_id,
            last_add_confirmed=self.cursors.last_add_confirmed,
            last_add_fully_replicated=self.cursors.last_add_fully_replicated,
            master_key=self._master_key,
        )
        self._request(bookies, header, answered)

    def _request(self, bookies: Iterable[str], header: Header, answered: OnBookiesAnswer) -> None:
        request = Question(answered, self._config.answer_timeout_seconds)
        self._connections.send_to_all(bookies, header.request_id, control_frame(header), request)
