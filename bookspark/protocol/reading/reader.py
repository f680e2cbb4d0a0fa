"""Reading a range of entries, and the LAC, from whichever replicas answer.

Law: an entry is delivered at the first positive answer; it is called absent only when all WQ bookies of its write set
say so, and, where the metadata can be read again, only after that showed no other bookies; anything else is an error
that says nothing about the entry. Entries are delivered in id order, each once. A LAC that is told is a confirmed one,
and never goes back.

What may be read is the caller's to know: ids up to a LAC that was heard, or up to LAP for an unconfirmed read, where an
absent entry is no contradiction.

Sources: BP-46, "Read entry"; bookkeeper-overview, "Reading"; ``ReadOpBase`` and ``ReadLastConfirmedAndEntryOp`` of
BookKeeper. ``ReadOrder`` says who is asked first; a late answer lets the next replica be asked beside it (a *speculative*
read, ``ReadIsLate``), and one that was late is asked last until it delivers.

The entries of a striped ledger lie on different bookies in turn. Asked one by one each costs a round trip; so whoever is
asked for the next one sends the later ones that it holds along (a *sparse* read), and they wait here for their turn: per
bookie about as many bytes as one answer takes. Where write sets overlap some come twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bookspark.errors import (
    BookKeeperError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReadError,
    TooManyRequestsError,
    UnauthorizedAccessError,
)
from bookspark.protocol.ledger.actions import (
    Action,
    DeadlinePassed,
    Deliver,
    Fail,
    Finish,
    LacAnswered,
    MetadataFailed,
    MetadataRead,
    ReadAnswered,
    ReadIsLate,
    ReadMetadata,
    SendRead,
    SendReadLac,
)
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookspark.protocol.ledger.quorum import Verdict, fencing_verdict, read_verdict
from bookspark.protocol.ledger.responses import Negative, Positive, Response, Unknown, UnknownReason


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """In which order the replicas of an entry are asked. Each of them is, before the entry counts as unreadable."""

    rotation: int = 0
    """Which of those that are alike is first, so that readers spread over replicas."""
    sticky: bool = True
    """Whether the replica that delivered is asked first for what follows; if not, one that delivered less often."""
    first: str | None = None
    """The one that delivered before this read."""
    near: frozenset[str] = frozenset()
    """Asked before the others."""
    doubtful: frozenset[str] = frozenset()
    """Asked after the others: they could not be reached a moment ago."""


class RangeRead:
    """The entries ``first..last`` of a ledger.

    ``rereads_metadata``: the driver answers ``ReadMetadata``, which is asked when no replica delivered: the ledger may
    have been closed, or its bookies replaced since ``metadata`` was read. ``reads_ahead``: a striped ledger is read
    sparsely; the driver takes each of several deliveries at once.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        order: ReadOrder = ReadOrder(),
        rereads_metadata: bool = False,
        reads_ahead: bool = False,
    ) -> None:
        self.next_entry_id = first
        self.delivered_by = order.first
        """The bookie that delivered last."""
        self._metadata = metadata
        self._last = last
        self._order = order
        self._deliveries: dict[str, int] = {}
        """How often each bookie delivered, as far as it matters."""
        self._rereads_metadata = rereads_metadata
        self._reads_ahead = reads_ahead
        self._ahead: dict[int, Any] = {}
        """Entries that came before their turn, by id."""
        self._late: set[str] = set()
        self._asked: set[str] = set()
        """Bookies that were asked for ``next_entry_id`` and did not answer yet."""
        self._answers: dict[str, Response] = {}

    def start(self) -> list[Action]:
        """The first request."""
        return self._ask() if self.next_entry_id <= self._last else [Finish()]

    def step(self, event: ReadAnswered | ReadIsLate | MetadataRead | MetadataFailed) -> list[Action]:
        """The actions that follow from one bookie's answer, from its delay, or from the metadata."""
        match event:
            case ReadAnswered():
                return self._answered(event) if event.first == self.next_entry_id <= self._last else []
            case ReadIsLate():
                if not event.first == self.next_entry_id <= self._last:
                    return []
                self._late |= self._asked
                return self._ask() if self._left() else []
            case MetadataRead():
                return self._metadata_read(event.metadata)
            case MetadataFailed():
                return [Fail(self._unconfirmed_absence(event.error))]

    def _answered(self, event: ReadAnswered) -> list[Action]:
        actions: list[Action] = []
        self._asked.discard(event.bookie)
        self._ahead.update(event.ahead)
        if event.last >= event.first:
            actions.append(Deliver(event.first, event.last, event.entries))
            self.next_entry_id = event.last + 1
            actions += self._deliver_ahead()
            self._answers, self._asked = {}, set()
            self.delivered_by = event.bookie
            self._late.discard(event.bookie)
            if not self._order.sticky:
                self._deliveries[event.bookie] = self._deliveries.get(event.bookie, 0) + 1
            if self.next_entry_id > self._last:
                return [*actions, Finish()]
        elif isinstance(event.following, Positive):
            self._answers[event.bookie] = Unknown(UnknownReason.BAD_REQUEST, "an answer without entries or a reason")
        unmoved = self.next_entry_id == event.last + 1
        if unmoved and not isinstance(event.following, Positive) and event.bookie in self._write_set():
            self._answers[event.bookie] = event.following
        return actions + self._ask()

    def _deliver_ahead(self) -> list[Action]:
        """What has its turn now of what came before it."""
        self._ahead = {i: entries for i, entries in self._ahead.items() if i >= self.next_entry_id}
        actions: list[Action] = []
        while self.next_entry_id in self._ahead:
            entry_id = self.next_entry_id
            actions.append(Deliver(entry_id, entry_id, self._ahead.pop(entry_id)))
            self.next_entry_id += 1
        return actions

    def _ask(self) -> list[Action]:
        """Ask one more replica, wait for those that were asked, or end."""
        left = self._left()
        if not left:
            return [] if self._asked else [ReadMetadata() if self._rereads_metadata else self._fail()]
        m = self._metadata
        bookie = self._next_of(left)
        self._asked.add(bookie)
        striped = m.ensemble_size > m.write_quorum
        last = self.next_entry_id if striped and not self._reads_ahead else self._last
        following = (f.first_entry_id for f in m.fragments if f.first_entry_id > self.next_entry_id)
        last = min(last, next(following, last + 1) - 1)
        return [SendRead(bookie, self.next_entry_id, last, sparse=striped and self._reads_ahead)]

    def _next_of(self, left: list[str]) -> str:
        order = self._order
        if order.sticky and self.delivered_by in left and self.delivered_by not in self._late:
            return self.delivered_by
        start = order.rotation % len(left)
        turned = left[start:] + left[:start]
        return min(
            turned,
            key=lambda b: (b in self._late, b in order.doubtful, b not in order.near, self._deliveries.get(b, 0)),
        )

    def _left(self) -> list[str]:
        return [b for b in self._write_set() if b not in self._answers and b not in self._asked]

    def _write_set(self) -> tuple[str, ...]:
        return self._metadata.write_set_of(self.next_entry_id)

    def _metadata_read(self, found: LedgerMetadata) -> list[Action]:
        """Go on with bookies that are new; without any, what was answered stands."""
        before = self._write_set()
        if found.closed and self.next_entry_id > found.last_entry_id:
            end = f"the ledger was closed at entry {found.last_entry_id}"
            return [Fail(NoSuchEntryError(f"{self._what()}: {end}"))]
        self._metadata = found
        if set(self._write_set()) <= set(before):
            return [self._fail()]
        self._answers = {b: answer for b, answer in self._answers.items() if b in self._write_set()}
        return self._ask()

    def _what(self) -> str:
        return f"ledger {self._metadata.ledger_id}, entry {self.next_entry_id}"

    def _fail(self) -> Fail:
        what = self._what()
        answers = list(self._answers.values())
        if any(isinstance(a, Unknown) and a.reason is UnknownReason.UNAUTHORIZED for a in answers):
            return Fail(UnauthorizedAccessError(f"{what}: wrong password; use the one the ledger was created with"))
        negatives = sum(isinstance(answer, Negative) for answer in answers)
        if read_verdict(self._metadata.write_quorum, 0, negatives, len(answers) - negatives) is Verdict.ABSENT:
            return Fail(NoSuchEntryError(f"{what}: each of {', '.join(self._answers)} says that it has no such entry"))
        if all(isinstance(a, Unknown) and a.reason is UnknownReason.TOO_MANY_REQUESTS for a in answers):
            who = ", ".join(self._answers)
            return Fail(TooManyRequestsError(f"{what}: {who} have too many requests under way; ask for less at once"))
        why = f"{what} could not be read from any replica ({self._reasons()}); it may be readable later"
        return Fail(ReadError(why))

    def _unconfirmed_absence(self, error: BookKeeperError) -> BookKeeperError:
        """The metadata could not be read again, so it is not known who else may hold the entry."""
        if isinstance(error, NoSuchLedgerError):
            return error
        return ReadError(
            f"{self._what()} could not be read from any replica ({self._reasons()}), and whether other bookies hold it could "
            f"not be looked up: {error}"
        )

    def _reasons(self) -> str:
        return ", ".join(f"{bookie}: {_reason(answer)}" for bookie, answer in self._answers.items())


