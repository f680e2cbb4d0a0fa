"""Producers and readers without Spark on real bookies: each row once, each lane in order, across deaths and
takeovers."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from bookspark.errors import (
    ConfigurationError,
    DataLossError,
    EntryTooLargeError,
    InvalidArgumentError,
    LedgerClosedError,
    UnauthorizedAccessError,
)
from bookspark.local import LocalCluster
from bookspark.logs import (
    Log,
    LogRegistry,
    RowPosition,
    UnexpectedPositionError,
    create_log,
    delete_log,
    open_log,
    truncate_log,
)
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.chain.registry import POSITIONS
from bookspark.logs.rows.encodings import VALUE_BYTES_MAX
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.logs.lanes import LaneId, service_writer
from bookspark.protocol.logs.log_options import Compression, LogOptions, RowFormat
from bookspark.protocol.logs.log_record import LogTakenOverError, NoSuchLogError
from bookspark.store.client import BookKeeper
from tests.awaiting import SECONDS_MAX, await_that

SECONDS = SECONDS_MAX


def values(log: Log) -> list[bytes]:
    with log.reader() as reader:
        return [row.value for row in reader]


# -- producers


def test_acknowledged_rows_are_readable_at_once_and_in_order(log: Log) -> None:
    with log.producer("billing-7") as producer, log.reader() as reader:
        assert producer.append(b"a") == RowPosition(1, 0)
        assert [row.value for row in reader.read()] == [b"a"]
        assert producer.append_batch([b"b", b"", b"c" * 100_000]) == range(1, 4)
        assert producer.append_batch([]) == range(0)
        futures = [producer.append_async(str(number).encode()) for number in range(1000)]
        assert [future.result(SECONDS) for future in futures] == [RowPosition(1, n) for n in range(4, 1004)]
        found = reader.read()
    assert [row.value for row in found] == [b"b", b"", b"c" * 100_000, *(str(n).encode() for n in range(1000))]
    assert [row.position for row in found] == list(range(1, 1004))
    assert sorted(row.time_ms for row in found) == [row.time_ms for row in found]
    assert reader.offset == {"position": 0, "log": reader.offset["log"], "1": 1004}


def test_append_can_be_awaited(log: Log) -> None:
    async def appended() -> list[RowPosition | None]:
        with log.producer("service") as producer:
            return await asyncio.gather(*(producer.append_async(b"row") for _ in range(10)))

    assert asyncio.run(appended()) == [RowPosition(1, n) for n in range(10)]


def test_append_cannot_be_cancelled_and_its_callback_may_append_and_wait(log: Log) -> None:
    async def impatient() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(producer.append_async(b"slow")), 0)

    told: list[object] = []

    def callback(future: object) -> None:
        told.append(producer.append(b"of a callback"))

    with log.producer("service") as producer:
        asyncio.run(impatient())
        future = producer.append_async(b"row")
        assert not future.cancel()
        future.add_done_callback(callback)
        assert future.result(SECONDS) == RowPosition(1, 1)
        await_that(lambda: told)
        assert told == [RowPosition(1, 2)]
    assert values(log) == [b"slow", b"row", b"of a callback"]


def test_producer_ends_the_earlier_producer_of_its_name_and_continues_its_lane(log: Log) -> None:
    first = log.producer("billing-7")
    first.append_batch([b"0", b"1"])
    second = log.producer("billing-7")
    assert (second.lane, second.position, second.last_sequence) == (1, 2, 1)
    with pytest.raises(LogTakenOverError, match="another producer of this name was made"):
        first.append(b"too late")
    assert first.closed
    with pytest.raises(LogTakenOverError):
        first.append_async(b"too late").result(SECONDS)
    assert second.append(b"2") == RowPosition(1, 2)
    first.close()
    second.close()
    assert values(log) == [b"0", b"1", b"2"]


def test_producers_of_different_names_append_to_lanes_of_their_own(log: Log, bookkeeper: BookKeeper) -> None:
    def produced(name: str) -> None:
        with log.producer(name) as producer:
            for number in range(50):
                producer.append(f"{name} {number}".encode())

    names = [f"service-{number}" for number in range(4)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(produced, names))
    for name in names:
        mine = [value for value in values(log) if value.startswith(f"{name} ".encode())]
        assert mine == [f"{name} {number}".encode() for number in range(50)]
    index = LogRegistry(bookkeeper.metadata).get(log.name).lanes
    assert sorted(lane.writers[-1] for lane in index) == [f"service:{name}" for name in names]


def test_two_hundred_producers_that_begin_at_once_all_get_a_lane(cluster: LocalCluster, log: Log) -> None:
    """Replicas of a service that were deployed together: of 140 that began, 41 failed."""
    begins, lanes = threading.Barrier(200), list[int]()
    with cluster.bookkeeper() as one, cluster.bookkeeper() as two:

        def begin(number: int) -> None:
            index = LaneIndex((one, two)[number % 2].metadata, LaneId(log.id, 0, log.name))
            begins.wait()
            lanes.append(index.begin(NewLane(service_writer(str(number)))).number)

        with ThreadPoolExecutor(begins.parties) as threads:
            for begun in [threads.submit(begin, number) for number in range(begins.parties)]:
                begun.result()
        record = LogRegistry(one.metadata).get(log.name)
    assert sorted(lanes) == list(range(1, 201)) == [lane.number for lane in record.lanes]
    assert {lane.writers for lane in record.lanes} == {(service_writer(str(number)),) for number in range(200)}


def test_row_repeated_under_its_sequence_number_is_in_the_log_once(log: Log) -> None:
    with log.producer("service") as producer:
        assert producer.append(b"five", sequence=5) == RowPosition(1, 0)
        assert producer.append(b"five again", sequence=5) is None
        assert producer.append(b"three", sequence=3) is None
        assert producer.append(b"six") == RowPosition(1, 1)
        assert producer.last_sequence == 6
    with log.producer("service") as producer:
        assert producer.last_sequence == 6
        futures = [producer.append_async(str(number).encode(), sequence=number) for number in (5, 6, 7, 7, 9)]
        assert [future.result(SECONDS) for future in futures] == [None, None, (1, 2), None, (1, 3)]
    assert values(log) == [b"five", b"six", b"7", b"9"]


def test_rows_without_sequence_numbers_are_appended_after_the_largest_number(log: Log) -> None:
    with log.producer("service") as producer:
        for number in (1 << 63, (1 << 63) - 1, (1 << 62) + 1, -1):
            with pytest.raises(InvalidArgumentError, match="sequence"):
                producer.append(b"never", sequence=number)
        assert producer.append(b"largest", sequence=1 << 62) == RowPosition(1, 0)
        assert producer.append(b"behind") == RowPosition(1, 1)
    with log.producer("service") as producer:
        assert producer.append_batch([b"later", b"still later"]) == range(2, 4)
        assert producer.last_sequence == (1 << 62) + 3


def test_row_is_appended_at_its_expected_position_or_not_at_all(log: Log) -> None:
    with log.producer("service") as producer:
        producer.append(b"0", expect=0)
        with pytest.raises(UnexpectedPositionError, match="was to be row 5, and the next one is 1"):
            producer.append(b"five", expect=5)
        futures = [producer.append_async(str(n).encode(), expect=n) for n in (1, 2, 9, 3)]
        assert [future.exception(SECONDS) is None for future in futures] == [True, True, False, True]
    assert values(log) == [b"0", b"1", b"2", b"3"]


KILLED = """
import sys
from bookspark import BookKeeper
from bookspark.logs import open_log
sys.modules["pyspark"] = None
with BookKeeper(sys.argv[1]) as bookkeeper:
    producer = open_log(bookkeeper, sys.argv[2]).producer("service")
    print(producer.last_sequence, flush=True)
    for number in range(producer.last_sequence + 1, 1_000_000):
        producer.append_async(str(number).encode(), sequence=number)
        if number % 50 == 0:
            print(producer.last_sequence, flush=True)
