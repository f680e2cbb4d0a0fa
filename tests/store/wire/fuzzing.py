"""Input of a fuzzer for the decoders of the wire: any bytes, and frames with right checksums, which reach the inner decoders.

``decode(data)`` is the target: it returns the depth that the bytes reached, and raises only on a defect of a decoder. The first
byte of ``data`` selects the kind of frame built from the rest.
"""

from __future__ import annotations

from array import array

from crc32c import crc32c

from bookspark.store.wire.batch_prefix import HEADER_OFFSET, PREFIX_BYTES
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Entry, EntryBatch, encode_entries
from bookspark.store.wire.frames import Frame, FrameReceiver
from bookspark.store.wire.header import HEADER_BYTES, PROTOCOL_VERSION, Header, Kind, WireError
from bookspark.store.wire.messages import Acks, Hello, Ranges

_ROOM_BYTES_MAX = FRAME_BYTES_MAX + (64 << 10)


def decode(data: bytes) -> int:
    """0: refused as a frame; 1: a frame; 2: a frame with a valid body."""
    what, rest = data[:1], data[1:]
    if what < b"\x40":
        wire = rest
    elif what < b"\x80":
        wire = control(rest)
    elif what < b"\xc0":
        wire = batch(rest)
    else:
        wire = damaged_batch(rest)
    try:
        frames = receive(wire, pieces_of=1 + (what[0] if what else 0))
    except WireError:
        return 0
    return max((1 + understood(frame) for frame in frames), default=0)


def receive(wire: bytes, pieces_of: int) -> list[Frame]:
    """All frames of ``wire``. The receiver's memory stays bounded for any announced sizes."""
    receiver, frames, at = FrameReceiver(), [], 0
    while at < len(wire):
        room = receiver.buffer()
        assert 0 < len(room) <= _ROOM_BYTES_MAX
        piece = wire[at : at + min(pieces_of, len(room))]
        room[: len(piece)] = piece
        frames += receiver.received(len(piece))
        at += len(piece)
    return frames


def understood(frame: Frame) -> bool:
    """Decode all parts of a frame; False if a decoder refuses it."""
    frame.header.response()
    try:
        if frame.batch is not None:
            found = EntryBatch.checked(frame.batch, frame.header, frame.body_crc)
            entries = list(found.entries())
            assert [entry.entry_id for entry in entries] == list(range(found.first_entry_id, found.last_entry_id + 1))
            assert sum(len(entry.payload) for entry in entries) <= len(frame.batch)
        elif frame.header.kind == Kind.HELLO:
            Hello.decode(frame.body)
        elif frame.header.kind == Kind.RANGES:
            Ranges.decode(frame.body)
        elif frame.header.kind == Kind.ACKS:
            assert 8 * len(Acks.decode(frame.body)) == len(frame.body)
    except WireError:
        return False
    return True


def control(data: bytes) -> bytes:
    """A control frame with the given header bytes and body, and right checksums."""
    header, body = data[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"), data[HEADER_BYTES:]
    return b"BSPK" + len(body).to_bytes(4, "little") + sealed(header, body) + body


def batch(data: bytes) -> bytes:
    """A valid batch frame of entries with pieces of ``data`` as payloads."""
    count = 1 + (data[0] % 20 if data else 0)
    payloads = [data[1 + i :: count] for i in range(count)]
    entries = [Entry(7, 3 + i, 2, i, payload, payload[:4]) for i, payload in enumerate(payloads)]
    return bytes(encode_entries(Header(Kind.ADD, 1, 7, 3, 3 + count - 1, 2), entries))


def damaged_batch(data: bytes) -> bytes:
    """A batch frame with bits flipped according to ``data``, and right checksums."""
    frame = bytearray(batch(data[: max(1, len(data) // 2)]))
    changes = array("H", data[len(data) // 2 :][: (len(data) // 4) * 2])
    for change in changes[:8]:
        frame[(change >> 4) % len(frame)] ^= 1 << (change & 7)
    body = bytes(frame[PREFIX_BYTES:])
    frame[HEADER_OFFSET : HEADER_OFFSET + HEADER_BYTES] = sealed(bytes(frame[HEADER_OFFSET:][:HEADER_BYTES]), body)
    return bytes(frame)


def sealed(header: bytes, body: bytes) -> bytes:
    """The header with the right version and checksums."""
    fixed = bytearray(header)
    fixed[0:2] = PROTOCOL_VERSION.to_bytes(2, "little")
    fixed[92:96] = crc32c(body).to_bytes(4, "little")
    fixed[108:112] = crc32c(bytes(fixed[:108])).to_bytes(4, "little")
    return bytes(fixed)
