"""A log deleted and created again at each step of an operation on the old log: the new log stays intact."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import BookKeeperError
from bookspark.logs import Committer, LogAddress, LogRun, Producer, delete_log, truncate_log
from bookspark.logs.chain import registry as registries
from bookspark.logs.chain.commit_ledgers import newest_header
from bookspark.logs.chain.lane_choice import StreamingQuery, begun_batch_write, claimed, lane_for_query, note_writer
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.chain.maintenance import collect_orphans, collect_recent_orphans
from bookspark.logs.chain.registry import POSITIONS, LogRegistry
from bookspark.logs.feeds.log_feed import LogFeed
from bookspark.logs.lane_ending import end_lane
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.lanes import BATCH_WRITES, lane_name, writer_of
from bookspark.protocol.logs.log_record import AnotherQueryError, LogChangedError, LogRecord, LogTakenOverError
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.logs.test_deletion import write_log
from tests.spark.memory_bookkeeper import MemoryBookKeeper

LOG = "orders"
ADDRESS = LogAddress("memory", LOG)
STEPS = "read_record", "write_record", "delete_record", "list_records", "list_ledgers", "read_ledgers", "read_ledger"
Does = Callable[[Any], object]


@pytest.fixture(autouse=True)
def no_two_logs_in_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count(1_700_000_000_000_000_000, 1_000_000)
    monkeypatch.setattr(registries, "time", SimpleNamespace(time_ns=lambda: next(made)))


def rows_of(bookkeeper: Any) -> list[bytes]:
    """All rows of the log."""
    feed = LogFeed(bookkeeper, LOG, b"", fail_on_data_loss=True)
    pieces = feed.pieces({**feed.newest(), "position": 0, "1": 0, "3": 0, "ended": 0}, feed.newest())
    return [
        entry.payload
        for piece, _ in pieces
        for entry in bookkeeper.open_ledger_no_recovery(piece.ledger_id).read(piece.first_entry_id, piece.last_entry_id)
    ]


def each_step(
    does: Does,
    meanwhile: Does,
    monkeypatch: pytest.MonkeyPatch,
    first: Does = lambda bookkeeper: write_log(bookkeeper, LOG),
) -> list[Any]:
    """Clusters in which ``does`` ran on a log made by ``first``, with ``meanwhile`` before its first step, its
    second, and so on."""
    found: list[Any] = []
    while True:
        bookkeeper: Any = MemoryBookKeeper()
        bookkeeper.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=60.0))
        first(bookkeeper)
        left = [len(found)]

        def step(original: Any) -> Any:
            def call(*arguments: Any) -> Any:
                left[0] -= 1  # noqa: B023
                if left[0] == -1:  # noqa: B023
                    meanwhile(bookkeeper)  # noqa: B023
                return original(*arguments)

            return call

        with monkeypatch.context() as patched:
            for name in STEPS:
                patched.setattr(MemoryStore, name, step(getattr(MemoryStore, name)))
            # The log that it worked on is gone.
            with suppress(BookKeeperError):
                does(bookkeeper)
        if left[0] >= 0:
            return found
        found.append(bookkeeper)


def made_anew(bookkeeper: Any) -> None:
    delete_log(bookkeeper, LOG, b"")
    write_log(bookkeeper, LOG)


def whole_or_gone(bookkeeper: Any) -> bool:
    """Whether the log exists; an existing log has all of its rows, a missing log has left nothing."""
    if LogRegistry(bookkeeper.metadata).find(LOG) is None:
        assert LogRegistry(bookkeeper.metadata).lane_names() == []
        return False
    assert rows_of(bookkeeper) == [b"x"] * 12
    assert bookkeeper.metadata.read_record(POSITIONS, f"group@{LOG}") is not None
    return True


def test_overtaken_deletion_deletes_nothing_of_a_later_log(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = each_step(lambda bookkeeper: delete_log(bookkeeper, LOG, b""), made_anew, monkeypatch)
    found = [whole_or_gone(bookkeeper) for bookkeeper in clusters]
    # A deletion that has not yet listed the log deletes the later log.
    assert found == [False] * 2 + [True] * (len(found) - 2) and len(found) > 20


@pytest.mark.parametrize(
    "does",
    [
        lambda bookkeeper: collect_orphans(bookkeeper, LOG, b""),
        lambda bookkeeper: collect_recent_orphans(bookkeeper, LOG, b""),
        lambda bookkeeper: truncate_log(bookkeeper, f"{LOG}@0", 0, b""),
    ],
    ids=["all", "recent", "truncation"],
)
def test_orphan_collection_deletes_nothing_of_a_log_created_again_meanwhile(
    does: Does, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new log's ledgers have epochs that were over in the old log."""

    def of_many_epochs(bookkeeper: Any) -> None:
        for number in range(5):
            LogRegistry(bookkeeper.metadata).claim(LOG, f"run{number}", "service:0")
        does(bookkeeper)

    clusters = each_step(of_many_epochs, made_anew, monkeypatch)
    assert all(map(whole_or_gone, clusters)) and len(clusters) > 20


