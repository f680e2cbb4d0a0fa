"""Explicit LAC: what an idle writer tells its bookies without an entry, to whom, and when again."""

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
    """A writer whose interval is 1 second, and a clock."""

    def __init__(self, changes=ChangeMode.OFF, **fields):
        self.machine = LedgerWriter(metadata(**fields), 0, changes, explicit_lac_interval_seconds=1.0)
        self.now = 1000.0

    def confirm(self, *but):
        """One more entry; all bookies but these take it."""
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


def test_a_last_entry_is_told_once_to_all(told):
    assert told.machine.owes_explicit_lac
    assert told.idle() == [SendLac(ALL, 0)]
    assert not told.machine.owes_explicit_lac
    assert told.idle(after=3600) == []


def test_not_before_the_interval_is_over(told):
    assert told.idle(quiet=1.0) == []
    assert told.idle(quiet=1.01) == [SendLac(ALL, 0)]


def test_nothing_is_told_while_nothing_is_confirmed():
    told = Told()
    assert not told.machine.owes_explicit_lac
    assert told.idle() == []
    told.machine.step(Append(1, 10))
    told.machine.step(BookieBack("b1"))
    assert told.idle() == []


def test_what_the_next_entry_tells_is_not_told_again(told):
    told.machine.step(Append(1, 10))
    assert told.idle() == []


def test_a_bookie_that_did_not_take_it_is_told_again_after_ten_intervals(told):
    told.idle()
    told.answers("b1", OK)
    told.answers("b2", TIMEOUT)
    told.answers("b3", Unknown(UnknownReason.IO_ERROR))
    assert told.machine.owes_explicit_lac
    assert told.idle(after=9.9) == []
    assert told.idle(after=0.2) == [SendLac(("b2", "b3"), 0)]
    assert told.idle(after=100) == []


@pytest.mark.parametrize("response", [OK, Negative(NegativeReason.NO_SUCH_LEDGER), *map(Unknown, FINAL_REASONS)])
def test_what_asking_again_does_not_change_is_not_asked_again(told, response):
    told.idle()
    told.answers("b2", response)
    assert not told.machine.owes_explicit_lac
    assert told.idle(after=100) == []


def test_news_is_told_to_all_whoever_missed_what_was_before(told):
    told.idle()
    told.answers("b2", TIMEOUT)
    told.confirm()
    assert told.idle() == [SendLac(ALL, 1)]


@pytest.mark.parametrize("event", [BookieBack("b2", 2), PassedOver("b2")])
def test_a_bookie_that_was_away_is_told(told, event):
    told.idle()
    told.machine.step(event)
    assert told.idle() == [SendLac(("b2",), 0)]


def test_a_bookie_that_joined_the_ensemble_is_told_and_one_that_left_is_not():
    """The one that joined had heard of nothing, and was told nothing."""
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


def test_a_bookie_that_was_to_leave_and_stays_is_told():
    told = Told(ChangeMode.AT_ONCE)
    told.confirm("b3")
    told.idle()
    told.machine.step(AddAnswered("b3", 0, 0, LOST))
    told.machine.step(BookieBack("b3"))
    told.machine.step(NoBookies(NotEnoughBookiesError("none")))
    assert told.idle() == [SendLac(("b3",), 0)]


def test_a_user_may_have_it_told_at_any_time(told):
    assert told.machine.step(TellLac()) == [SendLac(ALL, 0)]
    assert told.machine.step(TellLac()) == [SendLac(ALL, 0)]
    assert told.idle() == []


def test_the_lafr_of_a_guaranteed_ledger_is_news_of_its_own():
    told = Told(replication=Replication.GUARANTEED)
    told.confirm("b3")
    assert told.idle() == [SendLac(ALL, 0, -1)]
    told.machine.step(AddAnswered("b3", 0, 0, OK))
    assert told.idle() == [SendLac(ALL, 0, 0)]


def test_it_is_told_while_the_close_is_written_and_not_after_the_end(told):
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


def test_a_writer_that_failed_tells_nothing(told):
    told.machine.step(Abandon(BookKeeperError("the client ends")))
    assert not told.machine.owes_explicit_lac
    assert (told.idle(), told.machine.step(TellLac())) == ([], [])
