"""A bookie's directories as in-memory control logs and entry ids, for ``boots``.

Law: a copy reports the same facts as a real one (``bookie.disk.control_log``): how far it is complete, the highest write it may
have had, and the directories it was used without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from bookspark.protocol.bookie.control_copies import ControlCopy
from bookspark.store.bookie.disk.control_state import Record

Entry = tuple[int, int]
"""A ledger id and an entry id."""


class Write(NamedTuple):
    """One write to the control logs."""

    number: int
    records: tuple[Record, ...]


@dataclass(slots=True)
class Directory:
    """One directory: its control log and its entries."""

    number: int
    base: list[Record] = field(default_factory=list)
    """The records of the last full rewrite, which cover all writes up to ``up_to``."""
    up_to: int = 0
    writes: list[Write] = field(default_factory=list)
    without: frozenset[int] = frozenset()
    """The missing directories as recorded in the control log."""
    used_without: frozenset[int] = frozenset()
    """The missing directories at present; the next rewrite of the control log records them."""
    took: set[Record] = field(default_factory=set)
    """All records taken since the last full rewrite."""
    is_full: bool = False
    """A full directory takes no records; it is rewritten as soon as it has room again."""
    is_whole: bool = True
    reaches: int | None = 0
    entries: set[Entry] = field(default_factory=set)
    early: set[Entry] = field(default_factory=set)
    """Entries acknowledged but not yet synced."""
    marked: bool = False
    """Does the directory report that it may have lost entries?"""

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
