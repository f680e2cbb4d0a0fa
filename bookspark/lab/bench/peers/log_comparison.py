"""``bookspark bench peers logs``: a log's producer beside a bare ledger and confluent-kafka's client of Kafka, in turns.

Law: Bookspark and Kafka never run at once; each has three servers on this host. The producer and the bare ledger share a
cluster and take turns case by case; the first of them changes from round to round. A figure is the median over the rounds,
a ratio that of the medians, and processor time is that of the client and of all servers. All lines are kept in
``log-results.jsonl``.

Cases: rows of 100 bytes appended one by one without waiting, a thousand at a time, and one at a time; a tail, from the
acknowledgement of a row to its arrival at a reader in another thread; and the place of a time in 10⁷ rows of 12,000 commits
with random distances in time.
"""

from __future__ import annotations

import os
import queue
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from bookspark.lab.bench.kept_results import Results
from bookspark.lab.bench.peers.kafka_peer import Kafka, kafka_jars
from bookspark.lab.bench.processes import family_cpu_seconds
from bookspark.local import LocalCluster
from bookspark.logs import Committer, Log, LogAddress, LogRegistry, LogRun, Producer, create_log
from bookspark.logs.chain.codec import encode_commit
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.log_record import DATA_ROLE
from bookspark.store.client import BookKeeper, LedgerHandle

# -- Systems: a log's producer, a bare ledger, and confluent-kafka's client of a Kafka broker.
#
# Law: each system gets the same calls and rows, and acknowledges by the same rule: two of three servers have the row. A
# bookie has synced it by then; a broker has it in its page cache, Kafka's default.


_ANSWER_SECONDS_MAX = 600.0


class Appends(NamedTuple):
    """The bench's ways to write to a system."""

    name: str
    single: Callable[[Sequence[bytes]], None]
    """Append rows one by one, without waiting for each, and wait for all."""
    batch: Callable[[Sequence[bytes]], None] | None
    """Append rows a thousand at a time, and wait for all. None: the system has no such call."""
    one: Callable[[bytes], None]


BATCH = 1000


def of_ledger(name: str, writer: LedgerHandle | Producer) -> Appends:
    """A bare ledger, or a log's producer."""

    def single(rows: Sequence[bytes]) -> None:
        future: Any = None
        append = writer.append_async
        for row in rows:
            future = append(row)
        future.result(_ANSWER_SECONDS_MAX)

    def batch(rows: Sequence[bytes]) -> None:
        future: Any = None
        for first in range(0, len(rows), BATCH):
            future = writer.append_batch_async(rows[first : first + BATCH])
        future.result(_ANSWER_SECONDS_MAX)

    def one(row: bytes) -> None:
        writer.append(row)

    return Appends(name, single, batch, one)


def of_kafka(servers: str, topic: str) -> Appends:
    """Kafka's producer in confluent-kafka. Its client batches single rows, and waits 5 ms for more by default; the producer
    for one row at a time does not wait."""
    from confluent_kafka import KafkaException
    from confluent_kafka import Producer as KafkaProducer

    settings = {"bootstrap.servers": servers, "acks": "all", "queue.buffering.max.messages": 1_000_000}
    many = KafkaProducer(settings)
    at_once = KafkaProducer({**settings, "linger.ms": 0})
    failed: list[object] = []

    def told(error: object, message: object) -> None:
        if error is not None:
            failed.append(error)

    def finish(producer: Any) -> None:
        left = producer.flush(_ANSWER_SECONDS_MAX)
        if left or failed:
            raise KafkaException(failed[0] if failed else f"{left} rows were not acknowledged")

    def single(rows: Sequence[bytes]) -> None:
        produce, poll = many.produce, many.poll
        for number, row in enumerate(rows):
            while True:
                try:
                    produce(topic, row, on_delivery=told)
                    break
                except BufferError:
                    poll(0.1)
            if number % BATCH == 0:
                poll(0)
        finish(many)

    def one(row: bytes) -> None:
        at_once.produce(topic, row, on_delivery=told)
        finish(at_once)

    return Appends("kafka", single, None, one)


def make_topic(servers: str, topic: str, copies: int) -> None:
    """Make a topic of one partition. Raises KafkaException."""
    from confluent_kafka.admin import AdminClient, NewTopic

    # Kept in a variable, because the client's requests fail when it is freed.
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 1, copies)])[topic].result(_ANSWER_SECONDS_MAX)


