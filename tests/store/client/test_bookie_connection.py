"""A connection to a bookie: combined writes, acks, and requests on a cut connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bookspark.protocol.ledger.responses import Positive, Unknown
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network import bookie_connection
from bookspark.store.client.network.bookie_connection import Answer, BookieConnection, Question
from bookspark.store.client.network.traffic import ClientTraffic
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.entry_batch import Entry, encode_entries
from bookspark.store.wire.frames import Frame, control_frame
from bookspark.store.wire.header import Flag, Header, Kind
from bookspark.store.wire.messages import Acks
from tests.awaiting import SECONDS_MAX


class Transport(asyncio.Transport):
    """Keeps the written bytes, one item per call."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.writes))

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def abort(self) -> None:
        pass


def run(scenario: Callable[[BookieConnection, Transport, list[Answer]], Any]) -> tuple[list[bytes], list[Answer]]:
    """Run ``scenario`` in an event loop for one turn; returns the writes and the answers."""
    transport, answers = Transport(), list[Answer]()

    async def turn() -> None:
        connection = BookieConnection(
            "b1", ClientConfig(), lambda *_: None, lambda _: None, lambda _: None, ChunkPool(), ClientTraffic()
        )
        connection.connection_made(transport)
        scenario(connection, transport, answers)
        await asyncio.sleep(0)
        connection.abort("the test is over")

    asyncio.run(turn())
    return transport.writes, answers


def test_requests_of_the_same_loop_turn_are_written_with_a_single_call() -> None:
    def scenario(connection: BookieConnection, transport: Transport, answers: list[Answer]) -> None:
        for request_id in range(5):
            connection.send(
                request_id, b"frame %d," % request_id, Question(lambda _, answer: answers.append(answer), None)
            )
        assert transport.writes == []

    writes, _ = run(scenario)
    assert writes == [b"frame 0,frame 1,frame 2,frame 3,frame 4,"]


def test_large_frame_is_written_alone_and_in_order() -> None:
    large = bytes(200_000)

    def scenario(connection: BookieConnection, transport: Transport, answers: list[Answer]) -> None:
        for request_id, frame in enumerate((b"small", large, b"last")):
            connection.send(request_id, frame, Question(lambda _, answer: answers.append(answer), None))

    writes, _ = run(scenario)
    assert writes == [b"small", large, b"last"]


