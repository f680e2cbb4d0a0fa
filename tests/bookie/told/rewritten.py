"""The story of rewritten logs."""

# ruff: noqa: B023  (each function is called before its loop goes on)
from __future__ import annotations

from array import array
from contextlib import ExitStack
from unittest.mock import patch

from bookspark.bookie.checks import check_rewritten_log
from bookspark.bookie.disk.log_scan import SCHEMA
from bookspark.bookie.disk.rewritten_block import encode_block, parse_block, parse_block_prefix, plain_frame, runs
from bookspark.bookie.disk.rewritten_log import BadPart, adopt, rewritten_numbers, scan_rewritten
from bookspark.bookie.space.rewriting import Job, LedgerFacts, SealedLog, rewrite
from bookspark.wire.entry_batch import EntryBatch
from bookspark.wire.header import Header, Kind
from bookspark.wire.messages import Ranges
from tests.bookie.kit import KEY
from tests.bookie.told.scans import _frames
from tests.bookie.told.telling import Telling, attempt, digest, told_files


def story_of_rewritten_logs(telling: Telling) -> None:
    disk, faults, files = told_files(telling)
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
            "good": lambda bad: bad,
            "cut": lambda bad: bad[:-30],
            "cut more": lambda bad: bad[: starts[-1] + 700],
            "tiny": lambda bad: bad[:5],
            "head": lambda bad: b"X" + bad[1:],
            "footer": lambda bad: bad[:-40] + b"?" + bad[-39:],
            "longer": lambda bad: bad + bytes(8),
            "only a head": lambda bad: bad[:408],
            "footer away": lambda bad: bad[: -len(bad) + starts[-1]],
            **{
                f"byte {n} of block {k}": (
                    lambda bad, n=n, k=k: (
                        bad[: starts[k] + n] + bytes([bad[starts[k] + n] ^ 1]) + bad[starts[k] + n + 1 :]
                    )
                )
                for n in (0, 49, 100, 650)
                for k in (0, len(starts) - 1)
            },
        }.items():
            changed = bytes(change(whole))
            disk.open("/a/logs/0000000b.arrow", create=True).truncate(0)
            disk.open("/a/logs/0000000b.arrow").write([changed], 0)
            for known in ([], starts):
                found = [tuple(one) for one in check_rewritten_log(disk, "/a/logs/0000000b.arrow", known)]
                telling.line(
                    f"  = {what} {len(known)}: {len(found)} {[one[1:4] for one in found if isinstance(one[0], str)]} "
                    f"{digest(str(found).encode())}"
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
        attempt(telling, rule, lambda: rewrite(files, job, lambda seconds: None))
        faults.clear()
    wrong = Ranges.empty()
    for row in (
        (5, 0, 2, 1, positions[0], len(frames[0])),
        (5, 4, 5, 1, positions[1], len(frames[1]) - 8),
        (6, 7, 7, 1, positions[2], len(frames[2])),
        (6, 9, 9, 3, 400, 8),
        (7, 0, 1, 1, len(content) - 50, 100),
        (7, 3, 3, 9, blocks[0][0].position, blocks[0][0].size),
        (5, 0, 0, 9, blocks[0][0].position, blocks[0][0].size),
        (5, 1, 1, 9, blocks[0][0].position, blocks[0][0].size),
    ):
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
