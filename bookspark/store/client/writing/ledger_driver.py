"""The I/O thread's half of an open ledger: it steps the protocol's ``LedgerWriter`` and does what that asks for.

Law: only the I/O thread steps the machine, and nothing is decided here. The machine's acknowledgements become watermarks; its end
becomes an event that a close waits for. Appends that come while frames are under way go out together in the next frame. An append
to an idle ledger goes out at once.

Every wait has a deadline: a handle ends after ``add_timeout_seconds`` without progress, if appends are not acknowledged or a sync
was asked for. An entry that waits only for more copies (on a guaranteed ledger), or for the next sync, does not end it. A handle
that was dropped without ``close`` ends once nobody waits for anything of it; the ledger stays open.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from bookspark.errors import BookKeeperError, LedgerClosedError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.ledger.responses import FINAL_REASONS, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.transitions import IllegalEventError
from bookspark.protocol.writing.ensemble_change import NOBODY, ChangeMode, quorum_lost
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.protocol.writing.writer_cursors import Cursors
from bookspark.protocol.writing.writer_errors import missing_for_long
from bookspark.protocol.writing.writer_events import (
    Abandon,
    Append,
    BookieBack,
    BookiesChanged,
    Close,
    ExplicitLacAnswered,
    HeldUp,
    Idle,
    PassedOver,
    Sync,
    TellLac,
    WriterEvent,
)
from bookspark.protocol.writing.writer_state import State
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.bookie_connection import ACKNOWLEDGED
from bookspark.store.client.network.connections import Answer, Connections, OnBookiesAnswer, Question, Request
from bookspark.store.client.network.ledger_requests import sync_report
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.runtime.open_writer import defect
from bookspark.store.client.runtime.room import LedgerRoom
from bookspark.store.client.runtime.store_actions import StoreAction
from bookspark.store.client.writing.kept_frames import KeptFrame, KeptFrames
from bookspark.store.client.writing.outgoing import Outgoing
from bookspark.store.client.writing.shared_with_callers import SharedWithCallers
from bookspark.store.decisions.seam import made
from bookspark.store.wire.digests import digester
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Flag, Header, Kind

log = logging.getLogger(__name__)


# -- Which bookies hold the appends of a ledger up, and when the writer goes on without them.
#
# Law: a bookie is slow only beside others. It holds the ledger up
#
# - if it is behind (see ``connections``), while the bookies that are not behind make an ack quorum of every write set; or
# - if the oldest entry that is not acknowledged waits for it, and another bookie has had that entry for a moment.
#
# The writer waits for such a bookie as long as the client has ``Patience`` with it. Then its machine is told (``HeldUp``),
# which replaces the bookie if it can, and the writer waits no more: what the bookie can't take in is held back for it, and
# dropped once the machine has released it. If all bookies are slow, the ledger waits for them: that is back-pressure.
#
# BookKeeper's client keeps what a slow bookie has not taken in, without a bound by default (its #3497). All of it runs in the
# I/O loop.


_MOMENT_SECONDS = 0.5
_WHY = Unknown(UnknownReason.TIMEOUT, "it held appends up that other bookies had taken")


class HoldUps:
    """The hold-ups of one ledger. ``step`` hands an event to the ledger's machine."""

    def __init__(
        self, writer: LedgerWriter, connections: Connections, kept: KeptFrames, step: Callable[[HeldUp], object]
    ) -> None:
        self._writer = writer
        self._connections = connections
        self._kept = kept
        self._step = step
        self._told = NOBODY
        """The bookies that the user was warned of."""

    def waits_for(self, behind: Sequence[str]) -> bool:
        """Do appends wait for these bookies of the ensemble, which are behind?"""
        patience = self._connections.patience
        if not behind or self._needs(behind):
            return bool(behind)
        patience.spend(behind, time.monotonic())
        return not all(map(patience.is_spent, behind))

    def look(self, now: float, behind: Sequence[str]) -> None:
        """Tell the machine of the bookies that have held the ledger up for too long, at ``now``."""
        slow = self._awaited_for_long(now)
        if behind and not self._needs(behind):
            slow |= set(behind)
        if not slow:
            return
        patience = self._connections.patience
        patience.spend(slow, now)
        spent = self._connections.quietest_first(filter(patience.is_spent, slow))
        for bookie in spent:
            if bookie not in self._told:
                self._connections.quarantine(bookie, _WHY)
                log.warning(
                    "ledger %d: %s is much slower than the other bookies; it is replaced if there is another one, and not "
                    "waited for if there is none",
                    self._writer.metadata.ledger_id,
                    bookie,
                )
        self._told |= frozenset(spent)
        if spent:
            self._step(HeldUp(spent))

    def _needs(self, behind: Sequence[str]) -> bool:
        """Can no ack quorum be had without these bookies?"""
        metadata = self._writer.metadata
        return quorum_lost(metadata, frozenset(behind), metadata.ack_quorum)

    def _awaited_for_long(self, now: float) -> set[str]:
        """The bookies for which the oldest entry waits that is not acknowledged, if another one has it for a moment already."""
        first, heard_at = self._kept.oldest_under_way()
        if heard_at is None or now - heard_at < _MOMENT_SECONDS:
            return set()
        add = self._writer.cursors.pending.get(first)
        if add is None or len(add.acks) >= self._writer.metadata.ack_quorum:
            return set()
        return set(add.bookies) - add.acks


