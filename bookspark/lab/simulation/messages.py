"""Messages between a client and a bookie in the simulation.

Law: a message is a value. It does not name the bookie, so that equal bookies can be exchanged. The contents of entries are
strings, one for each id.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Response
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.protocol.repair.bookie_healing import HeldListed, LimboIsCleared
from bookspark.protocol.writing.writer_events import BookieBack, ExplicitLacAnswered

NOBODY = -1
"""Client number of a request without a waiting client."""


@dataclass(frozen=True, slots=True)
class Add:
    first: int
    last: int
    last_add_confirmed: int
    last_add_fully_replicated: int
    contents: tuple[str, ...]
    recovery: bool
    assignment: Assignment | None = None
    """The bookie's assignment; only in requests of a VD ledger (volatile durability)."""


@dataclass(frozen=True, slots=True)
class Read:
    first: int
    last: int
    fence: bool


@dataclass(frozen=True, slots=True)
class ReadLac:
    fence: bool


@dataclass(frozen=True, slots=True)
class WriteLac:
    """Explicit LAC (last add confirmed), with the LAFR (last add fully replicated)."""

    last_add_confirmed: int
    last_add_fully_replicated: int = NO_ENTRY


@dataclass(frozen=True, slots=True)
class SyncLedger:
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class HeldFrom:
    """A recovery's question for the bookie's entries from ``first`` on."""

    first: int


@dataclass(frozen=True, slots=True)
class Held:
    """The question of a bookie's own healing for the bookie's entries."""


@dataclass(frozen=True, slots=True)
class Clear:
    """The order of a bookie's own healing to note the lost entries and to end limbo."""

    boot: int
    lost: tuple[tuple[int, int], ...] = ()


Request = Add | Read | ReadLac | HeldFrom | WriteLac | SyncLedger | Held | Clear


@dataclass(frozen=True, slots=True)
class AddAnswer:
    first: int
    last: int
    response: Response
    synced: act.SyncReport | None = None


@dataclass(frozen=True, slots=True)
class ReadAnswer:
    first: int
    last: int
    following: Response
    contents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LacAnswer:
    response: Response
    last_add_confirmed: int = NO_ENTRY
    last_add_fully_replicated: int = NO_ENTRY


@dataclass(frozen=True, slots=True)
class HeldFromAnswer:
    """``last``: the highest id; ``first − 1`` without an entry."""

    first: int
    last: int
    response: Response


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    response: Response
    synced: act.SyncReport | None = None


@dataclass(frozen=True, slots=True)
class WriteLacAnswer:
    response: Response


@dataclass(frozen=True, slots=True)
class Reachable:
    """The bookie accepts connections again. Pending requests of the old connection get no answer."""


Answer = (
    Reachable
    | AddAnswer
    | ReadAnswer
    | LacAnswer
    | HeldFromAnswer
    | WriteLacAnswer
    | SyncAnswer
    | HeldListed
    | LimboIsCleared
)


@dataclass(frozen=True, slots=True)
class Message:
    """A request or an answer under way. ``client`` is the number of the client that waits for it."""

    client: int
    body: Request | Answer

    def is_add_of_writer_up_to(self, entry_id: int) -> bool:
        """Whether it is an add whose writer waits for the answer, with no entry after ``entry_id``."""
        return self.client == 0 and isinstance(self.body, Add) and self.body.last <= entry_id


def event_of(
    bookie: str, answer: Answer, incarnation: int = 0
) -> act.Event | BookieBack | act.SyncAnswered | ExplicitLacAnswered | HeldListed | LimboIsCleared:
    """The event for the client's machine. Each entry is one byte long, so a length is a number of entries."""
    match answer:
        case AddAnswer():
            return act.AddAnswered(bookie, answer.first, answer.last, answer.response, answer.synced)
        case ReadAnswer():
            return act.ReadAnswered(
                bookie, answer.first, answer.last, answer.following, answer.contents, answer.last + 1
            )
        case LacAnswer():
            return act.LacAnswered(bookie, answer.response, answer.last_add_confirmed, answer.last_add_fully_replicated)
        case HeldFromAnswer():
            return act.HeldAnswered(bookie, answer.first, answer.last, answer.response)
        case WriteLacAnswer():
            # The time is a placeholder: the writer's client replaces it.
            return ExplicitLacAnswered(bookie, answer.response, 0.0)
        case SyncAnswer():
            return act.SyncAnswered(bookie, answer.response, answer.synced)
        case Reachable():
            return BookieBack(bookie, incarnation)
    return answer


def unanswered(body: Request | Answer, response: Response) -> Answer:
    """The client's substitute answer if a request, or its answer, does not come in time."""
    match body:
        case Add() | AddAnswer():
            return AddAnswer(body.first, body.last, response)
        case Read() | ReadAnswer():
            return ReadAnswer(body.first, body.first - 1, response)
        case HeldFrom() | HeldFromAnswer():
            return HeldFromAnswer(body.first, body.first - 1, response)
        case WriteLac() | WriteLacAnswer():
            return WriteLacAnswer(response)
        case SyncLedger() | SyncAnswer():
            return SyncAnswer(response)
        case _:
            return LacAnswer(response)


def is_request(body: Request | Answer) -> bool:
    return isinstance(body, Request)


def matters(body: Request | Answer) -> bool:
    """Whether the request changes the bookie even without a waiting client. (A bookie's own healing ends with the bookie.)"""
    return isinstance(body, Add | SyncLedger | WriteLac) or (isinstance(body, Read | ReadLac) and body.fence)
