"""The transitions of a log's record, the header's arithmetic and the rule about orphans."""

from __future__ import annotations

import pytest

from bookspark.errors import ConfigurationError
from bookspark.protocol.logs.commits import (
    QUERIES_MAX,
    CheckpointRewoundError,
    Commit,
    CommitHeader,
    EntryRange,
    Position,
    merged,
)
from bookspark.protocol.logs.log_record import (
    COMMIT_ROLE,
    DATA_ROLE,
    EPOCH_LABEL,
    LOG_LABEL,
    ROLE_LABEL,
    CommitLedger,
    LogChangedError,
    LogOptions,
    LogRecord,
    LogTakenOverError,
    is_orphan,
)


def commit(query: str, batch: int, epoch: int = 1, run: str = "run", *ranges: EntryRange) -> Commit:
    return Commit(query, batch, run, epoch, ranges or (EntryRange(7, 0, 9, 10, 100),))


def test_each_new_run_gets_the_next_epoch() -> None:
    record = LogRecord("orders").claim("a")
    assert (record.owner, record.epoch) == ("a", 1)
    record = record.claim("b")
    assert (record.owner, record.epoch, record.claims) == ("b", 2, ("a", "b"))


def test_the_owner_claims_again_and_nothing_changes() -> None:
    record = LogRecord("orders").claim("a")
    assert record.claim("a") is record


def test_a_run_that_lost_the_log_never_claims_again() -> None:
    record = LogRecord("orders").claim("a").claim("b")
    with pytest.raises(LogTakenOverError, match="another run took over: run b owns it in epoch 2, run a does not"):
        record.claim("a")


def test_only_the_owner_of_the_epoch_that_stands_adds_a_commit_ledger() -> None:
    record = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ())
    assert record.commit_ledgers == (CommitLedger(4, 1),)
    taken = record.claim("b")
    with pytest.raises(LogTakenOverError):
        taken.with_commit_ledger(5, "a", 1, taken.commit_ledgers)


def test_a_commit_ledger_follows_the_chain_that_was_recovered_or_nothing() -> None:
    record = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ())
    with pytest.raises(LogChangedError):
        record.with_commit_ledger(5, "a", 1, ())


def test_adding_a_commit_ledger_twice_is_adding_it_once() -> None:
    """A lost answer to the compare-and-set is settled by trying again."""
    record = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ())
    assert record.with_commit_ledger(4, "a", 1, ()) is record


def test_a_commit_ledger_follows_the_recovered_one_whatever_happened_to_those_before() -> None:
    record = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ()).claim("b")
    recovered = record.with_commit_ledger(5, "b", 2, record.commit_ledgers).claim("c")
    shorter = recovered.truncated(10, {CommitLedger(4, 1): 10})
    assert shorter.with_commit_ledger(6, "c", 3, recovered.commit_ledgers).commit_ledgers[-1] == CommitLedger(6, 3)


def test_one_commit_ledger_takes_the_place_of_neighbours() -> None:
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


def test_options_are_checked_as_quorums_are() -> None:
    with pytest.raises(ConfigurationError, match="write_quorum 3 ≥ ack_quorum 4"):
        LogOptions(ack_quorum=4)


def test_a_header_contains_what_was_committed_and_adds_up() -> None:
    header = CommitHeader().followed_by(commit("q", 0)).followed_by(commit("q", 1)).followed_by(commit("p", 5))
    assert header.contains("q", 1) and header.contains("p", 5)
    assert not header.contains("q", 2) and not header.contains("r", 0)
    assert header.position == Position(batches=3, rows=30, size=300)


def test_a_batch_before_the_last_one_of_its_query_is_refused_and_not_taken_for_a_replay() -> None:
    header = CommitHeader().followed_by(commit("q", 0)).followed_by(commit("q", 2))
    for number in (0, 1):
        with pytest.raises(
            CheckpointRewoundError, match=f"batch {number} of query q is not written: the log has batch 2"
        ):
            header.contains("q", number)
    assert header.contains("q", 2) and not header.contains("q", 3)


