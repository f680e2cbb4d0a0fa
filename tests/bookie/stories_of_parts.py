"""Stories of the parts that a bookie's files are read and written with, each by itself over many inputs."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from crc32c import crc32c

from bookspark.bookie.bookie_config import advertised_address, bookie_config, is_loopback, is_name
from bookspark.bookie.checks import check_entry_log, check_note, check_rewritten_log
from bookspark.bookie.disk.checkpoint import Part, Snapshot, _decode_2, read_checkpoint, remove_parts, write_checkpoint
from bookspark.bookie.disk.control_log import ControlLog, _Bad, decode_records, encode_records, live_bytes
from bookspark.bookie.disk.control_state import (
    ControlState,
    LedgersNoted,
    LogsNoted,
    WithoutNoted,
    WriteNumbered,
    WrittenUpTo,
)
from bookspark.bookie.disk.entry_log import EntryLog, log_numbers
from bookspark.bookie.disk.file_system import replace_file, uncached, with_descriptor, write_all
from bookspark.bookie.disk.index import ChangingRows, location
from bookspark.bookie.disk.log_scan import SCHEMA, filler, read_frames, read_tolerant, scan_log
from bookspark.bookie.disk.rewritten_block import encode_block, parse_block, parse_block_prefix, plain_frame, runs
from bookspark.bookie.disk.rewritten_log import BadPart, adopt, rewritten_numbers, scan_rewritten
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
from bookspark.bookie.holdings.disk_marks import Takes, Thresholds, takes, used_part
from bookspark.bookie.space.choosing import LogUse, choose
from bookspark.bookie.space.pacing import Rounds, rate
from bookspark.bookie.space.rewriting import Job, LedgerFacts, SealedLog, rewrite
from bookspark.errors import ConfigurationError
from bookspark.protocol.bookie.bookie_boot import HealedNoted, LossyBootNoted
from bookspark.protocol.bookie.bookie_ledger import (
    EntriesLost,
    FenceNoted,
    FenceUnsureNoted,
    LastAddConfirmedNoted,
    LimboCleared,
    LimboNoted,
    MasterKeyNoted,
)  # fmt: skip
from bookspark.protocol.bookie.garbage_collection import CollectionNoted
from bookspark.protocol.bookie.read_only_switch import ReadOnlySwitched
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.wire.entry_batch import EntryBatch, encode, encode_entries
from bookspark.wire.header import Header, Kind
from bookspark.wire.messages import Ranges
from tests.bookie.kit import KEY, entries
from tests.bookie.telling import Telling, ToldFiles, digest


def attempt(telling: Telling, what: str, call: Callable[[], object]) -> Any:
    """Make a call, and tell what it came to."""
    try:
        value = call()
    except Exception as error:
        telling.line(f"{'    ' * telling.brief}{what}: {type(error).__name__} {error}")
        return None
    telling.line(f"{'    ' * telling.brief}{what}: {value}")
    return value


def _files(telling: Telling, *rules: str) -> tuple[MemoryFileSystem, FaultyFileSystem, ToldFiles]:
    disk = MemoryFileSystem("/a", "/a/logs")
    faults = FaultyFileSystem(disk, *rules)
    return disk, faults, ToldFiles(telling, faults)


_RECORDS = [
    MasterKeyNoted(5, KEY), FenceNoted(5), LastAddConfirmedNoted(5, 7), LimboNoted(6, 2), LimboCleared(6, 2), FenceUnsureNoted(7),
    EntriesLost(5, 1, 3, 99), EntriesLost(5, 7, 7), LossyBootNoted(3, 30), HealedNoted(2), CollectionNoted(9), ReadOnlySwitched(4, True),
]  # fmt: skip


def story_of_control_logs(telling: Telling) -> None:
    telling.brief = True
    numbered = [encode_records((WriteNumbered(n), _RECORDS[n % len(_RECORDS)])) for n in range(1, 7)]
    contents = {
        "all": [encode_records([WrittenUpTo(0)]), *numbered],
        "a gap": [encode_records([WrittenUpTo(0)]), numbered[0], numbered[2], numbered[3]],
        "from the middle": [encode_records([WrittenUpTo(3)]), numbered[3], numbered[4]],
        "an older end": [encode_records([WrittenUpTo(5)]), numbered[0], numbered[5]],
        "twice": [numbered[0], numbered[0], numbered[1]],
        "logs": [
            encode_records(
                [WrittenUpTo(1), LogsNoted([3, 4], [9]), WithoutNoted([1]), LogsNoted([4], []), WithoutNoted([])]
            )
        ],
        "without": [encode_records([WrittenUpTo(1), WithoutNoted([2, 3])])],
        "none": [],
    }
    for name, pieces in contents.items():
        content = b"".join(pieces)
        starts = [sum(map(len, pieces[:n])) for n in range(len(pieces))]
        for what in ("whole", "cut", "flipped", "zeros", "first flipped", "middle flipped", "middle zeros"):
            telling.section(f"{name}, {what}")
            changed = bytearray(content)
            at = starts[-1] if starts else 0
            if what == "cut":
                changed = changed[:-3]
            elif what == "flipped" and content:
                changed[-2] ^= 4
            elif what == "zeros" and content:
                changed[at + 6 :] = bytes(len(changed) - at - 6)
            elif what == "first flipped" and content:
                changed[9] ^= 1
            elif what == "middle flipped" and len(starts) > 2:
                changed[starts[2] + 12] ^= 2
            elif what == "middle zeros" and len(starts) > 2:
                changed[starts[1] : starts[2]] = bytes(starts[2] - starts[1])
            for noted, number in ((len(content), 6), (at, 2), (0, 0), (None, None), (len(content) + 9, 9)):
                disk, _, files = _files(telling)
                telling.muted = True
                file = disk.open("/a/control.log", create=True)
                file.write([bytes(changed)], 0)
                if noted is not None:
                    SyncedNote(disk, "/a/control.synced", 0).write(noted, number)
                control = ControlLog(files, "/a")
                scan = control.scan()
                telling.muted = False
                telling.line(
                    f"    {name} {what} {noted} {number}: end {scan.end} of {scan.size} damaged {scan.damaged} {len(scan.records)} {tuple(scan.copy)} {scan.logs}"
                )
                telling.muted = True
                bad = control.note_is_bad()
                telling.muted = False
                telling.note(f"note is bad {bad}")
                for item in decode_records(bytes(changed), noted or 0):
                    if isinstance(item, _Bad):
                        telling.note(str(tuple(item)))
    telling.section("unknown records")
    for body in (b"\x92\xa5other\x01", b"\x91\xa5fence", b"\x93\xa5fence\x01\x02"):
        attempt(
            telling, repr(body), lambda body=body: decode_records(struct.pack("<II", len(body), crc32c(body)) + body, 0)
        )  # type: ignore[misc]
    telling.section("written")
    for rule in ("", "write *.log* 2 no-space", "write *.log* 3 no-space", "write *.log* 4 no-space", "write *.log* 5 no-space", "write *.log* 1 no-space", "write *.log* 1 io-error", "sync *.log* 1 io-error", "sync *.log.new 1 no-space", "truncate * 1 io-error",
                 "write *.synced 1 no-space", "open /a/control.log 2 too-many-files", "open /a/control.log 1.. too-many-files", "rename * 1 io-error"):  # fmt: skip
        telling.section(rule or "no fault")
        _, faults, files = _files(telling)
        control = ControlLog(files, "/a")
        attempt(telling, "begin", lambda: control.begin([encode_records([FenceNoted(1)])], control.scan(), 1))  # noqa: B023
        attempt(telling, "append", lambda: control.append(numbered[1], 2))  # noqa: B023
        if rule:
            faults.add(rule)
        for what, call in (
            ("append", lambda: control.append(numbered[2], 3)), ("log", lambda: control.note_log(3)), ("log again", lambda: control.note_log(3)),  # noqa: B023
            ("removal", lambda: control.note_removal([3, 9], [7])), ("without", lambda: control.note_without([2])),  # noqa: B023
            ("without again", lambda: control.note_without([2])), ("all logs", lambda: control.note_all_logs([4], [7])),  # noqa: B023
            ("rewrite", lambda: control.rewrite([encode_records([FenceNoted(n)]) for n in range(3)], 9)), ("append", lambda: control.append(numbered[3], 10)),  # noqa: B023
            ("sync", control.sync_note), ("sync", control.sync_note),
        ):  # fmt: skip
            attempt(telling, what, call)  # type: ignore[arg-type]
            telling.note(
                f"{control.synced} {control.write_number} {control.version} {control.worth_rewriting} {control.note_is_written}"
            )
        control.note_live(3)
        control.close()
        control.close()
        faults.clear()
        for content in (None, [encode_records([FenceNoted(4)])]):
            for rule in ("", "write *.new 1.. no-space"):
                again = ControlLog(files, "/a")
                scan = again.scan()
                if rule:
                    faults.add(rule)
                attempt(telling, f"begin {rule}", lambda: again.begin(content, scan, 11))  # noqa: B023
                faults.clear()
                attempt(telling, "append", lambda: again.append(numbered[4], 12))  # noqa: B023
                again.close()
        telling.line(f"in the end {ControlLog(files, '/a').scan()}")


def story_of_control_states(telling: Telling) -> None:
    telling.brief = True
    state = ControlState()
    for record in (
        *_RECORDS,
        LossyBootNoted(2, 99),
        HealedNoted(1),
        CollectionNoted(3),
        ReadOnlySwitched(3, False),
        EntriesLost(8, 0, 0, 5),
        EntriesLost(8, 0, 0, 6),
    ):
        state.replay([record])
        telling.section(f"{record}")
        telling.line(f"    {_told_state(state)}")
    for ledger_id in (5, 6, 7, 8, 20, 31, 40):
        telling.line(
            f"{ledger_id}: unsure {state.unsure_of(ledger_id)} known {state.known(ledger_id)} kept {ledger_id in state.ledgers}"
        )
    state.of(20).note(4, 3)
    state.fences_lost = True
    telling.line(f"first contact {state.known(41)} {state.of(42)}")
    state.fences_lost = False
    for count in (1, 2):
        telling.section(f"turns {len(list(state.rest()))} in use {state.ledgers.in_use_count}")
        parts = list(state.records())
        telling.line(
            f"    records {parts} {[digest(one.ledgers) for part in parts for one in part if isinstance(one, LedgersNoted)]}"
        )
        telling.line(f"    live {live_bytes(state)} of {len(b''.join(map(encode_records, parts)))}")
        again = ControlState()
        for part in reversed(parts):
            again.replay_at_boot(part)
        telling.line(f"    again {count}: {_told_state(again)}")
        again.ledgers.rest_all()
        again.replay([record for part in parts for record in part])
        telling.line(f"    twice: {_told_state(again)}")
        again.note(array("q", [5, 20, 42, 77, 5]), array("q", [9, 3, 1 << 40, 2, 8]), array("q", [1, 9, 1, 2, 12]))
        telling.line(f"    noted: {_told_state(again)}")
        again.lose_fences()
        telling.line(f"    fences lost: {_told_state(again)}")
        again.lose_for_now(5, [(8, 9)])
        again.lose_for_now(99, [(0, 1)])
        telling.line(f"    away: {_told_state(again)}")
        for ledger_id in (5, 8, 99):
            again.all_back(ledger_id)
        telling.line(f"    back: {_told_state(again)}")
        for ledger_id in (5, 6, 99, 1234):
            again.forget(ledger_id)
        telling.line(f"    forgotten: {_told_state(again)}")
    with patch("bookspark.bookie.disk.control_state._IN_USE_MAX", 3):
        one = ControlState()
        for ledger_id in range(20):
            one.replay_at_boot([MasterKeyNoted(ledger_id, KEY)])
            telling.note(f"in use {one.ledgers.in_use_count}")
        one.ledgers.rest_all()
    for known, told in product(
        ((-1, -1), (5, 3), (3, 5)), ((-1, -1), (4, 4), (5, 3), (6, 2), (2, 6), (9, 9), (-2, 0), (0, -2))
    ):
        one.forget(4)
        one.replay_at_boot([MasterKeyNoted(4, KEY)])
        one.of(4).note(*known)
        one.ledgers.rest_all()
        one.note(array("q", [4]), array("q", [told[0]]), array("q", [told[1]]))
        telling.note(f"{known} {told}: {one.ledgers.look(4)}")
    for lac, lafr in ((-1, -1), ((1 << 32) - 2, 5), ((1 << 32) - 1, 5), (5, (1 << 32) - 1)):
        one = ControlState()
        ledger = one.of(3)
        ledger.replay(MasterKeyNoted(3, KEY))
        ledger.note(lac, lafr)
        one.ledgers.rest_all()
        telling.line(
            f"{lac} {lafr}: packed {isinstance(one.ledgers.packed[3], bytes)} {one.ledgers.look(3)} {list(one.records())[1:]} {one.plain_bytes()}"
        )
    for count in (64, 65):
        one = ControlState()
        one.of(3).replay(MasterKeyNoted(3, KEY))
        one.replay([EntriesLost(3, 2 * n, 2 * n) for n in range(count)])
        one.ledgers.rest_all()
        telling.line(
            f"{count} ranges: packed {isinstance(one.ledgers.packed[3], bytes)} {len(one.ledgers.look(3).lost)} {one.plain_bytes()[0]} {len(one.plain_bytes()[1])}"
        )  # type: ignore[union-attr]


def _told_state(state: ControlState) -> str:
    ledgers = [str(state.ledgers.look(ledger_id)) for ledger_id in state.ledgers.ids.ascending()]
    facts = (
        state.mark,
        state.healed,
        state.collected,
        state.switch,
        state.limbo(0, 9),
        state.limbo_count,
        state.lost_copies,
        state.ledgers_not_back,
    )
    return f"{' '.join(ledgers)} | {' '.join(map(str, facts))}"


def story_of_notes_and_markers(telling: Telling) -> None:
    telling.brief = True
    for name, content in {
        "none": None, "empty": b"", "zeros": bytes(32), "short": bytes(10), "good": struct.pack("<qII", 77, crc32c(struct.pack("<qq", 3, 77)), 0),
        "of another": struct.pack("<qII", 77, crc32c(struct.pack("<qq", 4, 77)), 0), "not zero": struct.pack("<qII", 77, crc32c(struct.pack("<qq", 3, 77)), 1),
    }.items():  # fmt: skip
        for tail in (b"", b"1234", bytes(16), struct.pack("<qII", 9, crc32c(struct.pack("<qqq", 3, 77, 9)), 0), struct.pack("<qII", 9, crc32c(struct.pack("<qqq", 3, 1, 9)), 0),
                     struct.pack("<qII", 9, crc32c(struct.pack("<qqq", 3, 77, 9)), 5)):  # fmt: skip
            disk, _, files = _files(telling)
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
    _, faults, files = _files(telling)
    note = SyncedNote(files, "/a/note", 3)
    for step in (lambda: note.write(5), note.sync, lambda: note.write(6, 2), note.sync_if_written, note.sync_if_written, lambda: note.note_written(9), note.close, note.close,
                 note.read, note.read_written, lambda: faults.add("open * 1.. no-space"), note.close, lambda: note.write(1), lambda: note.note_written(1)):  # fmt: skip
        attempt(telling, "step", step)  # type: ignore[arg-type]
        telling.note(f"written {note.is_written}")
    for position, size in ((5, 9), (9, 9), (12, 9), (None, 9), (5, None)):
        disk, _, files = _files(telling)
        if size is not None:
            disk.open("/a/file", create=True).write([bytes(size)], 0)
        note = SyncedNote(files, "/a/note", 3)
        if position is not None:
            note.write(position)
        attempt(telling, f"cut {size} to {position}", lambda: cut_to_note(files, "/a/file", note))  # noqa: B023
    telling.section("markers")
    for boot_id, content in product(("", "boot-1"), (None, b"", b"boot-1", b"boot-0", b"lost", b"fences lost")):
        telling.section(f"{boot_id} {content!r}")
        disk, faults, files = _files(telling)
        if content is not None:
            disk.open("/a/unclean", create=True).write([content], 0)
        marker = UncleanMarker(files, "/a", boot_id)
        steps: list[tuple[str, Callable[[], object]]] = [
            ("look", marker.look), ("renew", marker.renew), ("clear", marker.clear), ("make", marker.make), ("make", marker.make), ("renew", marker.renew),
            ("lost", lambda: disk.lose("/a/unclean")), ("make", marker.make), ("lost", lambda: disk.lose("/a/unclean")), ("renew", marker.renew), ("spoil", marker.spoil),  # noqa: B023
            ("note loss", lambda: marker.note_loss(Lost.ENTRIES)), ("note loss", lambda: marker.note_loss(Lost.FENCES)), ("note loss", lambda: marker.note_loss(Lost.ENTRIES)),  # noqa: B023
            ("make", marker.make), ("clear", marker.clear), ("settled", marker.settled), ("fail", lambda: faults.add("unlink * 1 io-error")), ("clear", marker.clear),  # noqa: B023
            ("clear", marker.clear), ("clear", marker.clear), ("fail", lambda: faults.add("write * 1 no-space")), ("make", marker.make), ("make", marker.make),  # noqa: B023
            ("flip", lambda: disk.open("/a/unclean").write([b"?"], 0)), ("renew", marker.renew), ("fail", lambda: faults.add("open * 1 io-error")), ("spoil", marker.spoil),  # noqa: B023
            ("spoil", marker.spoil), ("lost", lambda: disk.lose("/a/unclean")), ("clear", marker.clear),  # noqa: B023
        ]  # fmt: skip
        for what, call in steps:
            attempt(telling, what, call)
            text = disk.files().get("/a/unclean")
            telling.note(
                f"{text!r} stands {marker.stands} cached {marker.cached} lost {marker.lost.name} removable {marker.removable} trusted {marker.is_trusted}"
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
        f"ends {[record_end(follows, at) for at in (0, 1, len(record), len(follows), len(follows) - 3)]} next {[next_record(follows, at) for at in (0, 5, len(record))]}"
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
        f"good {is_frame_but_for_one_bit(memoryview(frame))} short {is_frame_but_for_one_bit(memoryview(frame)[:584])} {is_frame_but_for_one_bit(memoryview(frame)[:-8])}"
    )


def _frames(ids: Iterable[tuple[int, int, int]], payload: int = 40) -> list[bytes]:
    return [
        encode_entries(
            Header(Kind.ADD, 0, ledger, first, last, master_key=KEY),
            entries(ledger, first, last, b"p" * payload, first - 1),
        )
        for ledger, first, last in ids
    ]


def story_of_scanned_logs(telling: Telling) -> None:
    telling.brief = True
    plain = _frames([(5, 0, 0), (5, 1, 3), (6, 0, 0), (5, 4, 4), (7, 9, 9)])
    nested = encode_entries(
        Header(Kind.ADD, 0, 8, 0, 0, master_key=KEY),
        entries(8, 0, 0, b"".join(plain[:2]) + bytes(8 - (9 + sum(map(len, plain[:2]))) % 8)),
    )
    with ExitStack() as stack:
        stack.enter_context(patch("bookspark.bookie.disk.log_scan._READ_BYTES", 2000))
        stack.enter_context(patch("bookspark.bookie.disk.log_scan._PAGE_BYTES", 256))
        stack.enter_context(patch("bookspark.bookie.disk.entry_log._COPY_BYTES", 700))
        for name, pieces in {
            "plain": plain,
            "nested": [*plain[:2], nested, *plain[2:]],
            "one": plain[:1],
            "none": [],
        }.items():
            starts = [len(SCHEMA) + sum(map(len, pieces[:n])) for n in range(len(pieces) + 1)]
            whole = SCHEMA + b"".join(pieces)
            changes: dict[str, bytes] = {
                "good": whole,
                "cut": whole[:-9],
                "cut more": whole[: max(0, len(whole) - 300)],
                "only a schema": whole[:400],
                "part of it": whole[:200],
                "headless": bytes(400) + whole[400:],
            }
            for number in range(len(pieces)):
                at = starts[number]
                for what, (byte, size) in {
                    "start": (at, 8),
                    "size": (at + 48, 8),
                    "other size": (at + 472, 8),
                    "body": (at + 640, 2),
                    "sector": (at + 112 + (-at - 112) % 128, 128),
                    "all": (at, starts[number + 1] - at),
                }.items():
                    for kind in ("zeros", "flip"):
                        bad = bytearray(whole)
                        bad[byte : byte + size] = (
                            bytes(size)
                            if kind == "zeros"
                            else bytes(
                                one ^ 255 if kind == "flip" and size < 9 else one ^ 1 for one in bad[byte : byte + size]
                            )
                        )
                        changes[f"{kind} of {what} of {number}"] = bytes(bad)
            telling.section(name)
            for what, content in changes.items():
                telling.section(f"{name}: {what}")
                disk, faults, files = _files(telling)
                file = files.open("/a/logs/00000001.arrows", create=True)
                file.write([content], 0)
                telling._notes.clear()
                for covered, noted in (
                    (0, 0),
                    (0, len(content)),
                    (starts[len(starts) // 2], starts[len(starts) // 2]),
                    (0, starts[len(starts) // 2]),
                ):
                    taken: list[int] = []
                    scan = scan_log(file, len(content), covered, noted, lambda frames: taken.extend(frames.position))  # noqa: B023
                    telling.note(f"{covered} {noted}: {tuple(scan)} {taken}")
                for begun, cached, with_note in (
                    (False, False, starts[len(starts) // 2]),
                    (True, True, None),
                    (False, True, len(content) + 5),
                ):
                    again = MemoryFileSystem("/a", "/a/logs")
                    again.open("/a/logs/00000001.arrows", create=True).write([content], 0)
                    told = ToldFiles(telling, again)
                    log = EntryLog(told, "/a", 1)
                    if with_note is not None:
                        log.note.write(with_note)
                        log.note.note_written(starts[-2] if len(starts) > 1 else 0)
                    attempt(
                        telling,
                        f"{what}: recover {begun} {cached} {with_note}",
                        lambda: log.recover(
                            0, lambda why: telling.note(f"lose: {why}"), lambda frames: None, begun=begun, cached=cached
                        ),
                    )
                    telling.note(f"{log.end} {log.synced} {digest(again.files()['/a/logs/00000001.arrows'])}")
                for synced, end in (
                    (0, None),
                    (starts[len(starts) // 2], None),
                    (len(content), None),
                    (len(content) + 1, None),
                    (400, 401),
                    (starts[-1], starts[-1]),
                ):
                    found = [tuple(one) for one in check_entry_log(disk, "/a/logs/00000001.arrows", synced, end)]
                    telling.note(f"checked to {synced}: {found}")
                faults.add("read * 1.. io-error" if "size" in what else "read * 2..3 io-error")
                telling.note(
                    f"{digest(bytes(read_tolerant(file, 100, len(content))))} {len([*read_frames(file, 400, len(content), 0)])}"
                )
            telling.flush()
    good = EntryBatch(plain[1])
    for wrong in ((6, 1, 3), (5, 2, 4), (5, 1, 2)):
        columns, payload, value = good.columns(1, 3)
        count = wrong[2] - wrong[1] + 1
        columns = [
            column[: 8 * count] if number < 4 else column[: 4 * (count + 1)] for number, column in enumerate(columns)
        ]
        frame = encode(Header(Kind.ADD, 0, *wrong, master_key=KEY), columns, payload, value)
        disk, _, files = _files(telling)
        disk.open("/a/x", create=True).write([SCHEMA + bytes(frame)], 0)
        attempt(telling, f"wrong inside {wrong}", lambda: [tuple(one)[1:] for one in check_entry_log(disk, "/a/x", 0)])  # noqa: B023
    for size in (len(plain[0]), 2 * len(plain[0]), (1 << 20) + 5000, 2 << 20):
        telling.line(f"filler {size}: {[len(one) for one in filler(size)]} {digest(b''.join(filler(size)))}")


def story_of_logs_without_files(telling: Telling) -> None:
    telling.brief = True
    for note, begun, covered in product((None, b"", bytes(16), 0, 500), (False, True), (0, 600)):
        telling.section(f"{note!r} {begun} {covered}")
        disk, _, files = _files(telling)
        log = EntryLog(files, "/a", 1)
        if isinstance(note, bytes):
            disk.open("/a/logs/00000001.synced", create=True).write([note], 0)
        elif note is not None:
            log.note.write(note)
        attempt(
            telling,
            f"recover {note!r} {begun} {covered}",
            lambda: log.recover(covered, lambda why: telling.note(f"lose: {why}"), lambda frames: None, begun=begun),
        )
        attempt(telling, "adopt", lambda: (log.adopt(), log.is_removed, log.end, log.synced))  # noqa: B023
    for rule in ("", "open *.arrows 1 no-space", "write *.arrows 1 no-space", "write *.synced 1 too-many-files", "preallocate * 1 no-space", "preallocate * 1 io-error",
                 "sync *.synced 1 no-space", "sync_directory * 2 io-error", "sync *.arrows 1 io-error", "write *.synced 2 io-error", "truncate * 1 io-error", "unlink * 1 io-error"):  # fmt: skip
        telling.section(rule or "no fault")
        disk, faults, files = _files(telling, *([rule] if rule else []))
        log = EntryLog(files, "/a", 7)
        frames = _frames([(5, 0, 0), (5, 1, 1)])
        for what, call in (
            ("create", lambda: log.create(9000, lambda: telling.note("begun"))), ("write", lambda: log.write(frames, 400)), ("note", lambda: log.note_written(600)),  # noqa: B023
            ("sync", lambda: log.sync(400 + len(frames[0]))), ("sync again", lambda: log.sync(400)), ("beside", lambda: log.sync_beside(400 + len(frames[0]) * 2)),  # noqa: B023
            ("beside again", lambda: log.sync_beside(500)), ("sync note", log.sync_note), ("renew", log.renew_note), ("seal", log.seal), ("seal", log.seal),  # noqa: B023
            ("beside sealed", lambda: log.sync_beside(500)), ("numbers", lambda: log_numbers(files, "/a")), ("adopt", log.adopt), ("remove", log.remove), ("renew", log.renew_note),  # noqa: B023
        ):  # fmt: skip
            attempt(telling, what, call)  # type: ignore[arg-type]
            telling.note(f"synced {log.synced} end {log.end} open {log.file is not None} {log.second_file is not None}")
        telling.line(f"files {sorted(disk.files())}")


def story_of_checkpoints(telling: Telling) -> None:
    def snapshot(
        ledgers: dict[int, list[int]], *, whole: bool, logs: frozenset[int] | None = None, damaged: bool = False
    ) -> Snapshot:
        made = Snapshot(logs, location(9, 400), damaged, frozenset([3, 1]), whole=whole)
        for ledger_id, firsts in ledgers.items():
            rows = ChangingRows.empty()
            for first in firsts:
                rows.append(first, first + 1, location(2, 8 * first), 8)
            made.add(ledger_id, ledger_id, ledger_id - 1, 0 if whole else (firsts or [0])[0], rows)
        made.end()
        return made

    disk, faults, files = _files(telling)
    parts: list[Part] = []
    steps = [
        ([snapshot({n: [0, 2] for n in range(4, 40)}, whole=True)], ""), ([snapshot({5: [4]}, whole=False)], ""), ([snapshot({}, whole=False)], ""),
        ([snapshot({6: [4, 6]}, whole=False), snapshot({6: [8], 7: []}, whole=False)], ""), ([snapshot({n: [4] for n in range(9, 20)}, whole=False)], ""),
        ([snapshot({8: [4]}, whole=False)], "write *.0000* 1 no-space"), ([snapshot({8: [4]}, whole=False)], "rename * 1 io-error"), ([snapshot({8: [4]}, whole=False)], "unlink * 1.. io-error"),
        ([snapshot({8: [6]}, whole=False)], "sync * 1 no-space"), ([snapshot({n: [8] for n in range(20, 30)}, whole=False, damaged=True)], "read *checkpoint.* 1 io-error"),
        ([snapshot({n: [8] for n in range(4, 40)}, whole=False)], "open *checkpoint.* 1 io-error"), ([snapshot({4: [9]}, whole=False), snapshot({4: [1]}, whole=True), snapshot({5: [7]}, whole=False)], ""),
    ]  # fmt: skip
    for taken, rule in steps:
        if rule:
            faults.add(rule)
        made = attempt(
            telling, f"write {[one.size for one in taken]} {rule}", lambda: write_checkpoint(files, "/a", parts, taken)
        )
        faults.clear()
        parts = made if made is not None else parts
        found = read_checkpoint(files, "/a")
        assert found is not None
        telling.line(f"  = {found.damaged} {found.covered} {found.rewritten} {found.parts}")
        telling.line(
            f"  = {[(one.ledger_id, one.last_add_confirmed, one.last_add_fully_replicated, len(one.rows), one.rows.last_entry_id) for one in found.ledgers]}"
        )
    remove_parts(files, "/a", parts)
    content = disk.files()["/a/checkpoint"]
    for number, byte in product((2, 3, 4, 5), (8, 9, 15, 16, 23, 24, 60)):
        faults.add(f"read *checkpoint.* {number} flip:{byte}.0")
        attempt(
            telling, f"read {number} with a flip of {byte}", lambda: len(list(read_checkpoint(files, "/a").ledgers))
        )  # type: ignore[union-attr]
        faults.clear()
    for rule in (
        "open *checkpoint.* 1 too-many-files",
        "open *checkpoint.* 1 io-error",
        "read *checkpoint.* 1 io-error",
        "read */checkpoint 1 io-error",
        "open */checkpoint 1 io-error",
    ):
        faults.add(rule)
        attempt(telling, f"read {rule}", lambda: read_checkpoint(files, "/a") is not None)
        faults.clear()
    for name, bad in {
        "short": content[:47],
        "flags": content[:12] + b"\1" + content[13:],
        "magic": b"X" + content[1:],
        "flipped": content[:-1] + b"\xff",
        "empty": b"",
        "longer": content + bytes(8),
    }.items():
        disk.open("/a/checkpoint").truncate(0)
        disk.open("/a/checkpoint").write([bad], 0)
        attempt(telling, f"read {name}", lambda: read_checkpoint(files, "/a"))
    for counts, more in (
        ((3, 400, 2, 3, 1), 0),
        ((3, 400, 0, 0, 0), 0),
        ((3, 400, 2, 3, 1), 8),
        ((3, 400, 2, 3, 1), -8),
    ):
        ledgers, rows, rewritten = counts[2:]
        values = [
            *range(7, 7 + rewritten),
            *range(20, 20 + ledgers),
            *range(ledgers),
            *range(ledgers),
            *([1, 2][:ledgers]),
            *range(3 * rows),
        ]
        body = struct.pack("<qqqqq", *counts) + array("q", values).tobytes() + bytes(max(0, more))
        body = body[: len(body) + min(0, more)]
        old = _decode_2(True, memoryview(body))
        telling.line(
            f"format 2 {counts} {more}: {old and (old.damaged, old.covered, old.rewritten, old.parts, [(one.ledger_id, one.last_add_confirmed, len(one.rows)) for one in old.ledgers])}"
        )
        with_head = b"BSPKCKP2" + struct.pack("<II", crc32c(body, crc32c(struct.pack("<I", 1))), 1) + body
        for magic in (b"BSPKCKP2", b"BSPKCKP3", b"BSPKCKP9"):
            disk.open("/a/checkpoint").truncate(0)
            disk.open("/a/checkpoint").write([magic + with_head[8:]], 0)
            telling.line(f"  = {magic!r} {read_checkpoint(disk, '/a') is not None}")
    telling.line(f"short {_decode_2(False, memoryview(bytes(39)))}")
    for logs, where in product(
        (None, frozenset([2, 5])),
        (
            location(2, 0),
            location(9, 399),
            location(9, 400),
            location(4, 0),
            location(5, 0),
            location(6, 0),
            location(3, 10),
            location(12, 0),
        ),
    ):
        one = Snapshot(logs, location(9, 400), False, frozenset([3, 12]), whole=False)
        rows = ChangingRows.empty()
        rows.append(0, 0, location(2, 0), 8)
        rows.append(1, 1, where, 8)
        telling.line(
            f"{logs and sorted(logs)} {where >> 32}:{where & 0xFFFF}: holds {one.holds(where)} all {one.holds_all(rows)} later {one.may_hold_later(where)}"
        )


def story_of_rewritten_logs(telling: Telling) -> None:
    disk, faults, files = _files(telling)
    frames = _frames([(5, 0, 1), (5, 4, 6), (5, 7, 7), (6, 3, 3), (7, 0, 9), (7, 20, 21)], 60)
    content = SCHEMA + b"".join(frames)
    disk.open("/a/logs/00000001.arrows", create=True).write([content], 0)
    positions = [400 + sum(map(len, frames[:n])) for n in range(len(frames))]
    rows = Ranges.empty()
    spans = [(5, 0, 1), (5, 4, 5), (5, 7, 7), (6, 3, 3), (7, 0, 3), (7, 5, 9), (7, 20, 21)]
    for (ledger_id, first, last), number in zip(spans, (0, 1, 2, 3, 4, 4, 5), strict=True):
        rows.append((ledger_id, first, last, 1, positions[number], len(frames[number])))
    facts = {5: LedgerFacts(7, 3, KEY), 6: LedgerFacts(-1, -1, bytes(16)), 7: LedgerFacts(1, 2, KEY)}
    for entries_max, payload_max, speed in ((256, 1 << 18, 0), (3, 1 << 18, 1 << 20), (256, 150, 1000), (1, 10, 0)):
        telling.section(f"{entries_max} entries, {payload_max} bytes a block, {speed} a second")
        with ExitStack() as stack:
            for name, value in (
                ("BLOCK_ENTRIES_MAX", entries_max),
                ("BLOCK_PAYLOAD_BYTES_MAX", payload_max),
                ("_SLICE_BYTES", 1500),
            ):
                stack.enter_context(patch(f"bookspark.bookie.space.rewriting.{name}", value))
            job = Job(
                "/a",
                9,
                [SealedLog(1, "/a/logs/00000001.arrows"), SealedLog(2, "/a/logs/00000002.arrows")],
                rows.encode(),
                facts,
                speed,
            )
            made = rewrite(files, job, lambda seconds: telling.note(f"wait {seconds:.6f}"))
        telling.line(f"made {made.size} {list(zip(*made.rows, strict=True))} {list(zip(*made.damaged, strict=True))}")
        disk.rename("/a/logs/00000009.arrow.new", "/a/logs/00000009.arrow")
        telling.line(f"adopt {adopt(files, '/a', 9)} {rewritten_numbers(files, '/a')}")
        whole = disk.files()["/a/logs/00000009.arrow"]
        blocks = [found for found in scan_rewritten(files, "/a/logs/00000009.arrow") if not isinstance(found, BadPart)]
        for block, stored in blocks:
            view = memoryview(stored)
            telling.line(f"{tuple(block)} gaps {block.has_gaps} runs {list(runs(view, block))}")
            for first in range(block.first_entry_id - 1, block.last_entry_id + 2):
                found = []
                for last in range(first, block.last_entry_id + 2):
                    frame = plain_frame(view, block, first, last)
                    if frame is None:
                        found.append("-")
                    else:
                        batch = EntryBatch(bytes(frame))
                        found.append(f"{batch.first_entry_id}..{batch.last_entry_id} {digest(bytes(frame))}")
                telling.note(f"{first}: {found}")
            for byte in (0, 8, 48, 60, 90, 180, 199, 210, 260, 300, 520, 607, 608, block.size - 1):
                bad = bytearray(stored)
                bad[byte] ^= 2
                telling.note(f"{byte} {parse_block(memoryview(bad), 0) is None} {parse_block_prefix(bad, 0) is None}")
            telling.note(f"short {parse_block(view[:-1], 0)} {parse_block_prefix(view[:607], 0)}")
        starts = [block.position for block, _ in blocks]
        for what, change in {
            "good": lambda bad: bad, "cut": lambda bad: bad[:-30], "cut more": lambda bad: bad[: starts[-1] + 700], "tiny": lambda bad: bad[:5], "head": lambda bad: b"X" + bad[1:],  # noqa: B023
            "footer": lambda bad: bad[:-40] + b"?" + bad[-39:], "longer": lambda bad: bad + bytes(8), "only a head": lambda bad: bad[:408], "footer away": lambda bad: bad[: -len(bad) + starts[-1]],  # noqa: B023
            **{f"byte {n} of block {k}": (lambda bad, n=n, k=k: bad[: starts[k] + n] + bytes([bad[starts[k] + n] ^ 1]) + bad[starts[k] + n + 1 :]) for n in (0, 49, 100, 650) for k in (0, len(starts) - 1)},  # type: ignore[misc]  # noqa: B023
        }.items():  # fmt: skip
            changed = bytes(change(whole))  # type: ignore[no-untyped-call]
            disk.open("/a/logs/0000000b.arrow", create=True).truncate(0)
            disk.open("/a/logs/0000000b.arrow").write([changed], 0)
            for known in ([], starts):
                found = [tuple(one) for one in check_rewritten_log(disk, "/a/logs/0000000b.arrow", known)]
                telling.line(
                    f"  = {what} {len(known)}: {len(found)} {[one[1:4] for one in found if isinstance(one[0], str)]} {digest(str(found).encode())}"
                )
            telling.line(f"  = {adopt(disk, '/a', 11)}")
    telling.section("bad sources")
    for rule in (
        "read *.arrows 2 io-error",
        "read *.arrows 2 too-many-files",
        "write *.new 2 no-space",
        "sync *.new 1 io-error",
        "open *.arrows 1 io-error",
        "open *.arrows 1 too-many-files",
    ):
        faults.add(rule)
        job = Job("/a", 12, [SealedLog(1, "/a/logs/00000001.arrows")], rows.encode(), facts, 0)
        attempt(telling, rule, lambda: rewrite(files, job, lambda seconds: None))  # noqa: B023
        faults.clear()
    wrong = Ranges.empty()
    for row in ((5, 0, 2, 1, positions[0], len(frames[0])), (5, 4, 5, 1, positions[1], len(frames[1]) - 8), (6, 7, 7, 1, positions[2], len(frames[2])), (6, 9, 9, 3, 400, 8),
                (7, 0, 1, 1, len(content) - 50, 100), (7, 3, 3, 9, blocks[0][0].position, blocks[0][0].size), (5, 0, 0, 9, blocks[0][0].position, blocks[0][0].size), (5, 1, 1, 9, blocks[0][0].position, blocks[0][0].size)):  # fmt: skip
        wrong.append(row)
    job = Job(
        "/a",
        13,
        [SealedLog(1, "/a/logs/00000001.arrows"), SealedLog(9, "/a/logs/00000009.arrow")],
        wrong.encode(),
        facts,
        0,
    )
    made = rewrite(files, job, lambda seconds: None)
    telling.line(f"made {made.size} {list(zip(*made.rows, strict=True))} {list(zip(*made.damaged, strict=True))}")
    for sizes in ((10, 64, 63), (0, 0, 0), (200, 0, 5)):
        columns = [
            array("q", [5, 5]).tobytes(),
            array("q", [1, 2]).tobytes(),
            array("q", [0, 1]).tobytes(),
            array("q", [7, 9]).tobytes(),
            array("i", [0, 1, sizes[0]]).tobytes(),
            array("i", [0, 0, sizes[1]]).tobytes(),
        ]
        made_block = encode_block(
            Header(Kind.ADD, 9, 5, flags=4, master_key=KEY), columns, bytes(sizes[0]), bytes(range(sizes[1]))
        )
        telling.line(f"block {sizes} {len(made_block)} {digest(made_block)} {parse_block(memoryview(made_block), 3)}")


def story_of_choices(telling: Telling) -> None:
    draw = Random(5)
    for number in range(60):
        directories = [SimpleNamespace(path=path) for path in ("/b", "/a")]
        uses = []
        for log_number in range(draw.randrange(1, 30)):
            end = draw.choice([0, 100, 500, 1000])
            log: Any = (
                EntryLog(None, "/a", log_number) if draw.random() < 0.3 else SimpleNamespace(number=log_number, end=end)
            )  # type: ignore[arg-type]
            if isinstance(log, EntryLog):
                log.end = end
            uses.append(LogUse(draw.choice(directories), log, min(end, draw.choice([0, 10, 50, 250, 500, 1000]))))  # type: ignore[arg-type]
        draw.shuffle(uses)
        failed = {use.log.number: n for n, use in enumerate(draw.sample(uses, min(3, len(uses))))} if number % 2 else {}
        with ExitStack() as stack:
            for name, value in (("_SOURCES_MAX", 3), ("_JOBS_MAX", 4), ("_PASS_BYTES", 1200), ("_SMALL_LOGS_MIN", 3)):
                if number % 3:
                    stack.enter_context(patch(f"bookspark.bookie.space.choosing.{name}", value))
            below = draw.choice([None, 12])
            threshold, job_bytes, entry_logs = (
                draw.choice([0.0, 0.5, 1.0]),
                draw.choice([300, 900, 8000]),
                draw.random() < 0.5,
            )
            choice = choose(uses, threshold, job_bytes, entry_logs=entry_logs, below=below, failed=failed)
        jobs = [[use.log.number for use in job] for job in choice.jobs]
        telling.line(
            f"{len(uses)} {threshold} {job_bytes} {entry_logs} {below} {failed}: dead {[use.log.number for use in choice.dead]} jobs {jobs} left {choice.left_bytes}"
        )
    config = bookie_config(
        directories=("/a",),
        zookeeper="-",
        gc_wait_time_seconds=100,
        minor_compaction_interval_seconds=50,
        major_compaction_interval_seconds=200,
    )
    rounds = Rounds(config, 1000.0)
    made = [
        rounds.begin(now, 7, forced=forced)
        for now, forced in (
            (1049.0, False),
            (1050.0, False),
            (1099.0, False),
            (1100.0, True),
            (1149.9, False),
            (1150.0, False),
            (1299.0, False),
            (1300.0, False),
        )
    ]
    for one in made:
        telling.line(str(tuple(one)))
    telling.line(f"{[tuple(one.followed_by(other)) for one, other in zip(made, made[1:], strict=False)]}")
    for speed, left, seconds, full in product((0, 100), (0, 49, 50, 51), (-1.0, 0.0, 1.0), (False, True)):
        telling.note(f"rate {speed} {left} {seconds} {full}: {rate(speed, left, seconds, nearly_full=full)}")
    marks = Thresholds(0.5, 0.6, 0.7, 0.9)
    for before, used in product(Takes, (0.59, 0.6, 0.69, 0.7, 0.89, 0.9)):
        telling.note(f"{before.name} {used} {takes(before, used, marks).name}")
    for figures in ((0, 0, 0, 0), (5, 1, 4, 10), (9, 3, 4, 10), (1, 4, 4, 0)):
        telling.note(f"used {figures} {used_part(*figures)}")


def story_of_files(telling: Telling) -> None:
    for rule in ("", "write *.new 1 no-space", "write *.new 1 io-error", "sync *.new 1 no-space", "sync *.new 1 io-error", "open *.new 1 too-many-files", "rename * 1 io-error", "sync_directory * 1 io-error",
                 "sync_directory * 1 too-many-files", "sync_directory * 1..2 too-many-files", "sync_directory * 1..3 too-many-files"):  # fmt: skip
        disk, faults, files = _files(telling)
        for content in (b"old", b"new"):
            attempt(telling, f"replace {rule}", lambda: replace_file(files, "/a/x", [content, b"!"]))  # noqa: B023
            if rule:
                faults.add(rule)
        disk.open("/a/x.new", create=True)
        attempt(telling, "replace", lambda: replace_file(files, "/a/x", [b"third"]))  # noqa: B023
        telling.line(f"  = {disk.files()}")
    tries = iter([OSError(24, "x"), OSError(23, "x"), OSError(24, "x"), OSError(5, "x"), None, OSError(24, "x"), None])

    def call() -> str:
        telling.note("tried")
        if (error := next(tries)) is not None:
            raise error
        return "done"

    for _ in range(4):
        attempt(telling, "with a descriptor", lambda: with_descriptor(call))
    disk, faults, files = _files(telling)
    attempt(telling, "uncached", lambda: uncached(files, "/a/none"))
    disk.open("/a/y", create=True)
    attempt(telling, "uncached", lambda: uncached(files, "/a/y"))
    faults.add("drop_cached * 1 io-error")
    attempt(telling, "uncached", lambda: uncached(files, "/a/y"))
    for rule in (
        "write * 1 short:1",
        "write * 1..9 short:2",
        "write * 2 no-space",
        "write * 1 short:0",
        "write * 1 io-error",
        "write * 1 too-many-files",
    ):
        faults.clear()
        faults.add(rule)
        attempt(telling, f"write all {rule}", lambda: write_all(files.open("/a/y"), [b"ab", b"", b"cde"], 3))
        attempt(telling, "write all", lambda: write_all(files.open("/a/y"), [], 3))


def story_of_options(telling: Telling) -> None:
    plain = {"directories": ("/a",), "zookeeper": "-"}
    for options in (
        {}, {"directories": ()}, {"directories": ("/a", "/a")}, {"directories": ("/a", "/a/")}, {"directories": ("/a", "a")}, {"directories": ("/a", "/a/b")}, {"directories": tuple(f"/{n}" for n in range(64))},
        {"directories": tuple(f"/{n}" for n in range(65))}, {"directories": "/a"}, {"directories": ("",)}, {"zookeeper": ""}, {"host": "0.0.0.0"}, {"host": "::"}, {"host": ""}, {"host": "[::]"}, {"host": "0.0.0.0", "advertised_address": "h:1"},
        {"host": "b1"}, {"host": "::1"}, {"advertised_address": "h"}, {"advertised_address": "h:"}, {"advertised_address": ":1"}, {"advertised_address": "h:x"}, {"advertised_address": "h:0"}, {"advertised_address": "h:65536"},
        {"advertised_address": "{host}:{port}"}, {"advertised_address": "{hostname}.org:{port}"}, {"advertised_address": "{name}:1"}, {"advertised_address": "{host}"}, {"port": 65535}, {"port": 65536}, {"port": -1}, {"bookkeeper_port": -1}, {"bookkeeper_port": -2},
        {"disk_usage_threshold": 0.5}, {"disk_usage_low_water_mark_threshold": 0.96}, {"disk_usage_recovery_threshold": 0.9}, {"disk_usage_warn_threshold": 0.99}, {"disk_usage_threshold": 0.9, "disk_usage_low_water_mark_threshold": 0.9},
        {"disk_usage_recovery_threshold": 0.95}, {"disk_usage_warn_threshold": 0.0}, {"trust_boot_id": True}, {"trust_boot_id": True, "journal_write_data": False}, {"tls_key": "k"}, {"tls_ca": "c"}, {"tls_client_ca": "c"}, {"tls_certificate": "c"}, {"bookie_id": "a b"}, {"bookie_id": "b1"}, {"bookie_id": "/"},
        {"labels": {"a": "b"}}, {"labels": {"rack": "b"}}, {"labels": {"": "b"}}, {"rack": "/a/b"}, {"entry_log_bytes_max": 0}, {"entry_log_bytes_max": 1 << 31}, {"entry_log_bytes_max": (1 << 31) + 1}, {"scrub_interval_hours": 0}, {"none": 1},
    ):  # fmt: skip
        try:
            bookie_config(**{**plain, **options})
            telling.line(f"{options}: taken")
        except ConfigurationError as error:
            telling.line(f"{options}: {str(error).splitlines()[0]}")
    for host in ("b1", "127.0.0.1", "127.3.4.5", "::1", "[::1]", "10.0.0.1", "localhost", "", "0.0.0.0"):
        telling.note(f"{host!r} {is_name(host)} {is_loopback(host)}")
    for pattern in ("{host}:{port}", "{hostname}.x:{port}-{bookie_id}", "{other}", "plain", "{host"):
        attempt(telling, pattern, lambda: advertised_address(pattern, "h", "n", "7", "b"))  # noqa: B023