class KafkaTail:
    def __init__(self, servers: str, topic: str) -> None:
        from confluent_kafka import OFFSET_END, Consumer, TopicPartition

        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_END)])

    def next(self) -> bytes:
        """The next row. Raises TimeoutError."""
        deadline = time.monotonic() + _ANSWER_SECONDS_MAX
        while time.monotonic() < deadline:
            message = self._consumer.poll(1.0)
            if message is not None and message.error() is None:
                return bytes(message.value())
        raise TimeoutError("no row came")

    def close(self) -> None:
        self._consumer.close()


# -- The comparison


ROW_BYTES, SERVERS = 100, 3
ROWS = {"single": 200_000, "batch": 500_000, "one": 1000, "tail": 300, "time": 100}
"""Rows or repetitions of each case in a round."""
_COMMITS, _ROWS_EACH, _MS_BETWEEN = 12_000, 833, 5000.0
_PAUSE_SECONDS = 0.02
_WAIT_SECONDS_MAX = 60.0

Line = dict[str, Any]


def compare(cache: Path, directory: Path | None, rounds: int, scale: float, kafka: bool) -> str:
    """Measure. Each line goes to standard output and to ``log-results.jsonl`` in ``cache``, the folder of the jars too.
    ``directory``: a folder on the disk to measure (default: ``cache``). Returns the table."""
    jars = kafka_jars(cache)[0] if kafka else None
    with (
        open(cache / "log-results.jsonl", "w") as file,
        tempfile.TemporaryDirectory(prefix="bench-logs-", dir=directory or cache) as place,
    ):
        results = Results(file)
        for number in range(rounds):
            systems = [ours(Path(place, f"bookspark{number}"), scale, number)]
            if jars is not None:
                systems.append(kafkas(jars, Path(place, f"kafka{number}"), scale))
            for system in systems:
                for line in system:
                    results.add(line, round=number)
    return results.table(cache, "logs", scale, "producer")


def ours(home: Path, scale: float, number: int) -> Iterator[Line]:
    """The lines of the producer and the bare ledger in a round."""
    with LocalCluster(SERVERS, home) as cluster, cluster.bookkeeper() as bookkeeper:
        log = create_log(bookkeeper, "bench")
        with (
            log.producer("bench") as producer,
            bookkeeper.create_ledger(SERVERS, SERVERS, 2) as ledger,
        ):
            systems = [of_ledger("producer", producer), of_ledger("ledger", ledger)]
            yield from appended(systems if number % 2 else systems[::-1], scale)
            with log.reader("latest") as reader:
                follow = reader.follow()
                yield tailed("producer", producer.append, lambda: next(follow).value, scale)
        yield found(bookkeeper, scale)


def kafkas(jars: Path, home: Path, scale: float) -> Iterator[Line]:
    """The lines of Kafka in a round. Raises RuntimeError if it does not start, and KafkaException."""
    with Kafka(jars, home, SERVERS) as brokers:
        make_topic(brokers.servers, "bench", SERVERS)
        system = of_kafka(brokers.servers, "bench")
        yield from appended([system], scale)
        tail = KafkaTail(brokers.servers, "bench")
        try:
            yield tailed(system.name, system.one, tail.next, scale)
        finally:
            tail.close()


