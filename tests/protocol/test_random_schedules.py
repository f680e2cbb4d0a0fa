"""Random schedules over the real machines in every mode, with the laws checked after each step.

A small companion of ``bookspark.lab.simulation``, which searches deeper: ensemble changes, crashes, lost answers and several
recoverers in a few seconds; a failure prints its seed. ``SCHEDULES`` in the environment multiplies the number of seeds.
"""

from __future__ import annotations

import os
import random

import pytest

from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.replication import GuaranteedWriteQuorum
from bookspark.protocol.writing.writer import (
    BookieBack,
    BookiesChanged,
    Close,
    LedgerWriter,
    Persistent,
    State,
    Sync,
    Volatile,
)
from tests.protocol.ledger_pair import UNREACHABLE, LedgerPair, answer_to

SEEDS = 25 * int(os.environ.get("SCHEDULES", "1"))
SHAPES = [(3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 1), (3, 3, 3), (4, 2, 1)]
TIMEOUT = Unknown(UnknownReason.TIMEOUT)


class World:
    """A schedule with bookies b1 to b7; the ensemble is made of the first ones."""

    def __init__(self, seed, guaranteed, volatile, changes, policy=None):
        self.random = random.Random(seed)
        e, wq, aq = self.random.choice(SHAPES)
        sync_bytes = self.random.choice([20, 1000])
        self.pair = LedgerPair(e, wq, aq, guaranteed, volatile, changes, sync_bytes, policy)
        self.recoverers = []
        self.appends = self.random.randrange(1, 9)
        self.crashes = self.random.randrange(3) if volatile else 0
        self.losses = self.random.choice([0, 2, 5, 10])
        self.recovery_rate = self.random.choice([0.01, 0.1])
        self.no_bookies = self.random.randrange(2)
        self.late = []
        """(bookie, request, from a recoverer): requests that still take effect, but whose answers are dropped."""

    def run(self, steps):
        for _ in range(steps):
            if moves := list(self.moves()):
                move, *arguments = self.random.choice(moves)
                move(*arguments)
                self.check()

    def moves(self):
        pair, writer = self.pair, self.pair.writer
        state = writer.machine.state
        if state is State.OPEN:
            if self.appends:
                yield (self.append,)
            if self.random.random() < 0.1:
                yield writer.step, Sync()
                yield writer.step, BookiesChanged()
            if self.random.random() < 0.02:
                yield writer.step, Close()
        if self.random.random() < self.recovery_rate and len(self.recoverers) < 3:
            yield (self.recover,)
        for client in (writer, *self.recoverers):
            for position in range(len(client.sent)):
                yield self.answer, client, position
                yield self.park, client, position
                if self.losses and self.random.random() < 0.2:
                    yield self.lose, client, position
            for position in range(len(client.parked)):
                yield self.release, client, position
            if client.wanted:
                yield self.control, client
        for position in range(len(self.late)):
            if self.random.random() < 0.3:
                yield self.arrive_late, position
        if self.crashes and self.random.random() < 0.1:
            yield self.crash, self.random.choice(pair.ensemble)
        if self.random.random() < 0.1 and state in (State.OPEN, State.CLOSING):
            name = self.random.choice(pair.ensemble)
            yield writer.step, BookieBack(name, pair.bookies(name).incarnation)

    def append(self):
        self.appends -= 1
        self.pair.append()

    def recover(self):
        self.recoverers.append(self.pair.recoverer(run_entries_max=self.random.choice([1, 10])))

    def answer(self, client, position):
        bookie, request = client.sent.pop(position)
        client.step(self.pair.bookies(bookie).take(request, client.recovery))

    def park(self, client, position):
        bookie, request = client.sent.pop(position)
        client.parked.append((bookie, request, self.pair.bookies(bookie).take(request, client.recovery)))

    def lose(self, client, position):
        self.losses -= 1
        bookie, request = client.sent.pop(position)
        if self.random.random() < 0.5:
            self.late.append((bookie, request, client.recovery))
        client.step(answer_to(bookie, request, TIMEOUT))

    def arrive_late(self, position):
        bookie, request, recovery = self.late.pop(position)
        self.pair.bookies(bookie).take(request, recovery)

    def release(self, client, position):
        client.step(client.parked.pop(position)[2])

    def control(self, client):
        match client.wanted[0]:
            case act.ChooseBookies(ensemble, replaced):
                spare = [b for b in (f"b{i}" for i in range(1, 8)) if b not in ensemble]
                self.random.shuffle(spare)
                if len(spare) < len(replaced) or (self.no_bookies and self.random.random() < 0.2):
                    client.chooses()
                else:
                    client.chooses(*spare[: len(replaced)])
            case act.WriteMetadata():
                client.writes()
            case _:
                client.reads_metadata()

    def crash(self, name):
        """The process ends with its connections, and the clients reconnect."""
        self.crashes -= 1
        bookie = self.pair.bookies(name)
        bookie.crash()
        for client in (self.pair.writer, *self.recoverers):
            gone = [(b, r) for b, r in client.sent if b == name] + [(b, r) for b, r, _ in client.parked if b == name]
            client.sent = [(b, r) for b, r in client.sent if b != name]
            client.parked = [p for p in client.parked if p[0] != name]
            for _, request in gone:
                client.step(answer_to(name, request, UNREACHABLE))
        self.late = [entry for entry in self.late if entry[0] != name]
        self.pair.writer.step(BookieBack(name, bookie.incarnation))

    # -- laws

    def check(self):
        pair = self.pair
        m, confirmed, machine = pair.metadata, pair.writer.confirmed, pair.writer.machine
        if m.closed:
            assert confirmed <= m.last_entry_id, "an entry that was confirmed is cut off"
            assert m.length == 10 * (m.last_entry_id + 1)
        end = m.last_entry_id if m.closed else confirmed
        for entry in range(end + 1):
            assert self.copies(entry) >= m.ack_quorum, f"e{entry} is confirmed"
        if pair.writer.closed:
            assert pair.writer.closed == m
        for recoverer in self.recoverers:
            assert recoverer.closed in (None, m)
        if machine._replication.keeps_confirmed:
            whole = (
                m.last_entry_id
                if m.closed
                else max(machine.cursors.last_add_fully_replicated, m.fragments[-1].first_entry_id - 1)
            )
            for entry in range(whole + 1):
                assert self.copies(entry) == m.write_quorum, f"e{entry} is below write quorum"
        for bookie in pair._bookies.values():
            if bookie.ledger:
                assert bookie.ledger.last_add_confirmed <= confirmed, "a LAC that is not confirmed"
        assert list(machine.cursors.pending) == sorted(machine.cursors.pending)

    def copies(self, entry):
        """Synced copies on bookies that the metadata names."""
        return sum(entry in self.pair.bookies(name).synced for name in self.pair.metadata.write_set_of(entry))


