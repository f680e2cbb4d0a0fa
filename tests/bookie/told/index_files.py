"""Stories of a checkpoint's files."""

# ruff: noqa: B023  (each function is called before its loop goes on)
from __future__ import annotations

import struct
from array import array
from itertools import product

from crc32c import crc32c

from bookspark.bookie.disk.checkpoint import Part, Snapshot, _decode_2, read_checkpoint, remove_parts, write_checkpoint
from bookspark.bookie.disk.index import ChangingRows, location
from tests.bookie.told.telling import Telling, attempt, told_files


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

    disk, faults, files = told_files(telling)
    parts: list[Part] = []
    steps = [
        ([snapshot({n: [0, 2] for n in range(4, 40)}, whole=True)], ""),
        ([snapshot({5: [4]}, whole=False)], ""),
        ([snapshot({}, whole=False)], ""),
        ([snapshot({6: [4, 6]}, whole=False), snapshot({6: [8], 7: []}, whole=False)], ""),
        ([snapshot({n: [4] for n in range(9, 20)}, whole=False)], ""),
        ([snapshot({8: [4]}, whole=False)], "write *.0000* 1 no-space"),
        ([snapshot({8: [4]}, whole=False)], "rename * 1 io-error"),
        ([snapshot({8: [4]}, whole=False)], "unlink * 1.. io-error"),
        ([snapshot({8: [6]}, whole=False)], "sync * 1 no-space"),
        ([snapshot({n: [8] for n in range(20, 30)}, whole=False, damaged=True)], "read *checkpoint.* 1 io-error"),
        ([snapshot({n: [8] for n in range(4, 40)}, whole=False)], "open *checkpoint.* 1 io-error"),
        ([snapshot({4: [9]}, whole=False), snapshot({4: [1]}, whole=True), snapshot({5: [7]}, whole=False)], ""),
    ]
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
        telling.line(f"  = {[(*one[:3], len(one.rows), one.rows.last_entry_id) for one in found.ledgers]}")
    remove_parts(files, "/a", parts)
    content = disk.files()["/a/checkpoint"]
    for number, byte in product((2, 3, 4, 5), (8, 9, 15, 16, 23, 24, 60)):
        faults.add(f"read *checkpoint.* {number} flip:{byte}.0")
        attempt(
            telling, f"read {number} with a flip of {byte}", lambda: len(list(read_checkpoint(files, "/a").ledgers))
        )
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
        found = old and (*old[:4], [(one.ledger_id, one.last_add_confirmed, len(one.rows)) for one in old.ledgers])
        telling.line(f"format 2 {counts} {more}: {found}")
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
            f"{logs and sorted(logs)} {where >> 32}:{where & 0xFFFF}: holds {one.holds(where)} "
            f"all {one.holds_all(rows)} later {one.may_hold_later(where)}"
        )