# -- When a writer asks a bookie again that was reached, but refused.
#
# Law: a bookie that can't take an add now (it has too much to do, or its disk is full or failed) is asked again, less and less
# often until it takes one: it may be full for long, and a ledger may keep much for it. After a refusal for one of
# ``FINAL_REASONS`` the bookie is not asked again: that would be useless, or a new connection tells when it is useful. All of it
# runs in the I/O loop.


_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 3.2


class Retries:
    """The retries of one ledger. ``again(bookie)`` asks the bookie again."""

    def __init__(self, again: Callable[[str], None]) -> None:
        self._again = again
        self._waiting = NOBODY
        self.pauses: dict[str, float] = {}
        """The next pause, in seconds, of each bookie that refused what it was asked last."""

    def refused(self, bookie: str, response: Response) -> None:
        """The bookie answered with ``response``. A positive one changes nothing."""
        if isinstance(response, Unknown) and response.reason not in FINAL_REASONS and bookie not in self._waiting:
            self._waiting |= {bookie}
            pause = self.pauses.get(bookie, _PAUSE_SECONDS)
            self.pauses[bookie] = min(2 * pause, _PAUSE_SECONDS_MAX)
            asyncio.get_running_loop().call_later(pause, self._retry, bookie)

    def took(self, bookie: str) -> None:
        """The bookie took something, or has just been connected to."""
        if self.pauses:
            self.pauses.pop(bookie, None)

    def _retry(self, bookie: str) -> None:
        self._waiting -= {bookie}
        self._again(bookie)


# -- What a ledger's writer asks of bookies, as frames on connections, and their answers as events of its machine.
#
# Law: only shapes change here; ``protocol`` decides what an answer means. A bookie is sent no more than it takes in. Adds that
# it can't take in now are held back, and sent later from the frames that are kept anyway. Adds that the machine has released
# meanwhile are dropped, and the machine is told so.
#
# All of it runs in the I/O loop.


_ACKNOWLEDGED = Positive()
_TELLS_NO_SYNC = Unknown(UnknownReason.BAD_REQUEST, "an answer about a VD ledger that does not tell what is synced")


