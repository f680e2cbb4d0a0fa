"""The I/O thread's half of an open ledger: it steps the protocol's ``LedgerWriter`` and does what that asks for.

Law: only the I/O thread steps the machine, and nothing is decided here. The machine's acknowledgements become watermarks; its end
becomes an event that a close waits for. Appends that come while frames are under way go out together in the next frame. An append
to an idle ledger goes out at once.

Every wait has a deadline: a handle ends after ``add_timeout_seconds`` without progress, if appends are not acknowledged or a sync
was asked for. An entry that waits only for more copies (on a guaranteed ledger), or for the next sync, does not end it. A handle
that was dropped without ``close`` ends once nobody waits for anything of it; the ledger stays open.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from bookspark.errors import BookKeeperError, LedgerClosedError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.protocol.writing.writer_errors import missing_for_long
from bookspark.protocol.writing.writer_events import (
    Abandon,
    Append,
    BookiesChanged,
    Close,
    HeldUp,
    Idle,
    Sync,
    TellLac,
    WriterEvent,
)
from bookspark.protocol.writing.writer_state import State
from bookspark.store.client.network.connections import OnBookiesAnswer
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.runtime.open_writer import defect
from bookspark.store.client.runtime.room import LedgerRoom
from bookspark.store.client.runtime.store_actions import StoreAction
from bookspark.store.client.writing.hold_ups import HoldUps
from bookspark.store.client.writing.kept_frames import KeptFrame, KeptFrames
from bookspark.store.client.writing.outgoing import Outgoing
from bookspark.store.client.writing.shared_with_callers import SharedWithCallers
from bookspark.store.client.writing.writer_requests import WriterRequests
from bookspark.store.decisions.seam import made
from bookspark.store.wire.digests import digester
from bookspark.store.wire.header import Flag, Header, Kind

log = logging.getLogger(__name__)

_ADD = int(Kind.ADD)
_RETRY_SECONDS = 0.1
_JUST_NOW_SECONDS = 0.1
"""A writer whose last progress is not older than this is held up by nobody, and owes no bookie its LAC."""
_TELL_SECONDS = 0.001
"""How long a confirmation waits for an entry that tells it along."""


class LedgerDriver:
    """Takes the appends of a ``LedgerHandle``. Other threads read ``shared``, ``cursors`` and ``room``; everything else
    belongs to the I/O thread."""

    def __init__(self, context: ClientContext, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        config, runtime = context.config, context.runtime
        mode = ChangeMode.DELAYED if config.delay_ensemble_change else ChangeMode.AT_ONCE
        seconds = config.explicit_lac_interval_seconds
        self.writer = made(
            LedgerWriter, metadata, version, mode, config.sync_bytes, explicit_lac_interval_seconds=seconds
        )
        self.cursors = self.writer.cursors
        striped = metadata.ensemble_size > metadata.write_quorum
        volatile = metadata.ledger_type is LedgerType.VD_JOURNAL
        outgoing = Outgoing(
            metadata.ledger_id, digester(metadata.digest_type, password), config.frame_bytes, striped=striped
        )
        self.shared = SharedWithCallers(outgoing, runtime.callbacks.post, volatile=volatile)
        self.room = LedgerRoom(runtime.room, config.bytes_in_flight_max)
        self.kept = KeptFrames(self.room)
        if volatile:
            self.room.press_with(partial(runtime.io.submit, self._press))
        self.ledger_id, self._master_key = metadata.ledger_id, metadata.master_key
        self._flags = int(Flag.VOLATILE if volatile else Flag.NONE)
        self._keeps_confirmed = metadata.replication is Replication.GUARANTEED
        self._frames_max = config.frames_in_flight_max * (metadata.ensemble_size if striped else 1)
        self._ensemble = metadata.last_fragment.ensemble
        self._wake = partial(runtime.wake, self)
        self._progress_at = self._synced_at = time.monotonic()
        self._sync_wanted = NO_ENTRY
        """The machine was not asked yet to sync everything up to this id."""
        self._sync_awaited = NO_ENTRY
        """Somebody waits for everything up to this id to be synced."""
        self._just_now_seconds = min(_JUST_NOW_SECONDS, config.add_timeout_seconds, seconds)
        self._pressed = False
        """What waits for a frame is to be synced as soon as it has one."""
        self.tells_soon = False
        """The bookies are told the LAC soon after each confirmation, if no entry tells it. Any thread may set it."""
        self._will_tell = False
        self._dropped = False
        """Nobody has the handle any more."""
        self._context, self._config, self._runtime = context, config, runtime
        self._io, self._connections, self._threads = runtime.io, runtime.connections, runtime.threads
        self._requests = WriterRequests(metadata, config, self._connections, self.kept, self._step, self.cursors)
        self._hold_ups = HoldUps(self.writer, self._connections, self.kept, self._held_up)

    # -- bookies

    def want_bookies(self) -> None:
        """Keep connections to the ensemble."""
        for bookie in self._ensemble:
            self._connections.want(bookie, self._requests.bookie_back)

    def leave(self) -> None:
        """Watch no more deadlines, and want no more connections, for this ledger."""
        self._runtime.remove_writer(self)
        self.unwant_bookies()

    def unwant_bookies(self) -> None:
        for bookie in self._ensemble:
            self._connections.unwant(bookie, self._requests.bookie_back)

    def _held_up(self, event: HeldUp) -> None:
        self._requests.all_well = False
        self._step(event)

    def bookies_changed(self) -> None:
        """There may be bookies by now that were missing before."""
        self._step(BookiesChanged())

    # -- what the user asks for

    def pump(self) -> None:
        """Send the waiting appends, as long as not too many frames are under way."""
        try:
            self._pump()
        except Exception as error:
            # Entries may have been taken from the queue and not sent. They have ids, which no later entry may get.
            log.exception("ledger %d: sending what was appended failed", self.ledger_id)
            self.abandon(defect(self.ledger_id, error))

    def _pump(self) -> None:
        writer, cursors, shared, kept = self.writer, self.cursors, self.shared, self.kept
        outgoing, connections, traffic = shared.outgoing, self._connections, self._connections.traffic
        while (outgoing.waiting or outgoing.taken) and writer.state is State.OPEN and kept.under_way < self._frames_max:
            if connections.any_is_behind(self._ensemble) and self._hold_ups.waits_for(
                connections.behind(self._ensemble)
            ):
                self._wake()
                # ``tick`` goes on with the rest.
                break
            if not self._is_awaited():
                self._progress_at = time.monotonic()
            run, first = outgoing.take(idle=not kept.under_way), cursors.last_add_pushed + 1
            last, request_id = first + run.count - 1, connections.next_request_id()
            lac, lafr = cursors.last_add_confirmed, cursors.last_add_fully_replicated
            header = Header(
                _ADD, request_id, self.ledger_id, first, last, lac, self._flags, 0, lafr, master_key=self._master_key
            )
            frame = outgoing.encode(header, run, cursors.pushed_length)
            kept.keep(first, KeptFrame(request_id, frame, run.byte_length, header if self._flags else None))
            traffic.appended_entries += run.count
            traffic.appended_bytes += run.byte_length
            self._step(Append(run.count, run.byte_length))
        if NO_ENTRY < self._sync_wanted <= cursors.last_add_pushed or (self._pressed and not shared.outgoing):
            self._pressed = self._pressed and bool(shared.outgoing)
            if self._sync_wanted <= cursors.last_add_pushed:
                self._sync_wanted = NO_ENTRY
            self._sync()
        if shared.closing and not shared.outgoing and writer.state is State.OPEN:
            self._step(Close())

    def sync(self, entry_id: int) -> None:
        """Have everything up to ``entry_id`` confirmed; ``shared.confirmed`` tells when it is."""
        if not self._is_awaited():
            self._progress_at = time.monotonic()
        self._sync_wanted = max(self._sync_wanted, entry_id)
        self._sync_awaited = max(self._sync_awaited, entry_id)
        self.pump()

    def watch_gap(self) -> None:
        """An entry is missing (``shared.missing``): from now on it is waited for."""
        self._progress_at = time.monotonic()
        self._wake()

    def give_up(self) -> None:
        """Fail everything that is not done now (``close(wait=False)``)."""
        if self.cursors.pending or self.shared.outgoing:
            self.end()

    def end(self) -> None:
        """The time is over."""
        self._step(act.DeadlinePassed())

    def drop(self) -> None:
        """Nobody has the handle any more: what was appended goes out, and then the ledger is left as it is, open."""
        self._dropped = True
        self._wake()

    def _leave_dropped(self) -> None:
        """Nobody waits for anything any more. Readers are told of the last entry; recovery finds what they are not told."""
        self._send_lac()
        self.abandon(
            LedgerClosedError(f"ledger {self.ledger_id}: its handle was dropped without close(), and it is still open")
        )

    def _tell_soon(self) -> None:
        self._will_tell = False
        if self.writer.owes_explicit_lac and not self._is_awaited() and not self.shared.outgoing:
            self._send_lac()

    def _send_lac(self) -> None:
        for action in self._stepped(TellLac()):
            if isinstance(action, act.SendLac):
                self._requests.send_lac(action)

    def tell_lac(self, answered: OnBookiesAnswer, ended: Callable[[], None]) -> None:
        """Tell each bookie the LAC without an entry (explicit LAC). ``answered`` is called once for each; or ``ended`` is, if the
        ledger is closed or has failed."""
        actions = self._stepped(TellLac())
        for action in actions:
            if isinstance(action, act.SendLac):
                self._requests.send_lac(action, answered)
        if not actions:
            ended()

    def tick(self, now: float) -> bool:
        """Called now and then by the client: deadlines, and syncs by time. False if there is no more to do until it is woken."""
        if not (now - self._progress_at < self._just_now_seconds and self._only_waits()):
            self._look(now)
        waits = self._is_awaited() or self._is_synced_by_time() or self.shared.missing is not None
        return waits or self._dropped or bool(self.shared.outgoing) or bool(self._requests.held_back)

    def _look(self, now: float) -> None:
        config, quiet = self._config, now - self._progress_at
        if self._is_awaited():
            if quiet > config.add_timeout_seconds:
                self.end()
            self._hold_ups.look(now, self._connections.behind(self._ensemble))
        if self.shared.missing is not None and quiet > config.add_timeout_seconds:
            self.abandon(missing_for_long(self.ledger_id, self.shared.missing, config.add_timeout_seconds))
        if self._requests.held_back:
            self._requests.send_held_back()
        if self.shared.outgoing:
            self.pump()
        if self._is_synced_by_time() and now - self._synced_at > config.sync_interval_seconds:
            self._sync()
        if self._dropped and not self._is_awaited() and not self.shared.outgoing:
            self._leave_dropped()

    @property
    def owes_lac(self) -> bool:
        return self.writer.owes_explicit_lac

    def is_quiet(self, now: float) -> bool:
        return now - self._progress_at > self._config.explicit_lac_interval_seconds

    def tell_idle_lac(self, now: float) -> bool:
        """Tell the bookies the LAC of an idle writer (explicit LAC), if they are to be told now; True if something was sent."""
        return self._step(Idle(now, now - self._progress_at))

    def _only_waits(self) -> bool:
        """Has ``tick`` nothing to do but to see whether answers are late? Most of many busy ledgers do only that."""
        shared = self.shared
        return not (
            shared.outgoing.waiting
            or shared.outgoing.taken
            or self._requests.held_back
            or self._config.sync_interval_seconds > 0
            or self._connections.any_is_behind(self._ensemble)
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

    def _press(self) -> None:
        """An append waits for room: have everything synced, also what has no frame yet."""
        self._pressed = True
        self.pump()
        if self._pressed:
            self._sync()

    def _sync(self) -> None:
        self._synced_at = time.monotonic()
        self._step(Sync())

    # -- what the machine asks for

    def _step(self, event: WriterEvent) -> bool:
        """Hand ``event`` to the machine, and do what it asks for; True if that is something."""
        actions = self._stepped(event)
        requests = self._requests
        for action in actions:
            match action:
                case act.SendAdd():
                    requests.send_add(action)
                case act.SendSync():
                    requests.send_sync(action)
                case act.SendLac():
                    requests.send_lac(action)
                case act.Acknowledge(entry_id):
                    self._acknowledged(entry_id)
                case act.Confirm(entry_id):
                    if not self._keeps_confirmed:
                        self.kept.release(entry_id)
                    self.shared.confirmed.advance(entry_id)
                    self._acknowledged(entry_id)
                    if self.tells_soon and not self._will_tell:
                        self._will_tell = True
                        self._io.loop.call_later(_TELL_SECONDS, self._tell_soon)
                case act.Release(entry_id):
                    self.kept.release(entry_id)
                    # Wake those who wait for the copies.
                    self.shared.acknowledged.advance(self.shared.acknowledged.value)
                case act.ReadMetadata() | act.WriteMetadata() | act.ChooseBookies():
                    self._threads.post(self._ask_store, action)
                case act.EnsembleChanged():
                    self._connections.traffic.ensemble_changes += 1
                    self.unwant_bookies()
                    self._ensemble = action.metadata.last_fragment.ensemble
                    requests.keep_only(self._ensemble)
                    self.want_bookies()
                case act.Finish():
                    self.leave()
                    self.shared.end()
                    self.room.end()
                case act.Fail():
                    self._fail(action.error)
        return bool(actions)

    def _stepped(self, event: WriterEvent) -> list[act.Action]:
        """The machine's actions after ``event``. A defect ends the ledger, because the machine may wait for ever for the event
        that was lost."""
        try:
            actions = self.writer.step(event)
        except Exception as error:
            actions = self._stepped_anyway(event, error)
        # An ack from which nothing follows leaves a writer as awake as it was.
        if actions or type(event) is not act.AddAnswered:
            self._wake()
        return actions

    def _stepped_anyway(self, event: WriterEvent, error: Exception) -> list[act.Action]:
        """The machine did not take ``event``."""
        try:
            return self.writer.step(self._requests.not_believed(event, error))
        except Exception as defective:
            log.exception("ledger %d: %r failed", self.ledger_id, event)
            return self.writer.step(Abandon(defect(self.ledger_id, defective)))

    def abandon(self, error: BookKeeperError) -> None:
        """End the handle; the ledger stays as it is."""
        self._step(Abandon(error))

    def _fail(self, error: BookKeeperError) -> None:
        """Nothing more will be acknowledged; whoever waits is told ``error``. Nobody need close the handle to be rid of it."""
        self.kept.clear()
        self._requests.clear()
        self.leave()
        self.shared.fail(error)
        self.room.end()

    def _acknowledged(self, entry_id: int) -> None:
        """Advance the watermark of acknowledgements. A confirmation calls this too; on a VD ledger it may be below the watermark,
        which stays."""
        shared = self.shared
        self._progress_at = time.monotonic()
        shared.acknowledged.advance(max(entry_id, shared.acknowledged.value))
        self.kept.acknowledged(entry_id)
        if shared.outgoing or shared.closing:
            self.pump()

    def _ask_store(self, action: StoreAction) -> None:
        """Do what the machine asks of the metadata store, in a thread that may wait for it."""
        try:
            answer = self._context.answer_from_store(self.writer.metadata, action)
        except BaseException as error:
            if self._context.closed:
                # The writers were told.
                return
            # Without an answer the machine would wait for ever.
            log.exception("ledger %d: %r failed", self.ledger_id, action)
            self._io.submit(self.abandon, defect(self.ledger_id, error))
            return
        # The machine may ask again at once, and the store may fail at once: a pause keeps that from becoming a busy loop.
        if isinstance(answer, act.MetadataFailed):
            self._io.submit_later(_RETRY_SECONDS, self._step, answer)
        else:
            self._io.submit(self._step, answer)
