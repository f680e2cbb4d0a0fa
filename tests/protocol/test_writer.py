"""The writer's decisions: acknowledgement in order, the fence, and the three outcomes of a close (trap 4)."""

from __future__ import annotations

import pytest

from bookspark.errors import AddTimeoutError, LedgerClosedError, LedgerFencedError, UnauthorizedAccessError
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    Confirm,
    DeadlinePassed,
    Fail,
    Finish,
    MetadataConflict,
    MetadataRead,
    MetadataWritten,
    ReadMetadata,
    SendAdd,
    SendLac,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
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


def test_an_append_goes_to_its_write_set_with_the_lac_of_the_moment(writer):
    first = add(writer, 3)
    assert first == SendAdd(("b1", "b2", "b3"), 0, 2, -1)
    ack(writer, first, "b1", "b2")
    assert add(writer).last_add_confirmed == 2


def test_striped_entries_go_round_robin():
    writer = LedgerWriter(metadata(e=4, wq=2, aq=2), 0)
    assert [add(writer).bookies for _ in range(5)] == [
        ("b1", "b2"), ("b2", "b3"), ("b3", "b4"), ("b4", "b1"), ("b1", "b2"),
    ]  # fmt: skip


def test_acknowledged_at_the_ack_quorum_and_not_before(writer):
    send = add(writer)
    assert ack(writer, send, "b2") == []
    assert ack(writer, send, "b2") == [], "the same bookie again is not another one"
    assert ack(writer, send, "b3") == [Confirm(0)]


def test_acknowledged_in_order(writer):
    first, second = add(writer), add(writer)
    assert ack(writer, second, "b1", "b2", "b3") == []
    assert ack(writer, first, "b1", "b3") == [Confirm(1)]


@pytest.mark.parametrize("response", [LOST, NO, Unknown(UnknownReason.IO_ERROR)])
def test_no_other_answer_counts_as_an_ack(writer, response):
    send = add(writer)
    assert ack(writer, send, "b1", "b2", "b3", response=response) == []
    assert writer.cursors.last_add_confirmed == -1


def test_what_a_bookie_missed_is_sent_again_while_it_counts(writer):
    first, second = add(writer), add(writer)
    ack(writer, first, "b1", "b2")
    ack(writer, second, "b1")
    assert writer.step(BookieBack("b3")) == [SendAdd(("b3",), 1, 1, 0)]
    assert writer.step(BookieBack("b1")) == []


def test_a_fence_anywhere_ends_the_writer_and_nothing_is_acknowledged_after_it(writer):
    send = add(writer)
    (fail,) = ack(writer, send, "b1", response=FENCED)
    assert isinstance(fail.error, LedgerFencedError)
    assert ack(writer, send, "b2", "b3") == []
    assert (writer.state, writer.cursors.last_add_confirmed) == (State.FAILED, -1)
    with pytest.raises(LedgerClosedError):
        writer.step(Append(1, 1))


def test_a_wrong_password_ends_the_writer(writer):
    (fail,) = ack(writer, add(writer), "b1", response=Unknown(UnknownReason.UNAUTHORIZED))
    assert isinstance(fail.error, UnauthorizedAccessError)


def test_a_deadline_names_the_bookies_that_are_missing(writer):
    ack(writer, add(writer), "b2")
    (fail,) = writer.step(DeadlinePassed())
    assert isinstance(fail.error, AddTimeoutError)
    assert "waiting for b1, b3" in str(fail.error)


def test_explicit_lac(writer):
    ack(writer, add(writer), "b1", "b2")
    assert writer.step(TellLac()) == [SendLac(("b1", "b2", "b3"), 0)]


def test_close_waits_for_the_appends_before_it(writer):
    send = add(writer, 2)
    assert writer.step(Close()) == []
    confirm, write = ack(writer, send, "b1", "b2")
    assert confirm == Confirm(1)
    assert write == WriteMetadata(metadata(state=LedgerState.CLOSED, last_entry_id=1, length=20), 0)
    (finish,) = writer.step(MetadataWritten(1))
    assert finish == Finish(write.metadata, 1)


def test_nothing_is_appended_after_close(writer):
    writer.step(Close())
    with pytest.raises(LedgerClosedError):
        writer.step(Append(1, 1))


class TestCloseRace:
    """Trap 4: still OPEN; CLOSED with the same end; IN_RECOVERY or CLOSED with another end."""

    @pytest.fixture
    def closing(self, writer):
        ack(writer, add(writer), "b1", "b2")
        writer.step(Close())
        assert writer.step(MetadataConflict()) == [ReadMetadata()]
        return writer

    def test_still_open_is_tried_again_with_the_version_found(self, closing):
        (write,) = closing.step(MetadataRead(metadata(), 5))
        assert (write.version, write.metadata.state, write.metadata.last_entry_id) == (5, LedgerState.CLOSED, 0)

    def test_a_bookie_that_has_read_of_this_very_close_does_not_fail_it(self, writer):
        """One whose fence is unsure asks the metadata, found it CLOSED, and refused the third copy as fenced: close() said that
        another client had fenced the ledger."""
        send = add(writer)
        ack(writer, send, "b1", "b2")
        (write,) = writer.step(Close())
        assert ack(writer, send, "b3", response=FENCED) == []
        assert writer.step(MetadataWritten(1)) == [Finish(write.metadata, 1)]

    def test_closed_by_a_recoverer_at_the_same_end_is_closed(self, closing):
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
    def test_anything_else_fails_the_close(self, closing, found):
        (fail,) = closing.step(MetadataRead(found, 5))
        assert isinstance(fail, Fail)
        assert isinstance(fail.error, LedgerFencedError)
        assert closing.state is State.FAILED