class _SentAdd(Request):
    """An add under way. All that has to be remembered of it is one object: there may be thousands, and Python's garbage collector
    visits each object again and again."""

    __slots__ = ("_requests", "assignment", "first", "last")

    def __init__(self, requests: WriterRequests, action: act.SendAdd, timeout_seconds: float) -> None:
        super().__init__(timeout_seconds)
        self._requests = requests
        self.first = action.first
        self.last = action.last
        self.assignment = action.assignment

    def tell(self, bookie_id: str, answer: Answer) -> None:
        try:
            if answer is ACKNOWLEDGED and self.assignment is None:
                self._requests.add_acknowledged(bookie_id, self.first, self.last)
            else:
                self._requests.add_answered(bookie_id, self, answer)
        except BaseException:
            log.exception("handling a bookie's answer to an add failed")


class WriterRequests:
    """The requests of one ledger's writer. ``step`` hands an event to the ledger's machine and does what the machine asks for;
    ``cursors`` are the machine's."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        config: ClientConfig,
        connections: Connections,
        kept: KeptFrames,
        step: Callable[[WriterEvent], object],
        cursors: Cursors,
    ) -> None:
        self._ledger_id, self._master_key = metadata.ledger_id, metadata.master_key
        self._timeout_seconds = config.answer_timeout_seconds
        self._connections = connections
        self._kept = kept
        self._step = step
        self._cursors = cursors
        self.all_well = True
        """No bookie has failed since the ledger was made, as far as its machine heard."""
        self._retries = Retries(partial(self._send_again, incarnation=0))
        self.held_back: dict[str, deque[act.SendAdd]] = {}
        """The adds that wait for a bookie which is behind, by bookie. No queue is empty."""

    # -- bookies

    def bookie_back(self, bookie: str, incarnation: int) -> None:
        """The bookie was connected to again."""
        self._retries.took(bookie)
        self._send_again(bookie, incarnation)

    def refused(self, bookie: str, response: Response) -> None:
        """The bookie answered with ``response``: it is asked again later, unless that would be useless."""
        self._retries.refused(bookie, response)

    def not_believed(self, event: WriterEvent, error: Exception) -> WriterEvent:
        """What is to be stepped in place of ``event``, which the machine refused with ``error``: a bookie that says to have
        synced what can't be has said nothing, so its answer is Unknown. Raises ``error`` if that is none of a bookie's."""
        if not isinstance(error, IllegalEventError) or not isinstance(event, act.AddAnswered | act.SyncAnswered):
            raise error
        if event.synced is None:
            raise error
        log.warning("ledger %d: %s is not believed: %s", self._ledger_id, event.bookie, error)
        response = Unknown(UnknownReason.BAD_REQUEST, f"it tells what can't be: {error}")
        self.refused(event.bookie, response)
        return replace(event, response=response, synced=None)

    def _send_again(self, bookie: str, incarnation: int) -> None:
        # The machine sends everything again that the bookie has not acknowledged.
        self.held_back.pop(bookie, None)
        self._step(BookieBack(bookie, incarnation))

    def keep_only(self, ensemble: Iterable[str]) -> None:
        """The ensemble has changed: nothing is held back for bookies outside it."""
        self.held_back = {b: self.held_back[b] for b in ensemble if b in self.held_back}

    def clear(self) -> None:
        """Nothing is sent any more."""
        self.held_back.clear()

    # -- adds

    def send_add(self, action: act.SendAdd) -> None:
        if self.held_back or self._connections.any_is_behind(action.bookies):
            for bookie in action.bookies:
                self.held_back.setdefault(bookie, deque()).append(action)
            self.send_held_back()
        else:
            self._send_add_to(action.bookies, action)

    def send_held_back(self) -> None:
        """Send as much as the bookies can take in, and drop what is released."""
        for bookie in list(self.held_back):
            dropped = False
            while adds := self.held_back.get(bookie):
                is_kept = adds[0].first in self._kept
                if is_kept and self._connections.any_is_behind((bookie,)):
                    break
                action = adds.popleft()
                if not adds:
                    del self.held_back[bookie]
                if is_kept:
                    self._send_add_to((bookie,), action)
                dropped |= not is_kept
            if dropped:
                self._step(PassedOver(bookie))

    def _send_add_to(self, bookies: Iterable[str], action: act.SendAdd) -> None:
        kept = self._kept[action.first]
        add = _SentAdd(self, action, self._timeout_seconds)
        away = self._connections.away(bookies)
        for bookie in away:
            # It gets all that it missed once it is back, so nothing is kept for it until then.
            self._connections.try_again(bookie, partial(self._still_away, bookie, add))
        bookies = [bookie for bookie in bookies if bookie not in away] if away else bookies
        if action.assignment is None:
            self._connections.send_to_all(bookies, kept.request_id, kept.frame, add)
        else:
            # The synced id of an answer is about one assignment: an answer to an earlier add must not pass for this add's.
            request_id = self._connections.next_request_id()
            self._connections.send_to_all(bookies, request_id, kept.assigned(action.assignment, request_id), add)

    def add_acknowledged(self, bookie: str, first: int, last: int) -> None:
        """A bookie acknowledged an add of a PD ledger (persistent durability). There are many, so this does what
        ``add_answered`` does with fewer calls. A third of them come when the machine is done with the add. Such an ack tells it
        something only of a bookie that failed: that it takes adds again."""
        if self._retries.pauses:
            self._retries.took(bookie)
        if first > self._cursors.released or not self.all_well:
            self._kept.heard(first)
            self._step(act.AddAnswered(bookie, first, last, _ACKNOWLEDGED))

    def _still_away(self, bookie: str, add: _SentAdd, why: Unknown) -> None:
        self.add_answered(bookie, add, Answer(why))

    def add_answered(self, bookie: str, add: _SentAdd, answer: Answer) -> None:
        """A bookie answered an add, or did not in time."""
        response, report = answer.response, None
        if add.assignment is not None:
            report = sync_report(answer, add.assignment)
            response = _with_report(response, report)
        if type(response) is not Positive:
            self.all_well = False
        if type(response) is Unknown:
            self._retries.refused(bookie, response)
        else:
            self._retries.took(bookie)
            self._kept.heard(add.first)
        self._step(act.AddAnswered(bookie, add.first, add.last, response, report))

    # -- other requests

    def send_sync(self, action: act.SendSync) -> None:
        header = Header(Kind.SYNC, self._connections.next_request_id(), self._ledger_id, master_key=self._master_key)
        header = header.with_assignment(action.assignment)
        self._ask(action.bookies, header, partial(self._sync_answered, action))

    def _sync_answered(self, action: act.SendSync, bookie: str, answer: Answer) -> None:
        report = sync_report(answer, action.assignment)
        response = _with_report(answer.response, report)
        self._retries.refused(bookie, response)
        self._step(act.SyncAnswered(bookie, response, report))

    def send_lac(self, action: act.SendLac, answered: OnBookiesAnswer | None = None) -> None:
        """``answered`` is called once for each bookie, after the machine has heard of its answer."""
        header = Header(
            Kind.WRITE_LAC,
            self._connections.next_request_id(),
            self._ledger_id,
            last_add_confirmed=action.last_add_confirmed,
            last_add_fully_replicated=action.last_add_fully_replicated,
            master_key=self._master_key,
        )
        self._ask(action.bookies, header, partial(self._lac_answered, answered))

    def _lac_answered(self, answered: OnBookiesAnswer | None, bookie: str, answer: Answer) -> None:
        self._step(ExplicitLacAnswered(bookie, answer.response, time.monotonic()))
        if answered is not None:
            answered(bookie, answer)

    def _ask(self, bookies: Iterable[str], header: Header, answered: OnBookiesAnswer) -> None:
        request = Question(answered, self._timeout_seconds)
        self._connections.send_to_all(bookies, header.request_id, control_frame(header), request)


def _with_report(response: Response, report: act.SyncReport | None) -> Response:
    """What a bookie answered about a VD ledger: an ack that does not tell what is synced is no answer."""
    return _TELLS_NO_SYNC if report is None and isinstance(response, Positive) else response


# --


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
