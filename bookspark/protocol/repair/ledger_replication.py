"""Autorecovery of one ledger: its lost bookies are replaced, fragment by fragment, by others that hold the copies.

Law: that of ``replication_plan``, which decides; this is the order of things. A bookie is believed to be lost, and may well
be alive: nothing here relies on it. A copy is synced before the record names it, by compare-and-set on the record as it is
then; a last fragment that is still written to is left to its writer for a grace time, and then to ledger recovery. A
fragment that can't be repaired now (no replica of an entry answers, no other bookie is free) does not keep the others from
it; the whole fails with its reason once nothing else is left. ::

    LOOKING ──a fragment to repair──► CHOOSING ──► COPYING ──► NAMING ──► LOOKING …
       │  ▲                                     (EntryCopying)  compare-and-set; lost: read the record again
       │  └───── closed ───── RECOVERING ◄──┐
       ├── open, a bookie lost ──► WAITING ──┴── the same after the grace time
       └── nothing to repair ──► DONE

Source: ``ReplicationWorker`` and ``LedgerFragmentReplicator`` of BookKeeper.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from bookspark.errors import BookKeeperError, LedgerRecoveryError
from bookspark.protocol.ledger.actions import (
    Action,
    AddAnswered,
    BookiesChosen,
    ChooseBookies,
    DeadlinePassed,
    Event,
    Fail,
    Finish,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadAnswered,
    ReadIsLate,
    ReadMetadata,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.repair.entry_copying import EntryCopying
from bookspark.protocol.repair.replication_plan import Repair, copies, may_fence, repaired, repairs, waits_for_close


@dataclass(frozen=True, slots=True)
class WaitForWriter:
    """Wait for the grace time; answered by ``WriterWaitedFor``."""

    grace_seconds: float


@dataclass(frozen=True, slots=True)
class WriterWaitedFor:
    waited_seconds: float


ReplicationAction = Action | WaitForWriter
ReplicationEvent = Event | ReadIsLate | WriterWaitedFor


class ReplicationPhase(Enum):
    LOOKING = auto()
    WAITING = auto()
    RECOVERING = auto()
    CHOOSING = auto()
    COPYING = auto()
    NAMING = auto()
    DONE = auto()


class LedgerReplication:
    """Repairs one ledger that lost the bookies ``lost``. Start it with ``step(MetadataRead(…))``; it ends with a Finish, or
    with a Fail after which it is tried again later.

    ``misplaced``: bookies that are well, but are to be replaced where that fences nobody.
    """

    def __init__(
        self,
        lost: Collection[str],
        grace_seconds: float,
        run_entries_max: int = 10_000,
        misplaced: Collection[str] = (),
    ) -> None:
        self.phase = ReplicationPhase.LOOKING
        self._lost = frozenset(lost)
        self._replaced = self._lost | frozenset(misplaced)
        self._grace_seconds = grace_seconds
        self._waited_seconds = 0.0
        self._run_entries_max = run_entries_max
        self._metadata: LedgerMetadata | None = None
        """As it was at the last look; while it waits, as it was before."""
        self._target: LedgerMetadata | None = None
        """What is being written."""
        self._repair: Repair | None = None
        self._given_up: dict[int, BookKeeperError] = {}
        """Fragments that can't be repaired now, by their first entry id."""
        self._chosen: dict[str, str] = {}
        self._recovery: LedgerRecovery | None = None
        self._copying: EntryCopying | None = None

    def step(self, event: ReplicationEvent) -> list[ReplicationAction]:
        """The actions that follow from ``event``; those of an earlier phase are ignored."""
        match self.phase, event:
            case ReplicationPhase.DONE, _:
                return []
            case ReplicationPhase.RECOVERING, WriterWaitedFor() | ReadIsLate():
                return []
            case ReplicationPhase.RECOVERING, _:
                return self._recovering(event)  # type: ignore[arg-type]
            case _, DeadlinePassed():
                return self._fail(LedgerRecoveryError(f"{self._what()} was not repaired in time; it is tried again"))
            case _, MetadataFailed():
                return self._fail(event.error)
            case ReplicationPhase.LOOKING, MetadataRead():
                return self._look(event.metadata)
            case ReplicationPhase.WAITING, WriterWaitedFor():
                self._waited_seconds = event.waited_seconds
                return [ReadMetadata()]
            case ReplicationPhase.WAITING, MetadataRead():
                return self._waited(event)
            case ReplicationPhase.CHOOSING, BookiesChosen():
                return self._copy(event.bookies)
            case ReplicationPhase.CHOOSING, NoBookies():
                return self._choose_fewer(event.error)
            case ReplicationPhase.COPYING, ReadAnswered() | ReadIsLate() | AddAnswered():
                assert self._copying is not None
                return self._copied(self._copying.step(event))
            case ReplicationPhase.NAMING, MetadataRead():
                return self._name(event)
            case ReplicationPhase.NAMING, MetadataConflict():
                return [ReadMetadata()]
            case ReplicationPhase.NAMING, MetadataWritten():
                assert self._target is not None
                return self._look(self._target)
        return []

    def _look(self, metadata: LedgerMetadata) -> list[ReplicationAction]:
        self._metadata, self._target = metadata, None
        self._repair = next((r for r in repairs(metadata, self._replaced) if r.first not in self._given_up), None)
        if self._repair is not None:
            return self._choose(self._repair)
        if waits_for_close(metadata, self._lost):
            self.phase = ReplicationPhase.WAITING
            return [WaitForWriter(self._grace_seconds)]
        if self._given_up:
            return self._fail(self._why_not_all())
        self.phase = ReplicationPhase.DONE
        return [Finish(metadata)]

    def _choose(self, repair: Repair) -> list[ReplicationAction]:
        self.phase = ReplicationPhase.CHOOSING
        self._repair = repair
        return [ChooseBookies(repair.ensemble, repair.lost)]

    def _choose_fewer(self, error: BookKeeperError) -> list[ReplicationAction]:
        """There are not enough bookies for all that the fragment lost; one copy more is better than none."""
        assert self._repair is not None
        lost = self._repair.lost[:-1]
        return self._choose(self._repair._replace(lost=lost)) if lost else self._give_up(error)

    def _give_up(self, error: BookKeeperError) -> list[ReplicationAction]:
        """The fragment can't be repaired now; the others may be."""
        assert self._metadata is not None and self._repair is not None
        self._given_up[self._repair.first] = error
        return self._look(self._metadata)

    def _why_not_all(self) -> BookKeeperError:
        first, *others = self._given_up.values()
        if not others:
            return first
        return LedgerRecoveryError(
            f"{1 + len(others)} fragments of {self._what()} were not repaired, the first one: {first}"
        )

    def _waited(self, now: MetadataRead) -> list[ReplicationAction]:
        assert self._metadata is not None
        noticed, grace = self._metadata, self._grace_seconds
        if not may_fence(noticed, now.metadata, self._lost, self._waited_seconds, grace):
            return self._look(now.metadata)
        self.phase = ReplicationPhase.RECOVERING
        self._recovery = LedgerRecovery(self._run_entries_max, replaces_bookies=True)
        return list(self._recovery.step(now))

    def _recovering(self, event: Event) -> list[ReplicationAction]:
        assert self._recovery is not None
        actions = self._recovery.step(event)
        match actions:
            case [Finish(LedgerMetadata() as closed)]:
                self._recovery = None
                return self._look(closed)
            case [Fail(error)]:
                return self._fail(error)
        return list(actions)

    def _copy(self, bookies: tuple[str, ...]) -> list[ReplicationAction]:
        assert self._metadata is not None and self._repair is not None
        self.phase = ReplicationPhase.COPYING
        self._chosen = dict(zip(self._repair.lost, bookies, strict=True))
        plan = copies(self._metadata, self._repair, self._chosen)
        self._copying = EntryCopying(self._metadata, plan, self._run_entries_max, self._lost)
        return self._copied(self._copying.start())

    def _copied(self, actions: list[Action]) -> list[ReplicationAction]:
        match actions:
            case [Finish()]:
                self.phase = ReplicationPhase.NAMING
                self._copying = None
                return [ReadMetadata()]
            case [Fail(error)]:
                self._copying = None
                return self._give_up(error)
        return list(actions)

    def _name(self, now: MetadataRead) -> list[ReplicationAction]:
        assert self._repair is not None
        self._target = repaired(now.metadata, self._repair, self._chosen)
        if self._target is None:
            return self._look(now.metadata)
        return [WriteMetadata(self._target, now.version)]

    def _fail(self, error: BookKeeperError) -> list[ReplicationAction]:
        self.phase = ReplicationPhase.DONE
        return [Fail(error)]

    def _what(self) -> str:
        return f"ledger {self._metadata.ledger_id}" if self._metadata else "a ledger"
