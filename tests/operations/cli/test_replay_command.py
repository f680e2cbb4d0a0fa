"""Output and exit status of ``bookspark replay``; its findings are tested in ``tests/lab/replay``."""

from __future__ import annotations

import json

from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.store.decisions.machines import HEARD
from bookspark.store.decisions.record_file import Header, header_chunk
from bookspark.store.decisions.recorder import end_recording, this
from bookspark.store.decisions.seam import made
from tests.lab.replay.test_replay import METADATA, append, recover
from tests.recording import record

__all__ = ["record"]


def test_replay_of_an_equal_record_reports_success(record, bookspark):
    append(made(LedgerWriter, METADATA, 0), 0)
    end_recording()
    outcome = bookspark("replay", str(record))
    assert outcome.status == 0
    assert "1 machine, 3 decisions; all equal" in outcome.text
    assert "every answer is equal; 1 ledger: no law is broken" in outcome.text
    document = json.loads(outcome.text.splitlines()[-1])
    assert (document["decisions"], document["differences"], document["violations"]) == (3, 0, [])


def test_replay_writes_a_story_of_a_violation(record, bookspark, tmp_path):
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    append(writer, 1)
    recover(1)
    end_recording()
    page = tmp_path / "story.html"
    outcome = bookspark("replay", str(record), "--story", str(page))
    assert outcome.status == 1
    assert "VIOLATION: ledger 7: no_divergence_between_writer_and_metadata" in outcome.text
    assert "in the simulator: bookspark simulate --random" in outcome.text
    html = page.read_text()
    for words in (
        "no divergence between writer and metadata",
        "A closed ledger ends at or after every entry confirmed to its writer",
        "the writer hears from b2: add of e1 ok; entry 1 is confirmed",
        "the recoverer 1 hears from b1: LAC -1",
        "it writes the metadata (CLOSED at entry 0)",
        "<svg",
    ):
        assert words in html, words


def test_replay_reports_a_difference(record, bookspark, tmp_path):
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    this.recorder.put([1, HEARD, "b3", 0, 0, 5])
    end_recording()
    outcome = bookspark("replay", str(record), "--story", str(tmp_path / "story.html"))
    assert outcome.status == 1
    assert "DIFFERENCE: LedgerWriter 1" in outcome.text
    assert "an answer is another one now" in (tmp_path / "story.html").read_text()


def test_replay_refuses_a_record_of_another_version(record, bookspark):
    append(made(LedgerWriter, METADATA, 0), 0)
    end_recording()
    (path,) = record.iterdir()
    path.write_bytes(header_chunk(Header(1, "0.0.1", "test", "host", 1, 0), 0))
    outcome = bookspark("replay", str(record))
    assert outcome.status == 2
    assert "replay it with the version that made it" in outcome.err


def test_replay_reports_where_the_record_departs_from_the_simulator(record, bookspark):
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    append(writer, 1)
    recover(1)
    end_recording()
    outcome = bookspark("replay", str(record), "--simulate")
    assert outcome.status == 1
    assert "  1. the writer appends e0\n" in outcome.text
    assert "here reality left the simulator: b1 answered LAC -1 in reality" in outcome.text


def test_ledger_without_a_story_and_unknown_ledger_are_refused(record, bookspark):
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    end_recording()
    assert bookspark("replay", str(record), "--ledger", "7").status == 2
    assert bookspark("replay", str(record), "--ledger", "8", "--simulate").status == 2
    assert "there is no story" in bookspark("replay", str(record), "--simulate").text
