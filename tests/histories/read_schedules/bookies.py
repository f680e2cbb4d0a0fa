"""An open ledger, its bookies with their faults, and their answers.

Law: the ledger is possible. Its confirmed entries were on an ack quorum, entries up to the LAFR (last add fully replicated) on
the write quorum, and no bookie reports more than the confirmed entries (LAC, last add confirmed). A bookie knows its lost copies:
it denies only entries that it never had, unless it is ``FORGETFUL``. The fault of a bookie stays for the whole schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from random import Random
from typing import Any

from bookspark.protocol.ledger.actions import (
    AddAnswered,
    HeldAnswered,
    LacAnswered,
    ReadAnswered,
    SendAdd,
    SendListHeld,
    SendRead,
    SendReadLac,
)
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState, LedgerType, Replication
from bookspark.protocol.ledger.responses import (
    UNAUTHORIZED,
    Negative,
    NegativeReason,
    Positive,
    Response,
    Unknown,
    UnknownReason,
)

_SIZES = (
    (1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 1), (3, 3, 2), (3, 3, 2), (3, 3, 3), (3, 2, 1), (3, 2, 2), (4, 3, 2), (5, 3, 2),
    (5, 2, 1),
)  # fmt: skip
_SPARES = 3
_AWAY = (UnknownReason.TIMEOUT, UnknownReason.UNREACHABLE)
_UNREADABLE = (UnknownReason.IO_ERROR, UnknownReason.DIGEST_MISMATCH, UnknownReason.LOST, UnknownReason.LOST)
_REFUSALS = (UnknownReason.READ_ONLY, UnknownReason.IO_ERROR, UnknownReason.CONFLICT, UnknownReason.TOO_MANY_REQUESTS)
_EITHER = (NegativeReason.NO_SUCH_ENTRY, NegativeReason.NO_SUCH_LEDGER)


class Ail(Enum):
    WELL = auto()
    SILENT = auto()
    FLAKY = auto()
    """Sometimes it does not answer."""
    LIMBO = auto()
    """It has lost some copies without knowing which."""
    UNREADABLE = auto()
    """It has unreadable copies."""
    LACKING = auto()
    """It never got some entries."""
    REFUSING = auto()
    """It accepts no adds."""
    BUSY = auto()
    """It has too many requests, and serves no reads."""
    EMPTY = auto()
    """It answers OK without entries."""
    STRANGE = auto()
    """It rejects the password."""
    FORGETFUL = auto()
    """It lost copies without knowing it, against all promises: it denies them."""


_AILS = (
    *[Ail.WELL] * 6,
    Ail.SILENT,
    Ail.SILENT,
    Ail.FLAKY,
    Ail.LIMBO,
    Ail.LIMBO,
    Ail.UNREADABLE,
    Ail.LACKING,
    Ail.REFUSING,
)
_RARE_AILS = (Ail.BUSY, Ail.EMPTY, Ail.STRANGE, Ail.FORGETFUL, Ail.FORGETFUL)


@dataclass
class Bookie:
    held: set[int] = field(default_factory=set)
    unreadable: dict[int, UnknownReason] = field(default_factory=dict)
    ail: Ail = Ail.WELL
    last_add_confirmed: int = -1
    last_add_fully_replicated: int = -1
    fenced: bool = False
    full: int = 1000
    """The most entries of an answer."""

    def gives(self, entry_id: int) -> bool:
        """Whether it delivers the entry on request."""
        can = self.ail not in (Ail.SILENT, Ail.FLAKY, Ail.BUSY, Ail.EMPTY, Ail.STRANGE)
        return can and entry_id in self.held and entry_id not in self.unreadable


def content_of(entry_id: int) -> str:
    return f"e{entry_id}"


def length_of(entry_id: int) -> int:
    """Length of the ledger up to the entry, in bytes."""
    return sum(1 + i % 3 for i in range(entry_id + 1))


def members(record: LedgerMetadata, ensemble: Sequence[str], entry_id: int) -> list[str]:
    """The write set of an entry in an ensemble."""
    return [ensemble[(entry_id + i) % record.ensemble_size] for i in range(record.write_quorum)]


def ensemble_of(record: LedgerMetadata, entry_id: int) -> tuple[str, ...]:
    found = record.fragments[0].ensemble
    for fragment in record.fragments:
        if fragment.first_entry_id <= entry_id:
            found = fragment.ensemble
    return found


@dataclass
class Drawn:
    """``confirmed``: the last confirmed entry; ``sent``: the last entry that the writer sent to any bookie."""

    record: LedgerMetadata
    bookies: dict[str, Bookie]
    confirmed: int
    sent: int


def draw(random: Random, entries_max: int = 12) -> Drawn:
    sizes = random.choice(_SIZES)
    guaranteed = random.random() < 0.4
    names = [f"b{i + 1}" for i in range(sizes[0] + _SPARES)]
    confirmed = random.randrange(-1, entries_max)
    replicated = random.randrange(-1, confirmed + 1)
    end = replicated if guaranteed else confirmed
    starts = sorted({0, *(random.randrange(end + 2) for _ in range(random.choice((0, 0, 1, 2))))})
    record = LedgerMetadata(
        7,
        *sizes,
        tuple(Fragment(start, tuple(random.sample(names, sizes[0]))) for start in starts),
        random.choice((LedgerState.OPEN, LedgerState.IN_RECOVERY)),
        ledger_type=random.choice((LedgerType.PD_JOURNAL, LedgerType.VD_JOURNAL)),
        replication=Replication.GUARANTEED if guaranteed else Replication.BEST_EFFORT,
    )
    sent = confirmed + random.choice((0, 0, 1, 2, 3))
    bookies = {name: Bookie() for name in names}
    for entry_id in range(sent + 1):
        holders = members(record, ensemble_of(record, entry_id), entry_id)
        least = record.ack_quorum if entry_id <= confirmed else 0
        if guaranteed and entry_id <= replicated:
            least = record.write_quorum
        for name in random.sample(holders, random.choice((least, random.randint(least, record.write_quorum)))):
            bookies[name].held.add(entry_id)
    for bookie in bookies.values():
        _ail(random, bookie, sent)
        # Each add carries the LAC at the time of sending.
        bookie.last_add_confirmed = random.choice((-1, confirmed, random.randrange(-1, confirmed + 1)))
        if guaranteed:
            bookie.last_add_fully_replicated = random.choice((-1, replicated))
    return Drawn(record, bookies, confirmed, sent)


def _ail(random: Random, bookie: Bookie, sent: int) -> None:
    bookie.ail = random.choice(_RARE_AILS if random.random() < 0.04 else _AILS)
    bookie.full = random.choice((1, 2, 1000, 1000))
    some = random.sample(range(sent + 1), random.randrange(min(4, sent + 2))) if sent >= 0 else []
    match bookie.ail:
        case Ail.LIMBO:
            # Its writers were fenced when it booted.
            bookie.fenced = True
            bookie.held -= set(some if random.random() < 0.7 else range(sent + 1))
        case Ail.FORGETFUL:
            bookie.held -= set(some)
        case Ail.UNREADABLE:
            bookie.unreadable = {entry_id: random.choice(_UNREADABLE) for entry_id in some if entry_id in bookie.held}


def lose_for_good(random: Random, drawn: Drawn) -> None:
    """Lose some entries on all bookies; each bookie that had an entry knows the loss."""
    gone = random.sample(range(drawn.sent + 1), random.randrange(drawn.sent + 2)) if drawn.sent >= 0 else []
    for bookie in drawn.bookies.values():
        if random.random() < 0.3:
            bookie.ail, bookie.fenced = Ail.LIMBO, True
            bookie.held -= set(gone)
        elif bookie.ail in (Ail.WELL, Ail.LACKING, Ail.UNREADABLE):
            bookie.unreadable.update((i, UnknownReason.LOST) for i in gone if i in bookie.held)
        bookie.last_add_confirmed = min(bookie.last_add_confirmed, random.choice((drawn.confirmed, -1)))


def closed(drawn: Drawn) -> LedgerMetadata:
    """The record after a recovery: it ends at the last confirmed entry."""
    for bookie in drawn.bookies.values():
        bookie.fenced = True
    end = drawn.confirmed
    kept = tuple(f for f in drawn.record.fragments if f.first_entry_id <= max(end, 0))
    return replace(drawn.record, state=LedgerState.CLOSED, last_entry_id=end, length=length_of(end), fragments=kept)


# -- answers


def answer(random: Random, name: str, bookie: Bookie, asked: Any) -> Any:
    away = bookie.ail is Ail.SILENT or (bookie.ail is Ail.FLAKY and random.random() < 0.4)
    nothing: Response | None = None
    if away:
        nothing = Unknown(random.choice(_AWAY))
    elif bookie.ail is Ail.STRANGE:
        nothing = UNAUTHORIZED
    match asked:
        case SendReadLac():
            if asked.fence and (nothing is None or (away and random.random() < 0.5)):
                bookie.fenced = True
            return _lac(name, bookie, asked, nothing)
        case SendRead():
            if asked.fence and nothing is None:
                bookie.fenced = True
            return _read(random, name, bookie, asked, nothing)
        case SendListHeld():
            last = max((i for i in bookie.held if i >= asked.first), default=asked.first - 1)
            if nothing is not None:
                return HeldAnswered(name, asked.first, asked.first - 1, nothing)
            return HeldAnswered(name, asked.first, last, Positive())
        case SendAdd():
            if nothing is None and bookie.ail is Ail.REFUSING:
                nothing = Unknown(random.choice(_REFUSALS))
            if nothing is None or (away and random.random() < 0.5):
                bookie.held.update(range(asked.first, asked.last + 1))
                for entry_id in range(asked.first, asked.last + 1):
                    bookie.unreadable.pop(entry_id, None)
            return AddAnswered(name, asked.first, asked.last, nothing or Positive())
    raise AssertionError(asked)


def _lac(name: str, bookie: Bookie, asked: SendReadLac, nothing: Response | None) -> LacAnswered:
    if nothing is None and bookie.ail is Ail.LIMBO:
        nothing = Unknown(UnknownReason.LIMBO)
    if nothing is not None:
        return LacAnswered(name, nothing)
    if not (asked.fence or bookie.held or bookie.fenced):
        return LacAnswered(name, Negative(NegativeReason.NO_SUCH_LEDGER))
    return LacAnswered(name, Positive(), bookie.last_add_confirmed, bookie.last_add_fully_replicated)


def _read(random: Random, name: str, bookie: Bookie, asked: SendRead, nothing: Response | None) -> ReadAnswered:
    if nothing is None and bookie.ail is Ail.BUSY:
        nothing = Unknown(UnknownReason.TOO_MANY_REQUESTS)
    if nothing is None and bookie.ail is Ail.EMPTY:
        nothing = Positive()
    if nothing is not None:
        return ReadAnswered(name, asked.first, asked.first - 1, nothing)
    came: list[int] = []
    following: Response | None = None
    told = asked.first - 1
    for entry_id in range(asked.first, asked.last + 1):
        if entry_id in bookie.unreadable:
            following = Unknown(bookie.unreadable[entry_id])
        elif entry_id not in bookie.held and bookie.ail is Ail.LIMBO:
            following = Unknown(UnknownReason.LIMBO)
        elif entry_id not in bookie.held and not asked.sparse:
            following = Negative(random.choice(_EITHER))
        elif entry_id in bookie.held and len(came) == bookie.full:
            break
        elif entry_id in bookie.held:
            came.append(entry_id)
        if following is not None:
            break
        told = entry_id
    run = [i for at, i in enumerate(came) if i == asked.first + at]
    last = asked.first + len(run) - 1
    if following is None:
        # A sparse answer beyond its run says that the next entry is absent.
        following = Negative() if told > last else Positive()
    ahead = tuple((i, content_of(i)) for i in came[len(run) :])
    return ReadAnswered(name, asked.first, last, following, tuple(map(content_of, run)), length_of(last), ahead)
