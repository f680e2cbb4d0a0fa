"""One schedule: a ledger and bookies are drawn, a repair runs, and its end is judged.

Law: an uninterrupted repair, successful or not, has copied every entry that a bookie gives and its target accepts. It names every
uncopied entry. It calls no entry lost that a bookie may have, and names no missing copy. Healing ends limbo only over entries
that are held, or noted as lost. A writer is fenced only if it left its fragment unchanged for the grace time.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from random import Random
from typing import Any

from bookspark.errors import EntriesNotCopiedError, NotEnoughBookiesError
from bookspark.protocol.ledger.actions import (
    BookiesChosen,
    ChooseBookies,
    Fail,
    Finish,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadMetadata,
    SendReadLac,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import WRITE_QUORUM_LABEL, Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.repair.bookie_healing import ClearLimbo, HeldListed, LedgerHealing, LimboIsCleared, ListHeld
from bookspark.protocol.repair.entry_copying import EntryCopying
from bookspark.protocol.repair.ledger_replication import LedgerReplication, WaitForWriter, WriterWaitedFor
from bookspark.protocol.repair.replication_plan import lacks, runs_of
from tests.histories.repair_schedules.audits import audit
from tests.histories.repair_schedules.drawing import Bookie, draw_bookies, draw_ledger
from tests.histories.repair_schedules.driving import STORE_LOST, Driving
from tests.histories.repair_schedules.lost_entries import lose_and_get_back
from tests.histories.repair_schedules.truth import accepted_losses, check_named, check_told, ended, holds, wanted_of

_GRACE_SECONDS = 10.0
_GRACE_SECONDS_MAX = 25.0
_RUN_ENTRIES_MAX = 10_000
_SPLITS_MAX = 60
"""More than the number of fragments that uncopied entries add to a record."""


class Kind(Enum):
    REPLACE = "replace"
    """Lost and misplaced bookies are replaced."""
    WIDEN = "widen"
    """A closed ledger gets the copies that it was made without."""
    FILL = "fill"
    """A bookie gets its missing entries of a ledger that is not in limbo."""
    HEAL = "heal"
    """A bookie's limbo is ended."""
    AUDIT = "audit"
    LOSE = "lose"
    """A bookie loses copies, and gets some of them back."""


def run(seed: int, kind: Kind) -> int:
    """Run a schedule. Raises ``Broken``, or a machine's error. Returns the number of entries."""
    random = Random(seed)
    if kind is Kind.LOSE:
        return lose_and_get_back(random)
    record = draw_ledger(random)
    if kind is Kind.AUDIT:
        audit(random, record)
        return ended(record)
    lac = ended(record) - 1 + (0 if record.closed else random.randrange(4))
    if kind in (Kind.HEAL, Kind.WIDEN) and not record.closed:
        record = record.close_at(lac, lac + 1)
    if kind is Kind.WIDEN:
        record = _with_few_copies(random, record)
    bookies = draw_bookies(random, record, lac + 1)
    driving = Driving(random, record, bookies, lac)
    if kind is Kind.REPLACE:
        _Replacing(random, record, bookies, driving).run()
    elif kind is Kind.WIDEN:
        _Widening(random, record, bookies, driving).run()
    else:
        _fill(random, record, bookies, driving, heals=kind is Kind.HEAL)
    return lac + 1


