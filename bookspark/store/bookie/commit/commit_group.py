"""A group: the items that a commit thread found queued, sorted by kind.

Law: items of one kind stay in the order in which they were queued.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bookspark.store.bookie.commit.commit_items import (
    Barrier,
    ControlRewrite,
    ControlWrite,
    EntryWrite,
    Item,
    NoteSync,
    RelaxedWrite,
    RemovalNote,
    SealLog,
    Stop,
    SyncWritten,
)
from bookspark.store.bookie.disk.entry_log import EntryLog


class Group:
    """The items of a group by kind, and what they ask for together."""

    __slots__ = ("controls", "durable", "entries", "promised", "relaxed", "seals", "stop", "sync_notes", "syncs")

    def __init__(self, items: Sequence[Item]) -> None:
        self.entries: list[EntryWrite | RelaxedWrite] = []
        self.relaxed: list[RelaxedWrite] = []
        self.controls: list[ControlWrite | ControlRewrite | RemovalNote] = []
        self.syncs: list[SyncWritten] = []
        self.seals: list[SealLog] = []
        self.durable = self.promised = self.sync_notes = self.stop = False
        for item in items:
            kind = type(item)
            if kind is EntryWrite:
                self.entries.append(item)  # type: ignore[arg-type]
            elif kind is RelaxedWrite:
                self.relaxed.append(item)  # type: ignore[arg-type]
                self.entries.append(item)  # type: ignore[arg-type]
            elif kind is ControlWrite or kind is ControlRewrite or kind is RemovalNote:
                self.controls.append(item)  # type: ignore[arg-type]
            elif kind is SyncWritten:
                self.syncs.append(item)  # type: ignore[arg-type]
            elif kind is Barrier:
                self.durable = True
            elif kind is NoteSync:
                self.sync_notes = True
            elif kind is SealLog:
                self.seals.append(item)  # type: ignore[arg-type]
            elif kind is Stop:
                self.stop = self.sync_notes = self.durable = True
        if self.relaxed:
            self.promised = any(item.promised for item in self.relaxed)
        self.durable |= len(self.entries) > len(self.relaxed)


def runs(
    entries: Sequence[EntryWrite | RelaxedWrite],
) -> Iterable[tuple[EntryLog, Sequence[EntryWrite | RelaxedWrite]]]:
    """The entries in runs of one log each. Nearly always there is one run."""
    start = 0
    while start < len(entries):
        entry_log = entries[start].log
        end = len(entries)
        if entries[-1].log is not entry_log:
            end = next(i for i in range(start, end) if entries[i].log is not entry_log)
        yield entry_log, entries[start:end] if start or end < len(entries) else entries
        start = end
