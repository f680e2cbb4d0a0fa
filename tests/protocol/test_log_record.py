"""Transitions of a log's record, arithmetic of the commit header, and the rule for orphan ledgers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.errors import ConfigurationError
from bookspark.protocol.logs.commits import (
    QUERIES_MAX,
    Commit,
    CommitHeader,
    EntryRange,
    Position,
    merged,
)
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import (
    BATCH_WRITE_MS_MAX,
    COMMIT_ROLE,
    DATA_ROLE,
    EPOCH_LABEL,
    LOG_ID_LABEL,
    LOG_LABEL,
    ROLE_LABEL,
    AnotherQueryError,
    CommitLedger,
    LinkStart,
    LogChangedError,
    LogRecord,
    LogTakenOverError,
)
from bookspark.protocol.logs.orphans import is_orphan
from bookspark.protocol.logs.replays import Batch, CheckpointRewoundError, is_committed


def commit(query: str, batch: int, epoch: int = 1, run: str = "run", *ranges: EntryRange) -> Commit:
    return Commit(query, batch, run, epoch, ranges or (EntryRange(7, 0, 9, 10, 100),))


def contains(header: CommitHeader, query: str, number: int) -> bool:
    return is_committed(header, Batch("orders", query, number))


def test_each_new_run_gets_the_next_epoch() -> None:
    record = LogRecord("orders").claim("a")
    assert (record.owner, record.epoch) == ("a", 1)
    record = record.claim("b")
    assert (record.owner, record.epoch, record.claims) == ("b", 2, ("a", "b"))


def test_second_claim_of_the_owner_changes_nothing() -> None:
    record = LogRecord("orders").claim("a")
    assert record.claim("a") is record


def test_run_that_lost_the_log_never_claims_again() -> None:
    record = LogRecord("orders").claim("a").claim("b")
    with pytest.raises(
        LogTakenOverError,
        match=r"another run took over: run b owns it in epoch 2, run a does not.*Of two runs of a query",
    ):
        record.claim("a")


def test_producer_that_lost_its_lane_learns_which_run_has_it() -> None:
    record = LogRecord("orders@1").claim("a", "service:billing").claim("b", "service:billing")
    with pytest.raises(
        LogTakenOverError,
        match="another producer of this name was made: run b of 'billing' owns the lane in epoch 2, run a does",
    ):
        record.check_writer("a", 1)


def test_only_the_owner_of_the_current_epoch_adds_a_commit_ledger() -> None:
    record = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ())
    assert record.commit_ledgers == (CommitLedger(4, 1),)
    taken = record.claim("b")
    with pytest.raises(LogTakenOverError):
        taken.with_commit_ledger(5, "a", 1, taken.commit_ledgers)


def test_commit_ledger_must_follow_the_recovered_chain() -> None:
    record = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ())
    with pytest.raises(LogChangedError):
        record.with_commit_ledger(5, "a", 1, ())


def test_commit_ledger_added_twice_appears_once() -> None:
    """A lost answer to the compare-and-set is settled by a retry."""
    record = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ())
    assert record.with_commit_ledger(4, "a", 1, ()) is record


def test_commit_ledger_follows_the_recovered_last_ledger_after_a_truncation() -> None:
    record = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ()).claim("b")
    recovered = record.with_commit_ledger(5, "b", 2, record.commit_ledgers).claim("c")
    shorter = recovered.truncated(10, {CommitLedger(4, 1): 10})
    assert shorter.with_commit_ledger(6, "c", 3, recovered.commit_ledgers).commit_ledgers[-1] == CommitLedger(6, 3)


def test_compacted_commit_ledger_replaces_neighbours_only() -> None:
    record = LogRecord("orders")
    for epoch, run in enumerate("abcd", 1):
        record = record.claim(run).with_commit_ledger(epoch, run, epoch, record.commit_ledgers)
    one, two, three, four = record.commit_ledgers
    compacted = record.with_compacted((two, three), 9, "d", 4)
    assert compacted.commit_ledgers == (one, CommitLedger(9, 3), four)
    assert compacted.with_compacted((two, three), 9, "d", 4) is compacted
    for others in ((three, four), (one, three), (two, CommitLedger(7, 3))):
        with pytest.raises(LogChangedError):
            record.with_compacted(others, 9, "d", 4)
    with pytest.raises(LogTakenOverError):
        record.claim("e").with_compacted((two, three), 9, "d", 4)


def test_starts_of_commit_ledgers_follow_compaction_and_truncation() -> None:
    record = LogRecord("orders")
    for epoch, run in enumerate("abcd", 1):
        # An earlier version, which does not write starts, adds the third ledger.
        start = None if run == "c" else LinkStart(epoch, 1000 * epoch, 10 * epoch)
        record = record.claim(run).with_commit_ledger(epoch, run, epoch, record.commit_ledgers, start)
    one, two, four = record.link_starts
    assert (one.ledger_id, two.ledger_id, four.ledger_id) == (1, 2, 4)
    assert record.with_compacted(record.commit_ledgers[:2], 9, "d", 4).link_starts == (LinkStart(9, 1000, 10), four)
    assert record.with_compacted(record.commit_ledgers[1:3], 9, "d", 4).link_starts == (
        one,
        LinkStart(9, 2000, 20),
        four,
    )
    assert record.truncated(25, {record.commit_ledgers[0]: 20, record.commit_ledgers[1]: 25}).link_starts == (four,)


def test_compacted_ledger_has_no_start_if_its_first_part_has_none() -> None:
    record = LogRecord("orders")
    for epoch, run in enumerate("abc", 1):
        start = LinkStart(epoch, 1000 * epoch, 10 * epoch) if epoch > 1 else None
        record = record.claim(run).with_commit_ledger(epoch, run, epoch, record.commit_ledgers, start)
    assert record.with_compacted(record.commit_ledgers[:2], 9, "c", 3).link_starts == record.link_starts[1:]


# -- batch writes and other queries beside the owner


def test_batch_write_commits_beside_the_owner_without_owning_the_log() -> None:
    record = LogRecord("orders").claim("a", "q").with_commit_ledger(4, "a", 1, ())
    begun = record.batch_write_begun("w")
    assert (begun.owner, begun.epoch, begun.newest_epoch) == ("a", 1, 2)
    assert begun.batch_write_begun("w") is begun
    written = begun.with_commit_ledger(5, "w", 2, begun.commit_ledgers)
    after = written.with_commit_ledger(6, "a", 1, written.commit_ledgers)
    assert after.commit_ledgers == (CommitLedger(4, 1), CommitLedger(5, 2), CommitLedger(6, 1))
    with pytest.raises(LogChangedError):
        written.with_commit_ledger(6, "a", 1, record.commit_ledgers)


def test_batch_write_is_linked_once_even_if_its_commit_ledger_was_compacted() -> None:
    record = LogRecord("orders").claim("a").with_commit_ledger(1, "a", 1, ()).batch_write_begun("w")
    record = record.with_commit_ledger(2, "w", 2, record.commit_ledgers)
    record = record.with_commit_ledger(3, "a", 1, record.commit_ledgers)
    compacted = record.with_compacted(record.commit_ledgers[:2], 9, "a", 1)
    assert compacted.with_commit_ledger(2, "w", 2, (CommitLedger(1, 1),)) is compacted


def test_ended_or_unknown_batch_write_neither_commits_nor_begins_again() -> None:
    begun = LogRecord("orders").claim("a").batch_write_begun("w")
    ended = begun.batch_write_ended("w", closed=False)
    assert ended.batch_write_ended("w", closed=False) is ended
    for record in (ended, LogRecord("orders", epoch=7, owner="b")):
        with pytest.raises(LogTakenOverError, match="if its id is not in the table log_commits, nothing was written"):
            record.with_commit_ledger(5, "w", 2, ())
    with pytest.raises(LogTakenOverError):
        ended.batch_write_begun("w")


def test_new_batch_write_drops_day_old_writes_without_a_commit() -> None:
    """Its age is that of the record, by the store's clock, and an old record does not make a new write old."""
    dead = replace(LogRecord("orders", changed_ms=1).batch_write_begun("dead"), changed_ms=BATCH_WRITE_MS_MAX)
    committed = dead.batch_write_begun("committed").with_commit_ledger(5, "committed", 2, ())
    assert [write.run for write in committed.batch_writes] == ["dead", "committed"]
    later = replace(committed, changed_ms=2 * BATCH_WRITE_MS_MAX).batch_write_begun("next")
    assert [write.run for write in later.batch_writes] == ["committed", "next"]
    with pytest.raises(LogTakenOverError):
        later.with_commit_ledger(6, "dead", 1, later.commit_ledgers)