def _fill(random: Random, record: LedgerMetadata, bookies: dict[str, Bookie], driving: Driving, heals: bool) -> None:
    me = random.choice(record.bookies())
    bookie = bookies[me]
    bookie.held -= set(random.sample(sorted(bookie.held), random.randrange(len(bookie.held) + 1)))
    wanted = wanted_of(record, me, ended(record))
    missing = wanted - bookie.held
    driving.wanted = {me: missing}
    held = runs_of(sorted(bookie.held))

    def check(told: set[tuple[int, str]]) -> None:
        left = wanted - bookie.held
        holds({i for i, _ in told} >= left, "an entry is neither copied nor told")
        if driving.undisturbed:
            each = {(i, me): {me} for i in left}
            _check_all_was_tried(record, bookies, each, each)

    def other(action: Any) -> Any:
        match action:
            case ListHeld():
                return HeldListed(tuple(held))
            case ClearLimbo(lost=lost):
                found = {(i, me) for first, last in lost for i in range(first, last + 1)}
                holds({i for i, _ in found} <= missing, "an entry is noted as lost that nobody missed")
                check(found)
                for entry_id, _ in found:
                    others = set(record.write_set_of(entry_id)) - {me}
                    never = all(bookies[name].never_gives(entry_id) for name in others)
                    holds(never, "an entry is noted as lost that a bookie may have")
                return LimboIsCleared()
        raise AssertionError(action)

    if heals:
        healing = LedgerHealing(me, 1, _RUN_ENTRIES_MAX)
        if random.random() < 0.05:
            driving.run(healing.step, healing.step(STORE_LOST), other)
            return
        end = driving.run(healing.step, healing.step(MetadataRead(record, 3)), other)
    else:
        ends = _batch_ends(random, record)
        plan = lacks(record, me, held)
        copying = EntryCopying(record, plan, _RUN_ENTRIES_MAX, {me}, batch_ends=ends)
        end = driving.run(copying.step, copying.start(), other)
    match end:
        case Finish():
            holds(heals or wanted <= bookie.held, "a copying ended well, and entries are missing")
        case Fail(EntriesNotCopiedError(entries=entries)):
            check(check_told(entries, record, bookies, driving.wanted))
        case _:
            holds(not driving.undisturbed, "a repair fails for nothing")


def _batch_ends(random: Random, record: LedgerMetadata) -> list[int]:
    entries = ended(record)
    return sorted({random.randrange(entries) for _ in range(5)}) if entries and random.random() < 0.2 else []


def _check_all_was_tried(
    record: LedgerMetadata,
    bookies: dict[str, Bookie],
    left: dict[tuple[int, str], set[str]],
    tried: dict[tuple[int, str], set[str]],
) -> None:
    """Check that nothing ``left`` (an entry, a bookie without it, and its targets) could have been copied. A copy that the repair
    itself made of an entry is a source for the next repair only."""
    made: dict[int, set[str]] = {}
    for (entry_id, _), targets in tried.items():
        made.setdefault(entry_id, set()).update(targets)
    for (entry_id, without), targets in left.items():
        others = set(record.write_set_of(entry_id)) - {*targets, *made.get(entry_id, ()), without}
        could = all(bookies[name].takes(entry_id) for name in targets) and any(
            bookies[name].gives(entry_id) for name in others
        )
        holds(not could, "an entry was not copied that a bookie gives and its target takes")


def _with_few_copies(random: Random, record: LedgerMetadata) -> LedgerMetadata:
    """The ledger without striping, with a label that wants more copies."""
    copies = random.randint(max(1, record.ack_quorum), record.write_quorum)
    fragments = tuple(replace(one, ensemble=one.ensemble[:copies]) for one in record.fragments)
    wanted = str(copies + random.choice((1, 1, 1, 2))).encode()
    return replace(
        record,
        ensemble_size=copies,
        write_quorum=copies,
        fragments=fragments,
        accepted_loss=None,
        custom_metadata={WRITE_QUORUM_LABEL: wanted},
    )