def test_streaming_queries_are_remembered_over_epochs_and_batch_writes_are_not() -> None:
    header = CommitHeader().followed_by(commit("q", 3)).followed_by(commit("w", 0, 2, "w"))
    assert header.contains("w", 0)
    assert header.entering(2).contains("w", 0)
    later = header.entering(3)
    assert later.contains("q", 3) and not later.contains("w", 0)
    assert later.position == header.position


def test_a_header_keeps_the_queries_that_committed_last() -> None:
    header = CommitHeader().followed_by(commit("old", 0))
    for number in range(QUERIES_MAX):
        header = header.followed_by(commit(f"q{number}", 0))
    kept = header.entering(2)
    assert len(kept.last_batches) == QUERIES_MAX
    assert not kept.contains("old", 0) and kept.contains("q0", 0)
    again = CommitHeader().followed_by(commit("q0", 0)).followed_by(commit("q1", 0)).followed_by(commit("q0", 1))
    assert list(again.last_batches) == ["q1", "q0"]


def test_ranges_that_continue_one_another_become_one_and_keep_their_order() -> None:
    a, b, c = EntryRange(1, 0, 4, 5, 50), EntryRange(1, 5, 9, 5, 60), EntryRange(1, 11, 11, 1, 1)
    other = EntryRange(2, 0, 0, 1, 1)
    assert merged([a, b, c]) == (EntryRange(1, 0, 9, 10, 110), c)
    assert merged([a, other, b]) == (a, other, b)


def labels(epoch: int, log: str = "orders", role: str = DATA_ROLE) -> dict[str, bytes]:
    return {LOG_LABEL: log.encode(), EPOCH_LABEL: str(epoch).encode(), ROLE_LABEL: role.encode()}


RECOVERED = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ()).claim("b")
RECOVERED = RECOVERED.with_commit_ledger(9, "b", 2, RECOVERED.commit_ledgers)


def test_an_unreferenced_data_ledger_of_an_earlier_epoch_is_an_orphan() -> None:
    assert is_orphan(RECOVERED, 6, labels(1), referenced={5})


def test_a_referenced_ledger_is_none() -> None:
    assert not is_orphan(RECOVERED, 5, labels(1), referenced={5})


def test_a_ledger_of_the_epoch_that_stands_is_none_however_old() -> None:
    assert not is_orphan(RECOVERED, 6, labels(2), referenced=set())


def test_nothing_is_an_orphan_before_the_new_owner_recovered_the_commits() -> None:
    claimed = LogRecord("orders").claim("a").with_commit_ledger(4, "a", 1, ()).claim("b")
    assert not is_orphan(claimed, 6, labels(1), referenced=set())


def test_a_commit_ledger_is_an_orphan_if_it_is_not_in_the_chain() -> None:
    assert is_orphan(RECOVERED, 8, labels(1, role=COMMIT_ROLE), referenced=set())
    assert not is_orphan(RECOVERED, 4, labels(1, role=COMMIT_ROLE), referenced=set())


def test_ledgers_of_other_logs_and_of_users_are_none() -> None:
    assert not is_orphan(RECOVERED, 6, labels(1, log="other"), referenced=set())
    assert not is_orphan(RECOVERED, 6, {}, referenced=set())


CHAIN = tuple(CommitLedger(ledger, 1) for ledger in (10, 11, 12))
LONG = LogRecord("orders", epoch=1, owner="a", commit_ledgers=CHAIN)
ENDS = {CHAIN[0]: 100, CHAIN[1]: 200}


@pytest.mark.parametrize(("row", "kept"), [(0, 3), (99, 3), (100, 2), (199, 2), (200, 1), (10_000, 1)])
def test_truncation_drops_commit_ledgers_that_hold_nothing_else_but_never_the_last(row: int, kept: int) -> None:
    record = LONG.truncated(row, ENDS)
    assert record.first_position == row and record.commit_ledgers == CHAIN[-kept:]


def test_truncation_keeps_the_last_commit_ledger_even_if_it_is_said_to_end_before_the_row() -> None:
    assert LONG.truncated(10_000, {**ENDS, CHAIN[2]: 300}).commit_ledgers == CHAIN[-1:]


def test_a_truncation_is_never_undone() -> None:
    record = LONG.truncated(150, ENDS)
    assert record.truncated(20, ENDS) == record.truncated(150, ENDS) == record
