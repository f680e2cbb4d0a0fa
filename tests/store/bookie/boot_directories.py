"""A bookie's directories on paper, for ``boots``: control logs as lists of numbered writes, and entries as names.

Law: a copy tells of itself what a real one would (``bookie.disk.control_log``): how far it is complete, how far it may have gone,
and without which directories it was used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from bookspark.protocol.bookie.control_copies import ControlCopy
from bookspark.store.bookie.disk.control_state import Record

Entry = tuple[int, int]
"""A ledger, and an entry id."""


class Write(NamedTuple):
    """One write to the control logs."""

    number: int
    records: tuple[Record, ...]


@dataclass(slots=True)
class Directory:
    """One directory: its control log, and the entries that lie in it."""

    number: int
    base: list[Record] = field(default_factory=list)
    """What was written as a whole, and stands for all up to ``up_to``."""
    up_to: int = 0
    writes: list[Write] = field(default_factory=list)
    without: frozenset[int] = frozenset()
    """As it stands in the control log."""
    used_without: frozenset[int] = frozenset()
    """As it is, and will stand there once that is written anew."""
    took: set[Record] = field(default_factory=set)
    """All records that it took since it was written anew."""
    is_full: bool = False
    """It takes nothing until there is room again, and is written anew then."""
    is_whole: bool = True
    reaches: int | None = 0
    entries: set[Entry] = field(default_factory=set)
    early: set[Entry] = field(default_factory=set)
    """Those that were acknowledged and are not synced."""
    marked: bool = False
    """Does it tell that it may have lost entries?"""

    @property
    def records(self) -> list[Record]:
        return [*self.base, *chain.from_iterable(write.records for write in self.writes)]

    def copy(self) -> ControlCopy:
        complete_to = self.up_to
        for write in self.writes:
            if write.number == complete_to + 1:
                complete_to = write.number
        last = max([self.up_to, *(write.number for write in self.writes)])
        if self.is_whole:
            return ControlCopy(True, complete_to, last, self.without, self.number)
        return ControlCopy(False, 0, self.reaches, frozenset(), self.number)

    def take(self, write: Write) -> None:
        self.writes.append(write)
        self.took.update(write.records)

    def write_anew(self, records: Sequence[Record], number: int) -> None:
        self.base, self.writes, self.up_to, self.is_whole = list(records), [], number, True
        self.took, self.without = set(records), self.used_without
