"""Stories of notes, markers and torn bytes."""

# ruff: noqa: B023  (each function is called before its loop goes on)
from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import product
from random import Random

from crc32c import crc32c

from bookspark.bookie.checks import check_note
from bookspark.bookie.disk.control_log import encode_records
from bookspark.bookie.disk.control_state import (
    LedgersNoted,
)
from bookspark.bookie.disk.synced_note import SyncedNote, cut_to_note
from bookspark.bookie.disk.torn import (
    flipped_bit,
    is_frame_but_for_one_bit,
    is_torn_record,
    lacks_sector,
    next_record,
    record_end,
)
from bookspark.bookie.disk.unclean_marker import Lost, UncleanMarker
from bookspark.protocol.bookie.bookie_ledger import (
    FenceNoted,
    LastAddConfirmedNoted,
)
from bookspark.wire.entry_batch import encode_entries
from bookspark.wire.header import Header, Kind
from tests.bookie.kit import KEY, entries
from tests.bookie.told.telling import Telling, attempt, digest, told_files


def story_of_notes_and_markers(telling: Telling) -> None:
    telling.brief = True
    for name, content in {
        "none": None,
        "empty": b"",
        "zeros": bytes(32),
        "short": bytes(10),
        "good": struct.pack("<qII", 77, crc32c(struct.pack("<qq", 3, 77)), 0),
        "of another": struct.pack("<qII", 77, crc32c(struct.pack("<qq", 4, 77)), 0),
        "not zero": struct.pack("<qII", 77, crc32c(struct.pack("<qq", 3, 77)), 1),
    }.items():
        for tail in (
            b"",
            b"1234",
            bytes(16),
            struct.pack("<qII", 9, crc32c(struct.pack("<qqq", 3, 77, 9)), 0),
            struct.pack("<qII", 9, crc32c(struct.pack("<qqq", 3, 1, 9)), 0),
            struct.pack("<qII", 9, crc32c(struct.pack("<qqq", 3, 77, 9)), 5),
        ):
            disk, _, files = told_files(telling)
            telling.muted = True
            if content is not None:
                disk.open("/a/note", create=True).write([content + tail], 0)
            note = SyncedNote(files, "/a/note", 3)
            found = []
            for call in (
                "read",
                "is_blank",
                "read_write_number",
                "has_bad_write_number",
                "has_written",
                "read_written",
            ):
                if content is None and call in ("has_bad_write_number", "read_written"):
                    continue
                try:
                    found.append(f"{call} {getattr(note, call)()}")
                except OSError as error:
                    found.append(f"{call} {error}")
            telling.muted = False
            checks = [check_note(disk, "/a/note", 3, synced) for synced in (None, 76, 77, 78)]
            telling.line(
                f"    {name} {len(tail)} {digest(tail)}: {', '.join(found)} {[check and check.what for check in checks]}"
            )
    telling.section("written")
    _, faults, files = told_files(telling)
    note = SyncedNote(files, "/a/note", 3)
    for step in (
        lambda: note.write(5),
        note.sync,
        lambda: note.write(6, 2),
        note.sync_if_written,
        note.sync_if_written,
        lambda: note.note_written(9),
        note.close,
        note.close,
        note.read,
        note.read_written,
        lambda: faults.add("open * 1.. no-space"),
        note.close,
        lambda: note.write(1),
        lambda: note.note_written(1),
    ):
        attempt(telling, "step", step)
        telling.note(f"written {note.is_written}")
    for position, size in ((5, 9), (9, 9), (12, 9), (None, 9), (5, None)):
        disk, _, files = told_files(telling)
        if size is not None:
            disk.open("/a/file", create=True).write([bytes(size)], 0)
        note = SyncedNote(files, "/a/note", 3)
        if position is not None:
            note.write(position)
        attempt(telling, f"cut {size} to {position}", lambda: cut_to_note(files, "/a/file", note))
    telling.section("markers")
    for boot_id, content in product(("", "boot-1"), (None, b"", b"boot-1", b"boot-0", b"lost", b"fences lost")):
        telling.section(f"{boot_id} {content!r}")
        disk, faults, files = told_files(telling)
        if content is not None:
            disk.open("/a/unclean", create=True).write([content], 0)
        marker = UncleanMarker(files, "/a", boot_id)
        steps: list[tuple[str, Callable[[], object]]] = [
            ("look", marker.look),
            ("renew", marker.renew),
            ("clear", marker.clear),
            ("make", marker.make),
            ("make", marker.make),
            ("renew", marker.renew),
            ("lost", lambda: disk.lose("/a/unclean")),
            ("make", marker.make),
            ("lost", lambda: disk.lose("/a/unclean")),
            ("renew", marker.renew),
            ("spoil", marker.spoil),
            ("note loss", lambda: marker.note_loss(Lost.ENTRIES)),
            ("note loss", lambda: marker.note_loss(Lost.FENCES)),
            ("note loss", lambda: marker.note_loss(Lost.ENTRIES)),
            ("make", marker.make),
            ("clear", marker.clear),
            ("settled", marker.settled),
            ("fail", lambda: faults.add("unlink * 1 io-error")),
            ("clear", marker.clear),
            ("clear", marker.clear),
            ("clear", marker.clear),
            ("fail", lambda: faults.add("write * 1 no-space")),
            ("make", marker.make),
            ("make", marker.make),
            ("flip", lambda: disk.open("/a/unclean").write([b"?"], 0)),
            ("renew", marker.renew),
            ("fail", lambda: faults.add("open * 1 io-error")),
            ("spoil", marker.spoil),
            ("spoil", marker.spoil),
            ("lost", lambda: disk.lose("/a/unclean")),
            ("clear", marker.clear),
        ]
        for what, call in steps:
            attempt(telling, what, call)
            text = disk.files().get("/a/unclean")
            telling.note(
                f"{text!r} stands {marker.stands} cached {marker.cached} lost {marker.lost.name} "
                f"removable {marker.removable} trusted {marker.is_trusted}"
            )


