"""The pure code replays a record of decisions; planted differences and broken laws are reported."""

from __future__ import annotations

import pytest

from bookspark.errors import ConfigurationError
from bookspark.lab.replay.run import Replay
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, Decision
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    Confirm,
    LacAnswered,
    MetadataRead,
    MetadataWritten,
    ReadAnswered,
    SendRead,
    SendReadLac,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.ledger.responses import Negative, Positive
from bookspark.protocol.reading.range_read import RangeRead
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.writing.writer import Cursors, LedgerWriter
from bookspark.protocol.writing.writer_events import Append
from bookspark.store.decisions.machines import HEARD
from bookspark.store.decisions.recorder import end_recording, this
from bookspark.store.decisions.seam import made, watched

METADATA = LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("b1", "b2", "b3")),), master_key=b"key")


def append(writer, entry_id):
    writer.step(Append(1, 10))
    writer.step(AddAnswered("b1", entry_id, entry_id, Positive()))
    return writer.step(AddAnswered("b2", entry_id, entry_id, Positive()))


def recover(entries, lac=-1):
    """Recover the ledger, with every bookie reporting the entries ``0..entries - 1``; returns the closed metadata."""
    recovery = made(LedgerRecovery)
    actions = recovery.step(MetadataRead(METADATA, 0))
    version = 0
    for _ in range(100):
        following = []
        for action in actions:
            match action:
                case WriteMetadata(metadata):
                    version += 1
                    following += recovery.step(MetadataWritten(version))
                    if metadata.closed:
                        return metadata
                case SendReadLac(bookie):
                    following += recovery.step(LacAnswered(bookie, Positive(), lac))
                case SendRead(bookie, first):
                    last = entries - 1
                    following += recovery.step(
                        ReadAnswered(
                            bookie, first, max(last, first - 1), Negative(), ["…"] if last >= first else None, 10
                        )
                    )
                case _:
                    for bookie in action.bookies:
                        following += recovery.step(AddAnswered(bookie, action.first, action.last, Positive()))
        actions = following
    raise AssertionError("the recovery does not end")


def test_replay_of_an_unchanged_record_reports_no_difference_and_no_broken_law(record):
    writer = made(LedgerWriter, METADATA, 0)
    assert append(writer, 0) == [Confirm(0)]
    assert recover(1).last_entry_id == 0
    end_recording()
    result = Replay(record).run()
    assert (result.differences, result.broken, result.lost, result.ledgers) == ([], [], 0, 1)
    assert result.decisions > 8


def test_machine_changed_since_the_record_is_named_with_the_decision(record, monkeypatch):
    writer = made(LedgerWriter, METADATA, 0)
    for entry_id in range(3):
        append(writer, entry_id)
    end_recording()
    advance = Cursors.advance

    def forgets_entry_1(self, *args):
        return [one for one in advance(self, *args) if one != Confirm(1)]

    monkeypatch.setattr(Cursors, "advance", forgets_entry_1)
    (difference,) = Replay(record).run().differences
    assert difference.machine == "LedgerWriter 1"
    assert difference.decision == 6
    assert difference.given == repr(AddAnswered("b2", 1, 1, Positive()))
    assert "Confirm(last_add_confirmed=1)" in difference.recorded
    assert difference.now == "[]"
    assert difference.ledger_id == 7


def test_forged_confirm_in_the_record_is_reported(record):
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    # As if the process had confirmed an entry without acknowledgements.
    this.recorder.put([1, HEARD, "b3", 0, 0, 5])
    end_recording()
    (difference,) = Replay(record).run().differences
    assert "Confirm(last_add_confirmed=5)" in difference.recorded


def test_difference_in_one_machine_does_not_hide_the_others(record):
    first, second = made(LedgerWriter, METADATA, 0), made(LedgerWriter, METADATA, 0)
    append(first, 0)
    this.recorder.put([1, HEARD, "b3", 0, 0, 5])
    append(first, 1)
    append(second, 0)
    end_recording()
    result = Replay(record).run()
    assert [one.machine for one in result.differences] == ["LedgerWriter 1"]
    assert result.decisions == 6
    # Later events of that machine are not compared, and are not counted as equal.
    assert result.lost == 3


def test_entry_truncated_by_recovery_breaks_a_law_of_the_joined_histories(record):
    """Each machine's answers are right: two bookies lied to the recoverer or had lost the entry."""
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    append(writer, 1)
    assert recover(1).last_entry_id == 0
    end_recording()
    result = Replay(record).run()
    assert result.differences == []
    laws = {one.law for one in result.broken}
    assert "no_divergence_between_writer_and_metadata" in laws
    assert result.first_failing == 7


def test_read_that_misses_a_confirmed_entry_breaks_a_law(record, monkeypatch):
    monkeypatch.setattr("bookspark.lab.replay.joining.MARGIN_NS", 0)
    append(made(LedgerWriter, METADATA, 0), 0)
    this.recorder._drain()
    read = made(RangeRead, METADATA, 0, 0)
    actions = read.start()
    while actions and isinstance(actions[0], SendRead):
        actions = read.step(ReadAnswered(actions[0].bookie, 0, -1, Negative()))
    end_recording()
    (broken,) = Replay(record).run().broken
    assert broken.law == "an entry that was confirmed is never absent"


def test_entry_confirmed_during_the_read_may_be_absent(record):
    read = made(RangeRead, METADATA, 0, 0)
    actions = read.start()
    append(made(LedgerWriter, METADATA, 0), 0)
    this.recorder._drain()
    while actions and isinstance(actions[0], SendRead):
        actions = read.step(ReadAnswered(actions[0].bookie, 0, -1, Negative()))
    end_recording()
    assert Replay(record).run().broken == []


def test_add_accepted_after_the_fence_breaks_a_law(record, monkeypatch):
    admit = BookieLedger.admit_add

    def forgets_fences(self, master_key, recovery):
        return Decision(Positive()) if self.fenced else admit(self, master_key, recovery)

    def added(self, decision, lac, lafr):
        return self.note(lac, lafr)

    monkeypatch.setattr(BookieLedger, "admit_add", forgets_fences)
    monkeypatch.setattr(BookieLedger, "added", added)
    ledger = watched(BookieLedger(7))
    ledger.added(ledger.admit_add(b"key", False), -1, -1)
    ledger.fence(b"key")
    taken = ledger.admit_add(b"key", False)
    ledger.added(taken, 0, -1)
    end_recording()
    result = Replay(record).run()
    assert result.differences == []
    assert [one.law for one in result.broken] == ["no_add_after_the_fence"]


def test_lac_that_no_writer_confirmed_breaks_a_law(record):
    append(made(LedgerWriter, METADATA, 0), 0)
    ledger = watched(BookieLedger(7))
    ledger.added(ledger.admit_add(b"key", False), 4, -1)
    end_recording()
    assert [one.law for one in Replay(record).run().broken] == ["last_add_confirmed_is_confirmed"]


def test_torn_writer_record_excuses_an_unconfirmed_lac(record):
    append(made(LedgerWriter, METADATA, 0), 0)
    ledger = watched(BookieLedger(7))
    ledger.added(ledger.admit_add(b"key", False), 4, -1)
    end_recording()
    (path,) = record.iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    assert Replay(record).run().broken == []


def test_folder_without_a_record_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no record of decisions"):
        Replay(tmp_path).run()