class _Widening:
    """More copies for a ledger, while other clients change its record or do the same.

    Law: the record names a bookie more only if that bookie has all entries of the fragment, and changes nothing else."""

    def __init__(self, random: Random, record: LedgerMetadata, bookies: dict[str, Bookie], driving: Driving) -> None:
        self._random, self._record, self._bookies, self._driving = random, record, bookies, driving
        self._version, self._alone = 3, True
        self._tried: dict[int, set[str]] = {}
        self._trouble = random.choice((0.0, 0.0, 0.02, 0.3))
        self._spares = random.choice((0, 1, 2, 5))

    def run(self) -> None:
        machine = LedgerReplication((), _GRACE_SECONDS, _RUN_ENTRIES_MAX)
        actions = machine.step(MetadataRead(self._record, self._version))
        end = self._driving.run(machine.step, actions, self._other)
        match end:
            case Finish():
                holds(self._record.write_quorum == self._record.copies_wanted, "a ledger is left with few copies")
            case Fail() if self._alone and self._driving.undisturbed:
                possible = all(
                    any(self._bookies[name].gives(i) for name in self._record.write_set_of(i))
                    and all(self._bookies[name].takes(i) for name in tried)
                    for i, tried in self._tried.items()
                )
                holds(not possible, "a ledger did not get a copy that it could have")

    def _other(self, action: Any) -> Any:
        random = self._random
        match action:
            case ChooseBookies(ensemble, (nobody,)):
                return self._choose(ensemble, nobody)
            case ReadMetadata():
                return STORE_LOST if random.random() < self._trouble else MetadataRead(self._record, self._version)
            case WriteMetadata(metadata, version):
                if random.random() < self._trouble:
                    return STORE_LOST
                if random.random() < self._trouble or version != self._version:
                    self._others_change()
                    return MetadataConflict()
                self._check(metadata)
                self._record, self._version = metadata, version + 1
                self._tried.clear()
                return MetadataWritten(self._version)
        raise AssertionError(action)

    def _choose(self, ensemble: tuple[str, ...], nobody: str) -> Any:
        holds(nobody not in self._bookies, "a bookie is to be replaced")
        free = [name for name in self._bookies if name not in ensemble][: self._spares]
        if not free or self._random.random() < self._trouble:
            self._alone = False
            return NoBookies(NotEnoughBookiesError("too few"))
        target = self._random.choice(free)
        self._driving.begin_copying()
        ids = {i for i in range(ended(self._record)) if {*ensemble} - {nobody} == {*self._record.write_set_of(i)}}
        self._driving.wanted = {target: ids}
        for i in ids:
            self._tried.setdefault(i, set()).add(target)
        return BookiesChosen((target,))

    def _check(self, after: LedgerMetadata) -> None:
        before, copies = self._record, self._record.write_quorum + 1
        same = replace(
            after,
            fragments=before.fragments,
            ensemble_size=before.ensemble_size,
            write_quorum=before.write_quorum,
        )
        holds(same == before and after.ensemble_size == after.write_quorum == copies, "more than a copy was added")
        holds(before.is_same_ledger(after) and after.is_same_ledger(before), "a ledger with more copies is another one")
        for old, new in zip(before.fragments, after.fragments, strict=True):
            holds(new == replace(old, ensemble=new.ensemble) and new.ensemble[:-1] == old.ensemble, "other copies move")
        for i in range(ended(after)):
            (target,) = {*after.write_set_of(i)} - {*before.write_set_of(i)}
            holds(i in self._bookies[target].held, "a copy is named that is not there")

    def _others_change(self) -> None:
        """Another repair replaces a bookie, or makes the ledger as wide."""
        self._alone = False
        self._version += 1
        record, random = self._record, self._random
        free = [name for name in self._bookies if name not in record.bookies()]
        if not free or random.random() < 0.3:
            return
        target = random.choice(free)
        self._bookies[target].held.update(range(ended(record)))
        if record.lacks_copies and random.random() < 0.5:
            self._record = record.with_another_copy(target)
        else:
            fragment = random.choice(record.fragments)
            gone = random.choice(fragment.ensemble)
            self._record = record.re_replicated(fragment.first_entry_id, {gone: target})


