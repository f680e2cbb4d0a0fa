"""Each checker fails on states that break its law and passes sound states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.lab.simulation import checkers
from bookspark.lab.simulation.bookie import Row, SimulatedBookie
from bookspark.lab.simulation.checkers import CHECKERS
from bookspark.lab.simulation.clients.client import Begin, content_of
from bookspark.lab.simulation.clients.reader import ReaderClient
from bookspark.lab.simulation.clients.recoverer import RecovererClient
from bookspark.lab.simulation.clients.writer import WriterClient
from bookspark.lab.simulation.search.random_schedules import RandomSchedules
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.view import WorldView
from bookspark.lab.simulation.world import World
from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.actions import MetadataRead
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState, Replication


def holding(*entry_ids, **state):
    return SimulatedBookie(rows={i: Row(content_of(i), -1, -1) for i in entry_ids}, **state)


def view(
    lac=-1, b1=(), b2=(), b3=(), closed_at=None, length=None, lafr=-1, fragments=None, accepted_loss=None, **options
):
    """Ledger 7 at 3/3/2 with the entries that its bookies hold."""
    world = World(SimulationOptions(readers=1, **options))
    found = world.view(world.initial)
    metadata = found.metadata if fragments is None else replace(found.metadata, fragments=fragments)
    if closed_at is not None:
        length = closed_at + 1 if length is None else length
        closed = {"state": LedgerState.CLOSED, "last_entry_id": closed_at, "length": length}
        metadata = replace(metadata, **closed, accepted_loss=accepted_loss)
    found.writer.last_add_confirmed = lac
    found.writer.last_add_fully_replicated = lafr
    given = {"b1": b1, "b2": b2, "b3": b3}
    held = {name: b if isinstance(b, SimulatedBookie) else holding(*b) for name, b in given.items()}
    return WorldView(found.options, metadata, found.clients, held)


def a_recoverer_closed_after_writing_back(entry_id, **state):
    found = view(closed_at=entry_id, **state)
    recoverer = next(client for client in found.clients if isinstance(client, RecovererClient))
    recoverer.outcome, recoverer.wrote_back = "finished", (entry_id,)
    return found


def a_repair(copied=(), still_named="", **state):
    found = view(replicators=1, **state)
    [replicator] = found.replicators
    replicator.copied, replicator.still_named = tuple(copied), still_named
    return found


def told(end, who=RecovererClient, **state):
    found = view(**state)
    next(client for client in found.clients if isinstance(client, who)).told_end = end
    return found


def a_writer(**what):
    found = view()
    for name, value in what.items():
        setattr(found.writer, name, value)
    return found


def a_reader(lac=0, b1=(0,), b2=(0,), **what):
    found = view(lac=lac, b1=b1, b2=b2)
    reader = next(client for client in found.clients if isinstance(client, ReaderClient))
    for name, value in what.items():
        setattr(reader, name, value)
    return found


GUARANTEED = {"replication": Replication.GUARANTEED}
_END, _ENTRY_0 = Loss(LossKind.END, 0, 0, ("b2",)), Loss(LossKind.ENTRIES, 0, 0, ("b1", "b2", "b3"))
ACCEPTED = {"accepted_loss": AcceptedLoss("ann", 1, losses=(_END,))}
GIVEN_UP_ELSEWHERE = {"accepted_loss": AcceptedLoss("ann", 1, losses=(_ENTRY_0._replace(bookies=("b1", "b2", "b4")),))}
GIVEN_UP = {"accepted_loss": AcceptedLoss("ann", 1, losses=(_ENTRY_0,))}
TWO_FRAGMENTS = (Fragment(0, ("b1", "b2", "b3")), Fragment(1, ("b3", "b1", "b2")))
VIOLATIONS = {
    "no_machine_fails": [view(b1=SimulatedBookie(defect="KeyError: 3")), a_reader(defect="KeyError: 3")],
    "no_divergence_between_writer_and_metadata": [view(lac=0, b1=(0,), b2=(0,), closed_at=-1)],
    "all_acked_entries_are_readable": [view(lac=0)],
    "all_committed_entries_reach_ack_quorum": [
        view(lac=0, b1=(0,)),
        view(lac=1, b1=(0, 1), b2=(0, 1), b3=(), ack_quorum=3),
    ],
    "all_entries_of_closed_ledger_are_readable": [view(closed_at=0)],
    "no_out_of_order_entries": [view(b1=SimulatedBookie(rows={0: Row("e1", -1, -1)}))],
    "last_add_confirmed_is_confirmed": [view(b1=SimulatedBookie(ledger=BookieLedger(7, last_add_confirmed=0)))],
    "no_dirty_reads": [
        a_reader(read={1: "e1"}),
        a_reader(read={0: "e7"}),
        a_reader(denied=frozenset({0})),
        a_reader(contradiction="entry 0 was e0 and is e1"),
    ],
    "closed_length_is_that_of_the_last_entry": [view(b1=(0,), closed_at=0, length=2)],
    "accepted_losses_are_losses": [
        view(lac=0, closed_at=-1, **ACCEPTED),
        view(closed_at=0, length=0, **GIVEN_UP),
        view(lac=0, closed_at=0, length=0, second_ledger=True, **GIVEN_UP),
        view(lac=0, b1=(0,), b2=SimulatedBookie(lost_boots=2), closed_at=-1, **ACCEPTED),
        view(lac=0, b1=(0,), b2=SimulatedBookie(lost_boots=2), closed_at=0, length=0, **GIVEN_UP),
        view(lac=0, b2=SimulatedBookie(lost_boots=2), closed_at=0, length=0, **GIVEN_UP_ELSEWHERE),
        view(lac=0, b1=(0,), b2=(0,), closed_at=0, accepted_loss=AcceptedLoss("ann", 1)),
        view(lac=0, b1=SimulatedBookie(lost_boots=2), closed_at=-1, **ACCEPTED),
        view(
            lac=0,
            b1=SimulatedBookie(lost_boots=1),
            b2=SimulatedBookie(lost_boots=1, gone=True),
            closed_at=-1,
            **ACCEPTED,
        ),
    ],
    "what_recovery_wrote_is_synced": [a_recoverer_closed_after_writing_back(0, b1=(0,))],
    "tail_fragments_reach_write_quorum": [
        view(b1=(0,), b2=(0,), lafr=0, **GUARANTEED),
        view(b1=(0,), b2=(0,), fragments=TWO_FRAGMENTS, **GUARANTEED),
    ],
    "all_entries_of_closed_ledger_reached_write_quorum": [view(b1=(0,), b2=(0,), closed_at=0, **GUARANTEED)],
    "told_ends_stay": [
        told((-1, 0)),
        told((-1, 0), WriterClient),
        told((-1, 0), b1=(0,), b2=(0,), closed_at=0),
        told((0, 2), b1=(0,), b2=(0,), closed_at=0),
        a_writer(cut_off=1),
        a_writer(outcome="LedgerFencedError"),
    ],
    "repairs_have_repaired": [
        a_repair(still_named="b3", b1=(0,), b2=(0,), closed_at=0),
        a_repair([(0, "b3")], b1=(0,), b2=(0,), closed_at=0),
    ],
}
SOUND = [
    view(),
    view(lac=0, b1=(0,), b2=(0,)),
    view(lac=0, b1=(0,), b2=(0,), closed_at=0),
    view(lac=0, b1=(0,), b2=(0,), b3=(0,), lafr=0, closed_at=0, **GUARANTEED),
    view(lac=0, b1=(0,), b2=SimulatedBookie(lost_boots=1), closed_at=0),
    view(lac=0, b2=SimulatedBookie(lost_boots=2), closed_at=-1, **ACCEPTED),
    view(lac=0, b2=SimulatedBookie(lost_boots=2), closed_at=0, length=0, **GIVEN_UP),
    # With two ledgers, a bookie that lost only the other's data can't know whether it held this entry.
    view(closed_at=0, length=0, second_ledger=True, **GIVEN_UP),
    a_recoverer_closed_after_writing_back(0, b1=(0,), b2=(0,)),
    told((0, 1), b1=(0,), b2=(0,), closed_at=0),
    a_reader(read={0: "e0"}),
    a_repair([(0, "b3")], b1=(0,), b3=(0,), closed_at=0),
    a_repair([(0, "b3")], b1=(0,), b2=(0,), b3=SimulatedBookie(gone=True), closed_at=0),
    a_repair([(0, "b3")], b2=SimulatedBookie(lost_boots=2), closed_at=0, length=0, **GIVEN_UP),
]


def test_each_checker_has_a_violation():
    functions = {
        name for name, found in vars(checkers).items() if getattr(found, "__module__", "") == checkers.__name__
    }
    assert {name for name in functions if not name.startswith("_")} == set(CHECKERS) == set(VIOLATIONS)


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_checker_reports_its_violations(name):
    for found in VIOLATIONS[name]:
        assert CHECKERS[name](found) is not None


@pytest.mark.parametrize("found", SOUND)
def test_sound_state_passes_every_checker(found):
    assert {name: said for name, check in CHECKERS.items() if (said := check(found))} == {}


@pytest.mark.parametrize("given", [{}, {"readers": 1, "long_polls": True}, {"accept_loss": True, "departures": 1}])
def test_verdict_from_the_view_equals_the_verdict_from_the_whole_state(given):
    """States with equal views share a verdict, so no checker may need more than the view."""
    given = {
        **given,
        "limbo": False,
        "boot_fencing": False,
        "fence_on_recovery_read": False,
        "crashes": 2,
        "ensemble": 2,
    }
    schedules = RandomSchedules(given)
    for seed in range(60):
        world, moves, _ = schedules.schedule(seed)
        state = world.initial
        for move in moves:
            state = world.apply(state, move)
            said = ((name, check(world.view(state))) for name, check in CHECKERS.items())
            verdict = next(((name, what) for name, what in said if what is not None), None)
            assert world.violation(state) == verdict


def test_checker_that_reads_beyond_the_view_fails(monkeypatch):
    monkeypatch.setitem(CHECKERS, "peeps", lambda found: str(found.writer.machine))
    world = World(SimulationOptions())
    with pytest.raises(AttributeError):
        world.violation(world.initial)


def test_repair_that_does_nothing_is_found_only_by_repairs_have_repaired(monkeypatch):
    monkeypatch.setattr("bookspark.protocol.repair.ledger_replication.repairs", lambda metadata, lost: iter(()))

    def found():
        schedules = RandomSchedules({"replicators": 1, "spares": 1, "copies_wanted": 0})
        return {broken.invariant for seed in range(200) if (broken := schedules.schedule(seed)[2]) is not None}

    assert found() == {"repairs_have_repaired"}
    monkeypatch.delitem(CHECKERS, "repairs_have_repaired")
    assert found() == set()


@pytest.mark.parametrize("given_up", [False, True])
def test_lac_that_goes_back_is_a_contradiction_unless_an_operator_accepted_the_loss(given_up):
    """Once, schedules with a departure and an accepted loss were reported, because readers had seen the entries given up
    by the operator."""
    closed = view(closed_at=-1, accepted_loss=AcceptedLoss("operator", 0, ("b1",)) if given_up else None).metadata
    reader = ReaderClient(SimulationOptions(readers=1))
    reader.last_add_confirmed = 0
    reader.step(Begin(), SimulationOptions())
    reader.step(MetadataRead(closed, 1), SimulationOptions())
    assert bool(reader.contradiction) != given_up