def with_lanes(*writers: str) -> Does:
    """A log whose lanes, from 1 on, belong to these writers."""

    def made(bookkeeper: Any) -> None:
        registry = LogRegistry(bookkeeper.metadata)
        registry.ensure(LOG, {}, b"")
        # (Lane 0 belongs to another query.)
        registry.claim(LOG, "first", "first")
        for writer in writers:
            LaneIndex(bookkeeper.metadata, LogRegistry(bookkeeper.metadata).lane(LOG)).begin(NewLane(writer))

    return made


def with_lanes_anew(*writers: str) -> Does:
    def made(bookkeeper: Any) -> None:
        delete_log(bookkeeper, LOG, b"")
        with_lanes(*writers)(bookkeeper)

    return made


def produce(bookkeeper: Any) -> None:
    Producer(bookkeeper, ADDRESS, "a").close()


def enter(bookkeeper: Any) -> None:
    """Claim a lane like the sink of a query."""
    query = StreamingQuery("a")
    lane = lane_for_query(bookkeeper, ADDRESS, query)
    record, header = newest_header(bookkeeper, lane, b"")
    claimed(bookkeeper, ADDRESS, record, "run", query, header)


def enter_again(bookkeeper: Any) -> None:
    enter(bookkeeper)
    record = LogRegistry(bookkeeper.metadata).get(f"{LOG}@1")
    if record.owner == "run":
        note_writer(bookkeeper, ADDRESS, record, StreamingQuery("a"))


def commit_a_row(bookkeeper: Any, record: LogRecord) -> None:
    """Commit a row like the first batch of the query that owns the log."""
    run = LogRun.of(ADDRESS, record)
    ledger = run.create_ledger(bookkeeper, record.options, "data")
    ledger.append(b"x")
    ledger.close()
    rows = (EntryRange(ledger.ledger_id, 0, 0, 1, 1),)
    Committer(bookkeeper, run).commit(Commit(record.owner_query, 0, run.run, run.epoch, rows, 1))


