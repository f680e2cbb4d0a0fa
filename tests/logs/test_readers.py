"""Readers publish their progress, and the cluster reports their lag."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import MetadataStoreError, UnauthorizedAccessError
from bookspark.local import LocalCluster
from bookspark.logs import Log, LogAddress, LogRegistry, commits, create_log, delete_log, truncate_log
from bookspark.logs.chain.commit_times import time_of
from bookspark.logs.chain.registry import READERS
from bookspark.logs.readers import lag, registration
from bookspark.logs.readers.lag import ReaderLag, readers_of
from bookspark.logs.readers.records import forget_outdated, records_of, update
from bookspark.operations.why.answers import BEHIND_SECONDS, why_behind
from bookspark.operations.why.facts import Facts, LaneFacts, LogFacts
from bookspark.operations.why.gathering import gather_log
from bookspark.protocol.logs.lanes import LaneId
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.reader_record import STALE_MS, ReaderKind, ReaderRecord, ReaderState
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.store import MetadataStore
from tests.awaiting import await_that
from tests.clocks import keep_steady
from tests.operations.cli.conftest import Run, bookspark  # noqa: F401
from tests.operations.why.kit import check_command, facts
from tests.spark.memory_bookkeeper import MemoryBookKeeper

_DIES = """
import sys
from bookspark import BookKeeper
from bookspark.logs import open_log
bookkeeper = BookKeeper(sys.argv[1])
reader = open_log(bookkeeper, sys.argv[2]).reader(group="audit")
reader.read(rows_max=4)
reader.commit()
reader.read(rows_max=3)
print("read", flush=True)
sys.stdin.read()
"""


def append(log: Log, count: int, service: str = "service") -> None:
    with log.producer(service) as producer:
        producer.append_batch([str(number).encode() for number in range(count)])


def only(bookkeeper: BookKeeper, log: Log, where: Callable[[ReaderLag], object] = lambda one: True) -> ReaderLag:
    """The log's only reader, once ``where`` holds for it."""

    def found() -> ReaderLag | None:
        readers = readers_of(bookkeeper, log.name)
        assert len(readers) <= 1, readers
        return next(filter(where, readers), None)

    result = await_that(found, what=lambda: readers_of(bookkeeper, log.name))
    assert result is not None
    return result


