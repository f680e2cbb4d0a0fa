"""The common part of all clients in the simulation: a real machine of the protocol, and its actions' effects on the world.

Law: a client decides nothing. It hands events to its machine, supplies contents like a real driver, and remembers the
machine's results. A finished client forgets everything else, so that worlds that differ only in this are the same state.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

from bookspark.errors import LedgerClosedError, NotEnoughBookiesError
from bookspark.lab.simulation.messages import Add, HeldFrom, Read, ReadLac, Request, SyncLedger, WriteLac
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.values import clone, freeze
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.transitions import IllegalEventError

Sends = list[tuple[str, Request]]
Step = tuple[Sends, list[Any]]
"""The requests, each with its bookie, and the other actions, which are results for the user."""


def content_of(entry_id: int) -> str:
    """The content that the writer appends as this entry."""
    return f"e{entry_id}"


class Begin:
    def __repr__(self) -> str:
        return "Begin()"


BEGIN = Begin()


@dataclass(frozen=True, slots=True)
class WriteTaken:
    """The metadata store has applied the client's write; ``answer`` is under way."""

    answer: act.MetadataWritten | act.MetadataConflict | act.MetadataFailed


@dataclass(frozen=True, slots=True)
class Heal:
    """A bookie begins to heal after its lossy boot number ``boot``."""

    boot: int


@dataclass(frozen=True, slots=True)
class Crashed:
    """The healing bookie crashed or left."""


@dataclass(frozen=True, slots=True)
class CannotBe:
    """An event without a cause in the world, handed to the machine anyway (``writer``)."""

    event: Any


FROM_STORE = act.MetadataRead | act.MetadataWritten | act.MetadataConflict | act.RecordFull | act.MetadataFailed


class Client:
    kind = ""
    seen: tuple[str, ...] = ("defect",)
    """Names of the fields that checkers may see."""

    def __init__(self) -> None:
        self.machine: Any = None
        self.store: Any = None
        """The request to the metadata store that is under way, or its answer."""
        self.choosing: act.ChooseBookies | None = None
        """Set while the machine waits for bookies."""
        self.outcome = ""
        """How it ended; "" before its end."""
        self.defect = ""

    @property
    def done_with(self) -> int:
        """The id up to which the writer sends nothing more. ``NO_ENTRY`` for other clients."""
        return NO_ENTRY

    def choices(self) -> list[Any]:
        """Possible next actions of the user."""
        return []

    def cannot_be(self) -> list[Any]:
        """Events that are impossible now."""
        return []

    def placements(self, bookies: tuple[str, ...]) -> list[Any]:
        """Possible answers of placement to a machine that waits for bookies."""
        if self.choosing is None:
            return []
        left_out = {*self.choosing.ensemble, *self.choosing.refusing}
        free = [bookie for bookie in bookies if bookie not in left_out]
        wanted = len(self.choosing.replaced)
        if len(free) < wanted:
            return [
                act.NoBookies(NotEnoughBookiesError(f"{wanted} bookies are wanted, and only {', '.join(free)} is free"))
            ]
        return [act.BookiesChosen(chosen) for chosen in permutations(free, wanted)]

    def stepped(self, event: Any, options: SimulationOptions) -> Step:
        """``step``, but an error of the machine becomes a ``defect`` and ends the client."""
        try:
            return self.step(event, options)
        except Exception as error:
            self.machine = self.store = self.choosing = None
            self.defect = self.outcome = f"{type(error).__name__}: {error}"
            return [], []

    def step(self, event: Any, options: SimulationOptions) -> Step:
        """Hand ``event`` to the machine and carry out its actions."""
        if isinstance(event, CannotBe):
            self._doubt(event.event)
            return [], []
        if isinstance(event, WriteTaken):
            self.store = event.answer
            return [], []
        if isinstance(event, FROM_STORE):
            self.store = None
        if isinstance(event, act.BookiesChosen | act.NoBookies):
            self.choosing = None
        if self.machine is None:
            return [], []
        return self._perform(self.machine.step(event), options)

    def _doubt(self, event: Any) -> None:
        """Check that an impossible event has no effect."""
        if event not in self.cannot_be():
            return
        machine = clone(self.machine)
        try:
            actions = machine.step(event)
        except (IllegalEventError, LedgerClosedError):
            actions = []
        if actions or freeze(machine) != freeze(self.machine):
            self.defect = f"it believed what can't be, {event}"

    def _perform(self, actions: list[Any], options: SimulationOptions) -> Step:
        sends: Sends = []
        told: list[Any] = []
        for action in actions:
            match action:
                case act.SendAdd():
                    request = self._add(action)
                    sends += [(bookie, request) for bookie in action.bookies]
                case act.SendRead():
                    sends.append((action.bookie, Read(action.first, action.last, self._fences(action, options))))
                case act.SendReadLac():
                    sends.append((action.bookie, ReadLac(action.fence)))
                case act.SendListHeld():
                    sends.append((action.bookie, HeldFrom(action.first)))
                case act.SendLac():
                    told_lac = WriteLac(action.last_add_confirmed, action.last_add_fully_replicated)
                    sends += [(bookie, told_lac) for bookie in action.bookies]
                case act.SendSync():
                    sync = SyncLedger(action.assignment)
                    sends += [(bookie, sync) for bookie in action.bookies]
                case act.ReadMetadata() | act.WriteMetadata():
                    self.store = action
                case act.ChooseBookies():
                    self.choosing = action
                case act.Finish() | act.Fail():
                    told.append(action)
                    self._end(action)
                case _:
                    told.append(action)
                    self._told(action)
        return sends, told

    def _fences(self, action: act.SendRead, options: SimulationOptions) -> bool:
        return action.fence and options.fence_on_recovery_read

    def _add(self, action: act.SendAdd) -> Request:
        """A recoverer's add, with the contents of its reads."""
        return Add(
            action.first,
            action.last,
            action.last_add_confirmed,
            action.last_add_fully_replicated,
            action.entries,
            recovery=True,
        )

    def _end_of(self, action: act.Finish | act.Fail) -> tuple[int, int] | None:
        """Last entry and length of the closed ledger, as reported by the machine; None without an end."""
        found = action.metadata if isinstance(action, act.Finish) else None
        return None if found is None else (found.last_entry_id, found.length)

    def _told(self, action: act.Action) -> None:
        """Note a result of the machine for the user."""

    def _end(self, action: act.Finish | act.Fail) -> None:
        self.outcome = "finished" if isinstance(action, act.Finish) else type(action.error).__name__
        self.machine = None
        self.store = None
        self.choosing = None