def test_dropped_batch_write_never_begins_again_in_another_epoch() -> None:
    """Its tasks wrote to two epochs, and the commit named ledgers that had been deleted as orphans."""
    dead = replace(LogRecord("orders").batch_write_begun("dead"), changed_ms=1)
    later = replace(dead.batch_write_begun("next"), changed_ms=1 + BATCH_WRITE_MS_MAX).batch_write_begun("last")
    assert later.batch_write("dead") is None
    with pytest.raises(LogTakenOverError):
        later.batch_write_begun("dead")


def test_batch_write_with_a_commit_does_not_end_before_its_commit_ledger_closes() -> None:
    """Its data ledgers were taken for orphans if its commit ledger stayed open."""
    committed = LogRecord("orders").batch_write_begun("w").with_commit_ledger(4, "w", 1, ())
    assert committed.batch_write_ended("w", closed=False) is committed
    assert not is_orphan(committed, 3, labels(1), set())
    assert is_orphan(committed.batch_write_ended("w", closed=True), 3, labels(1), set())


def test_data_ledgers_of_a_live_writer_are_no_orphans() -> None:
    record = LogRecord("orders").claim("a", "q").with_commit_ledger(4, "a", 1, ()).batch_write_begun("w")
    later = record.batch_write_begun("x").with_commit_ledger(9, "x", 3, record.commit_ledgers)
    later = later.batch_write_ended("x", closed=True)
    assert not is_orphan(later, 6, labels(1), set()) and not is_orphan(later, 7, labels(2), set())
    assert is_orphan(later, 8, labels(3), set()) and not is_orphan(later, 8, labels(3), {8})
    assert is_orphan(later.batch_write_ended("w", closed=False), 7, labels(2), set())
    taken = later.claim("b", "q")
    assert not is_orphan(taken, 6, labels(1), set()), "the former owner may still commit"
    recovered = taken.with_commit_ledger(10, "b", taken.epoch, taken.commit_ledgers)
    assert is_orphan(recovered, 6, labels(1), set()) and not is_orphan(recovered, 7, labels(2), set())


