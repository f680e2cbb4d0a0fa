"""The frame receiver handles any bytes in any pieces."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookspark.protocol.ledger.responses import Negative, Positive, Unknown
from bookspark.store.client.client_config import client_config
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Entry, encode_entries
from bookspark.store.wire.frames import FrameReceiver, control_frame
from bookspark.store.wire.header import Header, Kind, Status, WireError, decode


def feed(receiver, data, sizes):
    """Pass ``data`` in pieces of the given sizes (repeated), as a socket would."""
    frames, position, turn = [], 0, 0
    while position < len(data):
        room = receiver.buffer()
        assert len(room) > 0
        piece = data[position : position + min(sizes[turn % len(sizes)], len(room))]
        room[: len(piece)] = piece
        frames += receiver.received(len(piece))
        position += len(piece)
        turn += 1
    return frames


def some_frames(bodies):
    frames = []
    for i, body in enumerate(bodies):
        if i % 2:
            frames.append(encode_entries(Header(Kind.ADD, i, 7, 0, 0), [Entry(7, 0, -1, len(body), body, b"")]))
        else:
            frames.append(control_frame(Header(Kind.READ, i, 7), body))
    return frames


@settings(deadline=None)
@given(st.lists(st.binary(max_size=3000), max_size=6), st.lists(st.integers(1, 5000), min_size=1, max_size=5))
def test_frames_are_received_whole_from_any_pieces(bodies, sizes):
    frames = some_frames(bodies)
    received = feed(FrameReceiver(), b"".join(frames), sizes)
    assert [frame.header.request_id for frame in received] == list(range(len(bodies)))
    for sent, got in zip(frames, received, strict=True):
        assert sent.endswith(bytes(got.body))
        assert (got.batch is None) == (got.header.kind != Kind.ADD)


def test_large_frame_grows_the_buffer_and_earlier_views_stay_valid():
    bodies = [b"a" * 100_000, b"b" * 3_000_000, b"c" * 200_000, b"d" * 10]
    received = feed(FrameReceiver(), b"".join(control_frame(Header(Kind.READ, 1), body) for body in bodies), [65536])
    assert [bytes(frame.body) for frame in received] == bodies


@given(st.binary(min_size=60, max_size=300))
def test_noise_is_only_a_wire_error_or_an_incomplete_frame(noise):
    with contextlib.suppress(WireError):
        assert feed(FrameReceiver(), noise, [17]) == []


def test_frame_over_the_limit_is_refused_before_its_bytes_arrive():
    big = control_frame(Header(Kind.READ, 1), b"")
    announced = big[:4] + (FRAME_BYTES_MAX + 1).to_bytes(4, "little")
    with pytest.raises(WireError, match="at most"):
        feed(FrameReceiver(), announced, [8])


def test_every_flipped_bit_of_a_control_frame_is_detected():
    frame = control_frame(Header(Kind.READ, 1, 7, 3, 9, 2), b"body")
    for position in range(len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[position] ^= 1 << bit
            receiver = FrameReceiver()
            try:
                frames = feed(receiver, bytes(damaged), [len(damaged)])
            except WireError:
                continue
            assert frames == [], "a frame that seems longer never arrives"


def test_header_survives_its_encoding():
    header = Header(3, 2**63, 5, 6, 7, 8, 9, 2, 11, 12, 2**64 - 1, b"0123456789abcdef", 2**32 - 1, -5)
    assert decode(header.encode(77), 0) == (header, 77)


@pytest.mark.parametrize("status", list(Status))
def test_each_status_has_a_response_class_and_only_two_are_negative(status):
    response = Header(Kind.READ, 1, status=status).response()
    if status is Status.OK:
        assert isinstance(response, Positive)
    elif status in (Status.NO_SUCH_ENTRY, Status.NO_SUCH_LEDGER):
        assert isinstance(response, Negative)
    else:
        assert isinstance(response, Unknown)
        assert response.reason.name == status.name


def test_status_of_a_newer_version_is_unknown():
    assert isinstance(Header(Kind.READ, 1, status=999).response(), Unknown)


def test_kept_frames_stay_unchanged_while_many_more_are_received():
    receiver = FrameReceiver(ChunkPool())
    body = bytes(range(256)) * 800
    kept = []
    for number in range(60):
        (frame,) = feed(receiver, control_frame(Header(Kind.READ, number, 7), body + bytes([number])), [1 << 20])
        if number % 7 == 0:
            kept.append(frame)
    assert [bytes(frame.body) for frame in kept] == [body + bytes([number]) for number in range(0, 60, 7)]


def test_frames_of_a_writers_size_reuse_the_same_few_chunks():
    receiver = FrameReceiver(ChunkPool())
    payload = bytes(client_config().frame_bytes)
    frame = bytes(encode_entries(Header(Kind.ADD, 0, 7, 0, 0), [Entry(7, 0, -1, len(payload), payload, b"")]))
    chunks = {}
    for _ in range(40):
        (received,) = feed(receiver, frame, [256 << 10])
        chunks[id(received.batch.obj)] = received.batch.obj
    del received
    assert len(chunks) <= 3
