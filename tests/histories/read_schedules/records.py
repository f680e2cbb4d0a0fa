"""Changes of a ledger's record, and the sync cursor of a bookie, each against a twin kept id by id.

Law of a record: write sets follow from the fragments alone; a change does exactly what was requested, and no other ledger's
record counts as a version of it. Law of a cursor: it stands before the first unsynced id of its assignment, at every interleaving
of syncs, boots and new assignments.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.ledger.sync_cursor import Assignment, SyncCursor, assignment
from tests.histories.read_schedules.bookies import draw, ensemble_of, length_of, members
from tests.histories.read_schedules.misfits import another_ledgers
from tests.histories.repair_schedules.truth import holds

_IDS = 24


def change_record(random: Random) -> None:
    drawn = draw(random)
    record = drawn.record
    for _ in range(random.randrange(6)):
        _check_record(random, record)
        before = record
        if record.closed:
            return
        step = random.random()
        if step < 0.2:
            record = record.in_recovery()
            holds(record == replace(before, state=LedgerState.IN_RECOVERY), "a recovery changes more than the state")
        elif step < 0.3:
            last = random.randrange(record.fragments[-1].first_entry_id - 1, _IDS)
            record = record.close_at(last, length_of(last))
            kept = tuple(one for one in before.fragments if one.first_entry_id <= max(last, 0))
            plain = replace(
                before, state=LedgerState.CLOSED, last_entry_id=last, length=length_of(last), fragments=kept
            )
            holds(record == plain, "a ledger is closed otherwise than it was asked for")
        else:
            first = record.fragments[-1].first_entry_id + random.choice((0, 0, 1, 5))
            ensemble = tuple(random.sample(sorted(drawn.bookies), record.ensemble_size))
            record = record.with_ensemble(first, ensemble)
            kept = tuple(one for one in before.fragments if one.first_entry_id < first)
            changed = replace(before, fragments=(*kept, Fragment(first, ensemble)))
            holds(record == changed, "an ensemble changes otherwise than it was asked for")
        holds(before.is_same_ledger(record), "a ledger's next record counts as another ledger's")


def _check_record(random: Random, record: LedgerMetadata) -> None:
    names = {name for one in record.fragments for name in one.ensemble}
    holds(record.bookies() == sorted(names), "a record names other bookies")
    for entry_id in range(_IDS):
        ensemble = ensemble_of(record, entry_id)
        holds(record.fragment_of(entry_id).ensemble == ensemble, "an entry is of another fragment")
        plain = tuple(members(record, ensemble, entry_id))
        holds(record.write_set_of(entry_id) == plain, "an entry has another write set")
    starts = [*(one.first_entry_id for one in record.fragments), None]
    ends = [None if start is None else start - 1 for start in starts[1:]]
    ends[-1] = record.last_entry_id if record.closed else None
    told = list(record.fragment_ranges())
    holds(told == list(zip(record.fragments, ends, strict=True)), "a fragment ends at another entry")
    holds(not record.is_same_ledger(another_ledgers(random, record)), "another ledger's record counts as this one's")


class Cursor:
    """A sync cursor, and its expected value."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._synced: set[int] = set()
        self._cursor = SyncCursor()
        self._assigned: Assignment | None = None
        self._sizes = random.choice(((1, 1), (2, 2), (3, 2), (3, 1), (5, 3), (5, 2)))

    def run(self) -> None:
        random = self._random
        for _ in range(random.randrange(40)):
            step = random.random()
            if step < 0.6:
                first = random.randrange(_IDS)
                last = first + random.choice((0, 0, 0, 1, 2, 7))
                self._synced |= set(range(first, last + 1))
                self._cursor.synced(first, last)
            elif step < 0.85:
                self._assign(random)
            elif step < 0.95:
                self._cursor = self._cursor.copy()
            else:
                self._boot()
            self._check()

    def _assign(self, random: Random) -> None:
        ensemble, write_quorum = self._sizes
        first = random.choice((0, 0, random.randrange(_IDS)))
        position = random.randrange(ensemble)
        new, plain = (
            assignment(first, ensemble, write_quorum, position),
            Assignment(first, ensemble, write_quorum, position),
        )
        same = all(_assigned_to(new, i) == _assigned_to(plain, i) for i in range(9))
        holds(same, "other ids are assigned than those of the position")
        holds(ensemble > write_quorum or new == Assignment(first), "an assignment depends on the position for nothing")
        old = self._assigned
        again = self._cursor.assign(new)
        if old is not None and new.first_entry_id < old.first_entry_id:
            holds(not again, "a cursor starts again for an assignment that is over")
            return
        self._assigned = new
        holds(
            again == (old is not None and new[1:] != old[1:]),
            "a cursor goes on over ids of another stay, or not its own",
        )
        if again:
            for entry_id in sorted(self._synced):
                self._cursor.synced(entry_id, entry_id)

    def _boot(self) -> None:
        """A new process loads the synced entries from disk, in any order."""
        found = [(entry_id, entry_id) for entry_id in self._synced]
        self._random.shuffle(found)
        self._cursor, self._assigned = SyncCursor(found), None

    def _check(self) -> None:
        mine = self._assigned
        if mine is None:
            holds(self._cursor.last_add_synced == -1, "a cursor without an assignment says that something is synced")
            return
        at = mine.first_entry_id
        while at in self._synced or not _assigned_to(mine, at):
            at += 1
        holds(self._cursor.last_add_synced == at - 1, "a cursor stands elsewhere than before the first that is missing")
        holds(self._cursor.last_add_synced_for(mine) == at - 1, "another cursor is told")
        other = mine._replace(first_entry_id=mine.first_entry_id + 1)
        holds(self._cursor.last_add_synced_for(other) == -1, "a cursor is told for another assignment")


def _assigned_to(mine: Assignment, entry_id: int) -> bool:
    return mine.position in [(entry_id + i) % mine.ensemble_size for i in range(mine.write_quorum)]
