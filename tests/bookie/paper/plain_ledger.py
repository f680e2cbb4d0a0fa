"""What is so of one ledger on one bookie, written as plain sets of what it was told: nothing is joined or counted.

Law: nothing here asks ``bookspark.protocol.bookie``, but for the records' own types.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

from bookspark.protocol.bookie.bookie_ledger import (
    BookieLedger,
    ControlRecord,
    EntriesLost,
    FenceNoted,
    FenceUnsureNoted,
    LastAddConfirmedNoted,
    LimboCleared,
    LimboNoted,
    MasterKeyNoted,
)
from tests.autorecovery.schedules.truth import holds


def ids_of(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {entry_id for first, last in ranges for entry_id in range(first, last + 1)}


def exactly(records: Iterable[ControlRecord]) -> set[tuple[type, ControlRecord]]:
    """Records of different types may be equal, as tuples."""
    return {(type(record), record) for record in records}


@dataclass
class PlainLedger:
    ledger_id: int
    keys: set[bytes] = field(default_factory=set)
    """One at most: that of the first contact."""
    fenced: bool = False
    lacs: set[int] = field(default_factory=lambda: {-1})
    """All LACs (last add confirmed) that its writer told."""
    explicit_lacs: set[int] = field(default_factory=lambda: {-1})
    """Those of them that no entry carries."""
    lafrs: set[int] = field(default_factory=lambda: {-1})
    """All that was told as fully replicated."""
    limbos: set[int] = field(default_factory=set)
    """The lossy boots that put it in limbo."""
    repaired: set[int] = field(default_factory=set)
    """The lossy boots that repairs have ended."""
    lost: set[int] = field(default_factory=set)
    away: set[int] = field(default_factory=set)
    unsure: bool = False

    @property
    def in_limbo(self) -> bool:
        """A repair ends the limbo of its own boot and of those before it, and of none that came later."""
        return any(all(done < boot for done in self.repaired) for boot in self.limbos)

    def knows_other(self, key: bytes) -> bool:
        return bool(self.keys - {key})

    def hear(self, records: Iterable[ControlRecord]) -> None:
        for record in records:
            match record:
                case MasterKeyNoted(_, key):
                    self.keys.add(key)
                case FenceNoted():
                    self.fenced = True
                case LastAddConfirmedNoted(_, told):
                    self.lacs.add(told)
                    self.explicit_lacs.add(told)
                case LimboNoted(_, boot):
                    self.limbos.add(boot)
                case LimboCleared(_, boot):
                    self.repaired.add(boot)
                case EntriesLost(_, first, last):
                    self.lost |= ids_of([(first, last)])
                case FenceUnsureNoted():
                    self.unsure = True

    def after_a_boot(self) -> PlainLedger:
        """What of it the control log has to tell: entries tell what they carry, and what is away may be there again."""
        kept = deepcopy(self)
        kept.lacs, kept.lafrs, kept.away = set(self.explicit_lacs), {-1}, set()
        return kept

    def is_as(self, ledger: BookieLedger, when: str) -> None:
        """The ledger says what is so, and nothing else."""
        holds(({ledger.master_key} - {None}) == self.keys, f"another master key {when}")
        holds(ledger.fenced is self.fenced, f"fenced or not {when}: {ledger.fenced}")
        holds(ledger.last_add_confirmed == max(self.lacs), f"another LAC {when}")
        holds(ledger.explicit_last_add_confirmed == max(self.explicit_lacs), f"another explicit LAC {when}")
        holds(ledger.last_add_fully_replicated == max(self.lafrs), f"another LAFR {when}")
        holds(ledger.limbo is self.in_limbo, f"in limbo or not {when}: {ledger.limbo}")
        holds(ledger.fence_unsure is self.unsure, f"sure of its fence or not {when}: {ledger.fence_unsure}")
        holds(ids_of(ledger.lost) == self.lost, f"other entries are lost {when}")
        holds(ids_of(ledger.away) == self.away, f"other entries are away {when}")
        holds(ids_of(ledger.lacking) == self.lost | self.away, f"other entries lack {when}")