def test_reader_is_listed_and_its_lag_follows_its_reads(
    log: Log, bookkeeper: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_steady(monkeypatch)
    append(log, 10)
    append(log, 5, "other")
    assert readers_of(bookkeeper, log.name) == []
    with log.reader(group="audit") as reader:
        found = only(bookkeeper, log)
        assert (found.kind, found.reader, found.title, found.state) == (
            ReaderKind.PYTHON,
            "audit",
            "audit",
            ReaderState.LIVE,
        )
        assert (found.lanes, found.lag_rows) == ({0: 0, 1: 0, 2: 0}, 15)
        reader.read(rows_max=12)
        found = only(bookkeeper, log, lambda one: one.lag_rows == 3)
        assert sum(found.lanes.values()) == 12 and found.lag_seconds is not None and found.lag_seconds > 0
        reader.read()
        assert only(bookkeeper, log, lambda one: one.lag_rows == 0).lag_seconds == 0
        # Each query looks up the log's end: the lag grows without the reader.
        append(log, 7)
        found = only(bookkeeper, log)
        assert found.lag_rows == 7
        reader.seek({**reader.offset, "1": 2})
        only(bookkeeper, log, lambda one: one.lanes[1] == 2)
    # A reader that is closed waits for its last report, but not for long.
    only(bookkeeper, log, lambda one: one.state is ReaderState.CLOSED)


def test_lag_in_seconds_is_the_age_of_the_first_unread_row(
    log: Log, bookkeeper: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.producer("service") as producer:
        producer.append(b"first")
        producer.append(b"second")
        producer.append(b"third")
    with log.reader() as reader, log.reader(group="audit") as audit:
        rows = audit.read(rows_max=1) + reader.read()
        monkeypatch.setattr(lag, "learn_time", lambda _: rows[2].time_ms + 50_000)
        await_that(lambda: len(readers_of(bookkeeper, log.name)) == 2)
        await_that(lambda: sorted(one.lag_rows or 0 for one in readers_of(bookkeeper, log.name)) == [0, 2])
        seconds = {one.title: one.lag_seconds for one in readers_of(bookkeeper, log.name)}
        assert seconds.pop("audit") == pytest.approx(50)
        assert list(seconds.values()) == [0]


def test_lag_in_seconds_of_offloaded_rows_is_that_of_their_commit(log: Log, bookkeeper: BookKeeper) -> None:
    """Their ledgers are deleted, and with them the times of the rows: the lag was unknown."""
    for number in range(3):
        with log.producer("service") as producer:
            producer.append_batch([b"%d" % row for row in range(10 * number, 10 * number + 10)])
    with log.reader(group="audit") as reader:
        handled = reader.read(rows_max=5)[-1]
        reader.commit(handled)
    lane = f"{log.name}@{handled.lane}"
    placed = [commit for _, commit in commits(bookkeeper, lane, b"") if commit.ranges]
    assert [(commit.rows, commit.stamped) for commit in placed] == [(10, True)] * 3
    exact = time_of(bookkeeper, lane, b"", 5)
    assert exact is not None and exact <= placed[0].time_ms
    registry = LogRegistry(bookkeeper.metadata)
    registry.update(lane, lambda record: record.offload_begun("file:/table", 20))
    registry.update(lane, lambda record: record.offload_done("file:/table", 20, 0))
    for commit in placed[:2]:
        for item in commit.ranges:
            bookkeeper.delete_ledger(item.ledger_id)
    for row, commit in ((5, placed[0]), (10, placed[1])):
        assert time_of(bookkeeper, lane, b"", row) == commit.time_ms
    found = only(bookkeeper, log)
    assert (found.lag_rows, found.problem) == (25, "") and found.lag_seconds is not None


def test_killed_run_of_a_host_whose_clock_was_ahead_is_not_shown_beside_the_living_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was shown as living, in place of the living one, for up to seven days."""
    client: Any = MemoryBookKeeper()
    log_id = LogRegistry(client.metadata).create("orders", LogOptions(), b"").log_id
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)

    def heard(run: str, position: int, since_ms: int) -> None:
        one = ReaderRecord(ReaderKind.SPARK, {"position": position, "log": log_id}, since_ms, "query", run)
        assert update(client.metadata, f"{run}@{log_id}", lambda found: one) == one

    heard("killed", 7, now_ns // 1_000_000 + 3_600_000)
    now_ns += (STALE_MS + 1) * 1_000_000
    heard("living", 9, now_ns // 1_000_000 - 3_600_000)
    assert [(one.key, one.state) for one in readers_of(client, "orders")] == [("living", ReaderState.LIVE)]
    forget_outdated(client.metadata, log_id)
    assert list(records_of(client.metadata, log_id)) == [f"living@{log_id}"]
    now_ns += 10 * STALE_MS * 1_000_000
    assert [(one.key, one.state) for one in readers_of(client, "orders")] == [("living", ReaderState.STALE)]


def test_suspended_reader_that_reports_while_outdated_records_are_deleted_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its new record was deleted as the old one: it was not shown until its next report."""
    client: Any = MemoryBookKeeper()
    log_id = LogRegistry(client.metadata).create("orders", LogOptions(), b"").log_id
    now_ns, delete = time.time_ns(), MemoryStore.delete_record
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)

    def heard(key: str) -> None:
        update(client.metadata, f"{key}@{log_id}", lambda found: ReaderRecord(ReaderKind.PYTHON, place, 0, "audit"))

    def reports_meanwhile(store: MemoryStore, kind: str, *others: Any) -> None:
        monkeypatch.setattr(MemoryStore, "delete_record", delete)
        heard("suspended")
        delete(store, kind, *others)

    place = {"position": 0, "log": log_id}
    heard("suspended")
    now_ns += (STALE_MS + 1) * 1_000_000
    heard("living")
    monkeypatch.setattr(MemoryStore, "delete_record", reports_meanwhile)
    forget_outdated(client.metadata, log_id)
    assert {one.key: one.state for one in readers_of(client, "orders")} == dict.fromkeys(
        ("living", "suspended"), ReaderState.LIVE
    )


def test_lag_is_that_of_the_remaining_rows_if_rows_are_truncated_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was unknown, because of an entry with a negative number."""
    monkeypatch.setattr("bookspark.logs.chain.committer.COMMITS_PER_LEDGER_MAX", 1)
    client: Any = MemoryBookKeeper()
    client.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=60.0))
    log_id = LogRegistry(client.metadata).create("orders", LogOptions(), b"").log_id
    for _ in range(2):
        append(Log(client, LogAddress("memory", "orders"), LaneId(log_id, 0, "orders")), 10)
    place, first_unread_ms = {"position": 0, "log": log_id}, lag._Ends.first_unread_ms
    update(client.metadata, f"a@{log_id}", lambda found: ReaderRecord(ReaderKind.PYTHON, place, 0, "audit"))

    def truncated(ends: lag._Ends, lane: int, row: int) -> int | None:
        if lane:
            truncate_log(client, "orders@1", 12, b"")
        return first_unread_ms(ends, lane, row)

    monkeypatch.setattr(lag._Ends, "first_unread_ms", truncated)
    (found,) = readers_of(client, "orders")
    assert (found.lag_rows, found.problem) == (20, "") and found.lag_seconds is not None
    assert readers_of(client, "orders")[0].lag_rows == 8


def test_dead_reader_turns_stale_and_its_lag_becomes_that_of_its_group(
    log: Log, bookkeeper: BookKeeper, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, 10)
    arguments = [sys.executable, "-c", _DIES, cluster.zookeeper, log.name]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"read\n"
            # The reader is at 7, whatever it saved.
            heard = only(bookkeeper, log, lambda one: one.lag_rows == 3)
        finally:
            process.send_signal(signal.SIGKILL)
    assert only(bookkeeper, log).state is ReaderState.LIVE
    monkeypatch.setattr(lag, "learn_time", lambda _: heard.heard_ms + 2 * STALE_MS)
    found = only(bookkeeper, log)
    # The group's next reader continues from the committed offset.
    assert (found.state, found.lag_rows, found.lanes[1]) == (ReaderState.STALE, 6, 4)


def test_reader_without_a_group_leaves_no_record_when_it_ends(
    log: Log, bookkeeper: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, 3)
    with log.reader():
        only(bookkeeper, log)
    await_that(lambda: records_of(bookkeeper.metadata, log.id) == {})
    monkeypatch.setattr(registration, "TELL_SECONDS", 3600)
    with log.reader() as reader:
        assert len(reader.read()) == 3
        assert not reader._registration.due(0)
    assert records_of(bookkeeper.metadata, log.id) == {}


def test_garbage_collected_reader_stops_reporting(log: Log, bookkeeper: BookKeeper) -> None:
    reader = log.reader()
    only(bookkeeper, log)
    assert any(thread.name == "bookspark-tell-readers" for thread in threading.enumerate())
    del reader

    def ended() -> bool:
        gc.collect()
        return not any(thread.name == "bookspark-tell-readers" for thread in threading.enumerate())

    await_that(ended)


def test_reader_reports_at_most_once_a_second(
    log: Log, bookkeeper: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(registration.time, "monotonic", lambda: clock[0])
    # Its thread never sees the reader: the test reports in its place.
    monkeypatch.setattr(registration._Teller, "add", lambda self, reader: None)
    with log.reader() as reader:
        told = reader._registration
        assert not told.due(1000.9) and told.due(1001)
        told.tell()
        assert not told.due(1004.9) and told.due(1005), "it says that it lives"
        told.moved({**reader.offset, "position": 7})
        assert not told.due(1000.9) and told.due(1001)
        clock[0] = 1001.0
        told.tell()
        assert not told.due(1005.9) and told.due(1006)
        told.over = True


class _Refusing:
    """A client whose metadata store does not answer."""

    asked = 0

    @property
    def metadata(self) -> MetadataStore:
        self.asked += 1
        raise MetadataStoreError("nobody answers")


def test_reader_reports_at_once_at_its_close(log: Log, bookkeeper: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "TELL_SECONDS", 1000.0)
    monkeypatch.setattr(registration, "_LAST_SECONDS_MAX", 200.0)
    append(log, 10)
    began = time.monotonic()
    with log.reader(group="audit") as reader:
        reader.read(rows_max=9)
    (found,) = readers_of(bookkeeper, log.name)
    assert (found.lag_rows, found.state) == (1, ReaderState.CLOSED)
    assert time.monotonic() - began < 200, "it waits for the telling, and no longer"


def test_reader_that_cannot_report_reads_on_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    refusing: Any = _Refusing()
    told = registration.Registration(refusing, "orders", ReaderKind.SPARK, {"position": 0, "log": 1})
    await_that(lambda: refusing.asked > 1)
    told.moved({"position": 5, "log": 1})
    told.close()
    assert [record.message for record in caplog.records if "can't tell" in record.message] == [
        f"reader {told.name} can't tell how far it is, and reads on: nobody answers"
    ]


def test_reader_of_a_single_lane_counts_only_for_that_lane(log: Log, bookkeeper: BookKeeper) -> None:
    from bookspark.logs import open_log

    append(log, 4, "one")
    append(log, 5, "two")
    with open_log(bookkeeper, f"{log.name}@2").reader(group="audit"), log.reader(group="all"):
        await_that(lambda: len(readers_of(bookkeeper, log.name)) == 2)
        found = {one.reader: one for one in readers_of(bookkeeper, log.name)}
        assert (found["audit"].log, found["audit"].lanes, found["audit"].lag_rows) == (f"{log.name}@2", {2: 0}, 5)
        assert found["all"].lag_rows == 9
        assert {one.reader: one.lag_rows for one in readers_of(bookkeeper, f"{log.name}@1")} == {"all": 4}


def test_truncated_rows_are_no_lag(log: Log, bookkeeper: BookKeeper) -> None:
    append(log, 10)
    with log.reader(group="audit"):
        only(bookkeeper, log, lambda one: one.lag_rows == 10)
        truncate_log(bookkeeper, f"{log.name}@1", 6, b"")
        assert only(bookkeeper, log).lag_rows == 4


def test_deleted_log_leaves_no_reader_record_and_a_live_reader_adds_none(bookkeeper: BookKeeper) -> None:
    log = create_log(bookkeeper, f"log-{uuid.uuid4().hex[:8]}")
    append(log, 1)
    with log.reader(group="audit") as reader:
        only(bookkeeper, log)
        delete_log(bookkeeper, log.name, b"")
        assert records_of(bookkeeper.metadata, log.id) == {}
        reader._registration.tell()
        assert reader._registration.over
        assert records_of(bookkeeper.metadata, log.id) == {}


def test_outdated_reader_records_are_deleted_by_the_next_reader(log: Log, bookkeeper: BookKeeper) -> None:
    """Its host's clock may be wrong: ages are those of the records in the metadata store."""
    store = bookkeeper.metadata
    old = ReaderRecord(ReaderKind.PYTHON, {"position": 0, "log": log.id}, 1 << 50, "audit", closed=True)
    assert update(store, f"old@{log.id}", lambda found: old) == old
    store.write_record(READERS, f"nonsense@{log.id}", b"{", None)
    with log.reader(group="audit"):
        await_that(lambda: f"old@{log.id}" not in records_of(store, log.id))
        only(bookkeeper, log)


def test_readers_of_a_log_are_shown_only_with_its_password(bookkeeper: BookKeeper) -> None:
    log = create_log(bookkeeper, f"log-{uuid.uuid4().hex[:8]}", b"secret")
    with pytest.raises(UnauthorizedAccessError):
        readers_of(bookkeeper, log.name)
    assert readers_of(bookkeeper, log.name, b"secret") == []


def test_readers_command_prints_lag(log: Log, bookkeeper: BookKeeper, bookspark: Run, cluster: LocalCluster) -> None:  # noqa: F811
    append(log, 4)
    outcome = bookspark("log", "readers", log.name, "--zookeeper", cluster.zookeeper, "--json")
    assert (outcome.status, outcome.text.strip()) == (0, "[]")
    with log.reader(group="audit") as reader:
        reader.read(rows_max=3)
        only(bookkeeper, log, lambda one: one.lag_rows == 1)
        outcome = bookspark("log", "readers", log.name, "--zookeeper", cluster.zookeeper, "--json")
        (found,) = json.loads(outcome.text)
        shown = {name: found[name] for name in ("reader", "kind", "log", "state", "lanes", "lag_rows", "problem")}
        assert shown == {
            "reader": "audit",
            "kind": "python",
            "log": log.name,
            "state": "live",
            "lanes": {"0": 0, "1": 3},
            "lag_rows": 1,
            "problem": "",
        }
        assert found["process"] == f"{socket.gethostname()}:{os.getpid()}"
        assert found["lag_seconds"] >= 0 and "T" in found["heard"] and "T" in found["since"]
        table = bookspark("log", "readers", log.name, "--zookeeper", cluster.zookeeper)
        assert table.status == 0 and "audit" in table.text and "0: 0; 1: 3" in table.text and "live" in table.text


# -- why


def _behind(log: Log, asked: str, **fields: Any) -> tuple[Facts, LogFacts]:
    seen = facts()
    one = ReaderLag(log.name, "k", ReaderKind.SPARK, "id-1", "sums", ReaderState.LIVE, 0, seen.at_ms, {0: 1}, 3, 2.0)
    record = LogRegistry(log._bookkeeper.metadata).get(log.name)
    return seen, LogFacts(record, (LaneFacts(record, "batch", 10, 1, 5.0),), (one._replace(**fields),), asked)


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({}, "", "3 rows and 0:00:02 behind"),
        ({"lag_rows": 0, "lag_seconds": 0.0}, "", "no row behind"),
        ({"lag_seconds": BEHIND_SECONDS + 1}, "reader-behind", "lives, and is 3 rows and 0:01:01 behind"),
        ({"state": ReaderState.STALE}, "reader-gone", "does not run, and is 3 rows"),
        ({"state": ReaderState.STALE, "lag_rows": 0, "lag_seconds": 0.0}, "", "does not run, and is no row behind"),
        (
            {"state": ReaderState.STALE, "lag_rows": None, "lag_seconds": None},
            "reader-gone",
            "an unknown number of rows",
        ),
        ({"state": ReaderState.CLOSED, "lag_rows": 0, "lag_seconds": 0.0}, "", "no row behind"),
        ({"state": ReaderState.CLOSED, "lag_seconds": BEHIND_SECONDS + 1}, "", "has ended in order, and is 3 rows"),
        ({"state": ReaderState.CLOSED, "kind": ReaderKind.PYTHON}, "reader-gone", "does not run, and is 3 rows"),
        ({"lag_rows": None, "lag_seconds": None, "problem": "too few"}, "", "an unknown number of rows behind"),
    ],
)
def test_why_behind_explains_each_state_of_a_reader(log: Log, fields: dict[str, Any], kind: str, said: str) -> None:
    for asked in ("sums", "id-1"):
        found = why_behind(*_behind(log, asked, **fields), ())
        assert found.kind == kind and said in found.verdict, found
        check_command(found)
    of_log = why_behind(*_behind(log, "", **fields), ())
    assert of_log.kind == "" and any("reader sums" in cause for cause in of_log.causes)


