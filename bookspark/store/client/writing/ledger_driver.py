"""The I/O thread's half of an open ledger: it steps the protocol's ``LedgerWriter`` and carries out its actions.

Law: only the I/O thread steps the machine, and no decision is made here. Acknowledgements become watermarks, the end of the
machine an event. Appends that come while frames are under way leave together in the next frame; an append to an idle ledger
leaves at once.

Every wait has a deadline: a writer ends after ``add_timeout_seconds`` without progress, if appends lack their acknowledgement or
a caller waits for a sync. An entry that lacks only further copies (guaranteed ledger) or the next sync does not end it. A writer
whose handle was dropped without ``close`` ends once no caller waits for it; the ledger stays open.

A bookie gets no more than it takes in. Adds that it can't take in now are held back and sent later from the kept frames; adds
that the machine has released meanwhile are skipped. A bookie is slow only beside others. It holds the ledger up

- if it is behind (``Connections``) while the other bookies make an ack quorum of every write set; or
- if the oldest unacknowledged entry waits for it half a second after another bookie took that entry.

The writer waits for a slow bookie as long as the client has ``Patience`` with it. Then the machine gets ``HeldUp``: it replaces
the bookie, if another one is there, and the writer waits for it no more. If all bookies are slow, the ledger waits for them.

A bookie that refuses an add for a while (too busy, disk full or failed) gets it again after growing pauses. After a refusal for
one of ``FINAL_REASONS`` it does not.

A ledger fenced by another client fails its waiting appends, unless its caller goes on elsewhere (``on_fenced``): then they wait
on, later appends too, and their entries stay here for the caller (``unacknowledged``).

Sources: BookKeeper's ``LedgerHandle`` and ``PendingAddOp``; its #3497, a client that keeps for a slow bookie without a bound.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from bookspark.errors import BookKeeperError, LedgerClosedError, LedgerFencedError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.entry_ranges import NO_RANGES, EntryRanges, with_ranges, without_ranges
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.ledger.responses import FINAL_REASONS, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.protocol.ledger.transitions import IllegalEventError
from bookspark.protocol.repair.audit_plan import marks_at_close
from bookspark.protocol.writing.ensemble_change import NOBODY, ChangeMode, quorum_lost
from bookspark.protocol.writing.writer import LedgerWriter, State, missing_for_long
from bookspark.protocol.writing.writer_events import (
    Abandon,
    Append,
    BookieBack,
    BookiesChanged,
    BookiesLost,
    Close,
    ExplicitLacAnswered,
    HeldUp,
    Idle,
    PassedOver,
    Sync,
    TellLac,
    WriterEvent,
)
from bookspark.store.client.network.bookie_connection import ACKNOWLEDGED
from bookspark.store.client.network.connections import Answer, OnBookiesAnswer, Question, Request
from bookspark.store.client.network.ledger_requests import sync_report
from bookspark.store.client.runtime.client_context import ClientContext, StoreAction
from bookspark.store.client.runtime.runtime import defect
from bookspark.store.client.writing.futures import Watermark
from bookspark.store.client.writing.payloads import Outgoing
from bookspark.store.decisions.seam import made
from bookspark.store.wire.digests import digester
from bookspark.store.wire.entry_batch import Buffer, EntryBatch, with_header
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Flag, Header, Kind
from bookspark.support.threads import BackOff, Latch, check_may_wait

log = logging.getLogger(__name__)

_ADD = int(Kind.ADD)
_RETRY_SECONDS = 0.1
_JUST_NOW_SECONDS = 0.1
"""A writer whose last progress is not older than this waits for no slow bookie, and owes no bookie its LAC."""
_TELL_SECONDS = 0.001
"""Longest wait of a new LAC (last add confirmed) for an entry that carries it."""
_MOMENT_SECONDS = 0.5
_MARK_SECONDS = 0.5
_RANGES_MAX = 256
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 3.2
_SLOW = Unknown(UnknownReason.TIMEOUT, "it held appends up that other bookies had taken")
_ACKNOWLEDGED = Positive()
_TELLS_NO_SYNC = Unknown(UnknownReason.BAD_REQUEST, "an answer about a VD ledger that does not tell what is synced")


class KeptFrame(NamedTuple):
    """A frame as it was sent first. ``byte_length``: bytes of its payloads. ``header``: only on a VD ledger (volatile
    durability), which sends a frame again under another header; elsewhere None, which saves an object for each add."""

    request_id: int
    frame: Buffer
    byte_length: int
    header: Header | None = None

    def assigned(self, assignment: Assignment, request_id: int) -> Buffer:
        assert self.header is not None, "the ledger is a PD ledger"
        header = self.header._replace(request_id=request_id).with_assignment(assignment)
        return b"".join(with_header(self.frame, header))


class _SentAdd(Request):
    """An add under way, in one object: thousands may be under way, and the garbage collector visits each again and again."""

    __slots__ = ("_driver", "assignment", "first", "last")

    def __init__(self, driver: LedgerDriver, action: act.SendAdd, timeout_seconds: float) -> None:
        super().__init__(timeout_seconds)
        self._driver = driver
        self.first = action.first
        self.last = action.last
        self.assignment = action.assignment

    def tell(self, bookie_id: str, answer: Answer) -> None:
        try:
            if answer is ACKNOWLEDGED and self.assignment is None:
                self._driver.add_acknowledged(bookie_id, self.first, self.last)
            else:
                self._driver.add_answered(bookie_id, self, answer)
        except BaseException:
            log.exception("handling a bookie's answer to an add failed")


OnFenced = Callable[[Watermark, LedgerFencedError], object]
"""Called in the I/O thread after a ledger was fenced, with its watermark of acknowledgements. It has every waiting append
acknowledged or failed, and must not wait."""


class LedgerDriver:
    """Takes the appends of a ``LedgerHandle``.

    Callers' threads write, under ``Room.lock``: ``outgoing``, ``next_entry_id``, ``closing``, ``missing`` and ``appended``. They
    read ``acknowledged``, ``confirmed``, ``ended``, ``fenced``, ``cursors`` and ``released``. All else belongs to the I/O thread.
    """

    def __init__(self, context: ClientContext, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        config, runtime = context.config, context.runtime
        mode = ChangeMode.DELAYED if config.delay_ensemble_change else ChangeMode.AT_ONCE
        seconds = config.explicit_lac_interval_seconds
        # Otherwise appends would wait for room that only a sync makes.
        sync_bytes = min(config.sync_bytes, max(1, config.bytes_in_flight_max // 4))
        self.writer = made(LedgerWriter, metadata, version, mode, sync_bytes, explicit_lac_interval_seconds=seconds)
        self.cursors = self.writer.cursors
        striped = metadata.ensemble_size > metadata.write_quorum
        volatile = metadata.ledger_type is LedgerType.VD_JOURNAL
        self.outgoing = Outgoing(
            metadata.ledger_id, digester(metadata.digest_type, password), config.frame_bytes, striped=striped
        )
        self.next_entry_id = 0
        self.acknowledged = Watermark(check_may_wait, runtime.callbacks.post)
        """Last acknowledged entry id, or the error that ended the ledger."""
        self.confirmed = Watermark(check_may_wait, runtime.callbacks.post) if volatile else self.acknowledged
        """LAC (last add confirmed), or the error that ended the ledger."""
        self.ended = Latch()
        """Set once the ledger is closed, or can't be closed by this handle any more."""
        self.on_fenced: OnFenced | None = None
        """None: waiting appends of a fenced ledger fail."""
        self.fenced = False
        """Another client has fenced the ledger, and ``on_fenced`` was called: appends only wait from then on."""
        self.closing = False
        """The ledger is closed once no append waits."""
        self.missing: int | None = None
        """First missing entry id, on a ledger whose caller gives the ids; None if no entry waits for an earlier one."""
        self.appended = self.released = 0
        """Bytes of all appends, and of those that are kept no more; ``Room`` has the sums of all ledgers."""
        self._frames: dict[int, KeptFrame] = {}
        """Frames that may have to be sent again, by first entry id, ascending. (A deque beside it would cost each of many idle
        ledgers 700 bytes.)"""
        self._under_way: dict[int, float | None] = {}
        """Unacknowledged frames by first entry id, with the time of the first bookie's acknowledgement; None: none yet."""
        self._room = runtime.room
        if volatile:
            self._room.pressed[self] = partial(runtime.io.submit_once, self._press)
        self.ledger_id, self._master_key = metadata.ledger_id, metadata.master_key
        self._flags = int(Flag.VOLATILE if volatile else Flag.NONE)
        self._keeps_confirmed = metadata.replication is Replication.GUARANTEED
        self._frames_max = config.frames_in_flight_max * (metadata.ensemble_size if striped else 1)
        self.ensemble = metadata.last_fragment.ensemble
        self._wake = partial(runtime.wake, self)
        self._progress_at = self._synced_at = time.monotonic()
        self._sync_wanted = NO_ENTRY
        """Sync up to this id is wanted, and not requested from the machine yet."""
        self._sync_awaited = NO_ENTRY
        self._just_now_seconds = min(_JUST_NOW_SECONDS, config.add_timeout_seconds, seconds)
        self._pressed = False
        """Waiting appends are to be synced as soon as they have a frame."""
        self.tells_soon = False
        """Send the bookies each new LAC soon, unless an entry carries it. Any thread may set it."""
        self._will_tell = False
        self._dropped = False
        self._all_well = True
        """True while no bookie has failed since the ledger's creation, as far as the machine knows."""
        self._held_back: dict[str, deque[act.SendAdd]] = {}
        """Adds held back for slow bookies, by bookie. No queue is empty."""
        self._lacking: dict[str, EntryRanges] = {}
        """Entries of failed and dropped adds that a bookie has not acknowledged since, by bookie."""
        self._will_mark = False
        self._pauses: dict[str, BackOff] = {}
        self._paused = NOBODY
        """Bookies that get all pending adds again after their pause."""
        self._warned_of = NOBODY
        self._context, self._config, self._runtime = context, config, runtime
        self._io, self._connections, self._threads = runtime.io, runtime.connections, runtime.threads

    # -- bookies

    def want_bookies(self) -> None:
        for bookie in self.ensemble:
            self._connections.want(bookie, self._bookie_back)

    def _unwant_bookies(self) -> None:
        for bookie in self.ensemble:
            self._connections.unwant(bookie, self._bookie_back)

    def _leave(self) -> None:
        """Stop watching the ledger's deadlines and keeping its connections."""
        self._runtime.remove_writer(self)
        self._unwant_bookies()

    def _bookie_back(self, bookie: str, incarnation: int) -> None:
        self._pauses.pop(bookie, None)
        self._send_again(bookie, incarnation)

    def _send_again(self, bookie: str, incarnation: int) -> None:
        # The machine sends again what the bookie has not acknowledged.
        self._drop_held_back(self._held_back.keys() - {bookie})
        self._step(BookieBack(bookie, incarnation))

    def _refused(self, bookie: str, response: Response) -> None:
        """Send the bookie all pending adds again after a pause, if ``response`` is a temporary refusal."""
        if isinstance(response, Unknown) and response.reason not in FINAL_REASONS and bookie not in self._paused:
            self._paused |= {bookie}
            pauses = self._pauses.setdefault(bookie, BackOff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX))
            asyncio.get_running_loop().call_later(pauses.next(), self._retry, bookie)

    def _retry(self, bookie: str) -> None:
        self._paused -= {bookie}
        self._send_again(bookie, 0)

    def bookies_changed(self) -> None:
        """The set of registered bookies has changed."""
        self._step(BookiesChanged())

    def bookies_lost(self, lost: Collection[str]) -> None:
        """``lost``: all bookies that count as lost."""
        mine = tuple(bookie for bookie in self.ensemble if bookie in lost)
        if mine:
            self._all_well = False
            self._step(BookiesLost(mine))
            # Tells autorecovery, which asks the other bookies, that this writer lives.
            self._send_lac(lost=lost)

    # -- slow bookies

    def _waits_for_slow_bookies(self) -> bool:
        """Do appends wait for bookies of the ensemble that are behind?"""
        behind = self._connections.behind(self.ensemble)
        if not behind or self._needs(behind):
            return bool(behind)
        patience = self._connections.patience
        patience.spend(behind, time.monotonic())
        return not all(map(patience.is_spent, behind))

    def _look_at_slow_bookies(self, now: float) -> None:
        """Step ``HeldUp`` for the bookies that have used up the client's patience."""
        behind = self._connections.behind(self.ensemble)
        slow = self._awaited_for_long(now)
        if behind and not self._needs(behind):
            slow |= set(behind)
        if not slow:
            return
        patience = self._connections.patience
        patience.spend(slow, now)
        spent = self._connections.quietest_first(filter(patience.is_spent, slow))
        for bookie in spent:
            if bookie not in self._warned_of:
                self._connections.quarantine(bookie, _SLOW)
                log.warning(
                    "ledger %d: %s is much slower than the other bookies; it is replaced if there is another one, and not "
                    "waited for if there is none",
                    self.ledger_id,
                    bookie,
                )
        self._warned_of |= frozenset(spent)
        if spent:
            self._all_well = False
            self._step(HeldUp(spent))

    def _needs(self, behind: Sequence[str]) -> bool:
        """Does an ack quorum of some write set need one of these bookies?"""
        metadata = self.writer.metadata
        return quorum_lost(metadata, frozenset(behind), metadata.ack_quorum)

    def _awaited_for_long(self, now: float) -> set[str]:
        """Bookies that lack the oldest unacknowledged entry a moment after another bookie took it."""
        first, taken_at = next(iter(self._under_way.items()), (NO_ENTRY, None))
        if taken_at is None or now - taken_at < _MOMENT_SECONDS:
            return set()
        add = self.cursors.pending.get(first)
        if add is None or len(add.acks) >= self.writer.metadata.ack_quorum:
            return set()
        return set(add.bookies) - add.acks

    # -- appends, syncs and the end, as the handle asks for them

    def pump(self) -> None:
        """Send the waiting appends, as long as not too many frames are under way."""
        try:
            self._pump()
        except Exception as error:
            # Entries may be out of the queue and unsent. No later entry may get their ids.
            log.exception("ledger %d: sending appends failed", self.ledger_id)
            self.abandon(defect(self.ledger_id, error))

    def _pump(self) -> None:
        writer, cursors, outgoing, under_way = self.writer, self.cursors, self.outgoing, self._under_way
        connections, traffic = self._connections, self._connections.traffic
        while (outgoing.waiting or outgoing.taken) and writer.state is State.OPEN and len(under_way) < self._frames_max:
            if connections.any_is_behind(self.ensemble) and self._waits_for_slow_bookies():
                # ``tick`` goes on with the rest.
                self._wake()
                break
            if not self._is_awaited():
                self._progress_at = time.monotonic()
            run, first = outgoing.take(idle=not under_way), cursors.last_add_pushed + 1
            last, request_id = first + run.count - 1, connections.next_request_id()
            lac, lafr = cursors.last_add_confirmed, cursors.last_add_fully_replicated
            header = Header(
                _ADD, request_id, self.ledger_id, first, last, lac, self._flags, 0, lafr, master_key=self._master_key
            )
            frame = outgoing.encode(header, run, cursors.pushed_length)
            self._frames[first] = KeptFrame(request_id, frame, run.byte_length, header if self._flags else None)
            under_way[first] = None
            traffic.appended_entries += run.count
            traffic.appended_bytes += run.byte_length
            self._step(Append(run.count, run.byte_length))
        if NO_ENTRY < self._sync_wanted <= cursors.last_add_pushed or (self._pressed and not outgoing):
            self._pressed = self._pressed and bool(outgoing)
            if self._sync_wanted <= cursors.last_add_pushed:
                self._sync_wanted = NO_ENTRY
            self._sync()
        if self.closing and not outgoing and writer.state is State.OPEN:
            self._step(Close())

    def sync(self, entry_id: int) -> None:
        """Sync up to ``entry_id``; then ``confirmed`` reaches it."""
        if not self._is_awaited():
            self._progress_at = time.monotonic()
        self._sync_wanted = max(self._sync_wanted, entry_id)
        self._sync_awaited = max(self._sync_awaited, entry_id)
        self.pump()

    def _press(self) -> None:
        """An append of some ledger waits for room: sync everything, including appends without a frame."""
        if self.released < self.appended:
            self._pressed = True
            self.pump()
            if self._pressed:
                self._sync()

    def _sync(self) -> None:
        self._synced_at = time.monotonic()
        self._step(Sync())

    def watch_gap(self) -> None:
        """From now on an entry is missing (``missing``)."""
        self._progress_at = time.monotonic()
        self._wake()

    def give_up(self) -> None:
        """Fail all unfinished appends (``close(wait=False)``)."""
        if self.cursors.pending or self.outgoing:
            self.end()

    def end(self) -> None:
        """The deadline of a close has passed."""
        self._step(act.DeadlinePassed())

    def drop(self) -> None:
        """The handle was dropped: send what was appended, then leave the ledger open as it is."""
        self._dropped = True
        self._wake()

    def _leave_dropped(self) -> None:
        # Readers learn of the last entry by this LAC; recovery finds it anyway.
        self._send_lac()
        self.abandon(
            LedgerClosedError(f"ledger {self.ledger_id}: its handle was dropped without close(), and it is still open")
        )

    def abandon(self, error: BookKeeperError) -> None:
        """End the handle; the ledger stays as it is."""
        self._step(Abandon(error))

    # -- explicit LACs

    @property
    def owes_lac(self) -> bool:
        """May a bookie not know the LAC?"""
        return self.writer.owes_explicit_lac

    def is_quiet(self, now: float) -> bool:
        """Has the writer rested for ``explicit_lac_interval_seconds``?"""
        return now - self._progress_at > self._config.explicit_lac_interval_seconds

    def tell_idle_lac(self, now: float) -> bool:
        """Send the bookies the LAC of an idle writer, if it is due; True if something was sent."""
        return self._step(Idle(now, now - self._progress_at))

    def tell_lac(self, answered: OnBookiesAnswer, ended: Callable[[], None]) -> None:
        """Send each bookie the LAC. ``answered`` is called once for each; or ``ended`` is, if the ledger is closed or failed."""
        if not self._send_lac(answered):
            ended()

    def _tell_soon(self) -> None:
        self._will_tell = False
        if self.writer.owes_explicit_lac and not self._is_awaited() and not self.outgoing:
            self._send_lac()

    def _send_lac(self, answered: OnBookiesAnswer | None = None, lost: Collection[str] = ()) -> bool:
        """Send each bookie but those of ``lost`` the LAC; False if the ledger is closed or failed."""
        actions = self._stepped(TellLac())
        for action in actions:
            if isinstance(action, act.SendLac):
                self._send_lac_to(replace(action, bookies=tuple(b for b in action.bookies if b not in lost)), answered)
        return bool(actions)

    def _send_lac_to(self, action: act.SendLac, answered: OnBookiesAnswer | None = None) -> None:
        header = Header(
            Kind.WRITE_LAC,
            self._connections.next_request_id(),
            self.ledger_id,
            last_add_confirmed=action.last_add_confirmed,
            last_add_fully_replicated=action.last_add_fully_replicated,
            master_key=self._master_key,
        )
        self._ask(action.bookies, header, partial(self._lac_answered, answered))

    def _lac_answered(self, answered: OnBookiesAnswer | None, bookie: str, answer: Answer) -> None:
        self._step(ExplicitLacAnswered(bookie, answer.response, time.monotonic()))
        if answered is not None:
            answered(bookie, answer)

    # -- deadlines

    def tick(self, now: float) -> bool:
        """Look at deadlines and timed syncs, at ``now`` (``time.monotonic()``). False if nothing is left to look at until
        ``Runtime.wake``."""
        if not (now - self._progress_at < self._just_now_seconds and self._only_waits()):
            self._look(now)
        waits = self._is_awaited() or self._is_synced_by_time() or self.missing is not None
        return waits or self._dropped or bool(self.outgoing) or bool(self._held_back)

    def _look(self, now: float) -> None:
        config, quiet = self._config, now - self._progress_at
        if self._is_awaited():
            if quiet > config.add_timeout_seconds:
                self.end()
            self._look_at_slow_bookies(now)
        if self.missing is not None and quiet > config.add_timeout_seconds:
            self.abandon(missing_for_long(self.ledger_id, self.missing, config.add_timeout_seconds))
        if self._held_back:
            self._send_held_back()
        if self.outgoing:
            self.pump()
        if self._is_synced_by_time() and now - self._synced_at > config.sync_interval_seconds:
            self._sync()
        if self._dropped and not self._is_awaited() and not self.outgoing:
            self._leave_dropped()

    def _only_waits(self) -> bool:
        """Is a late answer the only event that a tick looks for, as on most of many busy ledgers?"""
        return not (
            self.outgoing.waiting
            or self.outgoing.taken
            or self._held_back
            or self._config.sync_interval_seconds > 0
            or self._connections.any_is_behind(self.ensemble)
        )

    def _is_synced_by_time(self) -> bool:
        """Is an entry to be synced within ``sync_interval_seconds``?"""
        cursors = self.cursors
        return self._config.sync_interval_seconds > 0 and cursors.last_add_confirmed < cursors.last_add_pushed

    def _is_awaited(self) -> bool:
        """Does a caller wait for an acknowledgement or a sync?"""
        cursors = self.cursors
        return (
            cursors.last_add_acknowledged < cursors.last_add_pushed or cursors.last_add_confirmed < self._sync_awaited
        )

    # -- the machine

    def _step(self, event: WriterEvent) -> bool:
        """Step the machine with ``event`` and carry out its actions; True if there are any."""
        actions = self._stepped(event)
        for action in actions:
            match action:
                case act.SendAdd():
                    self._send_add(action)
                case act.SendSync():
                    self._send_sync(action)
                case act.SendLac():
                    self._send_lac_to(action)
                case act.Acknowledge(entry_id):
                    self._advance(entry_id)
                case act.Confirm(entry_id):
                    if not self._keeps_confirmed:
                        self._release(entry_id)
                    self.confirmed.advance(entry_id)
                    self._advance(entry_id)
                    if self.tells_soon and not self._will_tell:
                        self._will_tell = True
                        self._io.loop.call_later(_TELL_SECONDS, self._tell_soon)
                case act.Release(entry_id):
                    self._release(entry_id)
                    # Wake the callers that wait for the copies.
                    self.acknowledged.advance(self.acknowledged.value)
                case act.ReadMetadata() | act.WriteMetadata() | act.ChooseBookies():
                    self._threads.post(self._ask_store, action)
                case act.EnsembleChanged():
                    self._connections.traffic.ensemble_changes += 1
                    self._unwant_bookies()
                    self.ensemble = action.metadata.last_fragment.ensemble
                    self._drop_held_back(self.ensemble)
                    self.want_bookies()
                    # One of the new bookies may have been lost meanwhile.
                    self._io.submit(self.bookies_lost, self._runtime.lost_bookies)
                case act.Finish():
                    self._leave()
                    self._drop_held_back(())
                    if self._lacking:
                        self._threads.post(self._mark_and_end, dict(self._lacking))
                    else:
                        self._has_ended()
                case act.Fail():
                    self._fail(action.error)
        return bool(actions)

    def _has_ended(self) -> None:
        self.ended.set()
        # Callers that wait for an entry behind the end look again.
        self.confirmed.advance(self.confirmed.value)
        self._room.forget(self)

    # -- entries that a bookie lacks
    #
    # Law: before its close ends, a writer marks the copies that it could not make, and later the adds that fail after the
    # close. A failure to mark fails nothing: exact checks find the copies too.

    def _drop_held_back(self, kept: Collection[str]) -> None:
        for bookie in [bookie for bookie in self._held_back if bookie not in kept]:
            self._lacks(bookie, *((add.first, add.last) for add in self._held_back.pop(bookie)))

    def _lacks(self, bookie: str, *ranges: tuple[int, int]) -> None:
        lacking = with_ranges(self._lacking.get(bookie, NO_RANGES), ranges)
        # On a striped ledger the ids are single entries: the repair looks which of them lack.
        self._lacking[bookie] = lacking if len(lacking) < _RANGES_MAX else ((lacking[0][0], lacking[-1][1]),)
        if self.writer.state is State.CLOSED and self.ended.is_set() and not self._will_mark:
            self._will_mark = True
            self._io.loop.call_later(_MARK_SECONDS, self._mark_late)

    def _has(self, bookie: str, first: int, last: int) -> None:
        if bookie in self._lacking and not (left := without_ranges(self._lacking[bookie], [(first, last)])):
            del self._lacking[bookie]
        elif bookie in self._lacking:
            self._lacking[bookie] = left

    def _mark_late(self) -> None:
        self._will_mark = False
        self._threads.post(self._mark_lacking, dict(self._lacking))

    def _mark_and_end(self, failed: Mapping[str, EntryRanges]) -> None:
        self._mark_lacking(failed)
        self._io.submit(self._has_ended)

    def _mark_lacking(self, failed: Mapping[str, EntryRanges]) -> None:
        """In a thread that may wait for the metadata store."""
        if marks := marks_at_close(self.writer.metadata, failed):
            try:
                self._runtime.store.underreplication.mark(marks)
            except BookKeeperError as error:
                log.warning("ledger %d: lacking copies are not marked: %s", self.ledger_id, error)

    def _stepped(self, event: WriterEvent) -> list[act.Action]:
        """The machine's actions after ``event``. A defect ends the ledger: the machine might wait for ever for a lost event."""
        try:
            actions = self.writer.step(event)
        except Exception as error:
            actions = self._stepped_anyway(event, error)
        # An ack without an action does not change whether the writer is idle.
        if actions or type(event) is not act.AddAnswered:
            self._wake()
        return actions

    def _stepped_anyway(self, event: WriterEvent, error: Exception) -> list[act.Action]:
        try:
            return self.writer.step(self._as_unknown(event, error))
        except Exception as defective:
            log.exception("ledger %d: %r failed", self.ledger_id, event)
            return self.writer.step(Abandon(defect(self.ledger_id, defective)))

    def _as_unknown(self, event: WriterEvent, error: Exception) -> WriterEvent:
        """``event`` as an Unknown answer, if a bookie reported an impossible sync in it; else raises ``error``."""
        if not isinstance(error, IllegalEventError) or not isinstance(event, act.AddAnswered | act.SyncAnswered):
            raise error
        if event.synced is None:
            raise error
        log.warning("ledger %d: %s is not believed: %s", self.ledger_id, event.bookie, error)
        response = Unknown(UnknownReason.BAD_REQUEST, f"it tells what can't be: {error}")
        self._refused(event.bookie, response)
        return replace(event, response=response, synced=None)

    def _fail(self, error: BookKeeperError) -> None:
        """End the ledger: no further append is acknowledged. Waiting callers get ``error``, unless ``on_fenced`` moves their
        appends."""
        self._under_way.clear()
        self._held_back.clear()
        self._leave()
        if self.on_fenced is not None and isinstance(error, LedgerFencedError):
            self.fenced = True
            # An append that waits for room goes on.
            self._room.forget(self)
            self.ended.set()
            self.on_fenced(self.acknowledged, error)
            return
        self._frames.clear()
        self.acknowledged.error = self.acknowledged.error or error
        self._room.forget(self)
        self.outgoing.clear()
        self.acknowledged.fail(error)
        self.confirmed.fail(error)
        self.ended.set()

    def unacknowledged(self) -> list[bytes]:
        """Payloads after the last acknowledged entry of a fenced ledger. Only after the caller's last append."""
        self._io.submit(self._room.forget, self)
        sent = (kept.frame for first, kept in self._frames.items() if first > self.acknowledged.value)
        return [*(bytes(one) for frame in sent for one in EntryBatch(frame).payloads()), *self.outgoing.payloads()]

    def _advance(self, entry_id: int) -> None:
        """Advance the watermark of acknowledgements. A confirmation may lie below it on a VD ledger; then it stays."""
        self._progress_at = time.monotonic()
        self.acknowledged.advance(max(entry_id, self.acknowledged.value))
        under_way = self._under_way
        while under_way and (first := next(iter(under_way))) <= entry_id:
            del under_way[first]
        if self.outgoing or self.closing:
            self.pump()

    def _release(self, entry_id: int) -> None:
        frames, released, byte_length = self._frames, [], 0
        for first in frames:
            if first > entry_id:
                break
            released.append(first)
        for first in released:
            byte_length += frames.pop(first).byte_length
        self.released += byte_length
        self._room.release(byte_length)

    def _ask_store(self, action: StoreAction) -> None:
        """Carry out an action on the metadata store, in a thread that may wait for it."""
        try:
            answer = self._context.answer_from_store(self.writer.metadata, action)
        except BaseException as error:
            if self._context.closed:
                # The writers know.
                return
            # Without an answer the machine would wait for ever.
            log.exception("ledger %d: %r failed", self.ledger_id, action)
            self._io.submit(self.abandon, defect(self.ledger_id, error))
            return
        # The machine may ask again at once, and the store may fail at once: the pause prevents a busy loop.
        if isinstance(answer, act.MetadataFailed):
            self._io.submit_later(_RETRY_SECONDS, self._step, answer)
        else:
            self._io.submit(self._step, answer)

    # -- requests to bookies

    def _send_add(self, action: act.SendAdd) -> None:
        if self._held_back or self._connections.any_is_behind(action.bookies):
            for bookie in action.bookies:
                self._held_back.setdefault(bookie, deque()).append(action)
            self._send_held_back()
        else:
            self._send_add_to(action.bookies, action)

    def _send_held_back(self) -> None:
        """Send as much as the bookies can take in, and drop released adds."""
        for bookie in list(self._held_back):
            dropped = False
            while adds := self._held_back.get(bookie):
                is_kept = adds[0].first in self._frames
                if is_kept and self._connections.any_is_behind((bookie,)):
                    break
                action = adds.popleft()
                if not adds:
                    del self._held_back[bookie]
                if is_kept:
                    self._send_add_to((bookie,), action)
                else:
                    self._lacks(bookie, (action.first, action.last))
                dropped |= not is_kept
            if dropped:
                self._step(PassedOver(bookie))

    def _send_add_to(self, bookies: Iterable[str], action: act.SendAdd) -> None:
        kept = self._frames[action.first]
        add = _SentAdd(self, action, self._config.answer_timeout_seconds)
        away = self._connections.away(bookies)
        for bookie in away:
            # A bookie gets all missed entries once it is back, so nothing is held back for it until then.
            self._connections.try_again(bookie, partial(self._still_away, bookie, add))
        bookies = [bookie for bookie in bookies if bookie not in away] if away else bookies
        if action.assignment is None:
            self._connections.send_to_all(bookies, kept.request_id, kept.frame, add)
        else:
            # The synced id of an answer belongs to one assignment: an answer to an earlier add must not pass for this add's.
            request_id = self._connections.next_request_id()
            self._connections.send_to_all(bookies, request_id, kept.assigned(action.assignment, request_id), add)

    def _still_away(self, bookie: str, add: _SentAdd, why: Unknown) -> None:
        self.add_answered(bookie, add, Answer(why))

    def add_acknowledged(self, bookie: str, first: int, last: int) -> None:
        """A bookie acknowledged an add of a PD ledger (persistent durability): ``add_answered`` in fewer calls.

        A third of these acks come after the machine is done with the add. Such an ack says only that a failed bookie takes adds
        again."""
        if self._pauses:
            self._pauses.pop(bookie, None)
        if self._lacking:
            self._has(bookie, first, last)
        if first > self.cursors.released or not self._all_well:
            if self._under_way.get(first, 0.0) is None:
                self._under_way[first] = time.monotonic()
            self._step(act.AddAnswered(bookie, first, last, _ACKNOWLEDGED))

    def add_answered(self, bookie: str, add: _SentAdd, answer: Answer) -> None:
        """A bookie answered an add, or did not in time."""
        response, report = answer.response, None
        if add.assignment is not None:
            report = sync_report(answer, add.assignment)
            response = _with_report(response, report)
        if type(response) is not Positive:
            self._all_well = False
        if type(response) is Positive:
            self._has(bookie, add.first, add.last)
        else:
            self._lacks(bookie, (add.first, add.last))
        if type(response) is Unknown:
            self._refused(bookie, response)
        else:
            self._pauses.pop(bookie, None)
            if self._under_way.get(add.first, 0.0) is None:
                self._under_way[add.first] = time.monotonic()
        self._step(act.AddAnswered(bookie, add.first, add.last, response, report))

    def _send_sync(self, action: act.SendSync) -> None:
        header = Header(Kind.SYNC, self._connections.next_request_id(), self.ledger_id, master_key=self._master_key)
        header = header.with_assignment(action.assignment)
        self._ask(action.bookies, header, partial(self._sync_answered, action))

    def _sync_answered(self, action: act.SendSync, bookie: str, answer: Answer) -> None:
        report = sync_report(answer, action.assignment)
        response = _with_report(answer.response, report)
        self._refused(bookie, response)
        self._step(act.SyncAnswered(bookie, response, report))

    def _ask(self, bookies: Iterable[str], header: Header, answered: OnBookiesAnswer) -> None:
        request = Question(answered, self._config.answer_timeout_seconds)
        self._connections.send_to_all(bookies, header.request_id, control_frame(header), request)


def _with_report(response: Response, report: act.SyncReport | None) -> Response:
    """A bookie's response about a VD ledger: an ack without a sync report counts as Unknown."""
    return _TELLS_NO_SYNC if report is None and isinstance(response, Positive) else response
