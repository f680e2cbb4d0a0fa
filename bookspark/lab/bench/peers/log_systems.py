"""What ``log_comparison`` times: a log's producer, a bare ledger, and confluent-kafka's client of a Kafka broker.

Law: each of them takes the same calls and the same rows, and acknowledges by the same rule: two of three servers have the row. A
bookie has synced it by then; a broker has it in its page cache, which is Kafka's default.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bookspark.logs import Producer
from bookspark.store.client import LedgerHandle

_WAIT_SECONDS_MAX = 600.0


class Appends(NamedTuple):
    """One system, as the bench writes to it."""

    name: str
    single: Callable[[Sequence[bytes]], None]
    """Append rows one by one, without waiting for each, and wait for all."""
    batch: Callable[[Sequence[bytes]], None] | None
    """Append rows a thousand at a time, and wait for all. None: the system has no such call."""
    one: Callable[[bytes], None]
    """Append a row, and wait for it."""


BATCH = 1000


def of_ledger(name: str, writer: LedgerHandle | Producer) -> Appends:
    """A bare ledger, or a log's producer."""

    def single(rows: Sequence[bytes]) -> None:
        future: Any = None
        append = writer.append_async
        for row in rows:
            future = append(row)
        future.result(_WAIT_SECONDS_MAX)

    def batch(rows: Sequence[bytes]) -> None:
        future: Any = None
        for first in range(0, len(rows), BATCH):
            future = writer.append_batch_async(rows[first : first + BATCH])
        future.result(_WAIT_SECONDS_MAX)

    def one(row: bytes) -> None:
        writer.append(row)

    return Appends(name, single, batch, one)


def of_kafka(servers: str, topic: str) -> Appends:
    """Kafka's producer, as confluent-kafka has it. Its client makes batches of single rows, and waits 5 ms for more unless it is
    told otherwise; it is told so where one row is waited for."""
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
        left = producer.flush(_WAIT_SECONDS_MAX)
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

    # Kept: what it was asked fails when it is dropped.
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, 1, copies)])[topic].result(_WAIT_SECONDS_MAX)


class KafkaTail:
    """Reads a topic's newest rows as they come."""

    def __init__(self, servers: str, topic: str) -> None:
        from confluent_kafka import OFFSET_END, Consumer, TopicPartition

        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_END)])

    def next(self) -> bytes:
        """The next row. Raises TimeoutError."""
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            message = self._consumer.poll(1.0)
            if message is not None and message.error() is None:
                return bytes(message.value())
        raise TimeoutError("no row came")

    def close(self) -> None:
        self._consumer.close()
