"""Frames of a log checked many at a time give the same result as frames checked one by one."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from bookspark.store.wire import logged_frames
from bookspark.store.wire.batch_prefix import BODY_LENGTH_OFFSET, PREFIX_START, behind_header
from bookspark.store.wire.entry_batch import Entry, encode_entries
from bookspark.store.wire.header import HEADER_BYTES, Header, Kind
from bookspark.store.wire.logged_frames import LoggedFrame, parse_logged_frame, parse_logged_frames

KEY = bytes(range(16))
POSITION = 400


def frame(ledger_id: int, first: int, *payloads: bytes, confirmed: int = -1, row_confirmed: int | None = None) -> bytes:
    length, rows = 0, []
    for entry_id, payload in enumerate(payloads, first):
        length += len(payload)
        lac = confirmed if row_confirmed is None else row_confirmed
        rows.append(Entry(ledger_id, entry_id, lac, length, payload, b"dgst"))
    header = Header(
        Kind.ADD, 1, ledger_id, first, first + len(payloads) - 1, confirmed,
        last_add_fully_replicated=confirmed - 1, master_key=KEY[ledger_id:] + KEY[:ledger_id],
    )  # fmt: skip
    return bytes(encode_entries(header, rows))


def one_by_one(content: bytes) -> list[LoggedFrame]:
    found, at = [], 0
    while (good := parse_logged_frame(memoryview(content), at, POSITION + at)) is not None:
        found.append(good)
        at += good.size
    return found


def together(content: bytes) -> list[LoggedFrame]:
    found: list[LoggedFrame] = []
    at = 0
    while (good := parse_logged_frames(memoryview(content)[at:], POSITION + at)) is not None:
        found += good.each()
        at = good.end - POSITION
    return found


@pytest.fixture
def never_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged_frames, "parse_logged_frame", lambda *_: None)


FRAMES = [
    frame(3, 0, b"a"),
    frame(3, 1, b"", b"bc" * 40, b"def", confirmed=0),
    frame(4, 7, b"x" * 1000, confirmed=6, row_confirmed=2),
    frame(3, 4, b"g", b"h", confirmed=1, row_confirmed=3),
]


def test_frames_of_all_sizes_and_ledgers_are_parsed_with_all_header_fields(never_one_by_one):
    content = b"".join(FRAMES)
    found = together(content)
    assert found == one_by_one(content) and len(found) == len(FRAMES)
    assert found[3].last_add_confirmed == 3, "the row knows more than the header"
    assert found[2].last_add_confirmed == 6 and found[2].master_key == KEY[4:] + KEY[:4]


def test_all_of_1100_frames_are_parsed_in_several_groups(never_one_by_one):
    content = b"".join(frame(5, number, b"%d" % number) for number in range(1100))
    assert [found.first_entry_id for found in together(content)] == list(range(1100))


def test_frames_are_grouped_into_runs_of_a_ledger():
    frames = parse_logged_frames(memoryview(b"".join(FRAMES)), POSITION)
    assert frames is not None
    runs = list(frames.by_ledger())
    assert [list(run.ledger_id) for run in runs] == [[3, 3], [4], [3]]
    assert [found for run in runs for found in run.each()] == list(frames.each())


def test_scan_stops_before_a_frame_with_a_flipped_bit():
    """Each byte of the Arrow message, the header and the body. A wrong size of payload or digests in the message is accepted
    while the padded size is the same (2 bytes or 3 both take 8); readers of entries check the columns."""
    before, bad, after = frame(3, 0, b"a", b"b"), frame(3, 2, b"ccc", confirmed=1), frame(3, 3, b"d")
    payload_bytes, digest_bytes = 368, 416
    for at in range(len(bad)):
        turned = bytearray(bad)
        turned[at] ^= 1 << at % 8
        content = bytes(before + turned + after)
        found = together(content)
        assert found == one_by_one(content), f"byte {at}"
        assert len(found) == 1 or at in (payload_bytes, digest_bytes), f"byte {at}"


def test_scan_ignores_a_frame_cut_off_at_the_end():
    content = b"".join(FRAMES)
    for size in range(len(content) - len(FRAMES[-1]), len(content)):
        assert together(content[:size]) == one_by_one(content)[:-1]


@pytest.mark.parametrize(
    ("header", "sizes", "body"),
    [
        pytest.param(struct.pack("<H", 2), (1, 1, 4), 56 + 8, id="another version"),
        pytest.param(b"", (1, -8, 24), 32 + 8 + 8 + 24 - 8, id="fewer than no bytes of payload"),
        pytest.param(b"", (1, 24, -8), 32 + 8 + 8 + 24 - 8, id="fewer than no bytes of digests"),
        pytest.param(b"", (2, 1, 4), 64 + 16 + 16 + 16, id="more rows than the header says"),
    ],
)
def test_scan_stops_before_an_impossible_frame_with_right_checksums(header, sizes, body):
    """``header``: first bytes of its header; ``sizes``: rows, payload and digests of its Arrow message."""
    content = bytes(body)
    packed = header + Header(Kind.ADD, 1, 3, 5, 5).encode(crc32c(content))[len(header) : HEADER_BYTES - 4]
    bad = PREFIX_START + packed + struct.pack("<I", crc32c(packed)) + behind_header(*sizes) + content
    assert struct.unpack_from("<q", bad, BODY_LENGTH_OFFSET) == (body,)
    assert together(bad) == together(bad + frame(3, 6, b"a")) == []
    assert len(together(frame(3, 4, b"a") + bad)) == 1
