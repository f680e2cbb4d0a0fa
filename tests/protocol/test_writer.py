"""The writer: acknowledgement in order, the fence, and the three outcomes of a close (trap 4)."""

from __future__ import annotations

import pytest

from bookspark.errors import (
    AddTimeoutError,
    LedgerClosedError,
    LedgerFencedError,
    NotEnoughBookiesError,
    UnauthorizedAccessError,
)
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    BookiesChosen,
    Confirm,
    DeadlinePassed,
    Fail,
    Finish,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadMetadata,
    SendAdd,
    SendLac,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.protocol.ledger.responses import UNAUTHORIZED, Unknown, UnknownReason
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer import Append, BookieBack, Close, LedgerWriter, State, TellLac
from tests.protocol.ledgers import FENCED, LOST, NO, OK, metadata


@pytest.fixture
def writer():
    return LedgerWriter(metadata(), 0)


def add(writer, count=1):
    (send,) = writer.step(Append(count, 10 * count))
    return send


def ack(writer, send, *bookies, response=OK):
    return [action for b in bookies for action in writer.step(AddAnswered(b, send.first, send.last, response))]


def test_append_goes_to_its_write_set_with_the_current_lac(writer):
    first = add(writer, 3)
    assert first == SendAdd(("b1", "b2", "b3"), 0, 2, -1)
    ack(writer, first, "b1", "b2")
    assert add(writer).last_add_confirmed == 2


def test_striped_entries_go_round_robin():
    writer = LedgerWriter(metadata(e=4, wq=2, aq=2), 0)
    assert [add(writer).bookies for _ in range(5)] == [
        ("b1", "b2"), ("b2", "b3"), ("b3", "b4"), ("b4", "b1"), ("b1", "b2"),
    ]  # fmt: skip


def test_entry_is_confirmed_exactly_at_the_ack_quorum(writer):
    send = add(writer)
    assert ack(writer, send, "b2") == []
    assert ack(writer, send, "b2") == [], "the same bookie again is not another one"
    assert ack(writer, send, "b3") == [Confirm(0)]


def test_entries_are_confirmed_in_order(writer):
    first, second = add(writer), add(writer)
    assert ack(writer, second, "b1", "b2", "b3") == []
    assert ack(writer, first, "b1", "b3") == [Confirm(1)]


@pytest.mark.parametrize("response", [LOST, NO, Unknown(UnknownReason.IO_ERROR)])
def test_no_other_answer_counts_as_an_ack(writer, response):
    send = add(writer)
    assert ack(writer, send, "b1", "b2", "b3", response=response) == []
    assert writer.cursors.last_add_confirmed == -1


def test_unacknowledged_entries_are_sent_again_to_a_returning_bookie(writer):
    first, second = add(writer), add(writer)
    ack(writer, first, "b1", "b2")
    ack(writer, second, "b1")
    assert writer.step(BookieBack("b3")) == [SendAdd(("b3",), 1, 1, 0)]
    assert writer.step(BookieBack("b1")) == []


def test_fence_on_any_bookie_ends_the_writer(writer):
    send = add(writer)
    (fail,) = ack(writer, send, "b1", response=FENCED)
    assert isinstance(fail.error, LedgerFencedError)
    assert ack(writer, send, "b2", "b3") == []
    assert (writer.state, writer.cursors.last_add_confirmed) == (State.FAILED, -1)
    with pytest.raises(LedgerClosedError):
        writer.step(Append(1, 1))


def test_writer_goes_on_without_a_bookie_that_refuses_the_password(writer):
    """A stranger's entry at one bookie ended the owner's writer."""
    send = add(writer)
    assert ack(writer, send, "b1", response=UNAUTHORIZED) == []
    assert ack(writer, send, "b2", "b3") == [Confirm(0)]


def test_password_refused_by_an_ack_quorum_ends_the_writer(writer):
    """There are no ensemble changes here."""
    (fail,) = ack(writer, add(writer), "b1", "b2", response=UNAUTHORIZED)
    assert isinstance(fail.error, UnauthorizedAccessError)
    assert "b1, b2 refused the password" in str(fail.error)


def changing(**options):
    return LedgerWriter(metadata(**options), 0, ChangeMode.AT_ONCE)


