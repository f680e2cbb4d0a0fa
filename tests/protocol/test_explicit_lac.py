"""Explicit LAC (last add confirmed, sent without an entry) of an idle writer: when, and to which bookies."""

from __future__ import annotations

import pytest

from bookspark.errors import BookKeeperError, NotEnoughBookiesError
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    BookiesChosen,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    SendLac,
)
from bookspark.protocol.ledger.ledger_metadata import Replication
from bookspark.protocol.ledger.responses import FINAL_REASONS, Negative, NegativeReason, Unknown, UnknownReason
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.protocol.writing.writer_events import (
    Abandon,
    Append,
    BookieBack,
    Close,
    ExplicitLacAnswered,
    Idle,
    PassedOver,
    TellLac,
)
from tests.protocol.ledgers import LOST, OK, metadata

ALL = ("b1", "b2", "b3")
TIMEOUT = Unknown(UnknownReason.TIMEOUT)


class Told:
    """A writer with an interval of 1 second, and a clock."""

    def __init__(self, changes=ChangeMode.OFF, **fields):
        self.machine = LedgerWriter(metadata(**fields), 0, changes, explicit_lac_interval_seconds=1.0)
        self.now = 1000.0

    def confirm(self, *but):
        """Add an entry, acknowledged by all bookies except ``but``."""
        (send, *_) = self.machine.step(Append(1, 10))
        for bookie in send.bookies:
            if bookie not in but:
                self.machine.step(AddAnswered(bookie, send.first, send.last, OK))

    def idle(self, after=0.0, quiet=1.5):
        self.now += after
        return self.machine.step(Idle(self.now, quiet))

    def answers(self, bookie, response):
        return self.machine.step(ExplicitLacAnswered(bookie, response, self.now))


@pytest.fixture
def told():
    writer = Told()
    writer.confirm()
    return writer


def test_lac_of_the_last_entry_is_sent_once_to_all_bookies(told):
    assert told.machine.owes_explicit_lac
    assert told.idle() == [SendLac(ALL, 0)]
    assert not told.machine.owes_explicit_lac
    assert told.idle(after=3600) == []


def test_explicit_lac_waits_for_the_interval(told):
    assert told.idle(quiet=1.0) == []
    assert told.idle(quiet=1.01) == [SendLac(ALL, 0)]


def test_no_explicit_lac_is_sent_before_an_entry_is_confirmed():
    told = Told()
    assert not told.machine.owes_explicit_lac
    assert told.idle() == []
    told.machine.step(Append(1, 10))
    told.machine.step(BookieBack("b1"))
    assert told.idle() == []


def test_lac_carried_by_the_next_entry_is_not_sent_again(told):
    told.machine.step(Append(1, 10))
    assert told.idle() == []


def test_bookie_that_failed_gets_the_lac_again_after_ten_intervals(told):
    told.idle()
    told.answers("b1", OK)
    told.answers("b2", TIMEOUT)
    told.answers("b3", Unknown(UnknownReason.IO_ERROR))
    assert told.machine.owes_explicit_lac
    assert told.idle(after=9.9) == []
    assert told.idle(after=0.2) == [SendLac(("b2", "b3"), 0)]
    assert told.idle(after=100) == []


@pytest.mark.parametrize("response", [OK, Negative(NegativeReason.NO_SUCH_LEDGER), *map(Unknown, FINAL_REASONS)])
def test_final_answer_ends_the_retries(told, response):
    told.idle()
    told.answers("b2", response)
    assert not told.machine.owes_explicit_lac
    assert told.idle(after=100) == []


def test_newer_lac_is_sent_to_all_bookies(told):
    told.idle()
    told.answers("b2", TIMEOUT)
    told.confirm()
    assert told.idle() == [SendLac(ALL, 1)]


@pytest.mark.parametrize("event", [BookieBack("b2", 2), PassedOver("b2")])
def test_returning_bookie_gets_the_lac(told, event):
    told.idle()
    told.machine.step(event)
    assert told.idle() == [SendLac(("b2",), 0)]


def test_joined_bookie_gets_the_lac_and_a_replaced_bookie_does_not():
    """A bookie that joined late never got an earlier explicit LAC."""
    told = Told(ChangeMode.AT_ONCE)
    told.confirm("b3")
    told.idle()
    told.answers("b3", TIMEOUT)
    told.machine.step(AddAnswered("b3", 0, 0, LOST))
    told.machine.step(BookiesChosen(("b4",)))
    told.machine.step(MetadataWritten(1))
    assert told.idle(after=100) == [SendLac(("b4",), 0)]
    assert told.answers("b3", TIMEOUT) == []
    assert not told.machine.owes_explicit_lac


def test_failed_bookie_that_stays_gets_the_lac():
    told = Told(ChangeMode.AT_ONCE)
    told.confirm("b3")
    told.idle()
    told.machine.step(AddAnswered("b3", 0, 0, LOST))
    told.machine.step(BookieBack("b3"))
    told.machine.step(NoBookies(NotEnoughBookiesError("none")))
    assert told.idle() == [SendLac(("b3",), 0)]


def test_user_may_request_an_explicit_lac_at_any_time(told):
    assert told.machine.step(TellLac()) == [SendLac(ALL, 0)]
    assert told.machine.step(TellLac()) == [SendLac(ALL, 0)]
    assert told.idle() == []


def test_new_lafr_of_a_guaranteed_ledger_is_sent():
    told = Told(replication=Replication.GUARANTEED)
    told.confirm("b3")
    assert told.idle() == [SendLac(ALL, 0, -1)]
    told.machine.step(AddAnswered("b3", 0, 0, OK))
    assert told.idle() == [SendLac(ALL, 0, 0)]


def test_lac_is_sent_during_but_not_after_the_close(told):
    told.machine.step(Close())
    assert told.machine.step(TellLac()) == [SendLac(ALL, 0)]
    told.answers("b1", TIMEOUT)
    assert told.idle(after=100) == [SendLac(("b1",), 0)]
    told.answers("b1", TIMEOUT)
    told.machine.step(MetadataConflict())
    told.machine.step(MetadataRead(told.machine.metadata, 4))
    told.machine.step(MetadataWritten(5))
    assert not told.machine.owes_explicit_lac
    assert (told.idle(after=100), told.machine.step(TellLac())) == ([], [])


def test_failed_writer_sends_no_lac(told):
    told.machine.step(Abandon(BookKeeperError("the client ends")))
    assert not told.machine.owes_explicit_lac
    assert (told.idle(), told.machine.step(TellLac())) == ([], [])
