"""Ledgers of some hundred entries, and bookies with faults.

Law: a bookie stays the same for the whole schedule, except for entries copied to it. So the possible copies are known from the
beginning. Only a ``flaky`` bookie gives varying answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from random import Random

from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.ledger.responses import Unknown, UnknownReason

_SIZES = ((2, 2, 1), (3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 2, 2), (5, 3, 2))
_ENTRY_BYTES = (1, 1000, 20_000, 300_000, 1_000_000)
_UNREADABLE = (UnknownReason.IO_ERROR, UnknownReason.DIGEST_MISMATCH, UnknownReason.LOST)
_SILENCES = (UnknownReason.TIMEOUT, UnknownReason.UNREACHABLE)


@dataclass
class Bookie:
    held: set[int] = field(default_factory=set)
    unreadable: dict[int, UnknownReason] = field(default_factory=dict)
    """Entries that are unreadable now, or for good."""
    refuses: frozenset[int] = frozenset()
    """Entries that it refuses."""
    refuses_all: bool = False
    silent: bool = False
    flaky: bool = False
    why_silent: Unknown = field(default_factory=lambda: Unknown(UnknownReason.TIMEOUT))

    @property
    def answers(self) -> bool:
        return not (self.silent or self.flaky)

    def gives(self, entry_id: int) -> bool:
        """Whether it delivers the entry on request."""
        return self.answers and entry_id in self.held and entry_id not in self.unreadable

    def takes(self, entry_id: int) -> bool:
        # A bookie with many refusals gets no more entries.
        return self.answers and not self.refuses_all and entry_id not in self.refuses and len(self.refuses) <= 20

    def never_gives(self, entry_id: int) -> bool:
        """Whether it would deny the entry, or report it as lost."""
        if self.silent:
            return False
        return self.unreadable.get(entry_id) is not UnknownReason.IO_ERROR if entry_id in self.held else True


def draw_ledger(random: Random, entries_max: int = 400) -> LedgerMetadata:
    """A closed ledger, or one whose last fragment is open. Its bookies are b1, b2, …"""
    ensemble, write_quorum, ack_quorum = random.choice(_SIZES)
    entries = random.choice(
        (random.randrange(3), random.randrange(13), random.randrange(60), random.randrange(entries_max))
    )
    names = [f"b{i + 1}" for i in range(ensemble + 2)]
    starts = sorted({0, *(random.randrange(entries or 1) for _ in range(random.choice((0, 0, 1, 2))))})
    bookies = tuple(random.sample(names, ensemble))
    fragments: tuple[Fragment, ...] = ()
    for start in starts:
        fragments += (Fragment(start, bookies),)
        # Repairs may have made the bookies of two fragments equal, and joined their losses.
        bookies = tuple(random.sample(bookies if random.random() < 0.3 else names, ensemble))
    closed = random.random() < 0.8
    record = LedgerMetadata(
        7,
        ensemble,
        write_quorum,
        ack_quorum,
        fragments,
        LedgerState.CLOSED if closed else LedgerState.OPEN,
        last_entry_id=entries - 1 if closed else -1,
        length=entries * random.choice(_ENTRY_BYTES) if closed else 0,
    )
    return _with_losses(random, record) if closed and entries and random.random() < 0.2 else record


def _with_losses(random: Random, record: LedgerMetadata) -> LedgerMetadata:
    losses: list[Loss] = []
    firsts = sorted(random.sample(range(record.last_entry_id + 1), min(3, record.last_entry_id + 1)))
    for first, following in zip(firsts, [*firsts[1:], record.last_entry_id + 1], strict=True):
        last, wanted = first, random.choice((1, 1, 4, 20))
        bookies = tuple(sorted(record.write_set_of(first)))
        while (
            last + 1 < following
            and last - first + 1 < wanted
            and bookies == tuple(sorted(record.write_set_of(last + 1)))
        ):
            last += 1
        losses.append(Loss(LossKind.ENTRIES, first, last, bookies))
    return replace(record, accepted_loss=AcceptedLoss("operator", 0, (), tuple(losses)))


def draw_bookies(random: Random, record: LedgerMetadata, entries: int) -> dict[str, Bookie]:
    """All bookies of the ledger and some spares, each with most of its assigned entries."""
    bookies = {f"b{i + 1}": Bookie() for i in range(record.ensemble_size + 5)}
    accepted = set(accepted_losses(record))
    for entry_id in range(entries):
        for name in record.write_set_of(entry_id):
            if (entry_id, name) not in accepted:
                bookies[name].held.add(entry_id)
    for bookie in bookies.values():
        ails = random.random()
        bookie.why_silent = Unknown(random.choice(_SILENCES))
        held = sorted(bookie.held)
        if ails < 0.15:
            bookie.held -= set(_some(random, held))
        elif ails < 0.35:
            bookie.unreadable = {entry_id: random.choice(_UNREADABLE) for entry_id in _some(random, held)}
        elif ails < 0.5:
            bookie.silent = True
        elif ails < 0.55:
            bookie.flaky = True
        elif ails < 0.7:
            bookie.refuses = frozenset(_some(random, range(entries)))
        elif ails < 0.75:
            bookie.refuses_all = True
    return bookies


def _some(random: Random, ids: Collection[int]) -> list[int]:
    """A few of the ids, or a run of them."""
    if not ids:
        return []
    many = list(ids)
    if random.random() < 0.5:
        start = random.randrange(len(many))
        return many[start : start + random.randrange(1, 30)]
    return random.sample(many, min(len(many), random.randrange(1, 6)))


def accepted_losses(record: LedgerMetadata) -> Iterator[tuple[int, str]]:
    """Each entry accepted as lost, with each of its bookies."""
    for loss in record.accepted_loss.losses if record.accepted_loss else ():
        if loss.kind is LossKind.ENTRIES:
            for entry_id in range(loss.first, loss.last + 1):
                yield from ((entry_id, name) for name in loss.bookies)
