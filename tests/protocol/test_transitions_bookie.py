"""Transition table of the lease, and illegal calls of machines without events: they raise and change nothing."""

from __future__ import annotations

import pytest

from bookspark.lab.simulation.values import freeze
from bookspark.protocol.bookie import lease
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, FenceNoted, LimboNoted
from bookspark.protocol.bookie.lease import Claim, Drop, End, Lease, LeaseState, Stop, Tick
from bookspark.protocol.ledger.transitions import IllegalEventError
from bookspark.protocol.logs.log_offload import Offload, OffloadError
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.protocol.repair.audit_plan import LostBookies
from bookspark.protocol.repair.underreplication_task import Mark, Reason, new_task
from tests.protocol.event_samples import samples
from tests.protocol.transitions_kit import TransitionsKit

NOW = 5.0
KEY = b"key"


def lease_in(state):
    made = Lease(60.0, 0.0)
    match state:
        case LeaseState.HELD:
            made.step(Claim(1, "executor 1"), 1.0)
        case LeaseState.STOPPING:
            made.step(Stop("asked to"), 1.0)
    return made


LEASE = TransitionsKit(
    {state.name: lambda state=state: lease_in(state) for state in LeaseState},
    samples(Claim=lambda machine: Claim(2, "executor 2")),
    lambda machine, event: lease.TRANSITIONS[machine.state].get(type(event)),
    step=lambda machine, event: machine.step(event, NOW),
)


@pytest.mark.parametrize("event_type", LEASE.events())
def test_lease_follows_its_table(event_type):
    LEASE.check(event_type)


def test_lease_table_is_complete_and_every_taken_event_acts():
    assert set(lease.TRANSITIONS) == set(LeaseState)
    assert LEASE.states_without_a_place(LeaseState, lambda machine: machine.state) == set()
    assert LEASE.idle_places(lambda machine: machine.state) == set()


@pytest.mark.parametrize("event", [Drop(1), Tick()])
def test_lease_checks_its_deadline_even_before_a_late_event(event):
    machine = lease_in(LeaseState.UNCLAIMED)
    assert [type(action) for action in machine.step(event, 60.0)] == [End]
    assert machine.state is LeaseState.STOPPING


def test_illegal_event_changes_no_lease_even_after_the_deadline():
    machine = lease_in(LeaseState.UNCLAIMED)
    before = freeze(machine)
    with pytest.raises(IllegalEventError):
        machine.step(object(), 60.0)
    assert freeze(machine) == before


class TestBookieLedger:
    def refuses(self, ledger, call):
        before = freeze(ledger)
        with pytest.raises(ValueError):
            call()
        assert freeze(ledger) == before

    def test_refused_add_is_not_applied(self):
        ledger = BookieLedger(7, KEY)
        decision = ledger.admit_add(b"wrong", recovery=False)
        self.refuses(ledger, lambda: ledger.added(decision, 3, 3))

    def test_add_awaiting_the_metadata_is_not_applied(self):
        ledger = BookieLedger(7, KEY, fence_unsure=True)
        decision = ledger.admit_add(KEY, recovery=False)
        self.refuses(ledger, lambda: ledger.added(decision, 3, 3))

    @pytest.mark.parametrize("key", [KEY, None])
    def test_admitted_add_is_not_applied_after_a_fence(self, key):
        ledger = BookieLedger(7, key)
        decision = ledger.admit_add(KEY, recovery=False)
        ledger.fence(KEY)
        self.refuses(ledger, lambda: ledger.added(decision, 3, 3))

    @pytest.mark.parametrize("key", [KEY, None])
    def test_admitted_recovery_add_is_applied_after_a_fence(self, key):
        ledger = BookieLedger(7, key)
        decision = ledger.admit_add(KEY, recovery=True)
        ledger.fence(KEY)
        assert ledger.added(decision, 3, 3)

    @pytest.mark.parametrize("record", [FenceNoted(8), LimboNoted(8, 1)])
    def test_record_of_another_ledger_is_not_replayed(self, record):
        ledger = BookieLedger(7, KEY)
        self.refuses(ledger, lambda: ledger.replay(record))

    def test_limbo_of_a_future_boot_is_not_cleared(self):
        ledger = BookieLedger(7, KEY, limbo_boot=2)
        self.refuses(ledger, lambda: ledger.clear_limbo(3))
        ledger.clear_limbo(2)
        assert not ledger.limbo

    def test_limbo_of_a_collected_and_recreated_ledger_may_be_cleared(self):
        ledger = BookieLedger(7, KEY)
        assert ledger.clear_limbo(3).records and not ledger.limbo


class TestLostBookies:
    def view(self):
        view = LostBookies(0.0)
        view.look(10.0, {"a", "b"}, {"a", "b", "c"})
        return view

    def test_clock_that_goes_back_is_refused(self):
        view = self.view()
        before = freeze(view)
        with pytest.raises(ValueError, match="the clock has gone back"):
            view.look(9.9, {"a"}, {"a", "b", "c"})
        assert freeze(view) == before

    def test_only_bookies_due_for_marking_can_be_marked(self):
        view = self.view()
        assert view.to_mark == {"c"}
        before = freeze(view)
        with pytest.raises(ValueError, match="a marked"):
            view.marked({"c", "a"})
        assert freeze(view) == before


def test_task_refuses_a_mark_of_another_ledger():
    task = new_task(Mark(7, {"b1": Reason.LOST}), 1000)
    with pytest.raises(ValueError):
        task.marked(Mark(8, {"b2": Reason.LOST}))


class TestLogRecords:
    """Log records are values: a transition that raises has created none."""

    def test_claim_without_a_run_id_is_refused(self):
        with pytest.raises(ValueError):
            LogRecord("orders").claim("")

    def test_compaction_of_no_ledgers_is_refused(self):
        record = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ())
        with pytest.raises(ValueError):
            record.with_compacted((), 9, "a", 1)

    def test_offload_cannot_end_before_its_beginning(self):
        for record in (LogRecord("orders"), LogRecord("orders").offload_begun("table", 10)):
            with pytest.raises(OffloadError):
                record.offload_done("table", 12, 1)
        with pytest.raises(OffloadError):
            Offload("table").done("table", 5, 1)
