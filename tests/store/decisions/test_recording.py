"""Recording of a process's decisions: its content, its bounds, and no effect on the decisions."""

from __future__ import annotations

import os

import msgspec
import pytest
import zstandard

from bookspark.errors import ConfigurationError, LedgerClosedError
from bookspark.lab.replay.replaying import records_in, replayed
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, answer_absent
from bookspark.protocol.ledger.actions import AddAnswered, Confirm, ReadAnswered
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.reading.lac_read import LacRead
from bookspark.protocol.reading.range_read import RangeRead
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.protocol.writing.writer_events import Append, Close
from bookspark.store.decisions import recorder as recorders
from bookspark.store.decisions.record_file import RECORDS_BYTES_MAX, Segment, encoded
from bookspark.store.decisions.recorder import Recorder, end_recording, record_into, recording, this, version
from bookspark.store.decisions.seam import decided, made, watched

METADATA = LedgerMetadata(7, 3, 3, 2, (Fragment(0, ("b1", "b2", "b3")),), master_key=b"the master key's bytes")


def append(writer, entry_id):
    """Append an entry, which two of three bookies acknowledge."""
    writer.step(Append(1, 10))
    assert writer.step(AddAnswered("b1", entry_id, entry_id, Positive())) == []
    return writer.step(AddAnswered("b2", entry_id, entry_id, Positive()))


def raw_records(folder):
    """The chunks of all records, uncompressed."""
    for paths in records_in(folder).values():
        for path in paths:
            yield from (chunk.records for chunk in Segment(path, version()).chunks())


def counts_of(folder):
    """Counts of the folder's only process."""
    (counts,) = replayed(folder)
    return counts


def test_machines_are_plain_objects_without_recording():
    assert not recording()
    ledger = BookieLedger(7)
    assert type(made(LacRead, METADATA)) is LacRead
    assert watched(ledger) is ledger
    assert type(ledger) is BookieLedger


def test_recorded_machine_answers_and_raises_as_a_plain_machine(record):
    writer = made(LedgerWriter, METADATA, 0)
    assert isinstance(writer, LedgerWriter)
    assert append(writer, 0) == [Confirm(0)]
    writer.step(Close())
    with pytest.raises(LedgerClosedError):
        writer.step(Append(1, 10))
    ledger, plain = watched(BookieLedger(7)), BookieLedger(7)
    for one in (ledger, plain):
        assert one.added(one.admit_add(b"key", recovery=False), 4, -1)
        assert one.fence(b"key").response == Positive()
        assert not isinstance(one.admit_add(b"key", False).response, Positive)
    assert ledger == plain
    end_recording()
    counts = counts_of(record)
    assert (counts.machines, counts.lost, counts.differences, counts.clean) == (2, 0, [], True)
    assert counts.by_kind == {"LedgerWriter": 5, "BookieLedger": 4}


def test_record_contains_no_payload_and_no_key(record):
    read = made(RangeRead, METADATA, 0, 0)
    (asked,) = read.start()
    read.step(ReadAnswered(asked.bookie, 0, 0, Positive(), [b"the payload of entry 0"], 10))
    ledger = watched(BookieLedger(7))
    ledger.fence(b"the key of the ledger")
    ledger.admit_add(b"another key, a wrong one", recovery=True)
    end_recording()
    content = b"".join(raw_records(record))
    assert b"RangeRead" in content and b"BookieLedger" in content
    for secret in (b"the payload", b"the key of", b"another key", b"the master key"):
        assert secret not in content
    assert counts_of(record).differences == []


def test_calls_of_pure_functions_are_recorded(record):
    ledger = watched(BookieLedger(7))
    decided(answer_absent, ledger, 5, storage_damaged=False)
    decided(answer_absent, None, 5, storage_damaged=True)
    end_recording()
    counts = counts_of(record)
    assert counts.by_kind == {"answer_absent": 2}
    assert counts.differences == []


def test_replay_reports_a_torn_end_at_any_place(record):
    writer = made(LedgerWriter, METADATA, 0)
    for entry_id in range(20):
        append(writer, entry_id)
    end_recording()
    (path,) = record.iterdir()
    content = path.read_bytes()
    for kept in range(len(content) - 1, len(content) - 200, -7):
        path.write_bytes(content[:kept])
        counts = counts_of(record)
        assert not counts.clean
        assert counts.differences == []
        assert counts.decisions in (0, 60)


def test_replay_stops_at_a_changed_byte(record):
    append(made(LedgerWriter, METADATA, 0), 0)
    end_recording()
    (path,) = record.iterdir()
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    counts = counts_of(record)
    assert (counts.decisions, counts.clean, counts.torn > 0) == (0, False, True)