class LacRead:
    """The LAC of a ledger that is not closed, from its last ensemble, without fencing.

    Finished as soon as the answers cover every ack quorum: then no add that was acknowledged before carried a higher
    one. Any LAC that a bookie tells is a confirmed one, if perhaps an older one; so when all have answered, or those
    that have not are late (``ReadIsLate``), what one bookie told is enough. At AQ 1 a coverage takes every bookie, and
    one that hangs costs that delay.
    """

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.last_add_confirmed = max(NO_ENTRY, metadata.last_fragment.first_entry_id - 1)
        self._metadata = metadata
        self._answers: dict[str, Response] = {}
        self._late = False

    def start(self) -> list[Action]:
        return [SendReadLac(bookie) for bookie in self._metadata.last_fragment.ensemble]

    def step(self, event: LacAnswered | ReadIsLate | DeadlinePassed) -> list[Action]:
        """A bookie that never saw the ledger answers LAC −1: it is empty there, which for a LAC is a positive
        answer. At the deadline, those that did not answer have failed."""
        m = self._metadata
        match event:
            case DeadlinePassed():
                late = Unknown(UnknownReason.TIMEOUT)
                self._answers = {b: self._answers.get(b, late) for b in m.last_fragment.ensemble}
            case ReadIsLate():
                self._late = True
            case LacAnswered():
                self._answers[event.bookie] = event.response
                self.last_add_confirmed = max(self.last_add_confirmed, event.last_add_confirmed)
        ensemble = m.last_fragment.ensemble
        told = [i for i, b in enumerate(ensemble) if isinstance(self._answers.get(b), Positive | Negative)]
        failed = [i for i, b in enumerate(ensemble) if isinstance(self._answers.get(b), Unknown)]
        verdict = fencing_verdict(m.ensemble_size, m.write_quorum, m.ack_quorum, told, failed)
        if verdict is Verdict.PRESENT or (told and (self._late or len(self._answers) == m.ensemble_size)):
            return [Finish(m)]
        if len(self._answers) < m.ensemble_size:
            return []
        reasons = ", ".join(f"{bookie}: {_reason(answer)}" for bookie, answer in self._answers.items())
        return [Fail(ReadError(f"ledger {m.ledger_id}: no bookie told its LAC ({reasons}); try again"))]