def test_oldest_live_epoch_is_the_earliest_live_writers_or_the_next() -> None:
    record = LogRecord("orders")
    assert record.oldest_live_epoch == 0
    record = record.batch_write_begun("v").batch_write_begun("w")
    assert record.oldest_live_epoch == 1
    record = record.claim("a", "q").batch_write_ended("v", closed=False)
    assert (record.oldest_live_epoch, record.live_epochs) == (2, {2, 3})
    assert LogRecord("orders").batch_write_begun("w").batch_write_ended("w", closed=False).oldest_live_epoch == 2


def test_compacted_ledger_has_the_highest_epoch_of_its_commits() -> None:
    """Data ledgers are searched in commit ledgers of their epoch and above."""
    record = LogRecord("orders").claim("a").batch_write_begun("w")
    for ledger, run, epoch in ((1, "a", 1), (2, "w", 2), (3, "a", 1), (4, "a", 1)):
        record = record.with_commit_ledger(ledger, run, epoch, record.commit_ledgers)
    assert record.with_compacted(record.commit_ledgers[:3], 9, "a", 1).commit_ledgers[0] == CommitLedger(9, 2)


def test_new_query_takes_over_a_log_only_by_naming_its_query() -> None:
    record = LogRecord("orders").claim("a", "q")
    assert record.claim("b", "q").owner == "b", "the query itself, started again"
    with pytest.raises(AnotherQueryError, match=r"log 'orders' is written by query q.*option follows to 'q'"):
        record.claim("c", "new")
    with pytest.raises(AnotherQueryError):
        record.claim("c", "new", follows="third")
    taken = record.claim("c", "new", follows="q")
    assert (taken.owner, taken.owner_query) == ("c", "new")
    with pytest.raises(AnotherQueryError):
        taken.claim("d", "q")
    with pytest.raises(AnotherQueryError):
        taken.claim("d", "newest", follows="q")  # the option does no harm if it stays


def test_record_of_an_earlier_version_uses_the_last_committing_query() -> None:
    record = LogRecord("orders", epoch=3, owner="a", claims=("a",))
    with pytest.raises(AnotherQueryError):
        record.claim("b", "new", last_query="q")
    assert record.claim("b", "q", last_query="q").owner_query == "q"
    assert record.claim("b", "new").owner == "b", "only batch writes are in the log"


def test_log_options_refuse_an_ack_quorum_above_the_write_quorum() -> None:
    with pytest.raises(ConfigurationError, match="write_quorum 3 ≥ ack_quorum 4"):
        LogOptions(ack_quorum=4)


def test_header_contains_committed_batches_and_sums_positions() -> None:
    header = CommitHeader().followed_by(commit("q", 0)).followed_by(commit("q", 1)).followed_by(commit("p", 5))
    assert contains(header, "q", 1) and contains(header, "p", 5)
    assert not contains(header, "q", 2) and not contains(header, "r", 0)
    assert header.position == Position(batches=3, rows=30, size=300)


def test_batch_before_the_last_of_its_query_is_refused_as_a_rewound_checkpoint() -> None:
    header = CommitHeader().followed_by(commit("q", 0)).followed_by(commit("q", 2))
    for number in (0, 1):
        with pytest.raises(
            CheckpointRewoundError, match=f"batch {number} of query q is not written: the log has batch 2"
        ):
            contains(header, "q", number)
    assert contains(header, "q", 2) and not contains(header, "q", 3)


