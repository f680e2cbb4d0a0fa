"""Choices of an offload by commits and metadata alone: the rows to offload and the ledgers to delete."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow
import pytest

from bookspark.errors import BookKeeperError, ConfigurationError, LedgerFencedError, MetadataStoreError, ReadError
from bookspark.logs import delete_log
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.lanes import lane_id
from bookspark.protocol.logs.log_offload import OffloadError
from bookspark.protocol.logs.log_record import LogRecreatedError
from bookspark.spark.offload import offloading
from bookspark.spark.offload import table as tables
from bookspark.spark.offload.offloading import _Run, place_of
from bookspark.store.client import BookKeeper
from bookspark.support.snapshot_commits import location
from tests.clocks import keep_steady, wrong_clock
from tests.spark.test_feeds import ROWS, Log
from tests.spark.test_offload_table import SCHEMA, Table


@pytest.fixture(autouse=True)
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_steady(monkeypatch)


@pytest.fixture
def log() -> Log:
    return Log()


UNFIT = ["[", "]", "{", "}", "*", "\\", "%", "#", "?", ":"]


def run_of(log: Log) -> _Run:
    return _Run(cast(Any, None), cast(BookKeeper, log.bookkeeper), lane_id(log.registry.get("orders")), "/table", b"")


@pytest.mark.parametrize("table", ["/data/J ü+&", "/data/J ü+&/", "file:/data/J ü+&", "file:///data/J ü+&/"])
def test_table_path_on_this_host_has_a_canonical_form(table: str) -> None:
    """The path "file:/data/t" was taken for a folder of the working directory."""
    assert place_of(table) == "/data/J ü+&"
    assert place_of("s3a://bucket/t/") == "s3a://bucket/t"


@pytest.mark.parametrize("character", UNFIT)
def test_place_of_a_table_that_its_readers_take_differently_is_refused(character: str) -> None:
    """The table was made in another folder, or delta-rs ended the process's thread with a panic."""
    with pytest.raises(ConfigurationError, match=re.escape(f"with the character {character}")):
        place_of(f"/data/a{character}b/t")
    for path in (f"/a{character}b", f"file:///a{character}b", f"s3a://bucket/a{character}b"):
        with pytest.raises(ConfigurationError, match="choose a folder"):
            location(path, "ledgers")


def end_of(log: Log) -> int | None:
    return run_of(log)._end(log.registry.get("orders"))


def needless(log: Log, before_ms: float = 1.0) -> list[int]:
    return list(run_of(log)._needless(log.registry.get("orders"), before_ms))


def offload_up_to(log: Log, end: int) -> None:
    """Record the rows as offloaded."""
    log.registry.update("orders", lambda record: record.offload_begun("/table", end))
    log.registry.update("orders", lambda record: record.offload_done("/table", end, 0))


def test_offload_ends_before_the_first_open_ledger(log: Log) -> None:
    assert end_of(log) is None
    log.commit(2)
    assert end_of(log) is None, "its ledger is open"
    log.data.close()
    log.roll()
    log.commit(3)
    assert end_of(log) == 20
    offload_up_to(log, 20)
    assert end_of(log) is None
    log.data.close()
    assert end_of(log) == 50


def test_idle_open_ledger_of_a_running_query_is_closed_for_the_offload(log: Log) -> None:
    now = int(time.time() * 1000)
    log.commit(1, now - 100_000)
    left = log.data  # Spark ended its worker and uses another worker
    log.roll()
    log.commit(1, now - 100_000)
    log.commit(1, now)
    run_of(log).close_idle(200)
    assert end_of(log) is None, "its writer may go on"
    run_of(log).close_idle(50)
    assert end_of(log) == 10
    with pytest.raises(LedgerFencedError):
        left.append(b"one that is there after all begins another ledger")
    assert not log.bookkeeper.get_ledger_metadata(log.data.ledger_id).closed, "a commit named it just now"


@pytest.mark.parametrize("days", [400, -400])
def test_offloading_host_with_a_wrong_clock_takes_no_other_ledger_for_idle(log: Log, days: int) -> None:
    now = int(time.time() * 1000)
    log.commit(1, now - 100_000)
    log.roll()
    log.commit(1, now)
    with wrong_clock(days):
        run_of(log).close_idle(200)
        assert end_of(log) is None
        run_of(log).close_idle(50)
    assert end_of(log) == 10


