"""Reading a range of entries from any replicas that answer.

Law: an entry is delivered at the first positive answer. It counts as absent only when all bookies of its write set deny it and,
if the metadata can be read again, only after the metadata showed no other bookies. Anything else is an error that says nothing
about the entry. Entries are delivered in id order, each once.

The caller chooses readable ids: up to a LAC (last add confirmed) from a bookie. An unconfirmed read goes up to the last add
pushed; there an absent entry is no contradiction.

After a late answer the next replica is asked beside it (a *speculative* read, ``ReadIsLate``). A late replica is asked last until
it delivers.

The entries of a striped ledger lie on different bookies in turn. The bookie of the next entry also sends the later ones that it
holds (a *sparse* read), which saves round trips. They wait here for their turn: per bookie about as many bytes as one answer
carries. Where write sets overlap, some entries come twice.

::

    NEW ──Start──► READING ──every replica has answered, none delivered──► LOOKING (ReadMetadata)
                     ▲  │ last entry delivered, or unreadable                │  │
                     │  ▼                                                    │  │ no new bookies: unreadable
                     │ DONE ◄────────────────────────────────────────────────┼──┘
                     └───────────────── new bookies ─────────────────────────┘

Sources: BP-46, "Read entry"; bookkeeper-overview, "Reading"; ``ReadOpBase`` of BookKeeper.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from bookspark.errors import (
    BookKeeperError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReadError,
    TooManyRequestsError,
)
from bookspark.protocol.ledger.actions import (
    Action,
    Deliver,
    Fail,
    Finish,
    MetadataFailed,
    MetadataRead,
    ReadAnswered,
    ReadIsLate,
    ReadMetadata,
    SendRead,
    Start,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.quorum import Verdict, read_verdict
from bookspark.protocol.ledger.responses import Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.transitions import LATE, IllegalEventError, cell_of, row
from bookspark.protocol.reading.answers import count_kinds, in_words, is_wrong_password, nothing_came, wrong_password
from bookspark.protocol.reading.read_order import ANY_ORDER, ReadOrder


class RangeReadPhase(Enum):
    NEW = auto()
    READING = auto()
    """At least one bookie was asked for the next entry and has not answered."""
    LOOKING = auto()
    """The metadata is being read again."""
    DONE = auto()


RangeReadEvent = ReadAnswered | ReadIsLate | MetadataRead | MetadataFailed

TRANSITIONS = {
    RangeReadPhase.NEW: row(taken=(Start,)),
    # ReadAnswered and ReadIsLate about an entry delivered meanwhile are late as well.
    RangeReadPhase.READING: row(taken=(ReadAnswered, ReadIsLate)),
    RangeReadPhase.LOOKING: row(taken=(MetadataRead, MetadataFailed), late=(ReadAnswered, ReadIsLate)),
    RangeReadPhase.DONE: row(late=(ReadAnswered, ReadIsLate)),
}


class RangeRead:
    """The entries ``first..last`` of a ledger.

    ``rereads_metadata``: the driver answers ``ReadMetadata``, asked when no replica delivered: the ledger may have been closed,
    or its bookies replaced, since ``metadata`` was read. ``reads_ahead``: read a striped ledger sparsely; the driver then accepts
    several deliveries at once.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        order: ReadOrder = ANY_ORDER,
        rereads_metadata: bool = False,
        reads_ahead: bool = False,
    ) -> None:
        self.phase = RangeReadPhase.NEW
        self.next_entry_id = first
        self.delivered_by = order.first
        """The bookie of the last delivery."""
        self._metadata = metadata
        self._first = first
        self._last = last
        self._order = order
        self._deliveries: dict[str, int] = {}
        """Counted only if the order is not sticky."""
        self._rereads_metadata = rereads_metadata
        self._reads_ahead = reads_ahead
        self._ahead: dict[int, Any] = {}
        """Entries that came before their turn, by id."""
        self._late: set[str] = set()
        self._asked: dict[str, int] = {}
        """Bookies with an open request for ``next_entry_id``, each with its last requested id."""
        self._answers: dict[str, Response] = {}

    @property
    def answers(self) -> Mapping[str, Response]:
        """Answers for ``next_entry_id`` from bookies that did not deliver it."""
        return self._answers

    def start(self) -> list[Action]:
        return self.step(Start())

    def step(self, event: Start | RangeReadEvent) -> list[Action]:
        """Raises IllegalEventError, and changes nothing, for an answer to a question never asked."""
        if cell_of(TRANSITIONS, self.phase, event) is LATE:
            return []
        match event:
            case Start():
                self.phase = RangeReadPhase.READING
                return self._ask() if self.next_entry_id <= self._last else [self._finish()]
            case ReadAnswered():
                return [] if self._is_late(event) else self._answered(event)
            case ReadIsLate():
                return self._ask_another(event.first)
            case MetadataRead():
                if not event.metadata.is_same_ledger(self._metadata):
                    raise IllegalEventError(self.phase, event, f"it is not of ledger {self._metadata.ledger_id}")
                return self._metadata_read(event.metadata)
            case MetadataFailed():
                return [self._fail(self._not_looked_up(event.error))]

    def _is_late(self, event: ReadAnswered) -> bool:
        """Was the entry delivered meanwhile? Raises IllegalEventError for an answer to a question never asked."""
        if self._first <= event.first < self.next_entry_id:
            return True
        if event.first != self.next_entry_id or event.bookie not in self._asked:
            raise IllegalEventError(self.phase, event, "the bookie was not asked for this entry")
        asked_to = self._asked[event.bookie]
        if not event.first - 1 <= event.last <= asked_to:
            raise IllegalEventError(self.phase, event, f"the bookie was asked for entries up to {asked_to}")
        if any(not event.last < entry_id <= asked_to for entry_id, _ in event.ahead):
            raise IllegalEventError(
                self.phase, event, f"early entries outside the range from its last answer to {asked_to}"
            )
        return False

    def _ask_another(self, first: int) -> list[Action]:
        """The answer for entry ``first`` takes long."""
        if first > self.next_entry_id:
            raise IllegalEventError(self.phase, ReadIsLate(first), "this entry was not asked for yet")
        if first < self.next_entry_id:
            return []
        self._late |= self._asked.keys()
        return self._ask() if self._left() else []

    def _answered(self, event: ReadAnswered) -> list[Action]:
        actions: list[Action] = []
        del self._asked[event.bookie]
        self._ahead.update(event.ahead)
        if event.last >= event.first:
            actions.append(Deliver(event.first, event.last, event.entries))
            self.next_entry_id = event.last + 1
            actions += self._deliver_ahead()
            self._answers, self._asked = {}, {}
            self.delivered_by = event.bookie
            self._late.discard(event.bookie)
            if not self._order.sticky:
                self._deliveries[event.bookie] = self._deliveries.get(event.bookie, 0) + 1
            if self.next_entry_id > self._last:
                return [*actions, self._finish()]
        elif isinstance(event.following, Positive):
            self._answers[event.bookie] = nothing_came(event.following)
        unmoved = self.next_entry_id == event.last + 1
        if unmoved and not isinstance(event.following, Positive) and event.bookie in self._write_set():
            self._answers[event.bookie] = event.following
        return actions + self._ask()

    def _deliver_ahead(self) -> list[Action]:
        """Deliver early entries whose turn has come."""
        self._ahead = {i: entries for i, entries in self._ahead.items() if i >= self.next_entry_id}
        actions: list[Action] = []
        while self.next_entry_id in self._ahead:
            entry_id = self.next_entry_id
            actions.append(Deliver(entry_id, entry_id, self._ahead.pop(entry_id)))
            self.next_entry_id += 1
        return actions

    def _ask(self) -> list[Action]:
        """Ask one more replica, wait for those already asked, or end."""
        left = self._left()
        if not left:
            return [] if self._asked else [self._look_again()]
        m = self._metadata
        bookie = self._order.choose(left, self.delivered_by, self._late, self._deliveries)
        striped = m.ensemble_size > m.write_quorum
        last = self.next_entry_id if striped and not self._reads_ahead else self._last
        following = (f.first_entry_id for f in m.fragments if f.first_entry_id > self.next_entry_id)
        last = min(last, next(following, last + 1) - 1)
        self._asked[bookie] = last
        return [SendRead(bookie, self.next_entry_id, last, sparse=striped and self._reads_ahead)]

    def _left(self) -> list[str]:
        return [b for b in self._write_set() if b not in self._answers and b not in self._asked]

    def _write_set(self) -> tuple[str, ...]:
        return self._metadata.write_set_of(self.next_entry_id)

    # -- no replica delivered

    def _look_again(self) -> Action:
        if not self._rereads_metadata:
            return self._fail(self._unreadable())
        self.phase = RangeReadPhase.LOOKING
        return ReadMetadata()

    def _metadata_read(self, found: LedgerMetadata) -> list[Action]:
        """Ask the new bookies. Without any, the answers stand."""
        before = self._write_set()
        if found.closed and self.next_entry_id > found.last_entry_id:
            end = f"the ledger was closed at entry {found.last_entry_id}"
            return [self._fail(NoSuchEntryError(f"{self._what()}: {end}"))]
        self._metadata = found
        if set(self._write_set()) <= set(before):
            return [self._fail(self._unreadable())]
        self.phase = RangeReadPhase.READING
        self._answers = {b: answer for b, answer in self._answers.items() if b in self._write_set()}
        return self._ask()

    # -- ends

    def _finish(self) -> Finish:
        self.phase = RangeReadPhase.DONE
        return Finish()

    def _fail(self, error: BookKeeperError) -> Fail:
        self.phase = RangeReadPhase.DONE
        return Fail(error)

    def _what(self) -> str:
        return f"ledger {self._metadata.ledger_id}, entry {self.next_entry_id}"

    def _unreadable(self) -> BookKeeperError:
        what = self._what()
        answers = list(self._answers.values())
        if any(map(is_wrong_password, answers)):
            return wrong_password(what)
        if read_verdict(self._metadata.write_quorum, *count_kinds(answers)) is Verdict.ABSENT:
            return NoSuchEntryError(f"{what}: each of {', '.join(self._answers)} says that it has no such entry")
        if all(isinstance(a, Unknown) and a.reason is UnknownReason.TOO_MANY_REQUESTS for a in answers):
            who = ", ".join(self._answers)
            return TooManyRequestsError(f"{what}: {who} have too many requests under way; ask for less at once")
        reasons = in_words(self._answers)
        return ReadError(f"{what} could not be read from any replica ({reasons}); it may be readable later")

    def _not_looked_up(self, error: BookKeeperError) -> BookKeeperError:
        """Other holders of the entry are unknown, because the metadata could not be read again."""
        if isinstance(error, NoSuchLedgerError):
            return error
        return ReadError(
            f"{self._what()} could not be read from any replica ({in_words(self._answers)}), and whether other bookies hold "
            f"it could not be looked up: {error}"
        )