"""


def test_service_killed_and_restarted_has_each_row_in_the_log_once(cluster: LocalCluster, log: Log) -> None:
    """The service has no Spark: importing pyspark fails in it."""
    told = -1
    for _ in range(2):
        command = [sys.executable, "-c", KILLED, cluster.zookeeper, log.name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            began = int(process.stdout.readline())
            assert began >= told, "what was acknowledged stayed"
            for line in process.stdout:
                told = int(line)
                if told > began + 50:
                    break
            os.kill(process.pid, signal.SIGKILL)
    with log.producer("service") as producer:
        last = producer.last_sequence
    assert last >= told > 100
    assert values(log) == [str(number).encode() for number in range(last + 1)]


@pytest.mark.parametrize("compression", list(Compression))
def test_rows_round_trip_under_each_compression(bookkeeper: BookKeeper, compression: Compression) -> None:
    log = create_log(bookkeeper, f"log-{uuid.uuid4().hex[:8]}", options=LogOptions(compression=compression))
    rows = [b"", b"short", b"long " * 5000]
    with log.producer("service") as producer:
        producer.append_batch(rows)
    assert values(log) == rows


def test_close_completes_earlier_appends_and_refuses_later_ones(log: Log) -> None:
    producer = log.producer("service")
    futures = [producer.append_async(b"row") for _ in range(100)]
    assert not producer.closed
    producer.close()
    assert producer.closed
    assert all(future.done() for future in futures) and len(values(log)) == 100
    with pytest.raises(LedgerClosedError):
        producer.append(b"late")
    producer.close()


def test_append_in_a_forked_child_raises_instead_of_waiting(log: Log) -> None:
    with log.producer("service") as producer:
        for row in (b"a", b"a", b"a"):
            # Later appends find an open ledger, as the child does, and check nothing else.
            producer.append(row)
        child = os.fork()
        if not child:
            try:
                producer.append_async(b"b")
            except LedgerClosedError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert values(log) == [b"a"] * 3


@pytest.mark.parametrize("batches", [False, True])
def test_appends_wait_while_too_many_bytes_are_unacknowledged(cluster: LocalCluster, log: Log, batches: bool) -> None:
    with (
        cluster.bookkeeper(bytes_in_flight_max=1 << 16, sync_bytes=1 << 14) as bookkeeper,
        ThreadPoolExecutor(1) as pool,
    ):
        producer = open_log(bookkeeper, log.name).producer("service")
        producer.append(b"first")
        room = bookkeeper.context.runtime.room
        for bookie in cluster.bookies[:2]:
            bookie.suspend()
        try:

            def append() -> None:
                for _ in range(500):
                    (producer.append_batch_async([bytes(1024)]) if batches else producer.append_async(bytes(1024)))

            appended = pool.submit(append)
            await_that(lambda: room.waiting or appended.done())
            assert not appended.done()
        finally:
            for bookie in cluster.bookies[:2]:
                bookie.resume()
        appended.result(SECONDS)
        producer.close()
    assert values(log) == [b"first", *([bytes(1024)] * 500)]


def test_invalid_rows_names_and_options_are_refused_before_any_write(bookkeeper: BookKeeper, log: Log) -> None:
    with log.producer("service") as producer:
        with pytest.raises(EntryTooLargeError):
            producer.append(bytes(VALUE_BYTES_MAX + 1))
        with pytest.raises(InvalidArgumentError):
            producer.append("text")  # type: ignore[arg-type]
        assert producer.append(bytes(VALUE_BYTES_MAX)) == RowPosition(1, 0)
    with pytest.raises(NoSuchLogError):
        open_log(bookkeeper, "nothing")
    with pytest.raises(UnauthorizedAccessError):
        open_log(bookkeeper, log.name, b"wrong")
    with pytest.raises(InvalidArgumentError, match="name"):
        log.producer("a/b")
    with pytest.raises(ConfigurationError, match="one lane of a log"):
        open_log(bookkeeper, f"{log.name}@1").producer("service")
    for wrong in ({"digest_type": "nonsense"}, {"compression": 7}, {"columns": None}, {"ensemble_size": "3"}):
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            create_log(bookkeeper, "never", options=LogOptions(**wrong))  # type: ignore[arg-type]
    assert "never" not in LogRegistry(bookkeeper.metadata).names()
    columns = LogOptions(row_format=RowFormat.ARROW, columns='{"type": "struct", "fields": []}')
    rows = create_log(bookkeeper, f"log-{uuid.uuid4().hex[:8]}", options=columns)
    for use in (lambda: rows.producer("service"), rows.reader):
        with pytest.raises(ConfigurationError, match="several columns"):
            use()


# -- readers


def test_options_given_as_text_equal_their_enum_values(bookkeeper: BookKeeper) -> None:
    options = LogOptions(digest_type="hmac", compression="ZSTD")  # type: ignore[arg-type]
    log = create_log(bookkeeper, f"log-{uuid.uuid4().hex[:8]}", options=options)
    assert LogRegistry(bookkeeper.metadata).get(log.name).options == LogOptions(
        digest_type=DigestType.HMAC, compression=Compression.ZSTD
    )
    with log.producer("service") as producer:
        producer.append(b"row")
    assert values(log) == [b"row"]


def test_reader_group_continues_from_its_saved_offset(log: Log) -> None:
    with log.producer("service") as producer:
        producer.append_batch([str(n).encode() for n in range(10)])
    with log.reader(group="audit") as reader:
        assert [row.value for row in reader.read(rows_max=4)] == [b"0", b"1", b"2", b"3"]
        reader.commit()
        reader.read(rows_max=3)
    with log.reader("latest", group="audit") as reader:
        assert [row.value for row in reader.read(rows_max=2)] == [b"4", b"5"]
        reader.commit()
    with log.reader(group="audit") as reader, log.reader(group="others") as others:
        assert [row.value for row in reader] == [b"6", b"7", b"8", b"9"]
        assert len(others.read()) == 10
    with log.reader() as reader, pytest.raises(ConfigurationError, match="without a group"):
        reader.commit()


def test_deleted_log_leaves_no_saved_offset_of_a_reader(log: Log, bookkeeper: BookKeeper) -> None:
    other = create_log(bookkeeper, f"{log.name}2")
    for one in (log, other):
        with one.reader(group="audit") as reader:
            reader.commit()
    delete_log(bookkeeper, log.name, b"")
    assert bookkeeper.metadata.read_record(POSITIONS, f"audit@{log.id}") is None
    assert bookkeeper.metadata.read_record(POSITIONS, f"audit@{other.id}") is not None


@pytest.mark.parametrize("share", [False, True], ids=["alone", "sharing"])
def test_offset_saved_in_a_deleted_log_is_ignored_in_a_later_log(log: Log, bookkeeper: BookKeeper, share: bool) -> None:
    """A reader of the old log that saved its offset after the deletion made all readers of the group fail in the new
    log."""
    with log.producer("service") as producer:
        producer.append_batch([b"old 0", b"old 1", b"old 2"])
    with log.reader(group="audit", share=share) as old:
        assert [row.value for row in old.read(rows_max=2)] == [b"old 0", b"old 1"]
        old.commit()
        delete_log(bookkeeper, log.name, b"")
        with pytest.raises(NoSuchLogError, match=f"id {log.id} was deleted"):
            old.commit()
    anew = create_log(bookkeeper, log.name)
    with anew.producer("service") as producer:
        producer.append_batch([b"new 0", b"new 1", b"new 2"])
    with anew.reader("latest", group="audit", share=share) as reader:
        assert reader.read() == []
        reader.seek({**reader.offset, "1": 0})
        assert [row.value for row in reader.read(rows_max=2)] == [b"new 0", b"new 1"]
        reader.commit()
    with anew.reader("latest", group="audit", share=share) as reader:
        assert [row.value for row in reader.read()] == [b"new 2"]


def test_reader_of_a_deleted_log_overwrites_no_offset_in_a_later_log(log: Log, bookkeeper: BookKeeper) -> None:
    with log.producer("service") as producer:
        producer.append_batch([b"old 0", b"old 1"])
    with log.reader(group="audit") as old:
        assert len(old.read()) == 2
        delete_log(bookkeeper, log.name, b"")
        anew = create_log(bookkeeper, log.name)
        with anew.producer("service") as producer:
            producer.append_batch([b"new 0", b"new 1"])
        with anew.reader(group="audit") as reader:
            assert [row.value for row in reader.read(rows_max=1)] == [b"new 0"]
            reader.commit()
        with pytest.raises(DataLossError, match="is another log by now"):
            old.commit()
    with anew.reader(group="audit") as reader:
        assert [row.value for row in reader.read()] == [b"new 1"]


def test_log_is_pickled_and_producers_and_readers_refuse_with_a_hint(log: Log) -> None:
    assert pickle.loads(pickle.dumps(log)).name == log.name
    with log.producer("service") as producer, log.reader() as reader:
        for one in (producer, reader):
            with pytest.raises(TypeError, match="pickle its Log"):
                pickle.dumps(one)
        assert log.name in repr(producer) and log.name in repr(reader)


def test_reader_seeks_to_an_offset_or_a_time_and_refuses_invalid_ones(log: Log, bookkeeper: BookKeeper) -> None:
    with log.producer("one") as one, log.producer("two") as two, log.reader() as reader:
        one.append(b"a")
        reader.read()
        seen = reader.offset
        two.append(b"b")
        one.append(b"c")
        assert [row.value for row in reader.read()] == [b"c", b"b"], "by lanes"
        reader.seek(seen)
        found = reader.read()
        assert [row.value for row in found] == [b"c", b"b"]
        reader.seek_to_time(datetime.fromtimestamp(found[0].time_ms / 1000, UTC))
        assert b"c" in {row.value for row in reader.read()} <= {b"a", b"b", b"c"}
        reader.seek_to_time(datetime(2200, 1, 1, tzinfo=UTC))
        assert reader.read() == []
        for wrong in ({"7": 1}, {**seen, "position": -1}, {**seen, "²": 1}):
            with pytest.raises(ConfigurationError, match="no place in log"):
                reader.seek(wrong)
        before = reader.offset
        with pytest.raises(InvalidArgumentError, match="moment"):
            reader.seek_to_time(datetime.min)
        assert reader.offset == before
    name = log.name
    delete_log(bookkeeper, name, b"")
    again = create_log(bookkeeper, name)
    with again.reader() as reader, pytest.raises(DataLossError, match="is another log by now"):
        reader.seek({**seen, "log": seen["log"] - 1})


def test_reader_follows_the_log_and_its_new_lanes(log: Log) -> None:
    found: list[bytes] = []
    begun = threading.Event()

    def follow() -> None:
        with log.reader("latest") as reader:
            begun.set()
            for row in reader.follow():
                found.append(row.value)
                if row.value == b"end":
                    return

    thread = threading.Thread(target=follow, daemon=True)
    with log.producer("one") as one:
        one.append(b"before")
        thread.start()
        assert begun.wait(SECONDS)
        with log.reader("latest") as ends:
            one.append(b"after")
            assert [row.value for row in ends.read(timeout=SECONDS)] == [b"after"]
        with log.producer("two") as two:
            two.append(b"of a new lane")
            # In a single read the rows of lane 1 come first.
            await_that(lambda: b"of a new lane" in found)
        one.append(b"end")
        thread.join(SECONDS)
    assert not thread.is_alive() and sorted(found)[-3:] == [b"after", b"end", b"of a new lane"]


def test_read_of_truncated_rows_raises_data_loss(log: Log, bookkeeper: BookKeeper) -> None:
    with log.producer("service") as producer:
        producer.append_batch([b"0", b"1", b"2"])
    with log.reader() as late:
        truncate_log(bookkeeper, f"{log.name}@1", 2, b"")
        assert values(log) == [b"2"]
        with pytest.raises(DataLossError, match="truncated"):
            late.read()


def test_lane_is_read_by_itself(log: Log, bookkeeper: BookKeeper) -> None:
    for name in ("one", "two"):
        with log.producer(name) as producer:
            producer.append(name.encode())
    assert values(open_log(bookkeeper, f"{log.name}@2")) == [b"two"]
    assert values(log) == [b"one", b"two"]