class _Replacing:
    """Replacement of lost and misplaced bookies, while other clients change the record."""

    def __init__(self, random: Random, record: LedgerMetadata, bookies: dict[str, Bookie], driving: Driving) -> None:
        self._random, self._record, self._bookies, self._driving = random, record, bookies, driving
        self._version = 3
        names = record.bookies()
        self._lost = set(random.sample(names, random.choice((1, 1, 1, 2))))
        others = [name for name in names if name not in self._lost]
        self._misplaced = set(random.sample(others, random.choice((0, 0, min(1, len(others))))))
        for name in self._lost:
            bookies[name].silent = random.random() < 0.7
        self._tried: dict[tuple[int, str], set[str]] = {}
        """Targets of each entry in place of each bookie."""
        self._wanted: dict[str, set[int]] = {name: set() for name in bookies}
        """All entries due to each bookie."""
        self._alone = True
        """Whether no other client changed the record, and spare bookies sufficed."""
        self._noticed: Fragment | None = None
        self._waited = self._silent = self._living = 0.0
        """Seconds of the writer: in all, since its last sign, and up to its last sign if it gave one each time."""
        self._trouble = random.choice((0.0, 0.0, 0.02, 0.3))

    def run(self) -> None:
        replaced = self._lost | self._misplaced
        ends = _batch_ends(self._random, self._record)
        machine = LedgerReplication(
            self._lost,
            _GRACE_SECONDS,
            _RUN_ENTRIES_MAX,
            self._misplaced,
            batch_ends=ends,
            grace_seconds_max=_GRACE_SECONDS_MAX,
        )
        actions = machine.step(MetadataRead(self._record, self._version))
        end = self._driving.run(machine.step, actions, self._other, self._is_recovery)
        if end is None:
            return
        record = self._record
        left = {(i, name) for i in range(ended(record)) for name in set(record.write_set_of(i)) & replaced} - set(
            accepted_losses(record)
        )
        if isinstance(end, Finish):
            fragments = record.fragments if record.closed else record.fragments[:-1]
            named = {name for fragment in fragments for name in fragment.ensemble}
            holds(
                named.isdisjoint(replaced), "a repair ended well, and its record names a bookie that it was to replace"
            )
            holds(
                record.closed or self._lost.isdisjoint(record.last_fragment.ensemble),
                "a lost bookie was left to its writer",
            )
            return
        if not (self._driving.undisturbed and self._alone):
            return
        holds(isinstance(end.error, EntriesNotCopiedError), "a repair fails for nothing")
        assert isinstance(end.error, EntriesNotCopiedError)
        check_told(end.error.entries, record, self._bookies, self._wanted)
        if len(left) <= _SPLITS_MAX:
            told = {i for one in end.error.entries for i in range(one.first, one.last + 1)}
            holds({i for i, _ in left} <= told, "an entry is neither copied nor told")
            _check_all_was_tried(record, self._bookies, {one: self._tried.get(one, set()) for one in left}, self._tried)

    def _is_recovery(self, action: Any) -> bool:
        """Whether ledger recovery begins, which has its own schedules."""
        if not (
            isinstance(action, SendReadLac)
            or (isinstance(action, WriteMetadata) and action.metadata.state is not self._record.state)
        ):
            return False
        holds(not self._record.closed and self._noticed is not None, "a ledger is recovered that needs no recovery")
        holds(self._noticed == self._record.last_fragment, "a writer is fenced that replaced a bookie meanwhile")
        holds(
            self._silent >= _GRACE_SECONDS or self._waited >= _GRACE_SECONDS_MAX,
            "a writer is fenced before its grace is over",
        )
        return True

    def _other(self, action: Any) -> Any:
        random = self._random
        match action:
            case ChooseBookies(ensemble, replaced):
                return self._choose(ensemble, replaced)
            case ReadMetadata():
                return STORE_LOST if random.random() < self._trouble else MetadataRead(self._record, self._version)
            case WriteMetadata(metadata, version):
                if random.random() < self._trouble:
                    return STORE_LOST
                if random.random() < self._trouble:
                    self._unnamed_are_collected()
                if random.random() < self._trouble or version != self._version:
                    self._others_change()
                    return MetadataConflict()
                check_named(self._record, metadata, self._lost | self._misplaced, self._bookies)
                self._record, self._version = metadata, version + 1
                return MetadataWritten(self._version)
            case WaitForWriter():
                if self._noticed != self._record.last_fragment:
                    self._noticed, self._waited, self._silent, self._living = self._record.last_fragment, 0.0, 0.0, 0.0
                holds(self._living < _GRACE_SECONDS_MAX, "a stuck writer keeps its ledger")
                waited, lives = random.choice((0.0, _GRACE_SECONDS, 2 * _GRACE_SECONDS)), random.random() < 0.5
                is_open = self._record.state is LedgerState.OPEN
                self._waited += waited
                self._silent = 0.0 if lives and is_open else self._silent + waited
                self._living = self._living + waited if lives and is_open else 0.0
                self._writer_goes_on()
                return WriterWaitedFor(waited, lives)
        raise AssertionError(action)

    def _choose(self, ensemble: tuple[str, ...], replaced: tuple[str, ...]) -> Any:
        free = [name for name in self._bookies if name not in ensemble and name not in self._lost | self._misplaced]
        if len(free) < len(replaced) or self._random.random() < self._trouble:
            self._alone = False
            return NoBookies(NotEnoughBookiesError("too few"))
        chosen = tuple(self._random.sample(free, len(replaced)))
        self._driving.begin_copying()
        wanted: dict[str, set[int]] = {}
        accepted = set(accepted_losses(self._record))
        for i in range(ended(self._record)):
            if self._record.fragment_of(i).ensemble == ensemble:
                for name, target in zip(replaced, chosen, strict=True):
                    if name in self._record.write_set_of(i) and (i, name) not in accepted:
                        wanted.setdefault(target, set()).add(i)
                        self._tried.setdefault((i, name), set()).add(target)
        self._driving.wanted = wanted
        for target, ids in wanted.items():
            self._wanted[target] |= ids
        return BookiesChosen(chosen)

    def _others_change(self) -> None:
        """Another client writes the record: a label, or another repair of a bookie."""
        self._alone = False
        self._version += 1
        record, random = self._record, self._random
        at = random.randrange(len(record.fragments) if record.closed else len(record.fragments) - 1 or 1)
        fragment = record.fragments[at]
        if random.random() < 0.5 or not (record.closed or at < len(record.fragments) - 1) or record.accepted_loss:
            self._record = replace(record, custom_metadata={"by": str(self._version).encode()})
            return
        gone = random.choice(fragment.ensemble)
        free = [name for name in self._bookies if name not in fragment.ensemble]
        target = random.choice(free)
        last = next(end for one, end in record.fragment_ranges() if one is fragment) or 0
        ids = range(fragment.first_entry_id, last + 1)
        self._bookies[target].held.update(i for i in ids if gone in record.write_set_of(i))
        self._record = record.re_replicated(fragment.first_entry_id, {gone: target})

    def _unnamed_are_collected(self) -> None:
        """A bookie writes the record of a closed ledger, unchanged, and collects its copies that the record does not name."""
        if self._record.closed:
            self._alone = False
            self._version += 1
            name = self._random.choice(sorted(self._bookies))
            bookie = self._bookies[name]
            bookie.held -= {i for i in bookie.held if name not in self._record.write_set_of(i)}

    def _writer_goes_on(self) -> None:
        """The writer may replace any bookie meanwhile, or close the ledger."""
        record, random = self._record, self._random
        if record.closed or random.random() < 0.4:
            return
        self._alone = False
        self._version += 1
        if random.random() < 0.3:
            self._record = record.close_at(record.last_fragment.first_entry_id - 1, 1)
            return
        ensemble = record.last_fragment.ensemble
        gone = random.choice(ensemble)
        free = [name for name in self._bookies if name not in ensemble and name not in self._lost]
        after = tuple(random.choice(free) if name == gone else name for name in ensemble)
        self._record = record.with_ensemble(record.last_fragment.first_entry_id, after)
