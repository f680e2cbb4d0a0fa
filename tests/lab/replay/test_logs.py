"""Decisions about logs are recorded and replayed: claims, commits, replays, orphans, compaction."""

from __future__ import annotations

import pytest

from bookspark.lab.replay.run import Replay
from bookspark.logs import LogAddress, LogRegistry, LogRun, collect_orphans
from bookspark.logs.chain.committer import Committer
from bookspark.protocol.logs import log_record
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.replays import CheckpointRewoundError
from bookspark.store.decisions.recorder import end_recording
from tests.spark.memory_bookkeeper import MemoryBookKeeper
from tests.store.decisions.test_recording import raw_records

PASSWORD = b"the log's password"


def committed_batches():
    """Two runs of a query; each commits a batch twice and then a batch of a rewound checkpoint."""
    bookkeeper = MemoryBookKeeper()
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure("orders", {}, PASSWORD)
    for epoch, run in enumerate("ab", 1):
        address = LogAddress("zookeeper", "orders", PASSWORD)
        owner = LogRun.of(address, registry.claim("orders", run))
        writer, ledger_id = Committer(bookkeeper, owner), bookkeeper.data_ledger(owner)
        for number in (3 * epoch, 3 * epoch, 3 * epoch + 1):
            writer.commit(Commit("q", number, run, epoch, (EntryRange(ledger_id, number, number, 1, 10),)))
        with pytest.raises(CheckpointRewoundError):
            writer.commit(Commit("q", 0, run, epoch, (EntryRange(ledger_id, 0, 0, 1, 10),)))
    collect_orphans(bookkeeper, "orders", PASSWORD)


def test_decisions_about_logs_are_replayed_without_a_difference(record):
    committed_batches()
    end_recording()
    result = Replay(record).run()
    assert (result.differences, result.lost) == ([], 0)
    (counts,) = result.counts
    assert counts.by_kind["is_committed"] >= 8
    assert counts.by_kind["LogRecord.claim"] == 2
    assert counts.by_kind["LogRecord.with_commit_ledger"] == 2
    assert b"password" not in b"".join(raw_records(record))


def test_changed_claim_decision_is_reported_as_a_difference(record, monkeypatch):
    committed_batches()
    end_recording()
    monkeypatch.setattr(log_record.LogRecord, "newest_epoch", property(lambda self: self.epoch + 1))
    found = Replay(record).run().differences
    assert found and found[0].machine == "LogRecord.claim"
