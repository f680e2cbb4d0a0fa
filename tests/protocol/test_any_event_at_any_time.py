"""Any event at any time: each machine runs a plausible course and gets random events at random points.

Law: ``step`` returns actions, or raises IllegalEventError or, where the table says REFUSED, the user's error; an error changes
nothing. A machine raises nothing else. Further laws:

* an outcome (Finish, Fail) is reported at most once;
* cursors never go back, and released ≤ LAC (last add confirmed) ≤ acknowledged ≤ pushed;
* a PD (persistent durability) writer confirms exactly the entries that an ack quorum of the write set acknowledged;
* a machine that gets true answers gives true answers: confirmed entries are synced on an ack quorum, delivered entries are the
  written ones, a recovered ledger ends at its last entry;
* a CLOSED writer has nothing pending;
* a machine that has not ended waits for an answer that it requested.

More courses than the gate has time for, from other seeds::

    BOOKSPARK_ANY_EVENT_COURSES=20000 BOOKSPARK_ANY_EVENT_SEED=1 pytest tests/protocol/test_any_event_at_any_time.py
"""

from __future__ import annotations

import os
import random
from dataclasses import fields, replace
from typing import ClassVar

import pytest

from bookspark.errors import (
    BookKeeperError,
    LedgerClosedError,
    MetadataStoreError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bookspark.lab.simulation.values import clone, freeze
from bookspark.protocol.bookie import lease
from bookspark.protocol.bookie.lease import Lease, LeaseState
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState, LedgerType, Replication
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.protocol.ledger.transitions import IllegalEventError
from bookspark.protocol.reading.lac_read import LacRead
from bookspark.protocol.reading.lac_wait import LacWait
from bookspark.protocol.reading.range_read import RangeRead
from bookspark.protocol.reading.read_order import ReadOrder
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.repair.bookie_healing import ClearLimbo, HeldListed, LedgerHealing, LimboIsCleared, ListHeld
from bookspark.protocol.repair.entry_copying import EntryCopying
from bookspark.protocol.repair.ledger_replication import LedgerReplication, WaitForWriter, WriterWaitedFor
from bookspark.protocol.repair.replication_plan import Copy
from bookspark.protocol.writing import writer_events as ev
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer import LedgerWriter, State
from tests.protocol.ledger_pair import Bookie, answer_to
from tests.protocol.ledgers import metadata

COURSES = int(os.environ.get("BOOKSPARK_ANY_EVENT_COURSES", "30"))
SEED = int(os.environ.get("BOOKSPARK_ANY_EVENT_SEED", "0"))
STEPS_MAX = 150

QUORUMS = ((1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 3, 3), (3, 2, 2), (3, 2, 1), (4, 2, 2))
BOOKIES = tuple(f"b{i}" for i in range(1, 9))
NUMBERS = (-(10**12), -7, -2, -1, 0, 0, 1, 1, 2, 3, 5, 9, 10, 1000, 10**12)
GONE = MetadataStoreError("no answer in time")
ERRORS = (GONE, NoSuchLedgerError("ledger 7 is gone"), BookKeeperError("something else"))


# -- arbitrary content


class Anything:
    """Events of all types, with arbitrary content."""

    def __init__(self, rng):
        self.rng = rng

    def number(self):
        return self.rng.choice(NUMBERS)

    def bookie(self):
        return self.rng.choice((*BOOKIES, "b99", ""))

    def response(self):
        reason = self.rng.choice(list(UnknownReason))
        negative = Negative(self.rng.choice(list(NegativeReason)))
        return self.rng.choice((Positive(), Positive(), negative, Unknown(reason), Unknown(reason)))

    def report(self):
        shape = self.rng.choice(((1, 1, 0), (3, 2, 0), (3, 2, 2), (4, 2, 1)))
        report = act.SyncReport(self.number(), self.number(), Assignment(self.number(), *shape))
        return self.rng.choice((None, report))

    def record(self):
        """A record of this ledger or another, in any state."""
        rng = self.rng
        e, wq, aq = rng.choice(QUORUMS)
        starts = sorted({0, *(rng.randrange(12) for _ in range(rng.randrange(3)))})
        fragments = tuple(Fragment(start, tuple(rng.sample(BOOKIES, e))) for start in starts)
        if rng.random() < 0.5:
            fragments = (Fragment(0, BOOKIES[:e]), *fragments[1:])
        state = rng.choice(list(LedgerState))
        end = rng.randrange(-1, 12) if state is LedgerState.CLOSED else -1
        ledger_type, replication = rng.choice(list(LedgerType)), rng.choice(list(Replication))
        made = metadata(
            e, wq, aq, state, fragments, last_entry_id=end, length=10, ledger_type=ledger_type, replication=replication
        )
        return replace(made, ledger_id=rng.choice((7, 7, 8)))

    def ranges(self):
        return tuple((self.number(), self.number()) for _ in range(self.rng.randrange(3)))

    def ahead(self):
        return tuple((self.number(), "an entry") for _ in range(self.rng.choice((0, 0, 0, 1, 2))))

    def event(self):
        rng, number, bookie = self.rng, self.number, self.bookie
        return rng.choice(
            (
                # Longer runs are legal, but this test counts the acks of each id.
                lambda: ev.Append(min(number(), 10), number()),
                ev.Close,
                lambda: ev.Abandon(rng.choice(ERRORS)),
                ev.Sync,
                ev.TellLac,
                lambda: ev.Idle(float(number()), float(number())),
                lambda: ev.ExplicitLacAnswered(bookie(), self.response(), float(number())),
                lambda: ev.BookieBack(bookie(), number()),
                ev.BookiesChanged,
                lambda: ev.PassedOver(bookie()),
                lambda: ev.HeldUp(tuple(bookie() for _ in range(rng.randrange(4)))),
                lambda: ev.BookiesLost(tuple(bookie() for _ in range(rng.randrange(4)))),
                act.Start,
                lambda: act.MetadataRead(self.record(), number()),
                lambda: act.MetadataWritten(number()),
                act.MetadataConflict,
                lambda: act.RecordFull(rng.choice(ERRORS)),
                lambda: act.MetadataFailed(rng.choice(ERRORS)),
                lambda: act.AddAnswered(bookie(), number(), number(), self.response(), self.report()),
                lambda: act.SyncAnswered(bookie(), self.response(), self.report()),
                lambda: act.BookiesChosen(tuple(bookie() for _ in range(rng.randrange(4)))),
                lambda: act.NoBookies(rng.choice(ERRORS)),
                lambda: act.ReadAnswered(
                    bookie(), number(), number(), self.response(), "entries", number(), self.ahead()
                ),
                lambda: act.ReadIsLate(number()),
                lambda: act.LacAnswered(bookie(), self.response(), number(), number(), rng.choice((None, "an entry"))),
                lambda: act.HeldAnswered(bookie(), number(), number(), self.response()),
                act.DeadlinePassed,
                lambda: HeldListed(self.ranges()),
                LimboIsCleared,
                lambda: WriterWaitedFor(float(number())),
                lambda: lease.Claim(number(), "somebody"),
                lambda: lease.Drop(number()),
                lambda: lease.Stop("why"),
                lease.Tick,
                object,
            )
        )()

    _BY_FIELD: ClassVar = {
        "bookie": bookie,
        "response": response,
        "following": response,
        "synced": report,
        "metadata": record,
        "ahead": ahead,
        "ranges": ranges,
        "bookies": lambda self: tuple(self.bookie() for _ in range(self.rng.randrange(4))),
        "error": lambda self: self.rng.choice(ERRORS),
    }

    def changed(self, event):
        """``event`` with one or two fields changed."""
        names = [field.name for field in fields(event) if field.name not in ("holder", "why", "entries")]
        for name in self.rng.sample(names, min(len(names), self.rng.choice((1, 1, 2)))):
            value = getattr(event, name)
            near = isinstance(value, int | float) and self.rng.random() < 0.6
            new = value + self.rng.choice((-2, -1, 1, 2)) if near else self._BY_FIELD.get(name, Anything.number)(self)
            if isinstance(value, act.SyncReport) and self.rng.random() < 0.7:
                new = replace(value, **{self.rng.choice(("last_add_synced", "incarnation")): self.number()})
            event = replace(event, **{name: new})
        return event


# -- the course of a machine


class Course:
    """A machine with its open requests. Bookies and the metadata store act when the answer is drawn; it may arrive late, twice
    or never."""

    def __init__(self, rng, machine, store, bookies=None, recovery=True):
        self.rng = rng
        self.anything = Anything(rng)
        self.machine = machine
        self.store = store
        self.bookies = bookies if bookies is not None else {name: Bookie(name) for name in BOOKIES}
        self.recovery = recovery
        self.asked = []
        """Functions that each make the answer to a request."""
        self.under_way = []
        self.heard = []
        """Accepted events, to be repeated later."""
        self.plausible = rng.random() < 0.5
        self.trouble = rng.choice((0.0, 0.02, 0.2))
        """Failure rate of a bookie."""
        self.outcomes = 0
        self.taken = self.refused = 0

    def step(self, event):
        """Returns whether the machine accepted the event."""
        before = freeze(self.machine)
        try:
            actions = self.give(event)
        except IllegalEventError:
            self.refused += 1
            assert freeze(self.machine) == before, f"{event} was refused, and changed something"
            return False
        except LedgerClosedError:
            assert isinstance(event, ev.Append) and self.machine.state is not State.OPEN
            assert freeze(self.machine) == before
            return False
        assert isinstance(actions, list)
        self.taken += 1
        self.took(event, actions)
        for action in actions:
            self.do(action)
        self.check()
        return True

    def give(self, event):
        return self.machine.step(event)

    def took(self, event, actions):
        pass

    def check(self):
        assert self.outcomes <= 1
        assert self.outcomes == 0 or self.ended
        if not self.ended and not self.at_rest:
            assert self.asked or self.under_way or self.misled, f"{self.machine.phase} waits for nothing"

    @property
    def ended(self):
        return self.machine.phase.name == "DONE"

    at_rest = False
    """Whether the machine waits for its user."""
    misled = False
    """Whether the machine got a false answer; it may then wait for the true one."""

    def ask(self, answer, bookie=None):
        self.asked.append((bookie, answer))

    def do(self, action):
        match action:
            case act.SendAdd() | act.SendSync():
                assert len(set(action.bookies)) == len(action.bookies)
                for bookie in action.bookies:
                    self.ask(lambda bookie=bookie: self.of_bookie(bookie, action), bookie)
            case act.SendRead() | act.SendReadLac() | act.SendListHeld():
                self.ask(lambda: self.of_bookie(action.bookie, action))
            case act.SendLac():
                for bookie in action.bookies:
                    response = self.rng.choice((Positive(), self.anything.response()))
                    self.ask(lambda bookie=bookie, r=response: ev.ExplicitLacAnswered(bookie, r, 1.0))
            case act.ReadMetadata():
                self.ask(self.of_store)
            case act.WriteMetadata():
                self.ask(lambda: self.written(action))
            case act.ChooseBookies():
                self.ask(lambda: self.chosen(action))
            case act.Finish() | act.Fail():
                self.outcomes += 1
            case ListHeld():
                held = sorted(i for i in self.bookies["b1"].entries if self.rng.random() < 0.5)
                self.ask(lambda: HeldListed(tuple((i, i) for i in held)))
            case ClearLimbo():
                self.ask(LimboIsCleared)
            case WaitForWriter():
                self.ask(lambda: WriterWaitedFor(action.grace_seconds))

    # -- answers

    def of_bookie(self, bookie, request):
        chance = self.rng.random()
        if self.misled:
            return answer_to(bookie, request, self.anything.response())
        if chance < self.trouble or bookie not in self.bookies:
            reasons = [r for r in UnknownReason if r not in (UnknownReason.FENCED, UnknownReason.UNAUTHORIZED)]
            return answer_to(bookie, request, Unknown(self.rng.choice(reasons)))
        answer = self.bookies[bookie].take(request, self.recovery)
        if chance > 1 - self.trouble / 2:
            return answer_to(bookie, request, Unknown(UnknownReason.TIMEOUT))
        return answer

    def of_store(self):
        return act.MetadataFailed(GONE) if self.rng.random() < 0.1 else act.MetadataRead(*self.store)

    def written(self, write):
        chance = self.rng.random()
        if chance < 0.1:
            self.store = (self.store[0], self.store[1] + 1)  # another client's write that changed nothing relevant
        if chance < 0.15:
            return act.MetadataFailed(GONE)
        if write.version != self.store[1]:
            return act.MetadataConflict()
        if chance < 0.17:
            return act.RecordFull(self.rng.choice(ERRORS))
        self.store = (write.metadata, self.store[1] + 1)
        return act.MetadataFailed(GONE) if chance < 0.2 else act.MetadataWritten(self.store[1])

    def chosen(self, choice):
        spares = [name for name in BOOKIES if name not in choice.ensemble]
        if len(spares) < len(choice.replaced) or self.rng.random() < 0.15:
            return act.NoBookies(self.rng.choice(ERRORS))
        return act.BookiesChosen(tuple(self.rng.sample(spares, len(choice.replaced))))

    # -- a move

    def draws_answer(self):
        _, answer = self.asked.pop(self.rng.randrange(len(self.asked)))
        self.under_way.append(answer())

    def answers(self):
        at = self.rng.randrange(len(self.under_way))
        event = self.under_way.pop(at)
        self.heard.append(event)
        assert self.step(event) or self.misled, f"the answer {event} was refused"

    def user_event(self):
        return act.DeadlinePassed() if self.rng.random() < 0.02 else None

    def move(self):
        rng = self.rng
        chance = rng.random()
        if chance < 0.3:
            self.disturb()
        elif chance < 0.5 and (event := self.user_event()) is not None:
            self.step(event)
        elif self.under_way and (chance < 0.8 or not self.asked):
            self.answers()
        elif self.asked:
            self.draws_answer()

    def strange_event(self):
        near = [*self.under_way, *self.heard[-6:]]
        if near and self.rng.random() < 0.7:
            event = self.rng.choice(near)
            return event if self.rng.random() < 0.3 else self.anything.changed(event)
        return self.anything.event()

    def disturb(self):
        """An arbitrary event, given to a copy of the machine if the course is to stay plausible."""
        event = self.strange_event()
        if self.plausible or self.rng.random() < 0.8:
            self.on_a_copy(event)
            return
        misled, self.misled = self.misled, True
        self.misled = self.step(event) or misled

    def on_a_copy(self, event):
        kept = dict(vars(self))
        self.machine = clone(self.machine)
        for name in ("asked", "under_way", "heard"):
            setattr(self, name, list(kept[name]))
        self.misled = True
        self.fork()
        counted = self.step(event)
        for _ in range(3):
            if counted and self.rng.random() < 0.5:
                counted = self.step(self.strange_event())
        taken, refused = self.taken, self.refused
        vars(self).clear()
        vars(self).update(kept)
        self.taken, self.refused = taken, refused

    def fork(self):
        pass

    def run(self):
        after_the_end = 15
        for _ in range(STEPS_MAX):
            self.move()
            after_the_end -= self.ended
            if not after_the_end:
                return


# -- the machines


class Monotone:
    """Cursors that never go back."""

    def __init__(self):
        self.highest = {}

    def check(self, **cursors):
        for name, value in cursors.items():
            assert value >= self.highest.get(name, value), f"{name} went back to {value}"
            self.highest[name] = value


class WriterCourse(Course):
    """Course of a writer of a ``volatile`` or ``guaranteed`` ledger."""

    at_rest = True

    def __init__(self, rng, volatile, guaranteed, striped):
        e, wq, aq = rng.choice([q for q in QUORUMS if (q[0] > q[1]) is striped and (q[1] > 1 or not guaranteed)])
        created = metadata(
            e,
            wq,
            aq,
            ledger_type=LedgerType.VD_JOURNAL if volatile else LedgerType.PD_JOURNAL,
            replication=Replication.GUARANTEED if guaranteed else Replication.BEST_EFFORT,
        )
        machine = LedgerWriter(created, 0, rng.choice(list(ChangeMode)), 25, explicit_lac_interval_seconds=1.0)
        super().__init__(rng, machine, (created, 0), recovery=False)
        self.acks = set()
        """(bookie, entry id) acknowledged while the bookie was in the entry's write set."""
        self.cursors = Monotone()
        self.confirmed = self.released = -1

    def fork(self):
        self.acks = set(self.acks)
        highest, self.cursors = self.cursors.highest, Monotone()
        self.cursors.highest = dict(highest)

    @property
    def ended(self):
        return self.machine.ended

    def user_event(self):
        rng, m = self.rng, self.machine
        bookie = rng.choice((*self.machine.metadata.last_fragment.ensemble, *BOOKIES))
        chance = rng.random()
        if chance < 0.35:
            count = rng.choice((1, 1, 3)) if m.metadata.ensemble_size == m.metadata.write_quorum else 1
            return ev.Append(count, rng.choice((0, 1, 10)))
        if chance < 0.35 + self.trouble:
            return self.back(bookie)
        if chance > 0.97 and m.state is State.OPEN:
            return ev.Close()
        if chance > 0.965:
            return rng.choice((act.DeadlinePassed(), ev.Abandon(GONE)))
        return rng.choice(
            (ev.Sync(), ev.TellLac(), ev.Idle(1.0, 9.0), ev.BookiesChanged(), ev.PassedOver(bookie), ev.Append(1, 1))
        )

    def back(self, bookie):
        """A new connection to the bookie, perhaps after a restart: answers of the earlier connection are lost."""
        self.asked = [(b, answer) for b, answer in self.asked if b != bookie]
        self.under_way = [event for event in self.under_way if getattr(event, "bookie", None) != bookie]
        if self.rng.random() < 2 * self.trouble and not self.misled:
            self.bookies[bookie].crash()
        return ev.BookieBack(bookie, self.bookies[bookie].incarnation)

    def took(self, event, actions):
        m = self.machine.metadata
        if isinstance(event, act.AddAnswered) and isinstance(event.response, Positive):
            ids = range(max(event.first, 0), min(event.last, self.machine.cursors.last_add_pushed) + 1)
            self.acks |= {(event.bookie, i) for i in ids}
        for action in actions:
            if isinstance(action, act.EnsembleChanged):
                # Acks of an earlier stay do not count.
                joined = set(m.last_fragment.ensemble) - set(self.ensemble)
                self.acks = {(b, i) for b, i in self.acks if b not in joined}
        if m.ledger_type is LedgerType.PD_JOURNAL:
            cursors = self.machine.cursors
            for name, cursor, copies in (
                ("confirmed", cursors.last_add_confirmed, m.ack_quorum),
                ("released", cursors.last_add_fully_replicated, m.write_quorum),
            ):
                for entry_id in range(getattr(self, name) + 1, cursor + 1):
                    acked = [b for b in m.write_set_of(entry_id) if (b, entry_id) in self.acks]
                    assert len(acked) >= copies, f"entry {entry_id} is {name} with {acked} of {copies}"
                setattr(self, name, max(getattr(self, name), cursor))
        self.ensemble = m.last_fragment.ensemble

    ensemble = BOOKIES

    def check(self):
        super().check()
        writer, cursors = self.machine, self.machine.cursors
        self.cursors.check(
            lac=cursors.last_add_confirmed,
            lafr=cursors.last_add_fully_replicated,
            acknowledged=cursors.last_add_acknowledged,
            pushed=cursors.last_add_pushed,
            released=cursors.released,
            length=cursors.length,
            pushed_length=cursors.pushed_length,
        )
        order = cursors.released, cursors.last_add_confirmed, cursors.last_add_acknowledged, cursors.last_add_pushed
        assert list(order) == sorted(order)
        assert cursors.length >= 0
        if writer.state in (State.CLOSED, State.WRITING):
            assert not cursors.pending
        if writer.state is State.WRITING:
            assert writer.asked.name.startswith("CLOSE_")
        if writer.state is State.CLOSED:
            assert (writer.metadata.last_entry_id, writer.metadata.length) == (
                cursors.last_add_confirmed,
                cursors.length,
            )
        assert all(add.acks <= set(add.bookies) for add in cursors.pending.values())
        if not self.misled:
            self.check_copies(cursors.last_add_confirmed, writer.metadata.ack_quorum)
            self.check_copies(cursors.last_add_fully_replicated, writer.metadata.write_quorum)
        assert writer.ended == (self.outcomes == 1)

    def check_copies(self, last, copies):
        """Check the copies that bookies have really synced."""
        for entry_id in range(last + 1):
            write_set = self.machine.metadata.write_set_of(entry_id)
            holders = [b for b in write_set if entry_id in self.bookies[b].synced]
            assert len(holders) >= copies, f"entry {entry_id} is synced on {holders} of {write_set} only"


def written(rng, state):
    """A ledger with up to 8 entries, its bookies, and its last entry id."""
    e, wq, aq = rng.choice(QUORUMS)
    fragments = [Fragment(0, BOOKIES[:e])]
    if rng.random() < 0.3:
        fragments.append(Fragment(rng.randrange(1, 5), tuple(rng.sample(BOOKIES, e))))
    replication = rng.choice(list(Replication)) if wq > 1 else Replication.BEST_EFFORT
    opened = metadata(e, wq, aq, fragments=tuple(fragments), replication=replication)
    bookies = {name: Bookie(name) for name in BOOKIES}
    last = rng.randrange(fragments[-1].first_entry_id - 1, 8)
    for entry_id in range(last + 1):
        for bookie in rng.sample(opened.write_set_of(entry_id), rng.randrange(aq, wq + 1)):
            bookies[bookie].take(act.SendAdd((bookie,), entry_id, entry_id, entry_id - 1), False)
    match state:
        case LedgerState.CLOSED:
            return opened.close_at(last, 10 * (last + 1)), bookies, last
        case LedgerState.IN_RECOVERY:
            return opened.in_recovery(), bookies, last
    return opened, bookies, last


class OtherCourse(Course):
    """Course of a machine made by ``make(metadata, rng)`` that begins with Start or with the record."""

    def __init__(self, rng, make, states=tuple(LedgerState)):
        record, bookies, self.last = written(rng, rng.choice(states))
        super().__init__(rng, make(record, rng), (record, 3), bookies)
        self.delivered = -1
        self.cursors = Monotone()

    def fork(self):
        highest, self.cursors = self.cursors.highest, Monotone()
        self.cursors.highest = dict(highest)

    @property
    def at_rest(self):
        return self.machine.phase.name == "NEW"

    def user_event(self):
        if self.at_rest:
            starts = isinstance(self.machine, RangeRead | LacRead | LacWait | EntryCopying)
            return act.Start() if starts else act.MetadataRead(*self.store)
        chance = self.rng.random()
        if chance < 0.3 and isinstance(self.machine, LacWait):
            return act.MetadataRead(*self.store)
        if chance < 0.3 and isinstance(self.machine, RangeRead):
            return act.ReadIsLate(self.machine.next_entry_id)
        if chance < 0.1 and isinstance(self.machine, LacRead):
            return act.ReadIsLate()
        return act.DeadlinePassed() if chance > 0.99 else None

    def took(self, event, actions):
        for action in actions:
            if isinstance(action, act.Deliver) and isinstance(self.machine, RangeRead):
                assert action.first == self.delivered + 1 and action.last >= action.first
                self.delivered = action.last
            if not self.misled:
                self.check_truth(action)

    def check_truth(self, action):
        """Check that outcomes and writes of the machine agree with the entries on bookies."""
        match action:
            case act.Deliver() if isinstance(action.entries, list):
                ids = range(action.first, action.last + 1)
                assert action.entries == [f"e{i}" for i in ids]
            case act.Fail(NoSuchEntryError()) if isinstance(self.machine, RangeRead):
                assert not self.holders(self.store[0], self.delivered + 1)
            case act.Finish(LedgerMetadata(state=LedgerState.CLOSED) as closed):
                assert (closed.last_entry_id, closed.length) == (self.last, 10 * (self.last + 1))
                self.check_copies(closed)
            case act.WriteMetadata(record) if record.state is LedgerState.CLOSED:
                assert (record.last_entry_id, record.length) == (self.last, 10 * (self.last + 1))
                self.check_copies(record)

    def holders(self, record, entry_id):
        return [b for b in record.write_set_of(entry_id) if entry_id in self.bookies[b].entries]

    def check_copies(self, record):
        """Check the copies of a closed ledger. Recovered entries lie in the last fragment."""
        for entry_id in range(self.last + 1):
            assert len(self.holders(record, entry_id)) >= record.ack_quorum, f"entry {entry_id}"

    def check(self):
        super().check()
        if isinstance(self.machine, LacRead | LacWait):
            self.cursors.check(lac=self.machine.last_add_confirmed)


class LeaseCourse(Course):
    at_rest = True
    now = 0.0
    ends = 0

    def __init__(self, rng):
        super().__init__(rng, Lease(10.0, 0.0), (metadata(), 0))

    def give(self, event):
        self.now += self.rng.choice((0.0, 0.0, 0.1, 1.0, 6.0))
        return self.machine.step(event, self.now)

    def took(self, event, actions):
        for action in actions:
            self.ends += isinstance(action, lease.End)
        assert self.ends == (self.machine.state is LeaseState.STOPPING)
        held = self.machine.state is LeaseState.HELD
        assert held == bool(self.machine.holder) and (self.machine.deadline is None) == (
            self.machine.state is not LeaseState.UNCLAIMED
        )

    @property
    def ended(self):
        return self.machine.state is LeaseState.STOPPING

    def user_event(self):
        rng = self.rng
        return rng.choice(
            (lease.Claim(rng.randrange(3), "h"), lease.Drop(rng.randrange(3)), lease.Tick(), lease.Tick())
        )


def range_read(record, rng):
    last = rng.randrange(0, 9)
    order = ReadOrder(rng.randrange(3), rng.random() < 0.5)
    return RangeRead(record, 0, last, order, rng.random() < 0.7, rng.random() < 0.5)


def copying(record, rng):
    copies = [Copy(first, first + rng.randrange(4), "b8") for first in range(0, rng.randrange(1, 9), 4)]
    return EntryCopying(record, copies, rng.choice((1, 2, 10_000)), {"b1"})


def replication(record, rng):
    return LedgerReplication({"b2", "b3"}, 5.0, rng.choice((1, 10_000)), {"b1"} if rng.random() < 0.3 else ())


MACHINES = {
    **{
        f"writer-{'VD' if volatile else 'PD'}{'-guaranteed' * guaranteed}{'-striped' * striped}": (
            lambda rng, kind=(volatile, guaranteed, striped): WriterCourse(rng, *kind)
        )
        for volatile in (False, True)
        for guaranteed in (False, True)
        for striped in (False, True)
    },
    "recovery": lambda rng: OtherCourse(
        rng, lambda _, rng: LedgerRecovery(rng.choice((1, 10_000)), rng.random() < 0.7, rng.random() < 0.3)
    ),
    "range_read": lambda rng: OtherCourse(rng, range_read),
    "lac_read": lambda rng: OtherCourse(
        rng, lambda record, _: LacRead(record), (LedgerState.OPEN, LedgerState.IN_RECOVERY)
    ),
    "lac_wait": lambda rng: OtherCourse(rng, lambda record, rng: LacWait(record, rng.randrange(9))),
    "copying": lambda rng: OtherCourse(rng, copying, (LedgerState.CLOSED,)),
    "healing": lambda rng: OtherCourse(rng, lambda _, rng: LedgerHealing("b1", 1, rng.choice((1, 10_000)))),
    "replication": lambda rng: OtherCourse(rng, replication),
    "lease": LeaseCourse,
}


@pytest.mark.parametrize("machine", MACHINES)
def test_machines_obey_their_laws_under_any_event_at_any_time(machine):
    taken = refused = 0
    for seed in range(SEED * COURSES, (SEED + 1) * COURSES):
        course = None
        try:
            course = MACHINES[machine](random.Random(f"{machine} {seed}"))
            course.run()
        except BaseException as error:
            error.add_note(f"course {seed} of {machine}")
            raise
        taken, refused = taken + course.taken, refused + course.refused
    print(f"{machine}: {COURSES} courses, {taken} events taken, {refused} refused")
    assert taken and refused