def test_process_keeps_a_bounded_number_of_segments(tmp_path, monkeypatch):
    # The draining thread would begin segments in between.
    monkeypatch.setattr(recorders, "_DRAIN_SECONDS", 3600)
    recorder = this.recorder = Recorder(str(tmp_path), "test", segment_bytes=1, segments_max=3)
    try:
        old = made(LedgerWriter, METADATA, 0)
        for entry_id in range(10):
            append(old, entry_id)
            recorder._drain()
        young = made(LedgerWriter, METADATA, 0)
        for entry_id in range(2):
            append(young, entry_id)
    finally:
        end_recording()
    assert len(list(tmp_path.iterdir())) == 3
    counts = counts_of(tmp_path)
    # Machines made before the kept segments can't be replayed, and don't count as equal.
    assert counts.lost > 0
    assert counts.by_kind == {"LedgerWriter": 6}
    assert counts.differences == []


def test_full_disk_ends_the_record_and_not_the_process(record, monkeypatch, caplog):
    writer, recorder = made(LedgerWriter, METADATA, 0), this.recorder
    recorder._drain()

    class Full:
        def write(self, chunk):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(recorder, "_file", Full())
    assert append(writer, 0) == [Confirm(0)]
    recorder._drain()
    assert append(writer, 1) == [Confirm(1)]
    recorder._drain()
    assert not recorder._pending
    assert "No space left on device" in caplog.text


def test_step_with_a_full_queue_writes_the_queue_itself(record, monkeypatch):
    monkeypatch.setattr(recorders, "_PENDING_MAX", 10)
    writer = made(LedgerWriter, METADATA, 0)
    for entry_id in range(50):
        append(writer, entry_id)
        assert len(this.recorder._pending) <= 11


def test_forked_process_writes_nothing_into_the_record_of_its_parent(record):
    writer = made(LedgerWriter, METADATA, 0)
    append(writer, 0)
    child = os.fork()
    if child == 0:
        append(writer, 1)
        writer._recorder._drain()
        os._exit(0 if not recording() else 1)
    assert os.waitpid(child, 0)[1] == 0
    append(writer, 1)
    end_recording()
    counts = counts_of(record)
    assert (counts.decisions, counts.differences, counts.clean) == (6, [], True)


def test_process_has_a_single_record(record, tmp_path):
    assert record_into(str(record), "client") is this.recorder
    assert record_into("", "client") is this.recorder
    with pytest.raises(ConfigurationError, match="records its decisions into"):
        record_into(str(tmp_path / "other"), "client")


def test_error_names_the_setting_of_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="record_decisions"):
        record_into(str(tmp_path / "file"), "client")
    assert not recording()


def test_record_of_another_version_is_refused(record, monkeypatch):
    append(made(LedgerWriter, METADATA, 0), 0)
    end_recording()
    (path,) = record.iterdir()
    with pytest.raises(ConfigurationError, match="replay it with the version that made it"):
        Segment(path, "0.0.1")


@pytest.mark.parametrize("name", ["os:mkdir", "bookspark.protocol.bookie.cookie:shlex.os.mkdir"])
def test_record_naming_a_function_outside_the_protocol_is_refused(record, tmp_path, name):
    """The second leads over a module that the protocol imports: a foreign record ran any function."""
    this.recorder.put([-1, name, [str(tmp_path / "made")], {}, None, None, []])
    end_recording()
    with pytest.raises(ConfigurationError, match="no function of this version's protocol"):
        counts_of(record)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["subprocess:Popen", "bookspark.protocol.bookie.cookie:shlex.shlex"])
def test_record_naming_a_class_outside_the_protocol_is_refused(record, name):
    this.recorder.put([0, 1, name, ["true"], {}])
    end_recording()
    with pytest.raises(ConfigurationError, match="no class of this version's protocol"):
        counts_of(record)


@pytest.mark.parametrize("strange", [[], "text", [0, 1], [-2, 3], [[]], [-1, [], 0, 0]])
def test_chunk_that_no_process_wrote_is_refused_with_its_file(record, strange):
    append(made(LedgerWriter, METADATA, 0), 0)
    this.recorder.put(strange)
    end_recording()
    with pytest.raises(ConfigurationError, match="is no record of decisions"):
        counts_of(record)


def test_chunk_that_inflates_to_more_than_a_chunk_may_have_is_refused(record):
    append(made(LedgerWriter, METADATA, 0), 0)
    end_recording()
    (path,) = record.iterdir()
    bomb = zstandard.ZstdCompressor().compress(bytes(RECORDS_BYTES_MAX + 1))
    before_the_end = path.read_bytes()[: -len(encoded(0, 0, b""))]
    path.write_bytes(before_the_end + encoded(0, 0, bomb))
    with pytest.raises(ConfigurationError, match=r"no record of decisions: .* would inflate to 67,108,865"):
        counts_of(record)


def test_each_chunk_is_a_list_of_records(record):
    append(made(LedgerWriter, METADATA, 0), 0)
    end_recording()
    (chunk,) = raw_records(record)
    records = msgspec.msgpack.decode(chunk)
    assert [one[0] for one in records if one[0] > 0] == [1, 1, 1, 1]
