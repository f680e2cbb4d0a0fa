"""A recorded history becomes a story of the simulator, or the place where reality left it is told."""

from __future__ import annotations

from bookspark.lab.replay.run import Replay
from bookspark.protocol.ledger.actions import AddAnswered, LacAnswered, MetadataRead, MetadataWritten
from bookspark.protocol.ledger.responses import FENCED, Positive
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.protocol.writing.writer_events import Append, Close, ExplicitLacAnswered, Idle
from bookspark.store.decisions.recorder import end_recording
from bookspark.store.decisions.seam import made
from tests.lab.replay.test_replay import METADATA, append, recover


def staged(folder):
    end_recording()
    replay = Replay(folder)
    replay.run()
    return replay.staged(7)


def test_a_whole_history_is_played_by_the_simulators_own_machines(record):
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    append(writer, 1)
    writer.step(Close())
    writer.step(MetadataWritten(1))
    played = staged(record)
    assert (played.violation, played.left, played.passed_over) == (None, "", 0)
    lines = played.lines()
    assert lines[0] == "  1. the writer appends e0"
    assert lines[-1].endswith("done, the ledger is CLOSED at entry 1")


def test_entries_that_were_appended_together_are_appended_one_after_the_other(record):
    writer = made(LedgerWriter, METADATA, 0)
    writer.step(Append(3, 30))
    writer.step(AddAnswered("b1", 0, 2, Positive()))
    writer.step(AddAnswered("b3", 0, 2, Positive()))
    played = staged(record)
    assert played.left == ""
    assert played.lines()[-1].endswith("the writer hears from b3: add of 2 ok; entry 2 is confirmed")


def test_a_fence_arrives_before_the_add_that_it_refuses_and_after_those_that_were_taken(record):
    """The recoverer hears of its fence only after the writer was refused."""
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    writer.step(Append(1, 10))
    recover(1)
    writer.step(AddAnswered("b3", 0, 0, Positive()))
    writer.step(AddAnswered("b2", 1, 1, FENCED))
    played = staged(record)
    assert played.left == ""
    assert any(
        line.endswith("the writer hears from b2: add of 1 unknown (fenced); it ends with LedgerFencedError")
        for line in played.lines()
    )


def test_a_refusal_that_was_heard_before_the_fences_own_answer(record):
    writer = made(LedgerWriter, METADATA, 0)
    writer.step(Append(1, 10))
    recovery = made(LedgerRecovery)
    recovery.step(MetadataRead(METADATA, 0))
    recovery.step(MetadataWritten(1))
    writer.step(AddAnswered("b2", 0, 0, FENCED))
    recovery.step(LacAnswered("b2", Positive()))
    played = staged(record)
    assert played.left == ""
    assert played.lines()[-1].endswith("the recoverer hears from b2: LAC -1")


def test_of_entries_that_were_refused_together_the_first_ends_the_writer(record):
    writer = made(LedgerWriter, METADATA, 0)
    writer.step(Append(2, 20))
    recover(0)
    writer.step(AddAnswered("b2", 0, 1, FENCED))
    played = staged(record)
    assert (played.left, played.passed_over > 0) == ("", True)
    assert played.lines()[-1].endswith("it ends with LedgerFencedError")


def idle(writer):
    """It has the bookies told that entry 0 is confirmed."""
    append(writer, 0)
    (told,) = writer.step(Idle(1.0, 1.0))
    assert told.last_add_confirmed == 0


def test_a_recovery_knows_the_explicit_lac_that_an_idle_writer_told(record):
    writer = made(LedgerWriter, METADATA, 0)
    idle(writer)
    writer.step(ExplicitLacAnswered("b1", Positive(), 1.0))
    recovery = made(LedgerRecovery)
    recovery.step(MetadataRead(METADATA, 0))
    recovery.step(MetadataWritten(1))
    recovery.step(LacAnswered("b1", Positive(), 0))
    played = staged(record)
    assert (played.left, played.passed_over) == ("", 0)
    assert played.lines()[-1].endswith("the recoverer hears from b1: LAC 0")


def test_an_explicit_lac_is_there_before_the_fence_although_its_answer_comes_later(record):
    writer = made(LedgerWriter, METADATA, 0)
    idle(writer)
    recovery = made(LedgerRecovery)
    recovery.step(MetadataRead(METADATA, 0))
    recovery.step(MetadataWritten(1))
    recovery.step(LacAnswered("b1", Positive(), 0))
    writer.step(ExplicitLacAnswered("b1", Positive(), 1.0))
    played = staged(record)
    assert (played.left, played.passed_over) == ("", 0)
    assert any(line.endswith("the recoverer hears from b1: LAC 0") for line in played.lines())


def test_entries_that_a_recoverer_is_given_arrived_before_the_fence_though_the_writer_never_heard(record):
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    writer.step(Append(1, 10))
    assert recover(2, lac=0).last_entry_id == 1
    played = staged(record)
    assert (played.left, played.violation) == ("", None)
    assert played.lines()[-1].endswith("done, the ledger is CLOSED at entry 1")


def test_a_bookie_that_lies_is_where_reality_left_the_simulator(record):
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    append(writer, 1)
    recover(1)
    played = staged(record)
    assert played.violation is None
    assert played.left == "b1 answered LAC -1 in reality, and answers LAC 0 in the simulator"
    assert played.lines()[-1].startswith("     → here reality left the simulator: b1 answered")