class LacWait:
    """Wait until ``entry_id`` is confirmed, the ledger closed, or the deadline passed (long poll).

    Every bookie of the last ensemble holds the answer, as each learns of a LAC at another time. A close tells no bookie
    anything, and an ensemble change none of the new ones, so the driver watches the metadata beside: each
    ``MetadataRead`` is taken in. A watch may tell later than the bookies are gone, so the metadata is asked for before it is
    said that nobody tells. ``last_add_confirmed`` is the highest that was heard; ``entries`` is the entry, if it came along
    with that.
    """

    def __init__(self, metadata: LedgerMetadata, entry_id: int) -> None:
        self.last_add_confirmed = NO_ENTRY
        self.entries: Any = None
        self._metadata = metadata
        self._entry_id = entry_id
        self._asked: set[str] = set()
        self._answers: dict[str, Response] = {}
        """Of those that failed."""
        self._last_round = False
        """All have failed once, and none has told anything since."""
        self._looking = False
        """All have failed again: if the metadata names no others, nobody tells."""

    def start(self) -> list[Action]:
        """The first requests, or the end."""
        m = self._metadata
        self._hear(m.last_entry_id if m.closed else m.last_fragment.first_entry_id - 1)
        if m.closed or self.last_add_confirmed >= self._entry_id:
            return [Finish(m)]
        ensemble = m.last_fragment.ensemble
        new = [bookie for bookie in ensemble if bookie not in self._asked]
        self._asked = set(ensemble)
        self._answers = {bookie: answer for bookie, answer in self._answers.items() if bookie in ensemble}
        if new:
            self._last_round = self._looking = False
        return [SendReadLac(bookie, wait_for=self._entry_id) for bookie in new]

    def step(self, event: LacAnswered | MetadataRead | MetadataFailed | DeadlinePassed) -> list[Action]:
        """A bookie that held the answer in vain is asked again. Those that failed are once all have: one after the other they
        may have been restarted. If all fail again, with nothing told meanwhile, and the metadata names no others, nobody
        tells."""
        match event:
            case DeadlinePassed():
                return [Finish(self._metadata)]
            case MetadataRead():
                self._metadata = event.metadata
                return self.start() or ([self._fail()] if self._looking else [])
            case MetadataFailed():
                if isinstance(event.error, NoSuchLedgerError):
                    return [Fail(event.error)]
                return [self._fail(f", and whether it has others by now could not be looked up: {event.error}")]
            case LacAnswered():
                return self._answered(event)

    def _answered(self, event: LacAnswered) -> list[Action]:
        self._hear(event.last_add_confirmed)
        if self.last_add_confirmed >= self._entry_id:
            self.entries = event.entries
            return [Finish(self._metadata)]
        if event.bookie not in self._metadata.last_fragment.ensemble:
            return []
        if not isinstance(event.response, Unknown):
            self._last_round = False
            return [SendReadLac(event.bookie, wait_for=self._entry_id)]
        self._answers[event.bookie] = event.response
        ensemble = self._metadata.last_fragment.ensemble
        if any(bookie not in self._answers for bookie in ensemble):
            return []
        if not self._last_round:
            self._last_round, self._answers = True, {}
            return [SendReadLac(bookie, wait_for=self._entry_id) for bookie in ensemble]
        self._looking = True
        return [ReadMetadata()]

    def _fail(self, more: str = "") -> Fail:
        reasons = ", ".join(f"{bookie}: {_reason(answer)}" for bookie, answer in self._answers.items())
        return Fail(
            ReadError(f"ledger {self._metadata.ledger_id}: no bookie tells its LAC ({reasons}){more}; try again")
        )

    def _hear(self, last_add_confirmed: int) -> None:
        self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)


def _reason(response: Response) -> str:
    return response.reason.value if isinstance(response, Negative) else str(response)