def test_gather_log_accepts_the_name_of_a_reader_group(log: Log, bookkeeper: BookKeeper) -> None:
    append(log, 2)
    group = f"group-{os.urandom(4).hex()}"
    with log.reader(group=group):
        only(bookkeeper, log)
        found = gather_log(bookkeeper, group, b"")
        assert (found.record.name, found.asked) == (log.name, group)
        assert [one.lag_rows for one in found.readers] == [2]


def test_why_behind_reports_all_lanes_of_a_log(log: Log, bookkeeper: BookKeeper) -> None:
    """It reported lane 0 alone: a log written only by services had no rows and no commit."""
    append(log, 2)
    with log.producer("other") as other:
        other.append_batch([b"x"] * 3)
    told = why_behind(facts(), gather_log(bookkeeper, log.name, b""), ())
    assert any("it has 5 rows in 3 lanes" in cause for cause in told.causes), told
    newest = [cause for cause in told.causes if cause.startswith("lane ")]
    assert newest[0].startswith(f"lane {log.name}@2 of service:other has 3 rows, the newest is 0:0")
    assert len(newest) == 2 and f"lane {log.name}@1 of service:" in newest[1]
    of_lane = why_behind(facts(), gather_log(bookkeeper, f"{log.name}@2", b""), ())
    assert any("it has 3 rows in 1 lane" in cause for cause in of_lane.causes), of_lane