@pytest.mark.parametrize("size", [1_000, 200_000])
def test_frame_in_two_parts_is_sent_whole_and_in_order(size: int) -> None:
    """Ledger recovery writes batches back like this: a new head before the unchanged body."""
    body = bytes(range(200)) * (size // 200)

    def scenario(connection: BookieConnection, transport: Transport, answers: list[Answer]) -> None:
        for request_id, (head, rest) in enumerate(((b"before", b""), (b"head", body), (b"after", b""))):
            connection.send(request_id, head, Question(lambda _, answer: answers.append(answer), None), rest)

    writes, _ = run(scenario)
    assert b"".join(writes) == b"beforehead" + body + b"after"


def test_unsent_requests_of_a_cut_connection_are_answered_unknown() -> None:
    def scenario(connection: BookieConnection, transport: Transport, answers: list[Answer]) -> None:
        connection.send(1, b"frame", Question(lambda _, answer: answers.append(answer), None))
        connection.abort("cut")
        connection.send(2, b"late", Question(lambda _, answer: answers.append(answer), None))

    writes, answers = run(scenario)
    assert writes == []
    assert [type(answer.response) for answer in answers] == [Unknown, Unknown]


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_bookie_that_reads_nothing_is_cut_off_for_frames_of_any_size(size: int) -> None:
    def scenario(connection: BookieConnection, transport: Transport, answers: list[Answer]) -> None:
        connection.pause_writing()
        for request_id in range(2 * ClientConfig().bookie_bytes_queued_max // size):
            connection.send(request_id, bytes(size), Question(lambda _, answer: answers.append(answer), None))
        assert connection.lost is not None
        assert transport.get_write_buffer_size() < 1.1 * ClientConfig().bookie_bytes_queued_max

    run(scenario)


def receive(connection: BookieConnection, frame: bytes) -> None:
    while frame:
        buffer = connection.get_buffer(0)
        size = min(len(buffer), len(frame))
        buffer[:size] = frame[:size]
        connection.buffer_updated(size)
        frame = frame[size:]


def acks(*request_ids: int) -> bytes:
    return control_frame(Header(Kind.ACKS, 0), Acks.encode(request_ids))


def test_ack_answers_only_its_own_request_and_only_once() -> None:
    heard: list[tuple[int, str, Answer]] = []

    def scenario(connection: BookieConnection, transport: Transport, answers: list[Answer]) -> None:
        for request_id in (1, 2, 3):
            request = Question(lambda bookie, answer, i=request_id: heard.append((i, bookie, answer)), None)
            connection.send(request_id, b"frame", request)
        receive(connection, acks(3, 7, 1))
        receive(connection, acks(3))
        assert [(request_id, bookie) for request_id, bookie, _ in heard] == [(3, "b1"), (1, "b1")]

    run(scenario)
    assert [(request_id, type(answer.response)) for request_id, _, answer in heard] == [
        (3, Positive),
        (1, Positive),
        (2, Unknown),
    ]


def test_batch_is_handed_over_on_arrival_before_the_answer() -> None:
    seen: list[Frame] = []

    def scenario(connection: BookieConnection, transport: Transport, answers: list[Answer]) -> None:
        def number(frame: Frame) -> int:
            seen.append(frame)
            return len(seen)

        connection.send(1, b"frame", Question(lambda _, answer: answers.append(answer), None, number))
        for first in (0, 2):
            header = Header(Kind.READ, 1, 5, first, first + 1, flags=Flag.RESPONSE | Flag.MORE)
            rows = [Entry(5, i, -1, i + 1, b"x", b"") for i in (first, first + 1)]
            receive(connection, bytes(encode_entries(header, rows)))
        assert [frame.header.first_entry_id for frame in seen] == [0, 2]
        assert answers == []
        receive(connection, control_frame(Header(Kind.READ, 1, 5, 0, 3, flags=Flag.RESPONSE)))
        assert [answer.batches for answer in answers] == [(1, 2)]

    run(scenario)


def test_failing_handler_does_not_affect_acks_of_other_requests() -> None:
    def scenario(connection: BookieConnection, transport: Transport, answers: list[Answer]) -> None:
        def fail(bookie: str, answer: Answer) -> None:
            raise ValueError("a defect")

        connection.send(1, b"frame", Question(fail, None))
        connection.send(2, b"frame", Question(lambda _, answer: answers.append(answer), None))
        receive(connection, acks(1, 2))
        assert [type(answer.response) for answer in answers] == [Positive]
        assert connection.lost is None

    run(scenario)


@pytest.mark.parametrize("asked", [True, False])
def test_bookie_that_does_not_end_a_frame_is_cut_off(monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    """Once it kept up to 16 MiB of a client's memory for as long as it liked."""
    monkeypatch.setattr(bookie_connection, "frame_seconds", lambda size: 0.2)
    answers: list[Answer] = []
    frame = batch(1 << 20)

    async def turn() -> BookieConnection:
        lost = asyncio.Event()
        connection = BookieConnection(
            "b1", ClientConfig(), lambda *_: None, lambda _: lost.set(), lambda _: None, ChunkPool(), ClientTraffic()
        )
        connection.connection_made(Transport())
        connection.greeted(1)
        if asked:
            connection.send(1, b"frame", Question(lambda _, answer: answers.append(answer), None))
        receive(connection, frame)
        receive(connection, frame[:1000])
        await asyncio.wait_for(lost.wait(), SECONDS_MAX)
        return connection

    connection = asyncio.run(turn())
    assert connection.lost is not None and connection.lost.detail == "did not end a frame within 0 s"
    assert [type(answer.response) for answer in answers] == [Unknown] * asked


def test_bookie_that_never_ends_an_answer_is_cut_off() -> None:
    frame, taken = batch(1 << 20), list[Frame]()

    def scenario(connection: BookieConnection, transport: Transport, answers: list[Answer]) -> None:
        connection.greeted(1)
        connection.send(1, b"frame", Question(lambda _, answer: answers.append(answer), None, taken.append))
        for _ in range(40):
            receive(connection, frame)
        assert [type(answer.response) for answer in answers] == [Unknown]
        assert connection.lost is not None and "for one request" in connection.lost.detail

    run(scenario)
    assert 28 <= len(taken) <= 32


def batch(size: int) -> bytes:
    """A part of an answer to request 1."""
    header = Header(Kind.READ, 1, 5, 0, 0, flags=Flag.RESPONSE | Flag.MORE)
    return bytes(encode_entries(header, [Entry(5, 0, -1, size, bytes(size), b"")]))