@pytest.mark.parametrize(
    ("writer", "does"),
    [
        ("service:a", produce),
        ("query:a", enter),
        ("query:a", enter_again),
        (BATCH_WRITES, lambda bookkeeper: begun_batch_write(bookkeeper, ADDRESS, "run")),
        ("service:a", lambda bookkeeper: end_lane(bookkeeper, f"{LOG}@1")),
    ],
    ids=["producer", "query", "query again", "batch write", "end"],
)
def test_no_writer_gets_another_writers_lane_in_a_log_created_again(
    writer: str, does: Does, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of("a") if writer.startswith("query") else writer
    clusters = each_step(does, with_lanes_anew("service:b", "service:c"), monkeypatch, with_lanes(writer))
    for bookkeeper in clusters:
        registry = LogRegistry(bookkeeper.metadata)
        index = registry.get(LOG)
        for lane in index.lanes:
            assert len(lane.writers) == 1, lane
            record = registry.get(lane_name(LOG, lane.number))
            assert not record.batch_writes or lane.writers == (BATCH_WRITES,)
            owner = record.owner_query
            assert not owner or lane.writers[0] in (owner, writer_of(owner)), (lane, owner)
            assert record.owner_query or not record.owner, "somebody ends it"
        live = [number for number in (1, 2) if registry.get(lane_name(LOG, number)).ended_rows is None]
        assert set(live) <= {lane.number for lane in index.lanes}
    assert len(clusters) > 4


def test_query_of_the_old_log_is_accepted_in_the_log_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of the old log say nothing about the new log. The query claimed lane 0 because it had committed there,
    and was refused as the log was another query's; after a batch write, it would have taken lane 0 too."""

    def written(bookkeeper: Any) -> None:
        registry = LogRegistry(bookkeeper.metadata)
        registry.ensure(LOG, {}, b"")
        commit_a_row(bookkeeper, registry.claim(LOG, "run before", "a"))

    def enter_or_again(bookkeeper: Any) -> None:
        try:
            enter(bookkeeper)
        except LogChangedError:
            enter(bookkeeper)
        except AnotherQueryError as error:
            raise AssertionError("it is taken for another query") from error

    def anew_with_a_batch_write(bookkeeper: Any) -> None:
        delete_log(bookkeeper, LOG, b"")
        LogRegistry(bookkeeper.metadata).ensure(LOG, {}, b"")
        begun_batch_write(bookkeeper, ADDRESS, "write")

    for anew in (with_lanes_anew(), anew_with_a_batch_write):
        clusters = each_step(enter_or_again, anew, monkeypatch, written)
        for bookkeeper in clusters:
            record = LogRegistry(bookkeeper.metadata).get(LOG)
            assert (record.owner_query == "a") == (record.lanes == ())
        assert len(clusters) > 4


def test_batch_writes_to_a_log_created_again_share_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Application versions are looked up in the lane of batch writes. A write begun in the old log, whose lane 0
    belongs to a query, made a second lane of batch writes in the new log: a version could come twice."""

    def anew_without_a_query(bookkeeper: Any) -> None:
        delete_log(bookkeeper, LOG, b"")
        LogRegistry(bookkeeper.metadata).ensure(LOG, {}, b"")

    clusters = each_step(
        lambda bookkeeper: begun_batch_write(bookkeeper, ADDRESS, "run"),
        anew_without_a_query,
        monkeypatch,
        with_lanes(),
    )
    for bookkeeper in clusters:
        record = LogRegistry(bookkeeper.metadata).get(LOG)
        assert record.lanes == () and (record.batch_write("run") is not None or record.batch_writes == ())
    assert len(clusters) > 4


def test_rows_of_the_old_log_are_never_committed_to_the_new_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task that Spark starts twice may own the new log in the run's name while its other attempt has written to the
    old log."""

    def claim(bookkeeper: Any) -> Any:
        registry = LogRegistry(bookkeeper.metadata)
        registry.ensure(LOG, {}, b"")
        return registry.claim(LOG, "run", "query")

    def commit(bookkeeper: Any) -> None:
        record = claim(bookkeeper)
        try:
            commit_a_row(bookkeeper, record)
        except LogTakenOverError:
            refused.append(record)

    def claim_anew(bookkeeper: Any) -> None:
        if LogRegistry(bookkeeper.metadata).find(LOG) is not None:
            delete_log(bookkeeper, LOG, b"")
        claim(bookkeeper)

    refused: list[LogRecord] = []
    clusters = each_step(commit, claim_anew, monkeypatch, lambda bookkeeper: None)
    for bookkeeper in clusters:
        registry = LogRegistry(bookkeeper.metadata)
        record = registry.get(LOG)
        assert rows_of(bookkeeper) == ([b"x"] if record.commit_ledgers else [])
    assert len(refused) > 2