def test_transaction_is_bounded_in_bytes_but_has_at_least_a_commit(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.commit(5)
    log.data.close()
    for size, end in ((1, 10), (100, 10), (101, 20), (1000, 50)):
        monkeypatch.setattr("bookspark.spark.offload.offloading.TRANSACTION_BYTES_MAX", size)
        assert end_of(log) == end


def test_ledger_is_needed_until_all_its_rows_are_offloaded_and_old(log: Log) -> None:
    log.commit(2)
    first = log.data
    first.close()
    log.roll()
    log.commit(1)
    log.data.close()
    assert needless(log) == []
    offload_up_to(log, 10)
    assert needless(log) == [], "half of the first one's rows are not there"
    offload_up_to(log, 20)
    assert needless(log) == [first.ledger_id]
    assert needless(log, before_ms=0.0) == [], "they were committed at 0"
    log.bookkeeper.delete_ledger(first.ledger_id)
    assert needless(log) == []


def test_ledger_with_uncommitted_entries_is_needed_until_a_later_epoch_has_recovered(
    log: Log,
) -> None:
    log.commit(1)
    log.data.append(b"of a micro-batch that is under way")
    log.data.close()
    offload_up_to(log, 10)
    assert needless(log) == []
    ledger_id = log.data.ledger_id
    log.begin("b")
    assert needless(log) == []
    log.commit(1)
    assert needless(log) == [ledger_id]


def test_ledger_whose_last_rows_are_committed_after_a_claim_is_not_deleted(log: Log) -> None:
    log.commit(1)
    data, former = log.data, log.committer
    for _ in range(ROWS):
        last = data.append(b"0123456789")
    data.close()
    offload_up_to(log, 10)
    log.begin("b")
    assert needless(log) == []
    item = EntryRange(data.ledger_id, last - ROWS + 1, last, ROWS, 10 * ROWS)
    assert former.commit(Commit("q", 1, "a", 1, (item,)))
    assert not log.committer.commit(Commit("q", 1, "b", log.epoch, ())), "found, so its rows are not written again"
    log.commit(1)
    assert needless(log) == []


def test_log_with_a_retention_is_not_offloaded(log: Log) -> None:
    log.registry.alter("orders", retention_ms=5)
    with pytest.raises(OffloadError, match="log alter orders --retention-hours 0"):
        run_of(log)
    assert log.registry.get("orders").offload is None
    log.registry.alter("orders", retention_ms=0)
    run_of(log)


def test_truncated_rows_are_not_offloaded(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "check", lambda table, owner, version: 0)
    log.commit(3)
    log.data.close()
    log.registry.update("orders", lambda record: record.offload_begun("/table", 10))
    log.registry.update("orders", lambda record: record.truncated(20, {}))
    run = run_of(log)
    assert run.transaction() == 0, "the transaction that was begun has nothing left to write"
    assert run.position == 10
    assert (run._start(log.registry.get("orders")), end_of(log)) == (20, 30)


def test_log_created_again_during_its_offload_is_not_taken_for_offloaded(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.commit(3)
    log.data.close()
    offload_up_to(log, 20)
    monkeypatch.setattr(tables, "count", lambda table, start, end: 10)  # has rows up to 30
    monkeypatch.setattr(tables, "check", lambda table, owner, version: 5)
    monkeypatch.setattr(_Run, "_prove", lambda run, pieces: None)
    run = run_of(log)
    delete_log(cast(BookKeeper, log.bookkeeper), "orders", b"")
    log.registry.ensure("orders", {}, b"")
    log.batches = 0
    log.begin("b")
    log.commit(2)
    log.data.close()
    for step in (run.transaction, lambda: run.close_idle(0.0), lambda: run.delete(0.0)):
        with pytest.raises(LogRecreatedError, match=r"log 'orders' with id .* was deleted.* another log by now"):
            step()
    assert log.registry.get("orders").offload is None, "its rows were called offloaded, and its ledgers deleted"


def raised(error: Exception) -> bool:
    raise error


class InThisProcess:
    """A Spark that runs the tasks of ``prove`` in this process."""

    sparkContext = property(lambda self: self)

    def parallelize(self, parts: list[Any], count: int) -> InThisProcess:
        self._parts = parts
        return self

    def map(self, task: Callable[[Any], Any]) -> InThisProcess:
        self._parts = [task(part) for part in self._parts]
        return self

    def collect(self) -> list[Any]:
        return self._parts


class Closed(NamedTuple):
    """A run over a log with 30 rows in a closed ledger that a later epoch has recovered, and the log's table."""

    run: _Run
    table: Table
    ledger_id: int

    def add(self, changed: int = -1) -> Path:
        """Add a file with the 30 rows to the table; the row ``changed`` has another value."""
        values = [b"another" if n == changed else b"0123456789" for n in range(30)]
        return self.table.add([(value, n, self.ledger_id, n) for n, value in enumerate(values)])


@pytest.fixture
def closed(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Closed:
    log.commit(3)
    ledger_id = log.data.ledger_id
    log.data.close()
    log.begin("b")
    log.commit(1)
    bookkeeper = log.bookkeeper

    def rows(_: object, piece: Piece, *others: object) -> Iterator[pyarrow.RecordBatch]:
        bookkeeper.get_ledger_metadata(piece.ledger_id)
        yield pyarrow.RecordBatch.from_pylist(
            [
                dict(
                    zip(
                        SCHEMA.names,
                        (b"0123456789", piece.position + n, piece.ledger_id, piece.first_entry_id + n),
                        strict=True,
                    )
                )
                for n in range(piece.rows)
            ]
        )

    monkeypatch.setattr(offloading, "rows_in_ledger", rows)
    monkeypatch.setattr(offloading, "client", lambda zookeeper: bookkeeper)
    monkeypatch.setattr(bookkeeper, "zookeeper", "z", raising=False)
    lane = lane_id(log.registry.get("orders"))
    run = _Run(cast(Any, InThisProcess()), cast(BookKeeper, bookkeeper), lane, str(tmp_path / "table"), b"")
    run.__dict__["_schema"] = SCHEMA
    return Closed(run, Table(tmp_path, run._transactions), ledger_id)


def test_ledger_is_deleted_only_after_its_rows_were_read_back_again(
    closed: Closed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that rotted between the two reads was noticed only when the ledger was gone."""
    run, written = closed.run, []
    monkeypatch.setattr(run, "_write", lambda start, end: written.append(closed.add()))
    run.ready_table()
    assert run.transaction() == 30
    (file,) = written
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[whole.index(b"0123456789") + 3] ^= 1
    for content in (bytes(damaged), whole[:-1]):
        file.write_bytes(content)
        with pytest.raises(BookKeeperError, match="can't be read"):
            run.delete(0.0)
    file.unlink()
    with pytest.raises(BookKeeperError, match="can't be read"):
        run.delete(0.0)
    file.write_bytes(whole)
    assert run.delete(0.0) == [closed.ledger_id]


def test_offload_taken_back_before_its_deletions_deletes_nothing_and_its_table_is_no_longer_the_logs(
    closed: Closed, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = closed.run
    monkeypatch.setattr(run, "_write", lambda start, end: closed.add())
    run.ready_table()
    assert run.transaction() == 30
    prove = run._prove

    def taken_back(pieces: Any) -> None:
        prove(pieces)
        assert log.registry.take_back_offload("orders") == [closed.table.place]

    monkeypatch.setattr(run, "_prove", taken_back)
    with pytest.raises(OffloadError, match="its offload was taken back"):
        run.delete(0.0)
    assert log.bookkeeper.get_ledger_metadata(closed.ledger_id).closed, "its ledger is there"
    assert log.registry.take_back_offload("orders") == []
    with pytest.raises(OffloadError, match="that was taken back: give another table, or delete this one"):
        run.ready_table()
    log.registry.alter("orders", retention_ms=1)


def test_offload_with_deleted_ledgers_is_not_taken_back(
    closed: Closed, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = closed.run
    monkeypatch.setattr(run, "_write", lambda start, end: closed.add())
    run.ready_table()
    run.transaction()
    monkeypatch.setattr(run, "_delete", lambda ledger_id: raised(MetadataStoreError("lost")))
    with pytest.raises(MetadataStoreError):
        run.delete(0.0)
    with pytest.raises(OffloadError, match=r"ledgers of rows 0 to 29 may be deleted.*bookspark log truncate orders 30"):
        log.registry.take_back_offload("orders")


def test_rows_that_differ_when_read_back_are_not_recorded_as_offloaded(
    closed: Closed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = closed.run
    monkeypatch.setattr(run, "_write", lambda start, end: closed.add(changed=17))
    run.ready_table()
    for _ in range(2):  # the second time the rows are present and are not written again
        with pytest.raises(OffloadError, match=r"row 17 of log 'orders' is another one in .* than in its ledger"):
            run.transaction()
    assert run.position == 0
    assert tables.count(closed.table.place, 0, 30) == 30


def test_offload_of_all_lanes_stands_if_a_running_job_marks_one_of_them_meanwhile(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lane had no offload then, and another could not be taken back: neither table could be used any more."""
    log.registry.ensure("others", {}, b"")
    lanes = [lane_id(log.registry.get(name)) for name in ("orders", "others")]
    for lane in lanes:
        log.registry.update(lane, lambda record: record.offload_begun("/table", 20))
        log.registry.update(lane, lambda record: record.offload_done("/table", 20, 0))
    offloads = [log.registry.get(lane).offload for lane in lanes]
    update = log.registry.update

    def marking(lane: Any, transition: Any) -> Any:
        done = update(lane, transition)
        if lane == lanes[0] and done.offload is None:
            update(lanes[1], lambda record: record.offload_deleting("/table", 10))
        return done

    monkeypatch.setattr(log.registry, "lanes_of", lambda name: lanes)
    monkeypatch.setattr(log.registry, "update", marking)
    with pytest.raises(OffloadError, match="may have the only copy"):
        log.registry.take_back_offload("orders")
    assert log.registry.get(lanes[0]).offload == offloads[0] and log.registry.get(lanes[1]).offload is not None


def test_offload_proves_no_fewer_rows_than_it_calls_offloaded(
    closed: Closed, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bookies that answer later may confirm fewer rows than those at its begin: the others counted as proven."""
    every = offloading.commits

    def write(start: int, end: int) -> None:
        closed.add()
        monkeypatch.setattr(offloading, "commits", lambda *place: islice(every(*place), 2))

    monkeypatch.setattr(closed.run, "_write", write)
    closed.run.ready_table()
    with pytest.raises(ReadError, match="has rows up to 29, but the bookies that answer confirm rows before 20 only"):
        closed.run.transaction()
    offload = log.registry.get("orders").offload
    assert offload is not None and (offload.position, offload.pending) == (0, 30)
