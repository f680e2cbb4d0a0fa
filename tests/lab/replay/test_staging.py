"""A recorded history is played in the simulator, up to the step where the record departs from it."""

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


def test_whole_history_is_played_by_the_simulators_machines(record):
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


def test_entries_appended_together_are_appended_one_by_one(record):
    writer = made(LedgerWriter, METADATA, 0)
    writer.step(Append(3, 30))
    writer.step(AddAnswered("b1", 0, 2, Positive()))
    writer.step(AddAnswered("b3", 0, 2, Positive()))
    played = staged(record)
    assert played.left == ""
    assert played.lines()[-1].endswith("the writer hears from b3: add of 2 ok; entry 2 is confirmed")


def test_fence_arrives_before_the_refused_add_and_after_the_accepted_adds(record):
    """The recoverer gets the answer to its fence only after the writer got the refusal."""
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


def test_refusal_may_arrive_before_the_answer_to_the_fence(record):
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


def test_first_of_several_entries_refused_together_ends_the_writer(record):
    writer = made(LedgerWriter, METADATA, 0)
    writer.step(Append(2, 20))
    recover(0)
    writer.step(AddAnswered("b2", 0, 1, FENCED))
    played = staged(record)
    assert (played.left, played.passed_over > 0) == ("", True)
    assert played.lines()[-1].endswith("it ends with LedgerFencedError")


def idle(writer):
    """Confirm entry 0 and let the idle writer send this LAC to the bookies."""
    append(writer, 0)
    (told,) = writer.step(Idle(1.0, 1.0))
    assert told.last_add_confirmed == 0


def test_recovery_learns_the_explicit_lac_of_an_idle_writer(record):
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


def test_explicit_lac_answered_after_the_fence_was_stored_before_it(record):
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


def test_entries_returned_to_the_recoverer_arrived_before_the_fence(record):
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    writer.step(Append(1, 10))
    assert recover(2, lac=0).last_entry_id == 1
    played = staged(record)
    assert (played.left, played.violation) == ("", None)
    assert played.lines()[-1].endswith("done, the ledger is CLOSED at entry 1")


def test_false_answer_of_a_bookie_is_where_the_record_leaves_the_simulator(record):
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    append(writer, 1)
    recover(1)
    played = staged(record)
    assert played.violation is None
    assert played.left == "b1 answered LAC -1 in reality, and answers LAC 0 in the simulator"
    assert played.lines()[-1].startswith("     → here reality left the simulator: b1 answered")