def story_of_torn_bytes(telling: Telling) -> None:
    draw = Random(3)
    for size, position in product((1, 127, 128, 129, 300), (0, 1, 100, 127, 128)):
        content = bytes(draw.randrange(1, 256) for _ in range(size))
        seen = [lacks_sector(memoryview(content), position)]
        for start, end in ((0, 28), (0, 128), (28, 156), (size - 1, size), (size // 2, size // 2 + 128), (1, size)):
            holes = bytearray(content)
            holes[start:end] = bytes(len(holes[start:end]))
            seen.append(lacks_sector(memoryview(holes), position))
        telling.line(f"lacks a sector {size} at {position}: {seen}")
    for size in (0, 1, 20, 1023, 1024, 1025, 2500):
        content = bytearray(draw.randrange(256) for _ in range(size))
        checksum = crc32c(content)
        found = []
        for bit in sorted(
            {
                0,
                7,
                8 * size // 2,
                max(0, 8 * size - 1),
                max(0, 8 * size - 9),
                max(0, 8 * (size - 1024)),
                max(0, 8 * (size - 1025)),
            }
        ):
            if bit < 8 * size:
                content[bit // 8] ^= 1 << bit % 8
                found.append((bit, flipped_bit(content, checksum)))
                content[bit // 8] ^= 1 << bit % 8
        telling.line(
            f"flipped bit of {size}: {found} {flipped_bit(content, checksum)} {flipped_bit(content, checksum ^ 5)}"
        )
    record = encode_records([LastAddConfirmedNoted(77, 12345)])
    follows = record + encode_records([FenceNoted(4)])
    telling.line(
        f"ends {[record_end(follows, at) for at in (0, 1, len(record), len(follows), len(follows) - 3)]} "
        f"next {[next_record(follows, at) for at in (0, 5, len(record))]}"
    )
    cases: dict[str, bytes] = {
        "good": record,
        "short": record[:7],
        "head": record[:8],
        "without its end": record[:-2],
        "zeros": bytes(len(record)),
    }
    for bit in (0, 5, 20, 31, 33, 63, 64, 70, 8 * len(record) - 1):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        cases[f"bit {bit}"] = bytes(flipped)
    for start, end in ((0, 4), (4, 8), (0, 8), (8, len(record)), (10, len(record)), (8, 12)):
        hole = bytearray(record)
        hole[start:end] = bytes(end - start)
        cases[f"zeros {start}..{end}"] = bytes(hole)
    long = encode_records([LedgersNoted(bytes(range(1, 250)) * 2)])
    for start in (0, 100, 128, 256, 384):
        hole = bytearray(long)
        hole[start : start + 128] = bytes(len(hole[start : start + 128]))
        cases[f"long zeros {start}"] = bytes(hole)
    for name, bad in cases.items():
        seen = [
            is_torn_record(memoryview(bad), position, is_last=last)
            for position, last in product((0, 100, 120, 124), (True, False))
        ]
        telling.line(f"torn record {name}: {seen}")
    frame = encode_entries(Header(Kind.ADD, 0, 5, 3, 5, master_key=KEY), entries(5, 3, 5))
    seen_bits = []
    for byte in range(len(frame)):
        flipped = bytearray(frame)
        flipped[byte] ^= 16
        seen_bits.append(is_frame_but_for_one_bit(memoryview(flipped)))
    telling.line(
        f"frames but for one bit: {sum(seen_bits)} of {len(frame)}: {[byte for byte, seen in enumerate(seen_bits) if not seen]}"
    )
    for pairs in ((10, 11), (100, 300), (92, 700), (90, 91), (24, 30), (200, 650), (500, 590)):
        flipped = bytearray(frame)
        for byte in pairs:
            flipped[byte] ^= 1
        telling.line(f"two bits {pairs}: {is_frame_but_for_one_bit(memoryview(flipped))}")
    telling.line(
        f"good {is_frame_but_for_one_bit(memoryview(frame))} short {is_frame_but_for_one_bit(memoryview(frame)[:584])} "
        f"{is_frame_but_for_one_bit(memoryview(frame)[:-8])}"
    )
