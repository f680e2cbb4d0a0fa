"""Autorecovery of one ledger: its lost bookies are replaced, fragment by fragment, by others that hold the copies.

Law: ``replication_plan`` makes the decisions; here is their order. A bookie believed to be lost may well be alive, and nothing
relies on the belief. A copy is synced before the record names it, by compare-and-set on the record read before the copying. (A
bookie collects unnamed copies of closed ledgers, and writes the record, unchanged, before: ``protocol.bookie.unnamed_copies``.
So a closed ledger whose record has another version now is copied anew.) A last fragment that still gets entries is left to its
writer for a grace time, longer if the writer lives, and then to ledger recovery. Without a free bookie no living writer is
fenced: that would bring no copy. A fragment without a free bookie does not stop the repair of the others. A bookie that refuses
the ledger's password is left out, and another one is chosen. Neither does an unreadable or refused entry stop anything: the
record names the copies around it, and for it the lost bookie as before, in a fragment of its own. So the next attempt has only
these entries to do. The repair fails with all reasons once nothing else is left to do. A closed ledger that was made with fewer
copies than wanted gets the others, one by one: for each a copy of all entries, fragment by fragment as if a bookie of each
ensemble were lost, and one compare-and-set. ::

    NEW ──record──► (look) ──a fragment to repair──► CHOOSING ──► COPYING ──► NAMING ──► (look)
                      │ ▲ ▲                                            still open ▲ │ lost
                      │ │ └──────────────── closed ────────────────────── REREADING ◄┘
                      │ └──── closed ──── RECOVERING ◄── a free bookie ── CHOOSING ◄── the same ──┐
                      ├── open, a bookie lost ──► WAITING ──► LOOKING AGAIN ──────────────────────┴ changed ──► (look)
                      └── nothing to repair ──► DONE

COPYING is ``EntryCopying``, RECOVERING is ``LedgerRecovery``, NAMING is the compare-and-set. Source: ``ReplicationWorker`` and
``LedgerFragmentReplicator`` of BookKeeper.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from bookspark.errors import BookKeeperError, EntriesNotCopiedError, LedgerRecoveryError
from bookspark.protocol.ledger.actions import (
    Action,
    AddAnswered,
    BookiesChosen,
    ChooseBookies,
    DeadlinePassed,
    Event,
    Fail,
    Finish,
    LacAnswered,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadAnswered,
    ReadMetadata,
    RecordFull,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.protocol.ledger.transitions import LATE, IllegalEventError, cell_of, row
from bookspark.protocol.reading.recovery import LedgerRecovery, replaces
from bookspark.protocol.repair.entry_copying import (
    ALONE,
    EntryCopying,
    NotCopied,
    Room,
    not_copied_error,
    refusing_targets,
)
from bookspark.protocol.repair.replication_plan import (
    NOBODY,
    Copy,
    Patience,
    Piece,
    Repair,
    copies,
    few,
    is_silent,
    is_unchanged,
    may_fence,
    pieces,
    repaired,
    repairs,
    waits_for_close,
)

_WAIT_SECONDS_MIN = 1.0
"""Shortest pause between two questions for a sign of a writer."""
_FRAGMENTS_MAX = 200
"""Most fragments in a record with uncopied entries: each range of them may make two more."""


@dataclass(frozen=True, slots=True)
class WaitForWriter:
    """Wait, then ask ``bookies`` for a sign of the writer; answered by ``WriterWaitedFor``."""

    grace_seconds: float
    bookies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WriterWaitedFor:
    """The wait for the writer has lasted ``waited_seconds``. ``lives``: a bookie has an open connection of this ledger's
    writer."""

    waited_seconds: float
    lives: bool = False


ReplicationAction = Action | WaitForWriter
ReplicationEvent = Event | WriterWaitedFor


class ReplicationPhase(Enum):
    NEW = auto()
    WAITING = auto()
    """The writer has the grace time to replace its lost bookies."""
    LOOKING_AGAIN = auto()
    RECOVERING = auto()
    CHOOSING = auto()
    COPYING = auto()
    REREADING = auto()
    """The record was changed during the copying, and is being read again."""
    NAMING = auto()
    DONE = auto()


_BOOKIES = (LacAnswered, ReadAnswered, AddAnswered)
_READ = (MetadataRead, MetadataFailed)
_WRITE = (MetadataWritten, MetadataConflict, RecordFull, MetadataFailed)
_CHOICE = (BookiesChosen, NoBookies, MetadataFailed)
_RECOVERY = (*_BOOKIES, *_READ, *_WRITE, *_CHOICE)

# Only answers to this machine's ledger recovery can be late: nothing else leaves a request under way.
TRANSITIONS = {
    ReplicationPhase.NEW: row(taken=_READ),
    ReplicationPhase.WAITING: row(taken=(WriterWaitedFor, DeadlinePassed)),
    ReplicationPhase.LOOKING_AGAIN: row(taken=(*_READ, DeadlinePassed)),
    # ``LedgerRecovery`` has a table of its own, and decides in this phase.
    ReplicationPhase.RECOVERING: row(taken=(*_RECOVERY, DeadlinePassed)),
    ReplicationPhase.CHOOSING: row(taken=(*_CHOICE, DeadlinePassed), late=_BOOKIES),
    ReplicationPhase.COPYING: row(taken=(ReadAnswered, AddAnswered, DeadlinePassed), late=_BOOKIES),
    ReplicationPhase.REREADING: row(taken=(*_READ, DeadlinePassed), late=_BOOKIES),
    ReplicationPhase.NAMING: row(taken=(*_WRITE, DeadlinePassed), late=_BOOKIES),
    ReplicationPhase.DONE: row(late=(*_RECOVERY, WriterWaitedFor, DeadlinePassed)),
}


class LedgerReplication:
    """Repairs one ledger that lost the bookies ``lost``. Start it with ``step(MetadataRead(…))``; it ends with a Finish, or with
    a Fail before another attempt.

    ``misplaced``: working bookies to be replaced where no writer has to be fenced.
    """

    def __init__(
        self,
        lost: Collection[str],
        grace_seconds: float,
        run_entries_max: int = 10_000,
        misplaced: Collection[str] = (),
        room: Room = ALONE,
        batch_ends: Sequence[int] = (),
        grace_seconds_max: float = math.inf,
    ) -> None:
        """``batch_ends``: as for ``EntryCopying``. ``grace_seconds_max``: as of ``Patience``."""
        self.phase = ReplicationPhase.NEW
        self._lost = frozenset(lost)
        self._replaced = self._lost | frozenset(misplaced)
        self._patience = Patience(grace_seconds, grace_seconds_max)
        self._waited_seconds = self._silent_seconds = 0.0
        self._run_entries_max = run_entries_max
        self._room = room
        self._batch_ends = batch_ends
        self._metadata: LedgerMetadata | None = None
        """The record at the last look."""
        self._version = 0
        self._target: LedgerMetadata | None = None
        """The record being written."""
        self._repair: Repair | None = None
        self._given_up: dict[int, BookKeeperError] = {}
        """By the fragment's first entry id."""
        self._not_copied: dict[int, list[NotCopied]] = {}
        """By the tried fragment's first entry id at that time."""
        self._without: list[Piece] = []
        """Parts of the present fragment that the chosen bookies did not get."""
        self._why_without: EntriesNotCopiedError | None = None
        self._chosen: dict[str, str] = {}
        self._refusing: frozenset[str] = frozenset()
        """Bookies that refused the ledger's password: others are chosen."""
        self._refused: EntriesNotCopiedError | None = None
        """The last refusal of the password."""
        self._wider: LedgerMetadata | None = None
        """The record with a copy more, as far as bookies are chosen for it and have the entries."""
        self._to_fence: MetadataRead | None = None
        """The record of an open ledger that is recovered if a bookie can be chosen."""
        self._recovery: LedgerRecovery | None = None
        self._has_recovered = False
        """Bookies may still answer requests of the ledger recovery."""
        self._copying: EntryCopying | None = None

    def step(self, event: ReplicationEvent) -> list[ReplicationAction]:
        """Raises IllegalEventError, and changes nothing, for an answer to a question never asked."""
        cell = cell_of(TRANSITIONS, self.phase, event)
        if self._recovery is not None:
            return self._recovering(event)  # type: ignore[arg-type]
        if isinstance(event, _BOOKIES) and not self._is_of_copying(event):
            self._check_is_of_recovery(event)
            return []
        if cell is LATE:
            return []
        if isinstance(event, MetadataRead) and self._metadata and not event.metadata.is_same_ledger(self._metadata):
            raise IllegalEventError(self.phase, event, f"it is not of ledger {self._metadata.ledger_id}")
        return self._act(event)

    def _act(self, event: ReplicationEvent) -> list[ReplicationAction]:
        match self.phase, event:
            case _, DeadlinePassed():
                return self._fail(LedgerRecoveryError(f"{self._what()} was not repaired in time; it is tried again"))
            case _, MetadataFailed():
                return self._fail(event.error)
            case _, RecordFull():
                # Only fragments of their own for entries that were not copied make a record larger.
                return self._give_up(event.error) if self._without else self._fail(event.error)
            case ReplicationPhase.NEW, MetadataRead():
                return self._look(event.metadata, event.version)
            case ReplicationPhase.LOOKING_AGAIN, MetadataRead():
                return self._waited(event)
            case ReplicationPhase.REREADING, MetadataRead():
                # The target may have collected its copies since the ledger was closed.
                go_on = self._look if event.metadata.closed else self._name
                return go_on(event.metadata, event.version)
            case _, WriterWaitedFor():
                self.phase = ReplicationPhase.LOOKING_AGAIN
                self._waited_seconds += event.waited_seconds
                # A recovery that was begun has ended the writer, which may be connected all the same.
                lives = event.lives and self._metadata is not None and self._metadata.state is LedgerState.OPEN
                self._silent_seconds = 0.0 if lives else self._silent_seconds + event.waited_seconds
                return [ReadMetadata()]
            case _, BookiesChosen():
                return self._bookies_chosen(event)
            case _, NoBookies() if self._to_fence is not None:
                return self._fence_for_fewer(self._to_fence, event.error)
            case _, NoBookies():
                return self._choose_fewer(event.error)
            case _, ReadAnswered() | AddAnswered():
                assert self._copying is not None
                return self._copied(self._copying.step(event))
            case _, MetadataConflict():
                self.phase = ReplicationPhase.REREADING
                return [ReadMetadata()]
            case _, MetadataWritten():
                return self._named(event.version)
        raise AssertionError("the table has a cell for an event that nobody handles")

    def _is_of_copying(self, event: LacAnswered | ReadAnswered | AddAnswered) -> bool:
        return self._copying is not None and not isinstance(event, LacAnswered) and self._copying.awaits(event)

    def _check_is_of_recovery(self, event: LacAnswered | ReadAnswered | AddAnswered) -> None:
        if not self._has_recovered and self.phase is not ReplicationPhase.DONE:
            raise IllegalEventError(self.phase, event, "it was not asked for")

    def _look(self, metadata: LedgerMetadata, version: int) -> list[ReplicationAction]:
        self._metadata, self._version, self._target, self._wider = metadata, version, None, None
        self._repair = next((r for r in repairs(metadata, self._replaced) if r.first not in self._given_up), None)
        if self._repair is not None:
            return self._choose(self._repair)
        if waits_for_close(metadata, self._lost):
            self._waited_seconds = self._silent_seconds = 0.0
            return self._wait(metadata, self._patience.grace_seconds)
        if self._given_up:
            return self._fail(self._why_not_all())
        if metadata.lacks_copies:
            return self._widen(metadata.with_another_copy(NOBODY))
        self.phase = ReplicationPhase.DONE
        return [Finish(metadata)]

    def _widen(self, wider: LedgerMetadata) -> list[ReplicationAction]:
        """Choose a bookie for the next fragment of ``wider`` without one; name all of them at the end."""
        self._wider, self._without, self._why_without = wider, [], None
        repair = next(repairs(wider, (NOBODY,)), None)
        if repair is not None:
            return self._choose(repair)
        self._target, self.phase = wider, ReplicationPhase.NAMING
        return [WriteMetadata(wider, self._version)]

    def _choose(self, repair: Repair) -> list[ReplicationAction]:
        self.phase = ReplicationPhase.CHOOSING
        self._repair = repair
        return [ChooseBookies(repair.ensemble, repair.lost, refusing=tuple(sorted(self._refusing)))]

    def _choose_fewer(self, error: BookKeeperError) -> list[ReplicationAction]:
        """Replace fewer lost bookies: one more copy is better than none."""
        assert self._repair is not None
        if self._wider is not None:
            return self._fail(self._no_wider("no other bookie can take one"))
        lost = self._repair.lost[:-1]
        return self._choose(self._repair._replace(lost=lost)) if lost else self._give_up(self._refused or error)

    def _give_up(self, error: BookKeeperError) -> list[ReplicationAction]:
        assert self._metadata is not None and self._repair is not None
        self._given_up[self._repair.first] = error
        if isinstance(error, EntriesNotCopiedError):
            self._not_copied[self._repair.first] = list(error.entries)
        return self._look(self._metadata, self._version)

    def _why_not_all(self) -> BookKeeperError:
        entries = [one for found in self._not_copied.values() for one in found]
        first, *others = self._given_up.values()
        if all(isinstance(error, EntriesNotCopiedError) for error in (first, *others)):
            assert self._metadata is not None
            return not_copied_error(self._metadata.ledger_id, entries)
        if not others:
            return first
        why = f"{1 + len(others)} fragments of {self._what()} were not repaired, the first one: {first}"
        return EntriesNotCopiedError(why, entries) if entries else LedgerRecoveryError(why)

    def _wait(self, metadata: LedgerMetadata, seconds: float) -> list[ReplicationAction]:
        self.phase = ReplicationPhase.WAITING
        asked = tuple(bookie for bookie in metadata.last_fragment.ensemble if bookie not in self._lost)
        return [WaitForWriter(seconds, asked)]

    def _waited(self, now: MetadataRead) -> list[ReplicationAction]:
        assert self._metadata is not None
        lives = self._silent_seconds < self._waited_seconds
        if not is_unchanged(self._metadata, now.metadata, self._lost):
            return self._look(now.metadata, now.version)
        if not may_fence(self._patience, self._waited_seconds, self._silent_seconds):
            if not lives:
                return self._look(now.metadata, now.version)
            left = self._patience.grace_seconds_max - self._waited_seconds
            return self._wait(self._metadata, min(left, max(self._patience.grace_seconds, _WAIT_SECONDS_MIN)))
        if now.metadata.state is not LedgerState.OPEN:
            return self._recover(now)
        self._to_fence = now
        fragment = now.metadata.last_fragment
        gone = tuple(bookie for bookie in fragment.ensemble if bookie in self._lost)
        return self._choose(Repair(fragment.first_entry_id, fragment.first_entry_id - 1, fragment.ensemble, gone))

    def _fence_for_fewer(self, now: MetadataRead, error: BookKeeperError) -> list[ReplicationAction]:
        """One bookie in the place of a lost one is worth the end of a living writer, none is not."""
        assert self._repair is not None
        if len(self._repair.lost) > 1:
            return self._choose(self._repair._replace(lost=self._repair.lost[:-1]))
        if is_silent(self._patience, self._silent_seconds):
            return self._recover(now)
        self._to_fence = None
        self._given_up[self._repair.first] = error
        return self._fail(self._why_not_all())

    def _recover(self, now: MetadataRead) -> list[ReplicationAction]:
        self.phase = ReplicationPhase.RECOVERING
        self._to_fence = self._repair = None
        self._has_recovered = True
        self._recovery = LedgerRecovery(self._run_entries_max, replaces_bookies=True)
        return list(self._recovery.step(now))

    def _recovering(self, event: Event) -> list[ReplicationAction]:
        assert self._recovery is not None
        actions = self._recovery.step(event)
        match actions:
            case [Finish(LedgerMetadata() as closed, version)]:
                self._recovery = None
                return self._look(closed, version)
            case [Fail(error)]:
                self._recovery = None
                return self._fail(error)
        return list(actions)

    def _bookies_chosen(self, event: BookiesChosen) -> list[ReplicationAction]:
        assert self._repair is not None
        bookies, replaced = event.bookies, self._repair.lost
        if not replaces(bookies, replaced, self._repair.ensemble):
            raise IllegalEventError(self.phase, event, f"{len(replaced)} bookies outside the ensemble were asked for")
        return self._copy(bookies, replaced) if self._to_fence is None else self._recover(self._to_fence)

    def _copy(self, bookies: tuple[str, ...], replaced: tuple[str, ...]) -> list[ReplicationAction]:
        assert self._metadata is not None and self._repair is not None
        self.phase = ReplicationPhase.COPYING
        self._chosen = dict(zip(replaced, bookies, strict=True))
        plan = copies(self._wider or self._metadata, self._repair, self._chosen)
        self._copying = EntryCopying(
            self._metadata, plan, self._run_entries_max, self._lost, self._room, self._batch_ends
        )
        return self._copied(self._copying.start())

    def _copied(self, actions: list[Action]) -> list[ReplicationAction]:
        match actions:
            case [Fail(EntriesNotCopiedError() as refused)] if (
                new := refusing_targets(refused.entries) - self._refusing
            ):
                assert self._repair is not None
                self._copying, self._refusing, self._refused = None, self._refusing | new, refused
                return self._choose(self._repair)
        if self._wider is not None and len(actions) == 1 and isinstance(actions[0], Finish | Fail):
            return self._copied_more(self._wider, actions[0])
        match actions:
            case [Finish()]:
                self._without, self._why_without = [], None
            case [Fail(EntriesNotCopiedError() as error)]:
                missed = pieces(Copy(one.first, one.last, target) for one in error.entries for target in one.targets)
                self._without, self._why_without = few(missed, self._splits_max()), error
            case [Fail(error)]:
                self._copying = None
                return self._give_up(error)
            case _:
                return list(actions)
        self._copying = None
        assert self._metadata is not None
        return self._name(self._metadata, self._version)

    def _copied_more(self, wider: LedgerMetadata, outcome: Finish | Fail) -> list[ReplicationAction]:
        assert self._repair is not None
        self._copying = None
        if isinstance(outcome, Fail):
            return self._fail(outcome.error)
        record = repaired(wider, self._repair, self._chosen)
        assert record is not None
        return self._widen(record)

    def _no_wider(self, why: str) -> BookKeeperError:
        assert self._metadata is not None
        has = f"{self._metadata.write_quorum} of {self._metadata.copies_wanted} copies"
        return LedgerRecoveryError(f"{self._what()} has {has}, and {why}; it is tried again")

    def _splits_max(self) -> int:
        """Ranges of the present fragment that may get fragments of their own."""
        assert self._metadata is not None
        return max(1, (_FRAGMENTS_MAX - len(self._metadata.fragments)) // 2)

    def _name(self, now: LedgerMetadata, version: int) -> list[ReplicationAction]:
        assert self._repair is not None
        self._target = repaired(now, self._repair, self._chosen, self._without)
        if self._target is None:
            return self._look(now, version)
        if self._target == now:
            assert self._why_without is not None, "every copy was made, and the record names none of them"
            self._metadata, self._version = now, version
            return self._give_up(self._why_without)
        self.phase = ReplicationPhase.NAMING
        return [WriteMetadata(self._target, version)]

    def _named(self, version: int) -> list[ReplicationAction]:
        assert self._target is not None and self._repair is not None
        if self._why_without is not None:
            self._not_copied[self._repair.first] = list(self._why_without.entries)
            self._given_up |= dict.fromkeys((piece.first for piece in self._without), self._why_without)
        return self._look(self._target, version)

    def _fail(self, error: BookKeeperError) -> list[ReplicationAction]:
        self.phase = ReplicationPhase.DONE
        self._copying = None
        return [Fail(error)]

    def _what(self) -> str:
        return f"ledger {self._metadata.ledger_id}" if self._metadata else "a ledger"
