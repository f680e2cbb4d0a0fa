"""A read of the LAC (last add confirmed), or a long poll for an entry.

Law of a read: it ends as soon as the bookies without a report cannot form an ack quorum, or one has reported and no more answers
are awaited; with the highest reported LAC. It fails if no bookie reported a LAC, and not before.

Law of a long poll: it ends as soon as it sees the entry confirmed or the ledger closed, or at its deadline, with the highest
reported LAC. Until then each bookie of the last ensemble has one request outstanding or has failed. It fails exactly when all of
them have failed since the last report, and the record names no others.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from bookspark.errors import MetadataStoreError, NoSuchLedgerError, ReadError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.protocol.reading.lac_read import LacRead
from bookspark.protocol.reading.lac_wait import LacWait
from tests.histories.read_schedules.bookies import Ail, answer, closed, draw, members
from tests.histories.read_schedules.misfits import another_ledgers, refuses
from tests.histories.repair_schedules.truth import holds

_STEPS_MAX = 400


def read_lac(random: Random) -> None:
    drawn = draw(random)
    record, ensemble = drawn.record, drawn.record.fragments[-1].ensemble
    machine = LacRead(record)
    actions = machine.start()
    holds(actions == [act.SendReadLac(name) for name in ensemble], "not each bookie is asked for its LAC")
    todo, told, answered, late = list(actions), set[str](), set[str](), False
    highest = record.fragments[-1].first_entry_id - 1
    while True:
        if random.random() < 0.1:
            refuses(machine, random.choice((act.LacAnswered("stranger", Positive(), 99), act.Start())))
        if random.random() < 0.1:
            late = True
            actions = machine.step(act.ReadIsLate())
        elif random.random() < 0.05:
            answered = set(ensemble)
            actions = machine.step(act.DeadlinePassed())
        else:
            holds(bool(todo), "a read of the LAC waits for ever")
            name = todo.pop(random.randrange(len(todo))).bookie
            event = answer(random, name, drawn.bookies[name], act.SendReadLac(name))
            answered.add(name)
            if not isinstance(event.response, Unknown):
                told.add(name)
                highest = max(highest, event.last_add_confirmed)
            actions = machine.step(event)
        others = set(ensemble) - told
        sets = [members(record, ensemble, i) for i in range(record.ensemble_size)]
        known = all(len(others.intersection(one)) < record.ack_quorum for one in sets)
        if known or (told and (late or len(answered) == len(ensemble))):
            holds(actions == [act.Finish(record)], "a read of the LAC goes on though it may end")
            holds(machine.last_add_confirmed == highest, "another LAC is told than the highest that was heard")
            break
        if len(answered) == len(ensemble):
            failed = len(actions) == 1 and isinstance(actions[0], act.Fail)
            holds(failed and isinstance(actions[0].error, ReadError), "a LAC is told that nobody told")
            break
        holds(not actions, "a read of the LAC ends though others may know more")
    holds(not machine.step(random.choice((act.DeadlinePassed(), act.ReadIsLate()))), "a read of the LAC ends twice")
    for asked in todo:
        event = answer(random, asked.bookie, drawn.bookies[asked.bookie], asked)
        holds(not machine.step(event), "a read of the LAC that has ended goes on")
        holds(machine.last_add_confirmed == highest, "a LAC that was told changes")


class Poll:
    """A long poll."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._drawn = drawn = draw(random)
        self._entry = max(0, drawn.confirmed + random.choice((-1, 0, 1, 1)))
        self._machine = LacWait(drawn.record, self._entry)
        self._record = drawn.record
        self._heard = -1
        self._asked_last: set[str] = set()
        """The last asked ensemble."""
        self._under_way: dict[str, int] = {}
        self._failed: set[str] = set()
        """Bookies that failed since the last report or join."""
        self._again: set[str] = set()
        """Bookies asked again after a failure, since then."""
        self._silent: dict[str, int] = {}
        self._todo: list[Any] = []
        self._looking = self._ended = False
        self._patience = random.choice((3, 10, 30))

    def run(self) -> None:
        new = self._learn(self._record)
        self._carry_out(self._machine.start(), looked=False, wanted=new)
        for _ in range(_STEPS_MAX):
            if self._ended:
                break
            holds(bool(self._todo), "a long poll waits for ever")
            self._something_happens()
        else:
            raise AssertionError("a long poll goes on for ever")
        heard = self._machine.last_add_confirmed
        holds(not self._machine.step(act.DeadlinePassed()), "a long poll ends twice")
        holds(not self._machine.step(act.MetadataRead(self._drawn.record, 9)), "a long poll ends twice")
        for asked in self._todo:
            if isinstance(asked, act.SendReadLac):
                event = self._answer(asked.bookie)
                holds(not self._machine.step(event), "a long poll that has ended goes on")
        holds(self._machine.last_add_confirmed == heard, "a LAC that was told changes")

    def _something_happens(self) -> None:
        random, machine = self._random, self._machine
        if random.random() < 0.1:
            self._others_change()
        if random.random() < 0.05:
            other = another_ledgers(random, self._drawn.record)
            strange = (act.LacAnswered("stranger", Positive(), 99), act.MetadataRead(other, 9), act.Start())
            refuses(machine, random.choice(strange))
        self._patience -= 1
        if not self._patience:
            actions = machine.step(act.DeadlinePassed())
            self._check_finish(actions)
        elif random.random() < 0.1:
            self._look(self._looking)
        else:
            asked = self._todo.pop(random.randrange(len(self._todo)))
            if isinstance(asked, act.ReadMetadata):
                if self._looking:
                    self._look(True)
            else:
                self._take(asked.bookie)

    def _take(self, name: str) -> None:
        self._under_way[name] -= 1
        event = self._answer(name)
        self._heard = max(self._heard, event.last_add_confirmed)
        member = name in self._record.fragments[-1].ensemble
        asks_again: list[str] = []
        if member and isinstance(event.response, Unknown):
            self._failed.add(name)
        elif member:
            self._failed.clear()
            self._again.clear()
            asks_again = [name]
        actions = self._machine.step(event)
        if self._heard >= self._entry:
            holds(self._machine.entries == event.entries, "another entry is handed over than the one that came")
        self._carry_out(actions, looked=False, wanted=asks_again)

    def _look(self, looking: bool) -> None:
        """The record is read: by the poll's request, or by the watch."""
        self._looking = False
        if looking and self._random.random() < 0.2:
            error = self._random.choice((MetadataStoreError, NoSuchLedgerError))("no answer in time")
            actions = self._machine.step(act.MetadataFailed(error))
            wanted = NoSuchLedgerError if isinstance(error, NoSuchLedgerError) else ReadError
            failed = len(actions) == 1 and isinstance(actions[0], act.Fail) and type(actions[0].error) is wanted
            holds(failed, "a long poll goes on though nobody tells and nobody knows who else might")
            self._ended = True
            return
        new = self._learn(self._drawn.record)
        actions = self._machine.step(act.MetadataRead(self._drawn.record, 4))
        self._carry_out(actions, looked=looking, wanted=new)

    def _learn(self, record: LedgerMetadata) -> list[str]:
        """Update the record. Returns the new bookies."""
        self._record = record
        last = record.fragments[-1]
        self._heard = max(self._heard, record.last_entry_id if record.closed else last.first_entry_id - 1)
        new = [name for name in last.ensemble if name not in self._asked_last]
        self._asked_last = set(last.ensemble)
        self._failed = set() if new else self._failed & self._asked_last
        self._again = set() if new else self._again
        return new

    def _carry_out(self, actions: list[Any], looked: bool, wanted: list[str] | None = None) -> None:
        ensemble = self._record.fragments[-1].ensemble
        if self._record.closed or self._heard >= self._entry:
            self._check_finish(actions)
            return
        if any(isinstance(one, act.Fail) for one in actions):
            holds(len(actions) == 1 and type(actions[0].error) is ReadError, "a long poll fails for something else")
            holds(looked and self._failed >= set(ensemble), "a long poll fails though somebody may tell")
            self._ended = True
            return
        nobody = looked and not wanted and self._failed >= set(ensemble)
        holds(not nobody, "a long poll goes on though nobody tells and there are no others")
        asked = [one.bookie for one in actions if isinstance(one, act.SendReadLac)]
        holds(set(asked) >= set(wanted or ()), "a bookie is not asked that told, or is new")
        for one in actions:
            match one:
                case act.SendReadLac():
                    holds(one == act.SendReadLac(one.bookie, wait_for=self._entry), "another question is asked")
                    holds(one.bookie in ensemble, "one is asked who is not in the ensemble")
                    again = one.bookie in (wanted or ()) or not self._under_way.get(one.bookie)
                    holds(again, "one is asked who has not answered")
                    vain = one.bookie in self._again and one.bookie not in (wanted or ())
                    holds(not vain, "one that failed is asked on and on, and nobody looks for others")
                    self._again |= {one.bookie} - set(wanted or ())
                    self._under_way[one.bookie] = self._under_way.get(one.bookie, 0) + 1
                case act.ReadMetadata():
                    holds(self._failed >= set(ensemble), "a long poll looks for others though not all failed")
                    self._looking = True
                case _:
                    holds(False, f"a long poll does what it need not; {one}")
        self._todo += actions
        if not self._looking:
            under_way = {name for name in ensemble if self._under_way.get(name)}
            holds(bool(under_way), "a long poll waits for nobody")

    def _check_finish(self, actions: list[Any]) -> None:
        holds(actions == [act.Finish(self._record)], "a long poll does not end though it has to")
        holds(self._machine.last_add_confirmed == self._heard, "another LAC is told than the highest that was heard")
        self._ended = True

    def _answer(self, name: str) -> act.LacAnswered:
        """A bookie fails several times, and then recovers."""
        bookie = self._drawn.bookies[name]
        if self._silent.setdefault(name, self._random.choice((0, 0, 1, 2, 3))):
            self._silent[name] -= 1
            return act.LacAnswered(name, Unknown(UnknownReason.TIMEOUT))
        found = answer(self._random, name, bookie, act.SendReadLac(name))
        if isinstance(found.response, Positive) and found.last_add_confirmed >= self._entry and bookie.ail is Ail.WELL:
            found = replace(found, entries=("came", name))
        return found  # type: ignore[no-any-return]

    def _others_change(self) -> None:
        drawn, random = self._drawn, self._random
        if drawn.record.closed:
            return
        if random.random() < 0.1:
            drawn.record = closed(drawn)
        elif random.random() < 0.5:
            drawn.confirmed += 1
            for name in members(drawn.record, drawn.record.fragments[-1].ensemble, drawn.confirmed):
                drawn.bookies[name].held.add(drawn.confirmed)
                drawn.bookies[name].last_add_confirmed = drawn.confirmed - random.choice((0, 1))
        else:
            last = drawn.record.fragments[-1]
            gone = random.choice(last.ensemble)
            others = [name for name in drawn.bookies if name not in last.ensemble]
            back = [name for name in drawn.record.bookies() if name in others]
            new = random.choice(back if back and random.random() < 0.5 else others)
            ensemble = tuple(new if name == gone else name for name in last.ensemble)
            after = drawn.confirmed + 1
            before = tuple(one for one in drawn.record.fragments if one.first_entry_id < after)
            drawn.record = replace(drawn.record, fragments=(*before, Fragment(after, ensemble)))
