"""The simulated bookie: its disk keeps what a real disk would keep."""

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


def test_crash_keeps_control_records_of_different_kinds_with_equal_fields():
    """``FenceNoted(7) == FenceUnsureNoted(7)``, because both are tuples: once they were kept in one set, and the second
    was lost."""
    bookie = SimulatedBookie(mark=LossyBootNoted(1, LEDGER_ID))
    taken(bookie, Add(0, 0, -1, -1, ("e0",), recovery=True))
    taken(bookie, Read(0, 0, fence=True))
    assert bookie.ledger.fence_unsure and bookie.ledger.fenced
    bookie.crash(Found((METADATA,)), "b1", OPTIONS)
    assert bookie.ledger.fence_unsure and bookie.ledger.fenced


def test_cleared_limbo_does_not_return_after_a_crash():
    bookie = SimulatedBookie(unclean=True)
    bookie.crash(Found((METADATA,)), "b1", OPTIONS)
    bookie.booted(OPTIONS)
    assert bookie.ledger.limbo
    taken(bookie, Clear(1))
    bookie.crash(Found((METADATA,)), "b1", OPTIONS)
    assert not bookie.ledger.limbo


@pytest.mark.parametrize("loses", CrashLoses)
def test_boot_interrupted_in_phase_one_starts_again(loses):
    """Its records may not be durable yet, and the marker is deleted only after them."""
    options = SimulationOptions(crash_loses=loses)
    bookie = SimulatedBookie(unclean=True)
    for _ in range(2):
        bookie.crash(Found((METADATA,)), "b1", options)
        assert bookie.booting is not None and bookie.lost_boots == 1
    bookie.booted(options)
    assert bookie.ledger.fenced and bookie.ledger.limbo


def test_collected_ledger_leaves_only_the_highest_collected_id():
    bookie = SimulatedBookie()
    taken(bookie, Add(0, 0, -1, -1, ("e0",), recovery=False))
    bookie.collect(OPTIONS, (LEDGER_ID,))
    assert (bookie.rows, bookie.control, bookie.ledger) == ({}, None, None)
    bookie.crash(Found(()), "b1", OPTIONS)
    assert bookie.collected.highest_ledger_id == LEDGER_ID
    assert taken(bookie, Add(1, 1, -1, -1, ("e1",), recovery=False)) == []
    assert len(bookie.unsure) == 1


def test_explicit_lac_survives_a_crash_but_not_a_lost_disk():
    bookie = SimulatedBookie()
    assert taken(bookie, WriteLac(3)) == [Message(1, WriteLacAnswer(Positive()))]
    bookie.crash(Found((METADATA,)), "b1", OPTIONS)
    assert bookie.ledger.last_add_confirmed == 3
    bookie.crash(Found((METADATA,)), "b1", SimulationOptions(crash_loses=CrashLoses.EVERYTHING))
    assert bookie.ledger is None
