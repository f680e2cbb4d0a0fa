"""The clients that repair a ledger: autorecovery, and a bookie's own healing after a lossy boot.

Law: as in ``client``. Autorecovery's belief may be wrong: it may take any bookie for lost at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bookspark.lab.simulation.clients.client import Begin, Client, Crashed, Heal, Step
from bookspark.lab.simulation.messages import Clear, Held
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.protocol.repair.bookie_healing import ClearLimbo, LedgerHealing, ListHeld
from bookspark.protocol.repair.ledger_replication import LedgerReplication, WaitForWriter, WriterWaitedFor

_GRACE_SECONDS = 1.0
_GRACE_SECONDS_MAX = 2.0


class HealingClient(Client):
    """A bookie's own phase two. The world starts it for a bookie in limbo, and ends it at the bookie's crash."""

    kind = "healing"

    def __init__(self, bookie: str) -> None:
        super().__init__()
        self.bookie = bookie

    def step(self, event: Any, options: SimulationOptions) -> Step:
        match event:
            case Heal():
                self.machine = LedgerHealing(self.bookie, event.boot)
                self.store = act.ReadMetadata()
                return [], []
            case Crashed():
                self.machine = self.store = None
                return [], []
        return super().step(event, options)

    def _perform(self, actions: list[Any], options: SimulationOptions) -> Step:
        sends, told = super()._perform(actions, options)
        for action in actions:
            if isinstance(action, ListHeld):
                sends.append((self.bookie, Held()))
            if isinstance(action, ClearLimbo):
                sends.append((self.bookie, Clear(action.boot, action.lost)))
        return sends, told

    def _end(self, action: act.Finish | act.Fail) -> None:
        # It may begin again.
        self.machine = self.store = None


class TakeForLost(Begin):
    """Autorecovery believes that the bookie is lost."""

    def __init__(self, bookie: str) -> None:
        self.bookie = bookie

    def __repr__(self) -> str:
        return f"TakeForLost({self.bookie!r})"


class LookForCopies(Begin):
    """Autorecovery looks at a ledger that was made with few copies."""


LOOK_FOR_COPIES = LookForCopies()


class ReplicatorClient(Client):
    """A single autorecovery: it takes a bookie for lost, or looks for lacking copies, and repairs the ledger."""

    kind = "replicator"
    seen = ("defect", "copied", "still_named", "left_small")

    def __init__(self, bookies: tuple[str, ...], is_small: bool) -> None:
        """``is_small``: the ledger was made with fewer copies than wanted."""
        super().__init__()
        self.bookies, self.is_small = bookies, is_small
        self.lost = ""
        """The bookie that it takes for lost."""
        self.record: LedgerMetadata | None = None
        """The last read or written record."""
        self.writing: LedgerMetadata | None = None
        self.naming: tuple[tuple[int, str], ...] = ()
        """The copies named by the record under way."""
        self.copied: tuple[tuple[int, str], ...] = ()
        """The copies named by its written records: entry and bookie."""
        self.still_named = ""
        """The lost bookie, if the record of a successful end still names it."""
        self.left_small = False
        """Whether the record of a successful end lacks copies."""
        self.waits = False
        """Whether the grace time is running."""
        self.leaves = 0
        """Times in a row that the writer gave a sign of life while its ledger was open."""

    def choices(self) -> list[Any]:
        if self.outcome:
            return []
        if self.machine is None:
            looks: list[Any] = [LOOK_FOR_COPIES] if self.is_small else []
            return looks + [TakeForLost(bookie) for bookie in self.bookies]
        return [WriterWaitedFor(_GRACE_SECONDS, lives) for lives in (False, True)] if self.waits else []

    def step(self, event: Any, options: SimulationOptions) -> Step:
        match event:
            case TakeForLost() | LookForCopies():
                self.lost = event.bookie if isinstance(event, TakeForLost) else ""
                lost = {self.lost} - {""}
                self.machine = LedgerReplication(lost, _GRACE_SECONDS, grace_seconds_max=_GRACE_SECONDS_MAX)
                self.store = act.ReadMetadata()
                return [], []
            case WriterWaitedFor():
                self.waits = False
                is_open = self.record is not None and self.record.state is LedgerState.OPEN
                self.leaves = self.leaves + 1 if event.lives and is_open else 0
            case act.MetadataRead():
                self.record = event.metadata
            case act.MetadataWritten():
                self.copied = tuple(sorted({*self.copied, *self.naming}))
                self.naming, self.record = (), self.writing
            case act.MetadataConflict():
                self.naming = ()
        step = super().step(event, options)
        if self.choosing is not None and 0 < self.leaves < _GRACE_SECONDS_MAX / _GRACE_SECONDS and self._is_open():
            self.defect = "it ends a writer that lives"
        if isinstance(self.store, act.WriteMetadata) and self.record is not None:
            self.writing = self.store.metadata
            self.naming = tuple(sorted(_copies(self.record, self.writing)))
        return step

    def _is_open(self) -> bool:
        """Are bookies chosen for the last fragment of an open ledger?"""
        record, choosing = self.record, self.choosing
        if record is None or choosing is None or record.state is not LedgerState.OPEN:
            return False
        return record.last_fragment.ensemble == choosing.ensemble and self.lost in choosing.ensemble

    def _told(self, action: Any) -> None:
        if isinstance(action, WaitForWriter):
            self.waits = True

    def _end(self, action: act.Finish | act.Fail) -> None:
        super()._end(action)
        self.waits, self.leaves, self.record, self.writing, self.naming = False, 0, None, None, ()
        if isinstance(action, act.Finish) and action.metadata is not None:
            found = action.metadata
            self.still_named = self.lost if self.lost in found.bookies() else ""
            few = found.closed and found.write_quorum < found.copies_wanted
            self.left_small = self.is_small and few and found.accepted_loss is None


def _copies(before: LedgerMetadata, after: LedgerMetadata) -> Iterator[tuple[int, str]]:
    """Copies that ``after`` adds to ``before``, in fragments that get no more entries."""
    for fragment, last in before.fragment_ranges():
        for entry_id in range(fragment.first_entry_id, 0 if last is None else last + 1):
            for bookie in set(after.write_set_of(entry_id)) - set(before.write_set_of(entry_id)):
                yield entry_id, bookie
