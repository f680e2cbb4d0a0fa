"""Stories of entry logs, scanned and without their files."""

# ruff: noqa: B023  (each function is called before its loop goes on)
from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from itertools import product
from unittest.mock import patch

from bookspark.bookie.checks import check_entry_log
from bookspark.bookie.disk.entry_log import EntryLog, log_numbers
from bookspark.bookie.disk.log_scan import SCHEMA, filler, read_frames, read_tolerant, scan_log
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.wire.entry_batch import EntryBatch, encode, encode_entries
from bookspark.wire.header import Header, Kind
from tests.bookie.kit import KEY, entries
from tests.bookie.told.telling import Telling, ToldFiles, attempt, digest, told_files


def _frames(ids: Iterable[tuple[int, int, int]], payload: int = 40) -> list[bytes]:
    return [
        encode_entries(
            Header(Kind.ADD, 0, ledger, first, last, master_key=KEY),
            entries(ledger, first, last, b"p" * payload, first - 1),
        )
        for ledger, first, last in ids
    ]


def _scanned_logs(name: str, telling: Telling) -> None:
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
        pieces = {"plain": plain, "nested": [*plain[:2], nested, *plain[2:]], "one": plain[:1], "none": []}[name]
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
            disk, faults, files = told_files(telling)
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
                scan = scan_log(file, len(content), covered, noted, lambda frames: taken.extend(frames.position))
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


vars().update(
    (f"story_of_scanned_logs_{name}", partial(_scanned_logs, name)) for name in ("plain", "nested", "one", "none")
)


def story_of_frames_that_are_wrong_inside(telling: Telling) -> None:
    plain = _frames([(5, 0, 0), (5, 1, 3)])
    good = EntryBatch(plain[1])
    for wrong in ((6, 1, 3), (5, 2, 4), (5, 1, 2)):
        columns, payload, value = good.columns(1, 3)
        count = wrong[2] - wrong[1] + 1
        columns = [
            column[: 8 * count] if number < 4 else column[: 4 * (count + 1)] for number, column in enumerate(columns)
        ]
        frame = encode(Header(Kind.ADD, 0, *wrong, master_key=KEY), columns, payload, value)
        disk, _, _ = told_files(telling)
        disk.open("/a/x", create=True).write([SCHEMA + bytes(frame)], 0)
        attempt(telling, f"wrong inside {wrong}", lambda: [tuple(one)[1:] for one in check_entry_log(disk, "/a/x", 0)])
    for size in (len(plain[0]), 2 * len(plain[0]), (1 << 20) + 5000, 2 << 20):
        telling.line(f"filler {size}: {[len(one) for one in filler(size)]} {digest(b''.join(filler(size)))}")


def story_of_logs_without_files(telling: Telling) -> None:
    telling.brief = True
    for note, begun, covered in product((None, b"", bytes(16), 0, 500), (False, True), (0, 600)):
        telling.section(f"{note!r} {begun} {covered}")
        disk, _, files = told_files(telling)
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
        attempt(telling, "adopt", lambda: (log.adopt(), log.is_removed, log.end, log.synced))
    for rule in (
        "",
        "open *.arrows 1 no-space",
        "write *.arrows 1 no-space",
        "write *.synced 1 too-many-files",
        "preallocate * 1 no-space",
        "preallocate * 1 io-error",
        "sync *.synced 1 no-space",
        "sync_directory * 2 io-error",
        "sync *.arrows 1 io-error",
        "write *.synced 2 io-error",
        "truncate * 1 io-error",
        "unlink * 1 io-error",
    ):
        telling.section(rule or "no fault")
        disk, _, files = told_files(telling, *([rule] if rule else []))
        log = EntryLog(files, "/a", 7)
        frames = _frames([(5, 0, 0), (5, 1, 1)])
        for what, call in (
            ("create", lambda: log.create(9000, lambda: telling.note("begun"))),
            ("write", lambda: log.write(frames, 400)),
            ("note", lambda: log.note_written(600)),
            ("sync", lambda: log.sync(400 + len(frames[0]))),
            ("sync again", lambda: log.sync(400)),
            ("beside", lambda: log.sync_beside(400 + len(frames[0]) * 2)),
            ("beside again", lambda: log.sync_beside(500)),
            ("sync note", log.sync_note),
            ("renew", log.renew_note),
            ("seal", log.seal),
            ("seal", log.seal),
            ("beside sealed", lambda: log.sync_beside(500)),
            ("numbers", lambda: log_numbers(files, "/a")),
            ("adopt", log.adopt),
            ("remove", log.remove),
            ("renew", log.renew_note),
        ):
            attempt(telling, what, call)
            telling.note(f"synced {log.synced} end {log.end} open {log.file is not None} {log.second_file is not None}")
        telling.line(f"files {sorted(disk.files())}")