@pytest.mark.parametrize("changes", [ChangeMode.AT_ONCE, ChangeMode.DELAYED, ChangeMode.OFF], ids=lambda c: c.name)
@pytest.mark.parametrize("volatile", [False, True], ids=["PD", "VD"])
@pytest.mark.parametrize("guaranteed", [False, True], ids=["best_effort", "guaranteed"])
def test_no_schedule_loses_a_confirmed_entry(guaranteed, volatile, changes):
    for seed in range(SEEDS):
        world = World(seed, guaranteed, volatile, changes)
        try:
            world.run(200)
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure


class TestSchedulesDetectFaults:
    """Within some hundred schedules the checks detect each removed protection."""

    def hunt(self, guaranteed, volatile, policy=None):
        for seed in range(1000):
            try:
                World(seed, guaranteed, volatile, ChangeMode.AT_ONCE, policy).run(200)
            except AssertionError as failure:
                return str(failure)
        return ""

    def test_missing_pinning_is_detected(self):
        class WithoutPinning(GuaranteedWriteQuorum):
            def replaceable(self, failed, confirmed, metadata):
                return failed

        assert "is confirmed" in self.hunt(True, False, WithoutPinning())

    def test_counting_acks_of_leaving_bookies_is_detected(self, monkeypatch):
        monkeypatch.setattr(Persistent, "holders", lambda self, add, leaving: add.acks)
        assert self.hunt(True, False)

    def test_inherited_acks_of_replaced_bookies_are_detected(self, monkeypatch):
        changed = LedgerWriter._changed

        def inherited(self, change):
            swap = dict(zip(self.metadata.last_fragment.ensemble, change.metadata.last_fragment.ensemble, strict=True))
            for op in self.cursors.pending.values():
                op.acks |= {swap[bookie] for bookie in op.acks}
            return changed(self, change)

        monkeypatch.setattr(LedgerWriter, "_changed", inherited)
        assert self.hunt(False, False)

    def test_lac_by_ack_instead_of_sync_is_detected(self, monkeypatch):
        monkeypatch.setattr(Volatile, "holders", lambda self, add, leaving: add.acks - leaving)
        assert "is confirmed" in self.hunt(False, True)

    def test_recovery_from_lac_instead_of_lafr_is_detected(self, monkeypatch):
        monkeypatch.setattr(GuaranteedWriteQuorum, "recover_after", lambda self, lac, lafr: lac)
        assert "below write quorum" in self.hunt(True, False)

    def test_recovery_reading_its_new_ensemble_is_detected(self, monkeypatch):
        chosen = LedgerRecovery._bookies_chosen

        def reads_its_own(self, event):
            actions = chosen(self, event)
            self._metadata = self._target
            return actions

        monkeypatch.setattr(LedgerRecovery, "_bookies_chosen", reads_its_own)
        assert self.hunt(False, False)
