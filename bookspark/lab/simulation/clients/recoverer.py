"""A client that opens the ledger, and so recovers it.

Law: as in ``client``. Each recoverer begins once, at any time. If losses are accepted, its operator names the bookies that are
gone for good at that moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bookspark.lab.simulation.clients.client import BEGIN, Begin, Client, Step, WriteTaken
from bookspark.lab.simulation.messages import Read, ReadLac, Request
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss
from bookspark.protocol.ledger.actions import Fail, Finish, MetadataRead, MetadataWritten, ReadMetadata, SendAdd
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.writing.ensemble_change import ChangeMode


@dataclass(frozen=True)
class BeginAccepting(Begin):
    """A user opens the ledger and accepts the loss of unknown entries; ``named`` are the bookies declared lost."""

    named: tuple[str, ...]


class RecovererClient(Client):
    kind = "recoverer"
    seen = ("defect", "told_end", "outcome", "wrote_back")

    def __init__(self) -> None:
        super().__init__()
        self.wrote_back: tuple[int, ...] = ()
        """Ids that it wrote back; kept if it closed the ledger itself."""
        self.may_fence = False
        """Whether the record has left the state OPEN."""
        self.told_end: tuple[int, int] | None = None
        """Last entry and length of the closed ledger, as reported to its user."""

    def choices(self) -> list[Any]:
        return [] if self.outcome or self.machine else [BEGIN]

    def step(self, event: Any, options: SimulationOptions) -> Step:
        if isinstance(event, Begin):
            accepted = AcceptedLoss("operator", 0, event.named) if isinstance(event, BeginAccepting) else None
            changes = options.ensemble_changes is not ChangeMode.OFF
            self.machine = LedgerRecovery(replaces_bookies=changes, accepted_loss=accepted)
            self.store = ReadMetadata()
            return [], []
        if isinstance(event, MetadataRead):
            self.may_fence = event.metadata.state is not LedgerState.OPEN
        elif isinstance(event, WriteTaken) and isinstance(event.answer, MetadataWritten):
            self.may_fence = self.store.metadata.state is not LedgerState.OPEN
        step = super().step(event, options)
        if self.machine is not None and not self.may_fence and any(_fences(request) for _, request in step[0]):
            self.defect = "it fences the writer of a ledger whose record is OPEN"
        if self.machine is None:
            self.may_fence = False
        if self.outcome and not (self.outcome == "finished" and isinstance(event, MetadataWritten)):
            self.wrote_back = ()
        return step

    def _add(self, action: SendAdd) -> Request:
        ids = range(action.first, action.last + 1)
        self.wrote_back = tuple(sorted({*self.wrote_back, *ids}))
        return super()._add(action)

    def _end(self, action: Finish | Fail) -> None:
        super()._end(action)
        self.told_end = self._end_of(action)


def _fences(request: Request) -> bool:
    return isinstance(request, Read | ReadLac) and request.fence