def test_header_keeps_streaming_queries_over_epochs_but_no_batch_writes() -> None:
    header = CommitHeader().followed_by(commit("q", 3)).followed_by(commit("w", 0, 2, "w"))
    later = header.entering(3)
    assert contains(later, "q", 3) and later.last_batches == {"q": 3}
    assert later.position == header.position == Position(2, 20, 200)
    assert replace(header, open_ledger=7).entering(3).open_ledger is None, "a new epoch has no open ledger yet"


def test_header_keeps_the_queries_that_committed_last() -> None:
    header = CommitHeader().followed_by(commit("old", 0))
    for number in range(QUERIES_MAX):
        header = header.followed_by(commit(f"q{number}", 0))
    kept = header.entering(2)
    assert len(kept.last_batches) == QUERIES_MAX
    assert not contains(kept, "old", 0) and contains(kept, "q0", 0)
    assert kept.fingerprints.keys() == kept.last_batches.keys()
    again = CommitHeader().followed_by(commit("q0", 0)).followed_by(commit("q1", 0)).followed_by(commit("q0", 1))
    assert list(again.last_batches) == ["q1", "q0"]


def test_adjacent_ranges_are_merged_in_order() -> None:
    a, b, c = EntryRange(1, 0, 4, 5, 50), EntryRange(1, 5, 9, 5, 60), EntryRange(1, 11, 11, 1, 1)
    other = EntryRange(2, 0, 0, 1, 1)
    assert merged([a, b, c]) == (EntryRange(1, 0, 9, 10, 110), c)
    assert merged([a, other, b]) == (a, other, b)


def labels(epoch: int, log: str = "orders", role: str = DATA_ROLE) -> dict[str, bytes]:
    return {LOG_LABEL: log.encode(), LOG_ID_LABEL: b"0", EPOCH_LABEL: str(epoch).encode(), ROLE_LABEL: role.encode()}


RECOVERED = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ()).claim("b")
RECOVERED = RECOVERED.with_commit_ledger(9, "b", 2, RECOVERED.commit_ledgers)


def test_unreferenced_data_ledger_of_an_earlier_epoch_is_an_orphan() -> None:
    assert is_orphan(RECOVERED, 6, labels(1), referenced={5})


def test_referenced_ledger_is_no_orphan() -> None:
    assert not is_orphan(RECOVERED, 5, labels(1), referenced={5})


def test_ledger_of_the_current_epoch_is_no_orphan() -> None:
    assert not is_orphan(RECOVERED, 6, labels(2), referenced=set())


def test_no_ledger_is_an_orphan_before_the_new_owner_recovered_the_commits() -> None:
    claimed = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ()).claim("b")
    assert not is_orphan(claimed, 6, labels(1), referenced=set())


def test_commit_ledger_outside_the_chain_is_an_orphan() -> None:
    assert is_orphan(RECOVERED, 8, labels(1, role=COMMIT_ROLE), referenced=set())
    assert not is_orphan(RECOVERED, 4, labels(1, role=COMMIT_ROLE), referenced=set())


def test_ledgers_of_other_logs_and_of_users_are_no_orphans() -> None:
    assert not is_orphan(RECOVERED, 6, labels(1, log="other"), referenced=set())
    assert not is_orphan(RECOVERED, 6, {}, referenced=set())


CHAIN = tuple(CommitLedger(ledger, 1) for ledger in (10, 11, 12))
LONG = LogRecord("orders", epoch=1, owner="a", commit_ledgers=CHAIN)
ENDS = {CHAIN[0]: 100, CHAIN[1]: 200}


@pytest.mark.parametrize(("row", "kept"), [(0, 3), (99, 3), (100, 2), (199, 2), (200, 1), (10_000, 1)])
def test_truncation_drops_commit_ledgers_before_the_row_but_never_the_last(row: int, kept: int) -> None:
    record = LONG.truncated(row, ENDS)
    assert record.first_position == row and record.commit_ledgers == CHAIN[-kept:]


def test_truncation_keeps_the_last_commit_ledger_even_if_its_end_is_lower() -> None:
    assert LONG.truncated(10_000, {**ENDS, CHAIN[2]: 300}).commit_ledgers == CHAIN[-1:]


def test_truncation_is_never_undone() -> None:
    record = LONG.truncated(150, ENDS)
    assert record.truncated(20, ENDS) == record.truncated(150, ENDS) == record


@pytest.mark.parametrize("epoch", [b"", b"one", b"-1", b"1.5", b"\xff", b"9" * 5000])
def test_ledger_with_a_non_numeric_epoch_label_is_no_orphan(epoch: bytes) -> None:
    """A user's own label of that name ended orphan collection of the log."""
    assert not is_orphan(RECOVERED, 6, {**labels(1), EPOCH_LABEL: epoch}, referenced=set())
