"""What a ledger's writer asks of bookies, as frames on connections, and their answers as events of its machine.

Law: only shapes change here; ``protocol`` decides what an answer means. A bookie is sent no more than it takes in. Adds that it
can't take in now are held back, and sent later from the frames that are kept anyway. Adds that the machine has released meanwhile
are dropped, and the machine is told so.

All of it runs in the I/O loop.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.transitions import IllegalEventError
from bookspark.protocol.writing.writer_cursors import Cursors
from bookspark.protocol.writing.writer_events import BookieBack, ExplicitLacAnswered, PassedOver, WriterEvent
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.bookie_connection import ACKNOWLEDGED
from bookspark.store.client.network.connections import Answer, Connections, OnBookiesAnswer, Question, Request
from bookspark.store.client.network.ledger_requests import sync_report
from bookspark.store.client.writing.kept_frames import KeptFrames
from bookspark.store.client.writing.retries import Retries
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind

log = logging.getLogger(__name__)

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
