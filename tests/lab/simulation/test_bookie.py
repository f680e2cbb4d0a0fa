"""The simulated bookie: its disk remembers what a real one would."""

from __future__ import annotations

import pytest

from bookspark.lab.simulation.bookie import LEDGER_ID, Found, SimulatedBookie
from bookspark.lab.simulation.messages import Add, Clear, Message, Read, WriteLac, WriteLacAnswer
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.protocol.bookie.bookie_boot import LossyBootNoted
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.ledger.responses import Positive

OPTIONS = SimulationOptions()
METADATA = LedgerMetadata(LEDGER_ID, 3, 3, 2, (Fragment(0, ("b1", "b2", "b3")),))


def taken(bookie, request):
    return bookie.deliver(Message(1, request), OPTIONS, sync_at_once=True)


def test_control_records_of_different_kinds_with_equal_fields_are_all_remembered():
    """``FenceNoted(7) == FenceUnsureNoted(7)``, as both are tuples: kept in one set, the second of them was forgotten."""
    bookie = SimulatedBookie(mark=LossyBootNoted(1, LEDGER_ID))
    taken(bookie, Add(0, 0, -1, -1, ("e0",), recovery=True))
    taken(bookie, Read(0, 0, fence=True))
    assert bookie.ledger.fence_unsure and bookie.ledger.fenced
    bookie.crash(Found((METADATA,)), "b1", OPTIONS)
    assert bookie.ledger.fence_unsure and bookie.ledger.fenced


def test_limbo_that_was_cleared_does_not_come_back_with_a_crash():
    bookie = SimulatedBookie(unclean=True)
    bookie.crash(Found((METADATA,)), "b1", OPTIONS)
    bookie.booted(OPTIONS)
    assert bookie.ledger.limbo
    taken(bookie, Clear(1))
    bookie.crash(Found((METADATA,)), "b1", OPTIONS)
    assert not bookie.ledger.limbo


@pytest.mark.parametrize("loses", CrashLoses)
def test_phase_one_that_a_crash_broke_off_begins_anew(loses):
    """Its records may not be durable yet, and the marker goes after them."""
    options = SimulationOptions(crash_loses=loses)
    bookie = SimulatedBookie(unclean=True)
    for _ in range(2):
        bookie.crash(Found((METADATA,)), "b1", options)
        assert bookie.booting is not None and bookie.lost_boots == 1
    bookie.booted(options)
    assert bookie.ledger.fenced and bookie.ledger.limbo


def test_a_collected_ledger_leaves_one_number():
    bookie = SimulatedBookie()
    taken(bookie, Add(0, 0, -1, -1, ("e0",), recovery=False))
    bookie.collect(OPTIONS, (LEDGER_ID,))
    assert (bookie.rows, bookie.control, bookie.ledger) == ({}, None, None)
    bookie.crash(Found(()), "b1", OPTIONS)
    assert bookie.collected.highest_ledger_id == LEDGER_ID
    assert taken(bookie, Add(1, 1, -1, -1, ("e1",), recovery=False)) == []
    assert len(bookie.unsure) == 1


def test_an_explicit_lac_outlives_a_crash_and_a_disk_does_not():
    bookie = SimulatedBookie()
    assert taken(bookie, WriteLac(3)) == [Message(1, WriteLacAnswer(Positive()))]
    bookie.crash(Found((METADATA,)), "b1", OPTIONS)
    assert bookie.ledger.last_add_confirmed == 3
    bookie.crash(Found((METADATA,)), "b1", SimulationOptions(crash_loses=CrashLoses.EVERYTHING))
    assert bookie.ledger is None