def appended(systems: Sequence[Appends], scale: float) -> Iterator[Line]:
    """The lines of the three ways to append, the systems in turns."""
    made = [os.urandom(ROW_BYTES) for _ in range(10 * BATCH)]

    def rows(case: str) -> list[bytes]:
        count = max(BATCH, int(ROWS[case] * scale) // BATCH * BATCH)
        return (made * (count // len(made) + 1))[:count]

    for system in systems:
        system.single(made[:BATCH])
    for case in ("single", "batch"):
        for system in systems:
            append = getattr(system, case)
            if append is not None:
                yield {"system": system.name, "case": case, **_timed(append, rows(case))}
    for system in systems:
        took, used = [], family_cpu_seconds()
        for row in made[: max(20, int(ROWS["one"] * scale))]:
            begun = time.perf_counter()
            system.one(row)
            took.append(time.perf_counter() - begun)
        cpu_us = (family_cpu_seconds() - used) / len(took) * 1e6
        yield {"system": system.name, "case": "one", **_percentiles(took), "cpu_us": cpu_us}


def _timed(append: Callable[[Sequence[bytes]], None], rows: Sequence[bytes]) -> Line:
    begun, used = time.perf_counter(), family_cpu_seconds()
    append(rows)
    seconds, used = time.perf_counter() - begun, family_cpu_seconds() - used
    return {"rows_per_second": len(rows) / seconds, "cpu_us": used / len(rows) * 1e6}


def _percentiles(seconds: Sequence[float]) -> Line:
    return {"p50_ms": median(seconds) * 1e3, "p99_ms": quantiles(seconds, n=100)[98] * 1e3}


def tailed(name: str, append: Callable[[bytes], object], following: Callable[[], bytes], scale: float) -> Line:
    """The time from the acknowledgement of a row to its arrival at a reader in another thread; below 0 if it arrives first."""
    seen: queue.SimpleQueue[tuple[bytes, float]] = queue.SimpleQueue()
    count = max(20, int(ROWS["tail"] * scale))
    last = b"%d" % (count - 1)

    def read() -> None:
        row = b""
        while row != last:
            row = following()
            seen.put((row, time.perf_counter()))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    # The reader begins at the end of the log at its first look, so this row is sent again until it arrives.
    first = b"first".ljust(ROW_BYTES)
    while True:
        append(first)
        try:
            seen.get(timeout=0.5)
            break
        except queue.Empty:
            continue
    took = []
    for number in range(count):
        row = b"%d" % number
        append(row)
        acknowledged = time.perf_counter()
        while True:
            found, at = seen.get(timeout=_WAIT_SECONDS_MAX)
            if found == row:
                break
        took.append(at - acknowledged)
        time.sleep(_PAUSE_SECONDS * random.random())
    thread.join(_WAIT_SECONDS_MAX)
    return {"system": name, "case": "tail", **_percentiles(took)}


def found(bookkeeper: BookKeeper, scale: float) -> Line:
    """The time of a reader's seek to a time."""
    log, first_ms, last_ms = filled(bookkeeper)
    chance, took = random.Random(1), []
    with log.reader() as reader:
        reader.seek_to_time(datetime.fromtimestamp(first_ms / 1000, UTC))
        used = time.process_time()
        for _ in range(max(10, int(ROWS["time"] * scale))):
            moment = datetime.fromtimestamp(chance.randrange(first_ms, last_ms) / 1000, UTC)
            begun = time.perf_counter()
            reader.seek_to_time(moment)
            took.append(time.perf_counter() - begun)
        cpu_ms = (time.process_time() - used) / len(took) * 1e3
    return {"system": "producer", "case": "time", **_percentiles(took), "cpu_ms": cpu_ms}


def filled(bookkeeper: BookKeeper) -> tuple[Log, int, int]:
    """A log of many commits without rows: times are those of commits. Returns it with its first and last time."""
    log, chance = create_log(bookkeeper, "times"), random.Random(0)
    record = LogRegistry(bookkeeper.metadata).claim("times", "run", "query:bench")
    run = LogRun.of(LogAddress(bookkeeper.zookeeper, "times"), record)
    committer, first_ms = Committer(bookkeeper, run), 1_700_000_000_000
    committer.recover()
    time_ms = float(first_ms)
    # The ledger has only labels: no row of it is read.
    data_ledger = run.create_ledger(bookkeeper, record.options, DATA_ROLE).ledger_id

    def following(number: int) -> Commit:
        nonlocal time_ms
        time_ms += chance.expovariate(1 / _MS_BETWEEN)
        rows = EntryRange(data_ledger, number, number, _ROWS_EACH, _ROWS_EACH * ROW_BYTES)
        return Commit("query:bench", number, run.run, run.epoch, (rows,), int(time_ms))

    for first in range(0, _COMMITS, _COMMITS // 4):
        committer.commit(following(first))
        ledger, header, entries = committer._ledger, committer._header, []
        assert ledger is not None
        for number in range(first + 1, first + _COMMITS // 4):
            commit = header.placed(following(number))
            header = header.followed_by(commit)
            entries.append(encode_commit(commit))
        # An add for each, as for commits.
        futures = [ledger.append_async(entry) for entry in entries]
        futures[-1].result(_WAIT_SECONDS_MAX)
        committer._header = header
    committer.close()
    return log, first_ms, int(time_ms)