@pytest.mark.parametrize("size", [1, 3])
def test_bookie_that_refuses_the_password_is_replaced_and_not_chosen_again(size):
    writer = changing(e=size, wq=size, aq=size)
    send = add(writer)
    (choose,) = ack(writer, send, "b1", response=UNAUTHORIZED)
    assert (choose.replaced, choose.refusing) == (("b1",), ("b1",))
    writer.step(BookiesChosen(("b4",)))
    writer.step(MetadataWritten(1))
    if size == 3:
        (choose,) = ack(writer, send, "b4", response=UNAUTHORIZED)
        assert (choose.replaced, choose.refusing) == (("b4",), ("b1", "b4"))
    (fail,) = ack(writer, send, "b4" if size == 1 else "b2", response=UNAUTHORIZED)
    assert isinstance(fail.error, UnauthorizedAccessError), "as many as a write quorum, and two at least"


def test_error_names_the_password_if_no_other_bookie_can_go_on():
    writer = changing(e=1, wq=1, aq=1)
    ack(writer, add(writer), "b1", response=UNAUTHORIZED)
    (fail,) = writer.step(NoBookies(NotEnoughBookiesError("there is no other")))
    assert isinstance(fail.error, UnauthorizedAccessError)


def test_deadline_error_names_the_missing_bookies(writer):
    ack(writer, add(writer), "b2")
    (fail,) = writer.step(DeadlinePassed())
    assert isinstance(fail.error, AddTimeoutError)
    assert "waiting for b1, b3" in str(fail.error)


def test_explicit_lac_goes_to_the_whole_ensemble(writer):
    ack(writer, add(writer), "b1", "b2")
    assert writer.step(TellLac()) == [SendLac(("b1", "b2", "b3"), 0)]


def test_close_waits_for_earlier_appends(writer):
    send = add(writer, 2)
    assert writer.step(Close()) == []
    confirm, write = ack(writer, send, "b1", "b2")
    assert confirm == Confirm(1)
    assert write == WriteMetadata(metadata(state=LedgerState.CLOSED, last_entry_id=1, length=20), 0)
    (finish,) = writer.step(MetadataWritten(1))
    assert finish == Finish(write.metadata, 1)


def test_append_after_close_is_refused(writer):
    writer.step(Close())
    with pytest.raises(LedgerClosedError):
        writer.step(Append(1, 1))


class TestCloseRace:
    """Trap 4: the ledger is still OPEN; CLOSED with the same end; IN_RECOVERY, or CLOSED with another end."""

    @pytest.fixture
    def closing(self, writer):
        ack(writer, add(writer), "b1", "b2")
        writer.step(Close())
        assert writer.step(MetadataConflict()) == [ReadMetadata()]
        return writer

    def test_close_of_a_still_open_ledger_is_retried_with_the_read_version(self, closing):
        (write,) = closing.step(MetadataRead(metadata(), 5))
        assert (write.version, write.metadata.state, write.metadata.last_entry_id) == (5, LedgerState.CLOSED, 0)

    def test_fenced_answer_caused_by_this_close_is_ignored(self, writer):
        """A bookie whose fence is unsure read the metadata, saw CLOSED, and refused the third copy as fenced: close() reported
        that another client had fenced the ledger."""
        send = add(writer)
        ack(writer, send, "b1", "b2")
        (write,) = writer.step(Close())
        assert ack(writer, send, "b3", response=FENCED) == []
        assert writer.step(MetadataWritten(1)) == [Finish(write.metadata, 1)]

    def test_close_succeeds_if_a_recoverer_closed_at_the_same_end(self, closing):
        found = metadata(state=LedgerState.CLOSED, last_entry_id=0, length=10)
        assert closing.step(MetadataRead(found, 5)) == [Finish(found, 5)]

    @pytest.mark.parametrize(
        "found",
        [
            metadata(state=LedgerState.IN_RECOVERY),
            metadata(state=LedgerState.CLOSED, last_entry_id=1, length=20),
            metadata(state=LedgerState.CLOSED, last_entry_id=0, length=11),
        ],
    )
    def test_close_fails_for_any_other_metadata(self, closing, found):
        (fail,) = closing.step(MetadataRead(found, 5))
        assert isinstance(fail, Fail)
        assert isinstance(fail.error, LedgerFencedError)
        assert closing.state is State.FAILED
