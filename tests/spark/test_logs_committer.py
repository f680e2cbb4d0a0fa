"""The committer and the data writer under every order of deaths and takeovers that one process can stage."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest

from bookspark.errors import (
    AddTimeoutError,
    BookKeeperError,
    LedgerFencedError,
    LedgerRecoveryError,
    MetadataStoreError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedAccessError,
)
from bookspark.logs import (
    DataWriter,
    LogAddress,
    LogReader,
    LogRegistry,
    LogRun,
    RollPolicy,
    collect_orphans,
    commits,
    delete_log,
    header_of,
)
from bookspark.logs.chain import log_run
from bookspark.logs.chain.committer import Committer, compact_chain
from bookspark.logs.chain.maintenance import collect_recent_orphans
from bookspark.logs.rows.data_ledgers import PENDING_BATCHES_MAX, DataLedger
from bookspark.logs.rows.encodings import Payloads
from bookspark.protocol.ledger.ledger_metadata import LedgerType
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import LogRecreatedError, LogTakenOverError
from bookspark.protocol.logs.replays import CheckpointRewoundError
from bookspark.spark.connector import sink
from bookspark.spark.options.sink_options import SinkOptions
from tests.spark.memory_bookkeeper import MemoryBookKeeper, MemoryLedger, MemoryReader

ORDERS = LogAddress("zookeeper", "orders")


@pytest.fixture
def bookkeeper() -> MemoryBookKeeper:
    bookkeeper = MemoryBookKeeper()
    LogRegistry(bookkeeper.metadata).ensure("orders", {}, b"")
    return bookkeeper


class Writer(Committer):
    """A committer of batches of ten rows each, in a data ledger of its run."""

    def __init__(self, bookkeeper: MemoryBookKeeper, run: LogRun) -> None:
        super().__init__(bookkeeper, run)
        self._client = bookkeeper

    def batch(self, number: int, query: str = "q") -> Commit:
        ledger_id = self._client.data_ledger(self.run)
        return Commit(
            query, number, self.run.run, self.run.epoch, (EntryRange(ledger_id, number * 10, number * 10 + 9, 10, 100),)
        )

    def write(self, number: int, query: str = "q") -> bool:
        return self.commit(self.batch(number, query))

    def write_all(self) -> bool:
        """As a batch write."""
        return self.write(0, self.run.run)


def claimed(bookkeeper: MemoryBookKeeper, run: str) -> Writer:
    return Writer(bookkeeper, claim(bookkeeper, run))


def claim(bookkeeper: MemoryBookKeeper, run: str) -> LogRun:
    return LogRun.of(ORDERS, LogRegistry(bookkeeper.metadata).claim("orders", run))


def commit_ledgers(bookkeeper: MemoryBookKeeper) -> list[int]:
    """All of them, in the chain or not."""
    labels = {one: bookkeeper.get_ledger_metadata(one).custom_metadata for one in bookkeeper.list_ledgers()}
    return [one for one, found in labels.items() if found["bookspark.role"] == b"commit"]


def committed(bookkeeper: MemoryBookKeeper) -> list[tuple[str, int]]:
    return [(commit.query, commit.batch) for _, commit in commits(bookkeeper, "orders", b"")]


def test_batches_are_committed_in_order_to_one_commit_ledger(bookkeeper: MemoryBookKeeper) -> None:
    writer = claimed(bookkeeper, "a")
    assert all(writer.write(n) for n in range(3))
    assert committed(bookkeeper) == [("q", 0), ("q", 1), ("q", 2)]
    assert len(LogRegistry(bookkeeper.metadata).get("orders").commit_ledgers) == 1


def test_replayed_batch_is_not_committed_again(bookkeeper: MemoryBookKeeper) -> None:
    writer = claimed(bookkeeper, "a")
    writer.write(0)
    assert not writer.write(0)
    assert committed(bookkeeper) == [("q", 0)]


def test_new_process_of_a_run_recognises_a_batch_committed_before_its_kill(
    bookkeeper: MemoryBookKeeper,
) -> None:
    claimed(bookkeeper, "a").write(0)
    assert not claimed(bookkeeper.other(), "a").write(0)
    assert committed(bookkeeper) == [("q", 0)]


def test_restarted_query_recognises_the_batch_of_its_former_run(bookkeeper: MemoryBookKeeper) -> None:
    claimed(bookkeeper, "a").write(0)
    after = claimed(bookkeeper.other(), "b")
    assert not after.write(0)
    assert after.write(1)
    assert committed(bookkeeper) == [("q", 0), ("q", 1)]


def test_new_rows_under_an_old_batch_number_are_refused_instead_of_dropped(bookkeeper: MemoryBookKeeper) -> None:
    writer = claimed(bookkeeper, "a")
    for number in range(3):
        writer.write(number)
    restored = claimed(bookkeeper, "b")  # from a copy of the checkpoint that knew only batch 0
    for _ in range(2):
        with pytest.raises(CheckpointRewoundError):
            restored.write(1)
    assert committed(bookkeeper) == [("q", 0), ("q", 1), ("q", 2)]
    assert restored.write(3), "with the newest checkpoint it goes on"


def test_writer_of_a_ledger_over_fewer_bookies_goes_on_while_the_metadata_store_is_silent(
    bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_run, "LARGER_MS", 0)
    create, looks = bookkeeper.create_ledger, []

    def over_two_bookies(**options: Any) -> MemoryLedger:
        if options["ensemble_size"] > 2:
            raise NotEnoughBookiesError("there are two")
        return create(**options)

    def silent(*size: int) -> int:
        looks.append(size)
        raise MetadataStoreError("no answer")

    monkeypatch.setattr(bookkeeper, "create_ledger", over_two_bookies)
    monkeypatch.setattr(bookkeeper, "context", SimpleNamespace(possible_ensemble_size=silent), raising=False)
    writer = claimed(bookkeeper, "a")
    assert all(writer.write(number) for number in range(3))
    assert committed(bookkeeper) == [("q", 0), ("q", 1), ("q", 2)]
    assert looks == [(3, 3), (3, 3)]


def test_append_with_a_lost_answer_is_settled_by_recovery(bookkeeper: MemoryBookKeeper) -> None:
    writer = claimed(bookkeeper, "a")
    writer.write(0)
    bookkeeper.lose_answers = 1
    assert not writer.write(1)
    assert writer.write(2)
    assert committed(bookkeeper) == [("q", 0), ("q", 1), ("q", 2)]


def test_zombie_is_fenced_by_the_next_owner_and_its_commit_raises(bookkeeper: MemoryBookKeeper) -> None:
    zombie = claimed(bookkeeper, "a")
    zombie.write(0)
    claimed(bookkeeper.other(), "b").write(1)
    with pytest.raises(LogTakenOverError, match="another run took over: run b"):
        zombie.write(2)
    assert committed(bookkeeper) == [("q", 0), ("q", 1)]


def test_zombie_commit_before_the_next_owners_recovery_succeeds_and_is_seen(bookkeeper: MemoryBookKeeper) -> None:
    zombie = claimed(bookkeeper, "a")
    zombie.write(0)
    after = claimed(bookkeeper.other(), "b")
    assert zombie.write(1)
    assert not after.write(1)
    assert committed(bookkeeper) == [("q", 0), ("q", 1)]


def test_committer_fenced_in_its_own_epoch_rolls_and_continues(bookkeeper: MemoryBookKeeper) -> None:
    writer = claimed(bookkeeper, "a")
    writer.write(0)
    bookkeeper.open_ledger(LogRegistry(bookkeeper.metadata).get("orders").commit_ledgers[-1].ledger_id)
    assert writer.write(1)
    assert committed(bookkeeper) == [("q", 0), ("q", 1)]
    assert len(LogRegistry(bookkeeper.metadata).get("orders").commit_ledgers) == 2


def taken_over_while_the_answer_is_lost(bookkeeper: MemoryBookKeeper) -> None:
    """Keep the next append but lose its answer, and let another run claim the log."""

    def taken_over(_: int) -> None:
        claimed(bookkeeper.other(), "b")
        bookkeeper.lose_answers = 1

    bookkeeper.before_append.append(taken_over)


def test_batch_written_before_a_takeover_is_not_reported_as_failed(bookkeeper: MemoryBookKeeper) -> None:
    writer = claimed(bookkeeper, "a")
    writer.write(0)
    taken_over_while_the_answer_is_lost(bookkeeper)
    assert not writer.write(1)
    claimed(bookkeeper.other(), "b").write(0, "b")
    assert committed(bookkeeper) == [("q", 0), ("q", 1), ("b", 0)]


def test_batch_fenced_by_a_takeover_raises_and_is_not_in_the_log(bookkeeper: MemoryBookKeeper) -> None:
    def fenced(_: int) -> None:
        assert claimed(bookkeeper.other(), "b").write(0, "p")

    writer = claimed(bookkeeper, "a")
    writer.write(0)
    bookkeeper.before_append.append(fenced)
    with pytest.raises(LogTakenOverError, match="another run took over"):
        writer.write(1)
    assert committed(bookkeeper) == [("q", 0), ("p", 0)]


def test_batch_of_unknown_outcome_after_a_takeover_raises_and_says_so(
    bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(ledger_id: int, password: bytes) -> None:
        raise LedgerRecoveryError("its bookies are down")

    writer = claimed(bookkeeper, "a")
    writer.write(0)
    taken_over_while_the_answer_is_lost(bookkeeper)
    monkeypatch.setattr(bookkeeper, "open_ledger", lost)
    with pytest.raises(LedgerRecoveryError, match=r"is not known .*streaming query that is started again finds out"):
        writer.write(1)


# -- batch writes beside a query, and beside each other


def batch_write(bookkeeper: MemoryBookKeeper, run: str) -> Writer:
    record = LogRegistry(bookkeeper.metadata).update("orders", lambda record: record.batch_write_begun(run))
    return Writer(bookkeeper, LogRun.of_batch_write(ORDERS, record, run))


def test_batch_write_does_not_end_a_query_of_the_same_log(bookkeeper: MemoryBookKeeper) -> None:
    """A stream died at the first ad-hoc append to its log."""
    query = claimed(bookkeeper, "a")
    assert query.write(0)
    write = batch_write(bookkeeper.other(), "w")
    assert write.write_all() and not write.write_all()
    assert query.write(1) and query.write(2)
    assert committed(bookkeeper) == [("q", 0), ("w", 0), ("q", 1), ("q", 2)]


@pytest.mark.parametrize("appends_before", range(6))
def test_commit_succeeds_amid_concurrent_commits_of_batch_writes(
    bookkeeper: MemoryBookKeeper, appends_before: int
) -> None:
    """There are more batch writes than a commit has attempts."""
    query, first = claimed(bookkeeper, "a"), batch_write(bookkeeper, "first")
    query.write(0)
    writes = [batch_write(bookkeeper.other(), f"w{number}") for number in range(12)]
    waiting = iter(writes)

    def another(_: int) -> None:
        write = next(waiting, None)
        if write is not None:
            assert write.write_all()

    bookkeeper.before_append += [lambda _: None] * appends_before + [another] * len(writes)
    assert query.write(1) and first.write_all()
    for write in waiting:
        write.write_all()
    names = [query for query, _ in committed(bookkeeper)]
    assert sorted(names) == sorted(["q", "q", "first", *(write.run.run for write in writes)])
    linked = {link.ledger_id for link in LogRegistry(bookkeeper.metadata).get("orders").commit_ledgers}
    assert set(commit_ledgers(bookkeeper)) == linked, "what lost a race is deleted"


def test_query_and_batch_write_never_collect_each_others_ledgers(bookkeeper: MemoryBookKeeper) -> None:
    pending = data_writer(bookkeeper, "a")
    pending.append(values(b"the query's"))
    write = batch_write(bookkeeper, "w")
    theirs = DataWriter(DataLedger(bookkeeper, write.run, LogOptions(), RollPolicy()))
    theirs.append(values(b"the batch write's"))
    other = batch_write(bookkeeper.other(), "x")
    other.write_all()
    other.tend(thoroughly=True)
    query, ranges = claimed(bookkeeper, "a"), pending.finish()
    assert query.commit(Commit("q", 0, "a", 1, ranges))
    query.tend(thoroughly=True)
    last = batch_write(bookkeeper.other(), "y")
    last.write_all()
    last.tend(thoroughly=True)
    assert not bookkeeper.get_ledger_metadata(ranges[0].ledger_id).closed, "nor closed while its query goes on"
    assert write.commit(Commit("w", 0, "w", write.run.epoch, theirs.finish()))
    assert collect_orphans(bookkeeper, "orders", b"") == []
    assert len(committed(bookkeeper)) == 4


def test_chain_lengthened_by_batch_writes_is_compacted_while_the_query_runs(
    bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookspark.logs.chain.committer.CHAIN_MAX", 4)
    query = claimed(bookkeeper, "a")
    for number in range(8):
        query.write(number)
        write = batch_write(bookkeeper, f"w{number}")
        write.write_all()
        query.tend(thoroughly=True)
        assert len(LogRegistry(bookkeeper.metadata).get("orders").commit_ledgers) <= 6
    assert len(committed(bookkeeper)) == 16


def test_batch_write_with_an_unanswered_record_update_is_settled_by_a_retry(
    bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, add = batch_write(bookkeeper, "w"), LogRegistry.add_commit_ledger

    def add_and_fail(*arguments: Any) -> None:
        add(*arguments)
        raise MetadataStoreError("ZooKeeper did not answer")

    with monkeypatch.context() as patched:
        patched.setattr(LogRegistry, "add_commit_ledger", add_and_fail)
        with pytest.raises(MetadataStoreError):
            write.write_all()
    other = batch_write(bookkeeper.other(), "x")
    other.write_all()
    assert not write.write_all()
    assert committed(bookkeeper) == [("w", 0), ("x", 0)]


@pytest.mark.parametrize("unanswered", [False, True], ids=["not closed", "commit not answered"])
def test_rows_of_a_batch_write_with_an_open_commit_ledger_are_no_orphans(
    bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch, unanswered: bool
) -> None:
    """The write ended with its commit ledger open, and its rows were deleted: Spark aborts a write whose commit raised."""
    add = LogRegistry.add_commit_ledger

    def add_untold(*arguments: Any) -> Any:
        record = add(*arguments)
        bookkeeper.untold.add(record.commit_ledgers[-1].ledger_id)
        if unanswered:
            raise MetadataStoreError("ZooKeeper did not answer")
        return record

    def unreachable(*_: object, **__: object) -> None:
        raise LedgerRecoveryError("bookies are down")

    monkeypatch.setattr(sink, "client", lambda zookeeper: bookkeeper)
    planned = LogRegistry(bookkeeper.metadata).get("orders")
    write = sink.LogBatchWriter(SinkOptions.parse({"log": "orders"}, ORDERS.zookeeper), planned)
    told = write.write(iter([pyarrow.record_batch({"value": [b"a row"]})]))
    with monkeypatch.context() as patched:
        patched.setattr(LogRegistry, "add_commit_ledger", add_untold)
        patched.setattr(bookkeeper, "open_ledger", unreachable)
        bookkeeper.hang_closes = True
        with nullcontext() if not unanswered else pytest.raises(MetadataStoreError):
            write.commit([told])
        if unanswered:
            write.abort([told])
    # The record names the ledger, so its first commit counts, though no answering bookie knows that it is confirmed.
    assert committed(bookkeeper) == [(told.run, 0)] and collect_orphans(bookkeeper, "orders", b"") == []
    write.abort([told])
    assert LogRegistry(bookkeeper.metadata).get("orders").batch_writes == ()
    assert committed(bookkeeper) == [(told.run, 0)] and collect_orphans(bookkeeper, "orders", b"") == []
    assert rows_of(bookkeeper, told.ranges) == [b"a row"]


def test_committer_continues_after_closing_its_idle_ledger(bookkeeper: MemoryBookKeeper) -> None:
    query = claimed(bookkeeper, "a")
    query.write(0)
    query.close()
    assert bookkeeper.get_ledger_metadata(commit_ledgers(bookkeeper)[0]).closed
    assert query.write(1) and not query.write(1)
    assert committed(bookkeeper) == [("q", 0), ("q", 1)]


# -- two processes of one run, and takeovers


def test_two_processes_of_a_run_that_roll_at_once_make_a_single_chain(bookkeeper: MemoryBookKeeper) -> None:
    first, second = claimed(bookkeeper, "a"), claimed(bookkeeper.other(), "a")
    # While the first writes its header, the second gets its commit ledger into the record.
    bookkeeper.before_append.append(lambda ledger_id: second.write(0) and None)
    assert not first.write(0)
    assert committed(bookkeeper) == [("q", 0)]
    record = LogRegistry(bookkeeper.metadata).get("orders")
    assert commit_ledgers(bookkeeper) == [link.ledger_id for link in record.commit_ledgers], (
        "the loser's ledger is deleted"
    )


def test_run_taken_over_during_its_roll_leaves_no_ledger(bookkeeper: MemoryBookKeeper) -> None:
    first = claimed(bookkeeper, "a")
    bookkeeper.before_append.append(lambda ledger_id: claimed(bookkeeper.other(), "b") and None)
    with pytest.raises(LogTakenOverError):
        first.write(0)
    assert commit_ledgers(bookkeeper) == []


def test_takeover_during_a_roll_raises_although_a_guaranteed_ledger_cannot_close(
    bookkeeper: MemoryBookKeeper,
) -> None:
    first = claimed(bookkeeper, "a")
    bookkeeper.before_append.append(lambda ledger_id: claimed(bookkeeper.other(), "b") and None)
    bookkeeper.hang_closes = True
    with pytest.raises(LogTakenOverError):
        first.write(0)
    assert commit_ledgers(bookkeeper) == []


def test_full_commit_ledger_is_followed_by_a_ledger_that_sums_it_up(
    bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookspark.logs.chain.committer.COMMITS_PER_LEDGER_MAX", 2)
    writer = claimed(bookkeeper, "a")
    registry = LogRegistry(bookkeeper.metadata)
    for number in range(5):
        writer.write(number)
        if number == 2:
            registry.alter("orders", ack_quorum=3)
    record = registry.get("orders")
    ledgers = [bookkeeper.get_ledger_metadata(link.ledger_id) for link in record.commit_ledgers]
    assert [ledger.ack_quorum for ledger in ledgers] == [2, 2, 3], "the next one has what was altered meanwhile"
    assert committed(bookkeeper) == [("q", n) for n in range(5)]
    assert header_of(bookkeeper, record, b"").position == (5, 50, 500)


def test_commit_ledger_without_its_header_raises_in_the_next_run(bookkeeper: MemoryBookKeeper) -> None:
    claimed(bookkeeper, "a").write(0)
    ledger_id = LogRegistry(bookkeeper.metadata).get("orders").commit_ledgers[-1].ledger_id
    bookkeeper.entries[ledger_id].clear()
    with pytest.raises(LedgerRecoveryError, match="recovered without its header"):
        claimed(bookkeeper.other(), "b").write(1)


def test_next_owner_closes_data_ledgers_left_open(bookkeeper: MemoryBookKeeper) -> None:
    writer = data_writer(bookkeeper, "a")
    writer.append(values(b"a"))
    (item,) = writer.finish()
    claimed(bookkeeper, "a").commit(Commit("q", 0, "a", 1, (item,)))
    after = claimed(bookkeeper.other(), "b")
    after.write(1)
    assert not bookkeeper.get_ledger_metadata(item.ledger_id).closed
    after.tend(thoroughly=False)
    assert bookkeeper.get_ledger_metadata(item.ledger_id).closed


def test_open_data_ledger_is_closed_although_the_next_run_died_before_committing(
    bookkeeper: MemoryBookKeeper,
) -> None:
    writer = data_writer(bookkeeper, "a")
    writer.append(values(b"a"))
    (item,) = writer.finish()
    claimed(bookkeeper, "a").commit(Commit("q", 0, "a", 1, (item,)))

    def died(_: int) -> None:
        raise MetadataStoreError("the process ended here")

    bookkeeper.before_append += [lambda _: None, died]
    with pytest.raises(MetadataStoreError):
        claimed(bookkeeper, "b").write(1)
    assert len(chain(bookkeeper)) == 1, "a commit ledger is never in the chain without a commit"
    after = claimed(bookkeeper, "c")
    after.write(1)
    after.tend(thoroughly=True)
    assert bookkeeper.get_ledger_metadata(item.ledger_id).closed


def test_orphans_of_earlier_epochs_are_collected_and_those_of_the_newest_stay(
    bookkeeper: MemoryBookKeeper,
) -> None:
    orphans = []
    for number, run in enumerate("abc", 1):
        lost, kept = data_writer(bookkeeper, run), data_writer(bookkeeper, run)
        for writer in (lost, kept):
            writer.append(values(b"a"))
        orphans.append(lost.finish()[0].ledger_id)
        claimed(bookkeeper, run).commit(Commit("q", number, run, number, kept.finish()))
    assert collect_recent_orphans(bookkeeper, "orders", b"") == orphans[:2]
    assert orphans[2] in bookkeeper.list_ledgers(), "its writer may still commit it"


def test_recent_orphan_collection_reads_no_ledger_of_earlier_epochs(
    bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookspark.logs.chain.maintenance.RECENT_EPOCHS", 1)
    for number, run in enumerate("abcd", 1):
        claimed(bookkeeper, run).write(number)
    seen: list[int] = []
    found = bookkeeper.get_ledger_metadata
    monkeypatch.setattr(
        bookkeeper, "get_ledger_metadata", lambda ledger_id: (seen.append(ledger_id), found(ledger_id))[1]
    )
    assert collect_recent_orphans(bookkeeper, "orders", b"") == []
    # Each run has a data ledger, then a commit ledger.
    first, second, _, last = bookkeeper.list_ledgers()[4:]
    assert set(seen) == {first, second, last}, "the newest run's data may be committed yet"


# -- long chains


def chain(bookkeeper: MemoryBookKeeper) -> list[int]:
    return [link.ledger_id for link in LogRegistry(bookkeeper.metadata).get("orders").commit_ledgers]


@pytest.fixture
def long_chain(bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """The owner of a log that was written in ten runs, two batches each."""
    monkeypatch.setattr("bookspark.logs.chain.committer.CHAIN_MAX", 4)
    for number in range(10):
        owner = claimed(bookkeeper, f"run {number}")
        for k in range(2):
            owner.write(2 * number + k)
    assert len(chain(bookkeeper)) == 10
    return owner


def test_compacted_chain_has_the_same_commits(bookkeeper: MemoryBookKeeper, long_chain: Writer) -> None:
    before = list(commits(bookkeeper, "orders", b""))
    last = chain(bookkeeper)[-1]
    long_chain.tend(thoroughly=True)
    assert len(chain(bookkeeper)) == 2 and chain(bookkeeper)[-1] == last
    assert commit_ledgers(bookkeeper) == sorted(chain(bookkeeper)), "what was copied is deleted"
    assert list(commits(bookkeeper, "orders", b"")) == before
    assert [p.commit.batch for p in commits(bookkeeper, "orders", b"", 75)] == list(range(7, 20)), (
        "from the commit that has row 75"
    )
    assert long_chain.write(20), "the owner goes on in its commit ledger"
    assert chain(bookkeeper)[-1] == last
    assert not claimed(bookkeeper.other(), "next").write(20)


def test_full_commit_ledgers_are_not_copied_again(
    bookkeeper: MemoryBookKeeper, long_chain: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookspark.logs.chain.committer.COMMITS_PER_LEDGER_MAX", 8)
    before = list(commits(bookkeeper, "orders", b""))
    long_chain.tend(thoroughly=True)
    compacted = chain(bookkeeper)
    assert [len(bookkeeper.entries[ledger]) - 1 for ledger in compacted] == [8, 8, 2, 2]
    monkeypatch.setattr("bookspark.logs.chain.committer.CHAIN_MAX", 1)
    assert compact_chain(bookkeeper, claim(bookkeeper, "run 9")) == []
    assert list(commits(bookkeeper, "orders", b"")) == before


def test_compaction_is_postponed_if_its_copy_cannot_be_closed(bookkeeper: MemoryBookKeeper, long_chain: Writer) -> None:
    before = chain(bookkeeper)
    bookkeeper.hang_closes = True
    long_chain.tend(thoroughly=True)
    assert chain(bookkeeper) == before


@pytest.mark.parametrize("read", [0, 1, 2, 7, 18, 19])
def test_reader_continues_in_place_when_its_chain_is_compacted(
    bookkeeper: MemoryBookKeeper, long_chain: Writer, read: int
) -> None:
    before = list(commits(bookkeeper, "orders", b""))
    reading = LogReader(bookkeeper, "orders", b"").commits()
    seen = [next(reading) for _ in range(read)]
    long_chain.tend(thoroughly=True)
    assert seen + list(reading) == before


@pytest.mark.parametrize("opened_before", range(1, 10))
@pytest.mark.parametrize("position", [0, 75, 199])
def test_reader_survives_compaction_between_its_reads_of_record_and_ledger(
    bookkeeper: MemoryBookKeeper,
    long_chain: Writer,
    monkeypatch: pytest.MonkeyPatch,
    opened_before: int,
    position: int,
) -> None:
    before = list(commits(bookkeeper, "orders", b"", position))
    other, opened = bookkeeper.other(), 0
    original = other.open_ledger_no_recovery

    def open_it(ledger_id: int, password: bytes = b"", **named: int | None) -> MemoryReader:
        nonlocal opened
        opened += 1
        if opened == opened_before:
            long_chain.tend(thoroughly=True)
        return original(ledger_id, password, **named)

    monkeypatch.setattr(other, "open_ledger_no_recovery", open_it)
    assert list(commits(other, "orders", b"", position))[-len(before) :] == before


@pytest.mark.parametrize("following", [False, True])
def test_missing_commit_ledger_of_the_chain_raises(
    bookkeeper: MemoryBookKeeper, long_chain: Writer, following: bool
) -> None:
    reading = LogReader(bookkeeper, "orders", b"").commits()
    next(reading)
    bookkeeper.delete_ledger(chain(bookkeeper)[1])
    with pytest.raises(NoSuchLedgerError):
        list(reading if following else commits(bookkeeper, "orders", b""))


def test_run_that_lost_the_log_compacts_nothing(bookkeeper: MemoryBookKeeper, long_chain: Writer) -> None:
    before = chain(bookkeeper)
    owner = claimed(bookkeeper, "next")
    long_chain.tend(thoroughly=True)
    assert chain(bookkeeper) == before
    owner.write(20)
    assert collect_orphans(bookkeeper, "orders", b"") != []
    assert commit_ledgers(bookkeeper) == chain(bookkeeper), "its copy is an orphan"


def test_compacted_copy_in_the_record_stays_although_the_update_seemed_to_fail(
    bookkeeper: MemoryBookKeeper, long_chain: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(commits(bookkeeper, "orders", b""))
    update = LogRegistry.update

    def update_and_fail(*arguments: Any) -> None:
        update(*arguments)
        raise MetadataStoreError("ZooKeeper did not answer")

    with monkeypatch.context() as patched:
        patched.setattr(LogRegistry, "update", update_and_fail)
        long_chain.tend(thoroughly=True)
    assert len(chain(bookkeeper)) == 2
    assert list(commits(bookkeeper, "orders", b"")) == before


# -- data ledgers


def data_writer(
    bookkeeper: MemoryBookKeeper, run: str = "a", options: LogOptions | None = None, **policy: float
) -> DataWriter:
    return DataWriter(DataLedger(bookkeeper, claim(bookkeeper, run), options or LogOptions(), RollPolicy(**policy)))


def values(*payloads: bytes, rows_each: int = 1) -> Payloads:
    return Payloads(pyarrow.array(payloads, pyarrow.binary()), rows_each)


def rows_of(bookkeeper: MemoryBookKeeper, ranges: tuple[EntryRange, ...]) -> list[bytes]:
    return [bookkeeper.entries[r.ledger_id][i] for r in ranges for i in range(r.first_entry_id, r.last_entry_id + 1)]


def test_arrow_batches_of_a_task_become_a_single_range(bookkeeper: MemoryBookKeeper) -> None:
    writer = data_writer(bookkeeper)
    writer.append(values(b"a", b"", b"ccc"))
    writer.append(values(b"d"))
    (ranges,) = (writer.finish(),)
    assert [(r.first_entry_id, r.last_entry_id, r.rows, r.size) for r in ranges] == [(0, 3, 4, 5)]
    assert rows_of(bookkeeper, ranges) == [b"a", b"", b"ccc", b"d"]


def test_each_range_holds_entries_of_equal_row_counts(bookkeeper: MemoryBookKeeper) -> None:
    writer = data_writer(bookkeeper)
    for payloads in (values(b"a", b"bb", rows_each=3), values(b"cc", rows_each=3), values(b"d", rows_each=2)):
        writer.append(payloads)
    ranges = writer.finish()
    assert [(r.first_entry_id, r.last_entry_id, r.rows, r.size) for r in ranges] == [(0, 2, 9, 5), (3, 3, 2, 1)]


def test_unacknowledged_rows_of_a_fenced_data_ledger_are_written_again(
    bookkeeper: MemoryBookKeeper,
) -> None:
    writer = data_writer(bookkeeper)
    writer.append(values(b"a"))
    bookkeeper.before_append.append(lambda ledger_id: bookkeeper.open_ledger(ledger_id) and None)
    writer.append(values(b"b"))
    assert rows_of(bookkeeper, writer.finish()) == [b"a", b"b"]


def test_rows_of_unknown_outcome_are_in_the_ranges_once(bookkeeper: MemoryBookKeeper) -> None:
    writer = data_writer(bookkeeper)
    bookkeeper.lose_answers = 1
    writer.append(values(b"a", b"b"))
    writer.append(values(b"c"))
    assert rows_of(bookkeeper, writer.finish()) == [b"a", b"b", b"c"]


def test_data_ledger_is_rolled_by_size(bookkeeper: MemoryBookKeeper) -> None:
    writer = data_writer(bookkeeper, bytes_max=3)
    for payload in (b"aaaa", b"b", b"cc", b"d"):
        writer.append(values(payload))
    ranges = writer.finish()
    assert rows_of(bookkeeper, ranges) == [b"aaaa", b"b", b"cc", b"d"]
    assert len({r.ledger_id for r in ranges}) == 3


VOLATILE = LogOptions(ledger_type=LedgerType.VD_JOURNAL)


def test_task_syncs_its_volatile_ledgers_before_it_ends(bookkeeper: MemoryBookKeeper) -> None:
    writer = data_writer(bookkeeper, options=VOLATILE, bytes_max=3)
    for payload in (b"aaaa", b"b"):
        writer.append(values(payload))
    assert list(bookkeeper.synced.values()) == [0], "a ledger is synced before it is rolled, for its close may fail"
    ranges = writer.finish()
    assert bookkeeper.synced == {r.ledger_id: r.last_entry_id for r in ranges}


def test_persistent_data_ledgers_need_no_sync(bookkeeper: MemoryBookKeeper) -> None:
    writer = data_writer(bookkeeper)
    writer.append(values(b"a"))
    writer.finish()
    assert bookkeeper.synced == {}


def test_task_with_a_failed_sync_raises_and_the_next_task_begins_a_new_ledger(
    bookkeeper: MemoryBookKeeper,
) -> None:
    writer = data_writer(bookkeeper, options=VOLATILE)
    writer.append(values(b"a"))
    bookkeeper.fail_syncs = 1
    with pytest.raises(AddTimeoutError):
        writer.finish()
    again = DataWriter(writer._ledger)
    again.append(values(b"a"))
    (range_,) = again.finish()
    assert range_.ledger_id == bookkeeper.list_ledgers()[1]


def test_append_to_a_fenced_volatile_ledger_with_unsynced_rows_raises(
    bookkeeper: MemoryBookKeeper,
) -> None:
    writer = data_writer(bookkeeper, options=VOLATILE)
    for _ in range(PENDING_BATCHES_MAX + 1):
        writer.append(values(b"a"))
    bookkeeper.before_append.append(lambda ledger_id: bookkeeper.open_ledger(ledger_id) and None)
    with pytest.raises(LedgerFencedError):
        writer.append(values(b"b"))


def test_orphans_are_collected_once_the_new_owner_has_committed(bookkeeper: MemoryBookKeeper) -> None:
    lost = data_writer(bookkeeper, "a")
    lost.append(values(b"never committed"))
    (orphan,) = {r.ledger_id for r in lost.finish()}
    kept = data_writer(bookkeeper, "a")
    kept.append(values(b"committed"))
    ranges = kept.finish()
    claimed(bookkeeper, "a").commit(Commit("q", 0, "a", 1, ranges))
    assert collect_orphans(bookkeeper, "orders", b"") == []
    claimed(bookkeeper, "b").write(1)
    assert collect_orphans(bookkeeper, "orders", b"") == [orphan]
    assert orphan not in bookkeeper.list_ledgers()


def unrecoverable(bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch, bad: int, error: Exception) -> None:
    original = bookkeeper.open_ledger

    def open_ledger(ledger_id: int, password: bytes = b"") -> MemoryReader:
        if ledger_id == bad:
            raise error
        return original(ledger_id, password)

    monkeypatch.setattr(bookkeeper, "open_ledger", open_ledger)


def test_unrecoverable_ledger_hinders_no_deletion_of_orphans_or_the_log(
    bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    orphans = []
    for number, run in enumerate("abc", 1):
        lost = data_writer(bookkeeper, run)
        lost.append(values(b"never committed"))
        orphans.append(lost.finish()[0].ledger_id)
        claimed(bookkeeper, run).write(number)
    unrecoverable(bookkeeper, monkeypatch, orphans[0], LedgerRecoveryError("its bookies are gone"))
    assert collect_orphans(bookkeeper, "orders", b"") == orphans[:2]
    unrecoverable(bookkeeper, monkeypatch, bookkeeper.list_ledgers()[0], LedgerRecoveryError("its bookies are gone"))
    delete_log(bookkeeper, "orders", b"")
    assert bookkeeper.list_ledgers() == []


def test_ledger_with_another_password_survives_log_deletion_without_hindering_it(
    bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, run in enumerate("ab", 1):
        claimed(bookkeeper, run).write(number)
    foreign = bookkeeper.list_ledgers()[0]
    unrecoverable(bookkeeper, monkeypatch, foreign, UnauthorizedAccessError("another password"))
    delete_log(bookkeeper, "orders", b"")
    assert bookkeeper.list_ledgers() == [foreign]


def test_log_created_again_by_a_query_during_deletion_keeps_its_ledgers(
    bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed(bookkeeper, "a").write(0)
    registry, deleter = LogRegistry(bookkeeper.metadata), bookkeeper.other()

    def next_micro_batch() -> list[int]:
        found = bookkeeper.list_ledgers()
        if registry.find("orders") is None:
            registry.ensure("orders", {}, b"")
            claimed(bookkeeper, "a").write(1)
            found = bookkeeper.list_ledgers()
        return found

    monkeypatch.setattr(deleter, "list_ledgers", next_micro_batch)
    delete_log(deleter, "orders", b"")
    assert committed(bookkeeper) == [("q", 1)]
    assert commit_ledgers(bookkeeper) == chain(bookkeeper)


def test_ledger_made_during_log_deletion_is_deleted_and_its_commit_refused(
    bookkeeper: MemoryBookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = claimed(bookkeeper, "a")
    late.write(0)
    writer, deleter = data_writer(bookkeeper, "a"), bookkeeper.other()
    registry = LogRegistry(bookkeeper.metadata)

    def task_goes_on() -> list[int]:
        if registry.find("orders") is None:
            writer.append(values(b"too late"))
        return bookkeeper.list_ledgers()

    monkeypatch.setattr(deleter, "list_ledgers", task_goes_on)
    delete_log(deleter, "orders", b"")
    assert bookkeeper.list_ledgers() == []
    registry.ensure("orders", {}, b"")  # as the sink of a new query does
    with pytest.raises(BookKeeperError, match=r"not committed, because its ledger [0-9]+ was deleted"):
        late.commit(Commit("q", 1, "a", 1, writer.finish()))
    with pytest.raises(LogRecreatedError, match=f"with id {late.run.lane.log} was deleted.*another log by now"):
        late.commit(Commit("q", 1, "a", 1, ()))
    assert committed(bookkeeper) == []


def test_commit_of_ledgers_of_another_run_lane_or_log_is_refused(bookkeeper: MemoryBookKeeper) -> None:
    """Such ledgers are orphans as soon as their own run is over: the log would name rows that are deleted."""
    others = []
    for log in ("orders", "payments"):
        LogRegistry(bookkeeper.metadata).ensure(log, {}, b"")
        record = LogRegistry(bookkeeper.metadata).claim(log, "before")
        others.append(Writer(bookkeeper, LogRun.of(LogAddress("zookeeper", log), record)).batch(0))
    writer = claimed(bookkeeper, "a")
    assert writer.run.epoch == 2
    # A lane of the same log, in an epoch of the same number, made by the same run.
    other_lane = Writer(bookkeeper, replace(writer.run, lane=writer.run.lane.lane(1))).batch(0)
    with pytest.raises(
        BookKeeperError, match=r"not committed, because its ledger [0-9]+ was made for orders@1 in epoch 2"
    ):
        writer.commit(replace(writer.batch(0), ranges=(*writer.batch(0).ranges, *other_lane.ranges)))
    for other in others:
        with pytest.raises(
            BookKeeperError, match=r"not committed, because its ledger [0-9]+ was made for .* in epoch 1"
        ):
            writer.commit(replace(writer.batch(0), ranges=other.ranges))
    assert committed(bookkeeper) == []
    assert writer.write(0)
