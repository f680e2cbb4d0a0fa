"""Stories of control logs and what they make."""

# ruff: noqa: B023  (each function is called before its loop goes on)
from __future__ import annotations

import struct
from array import array
from itertools import product
from unittest.mock import patch

from crc32c import crc32c

from bookspark.bookie.disk.control_log import ControlLog, _Bad, decode_records, encode_records, live_bytes
from bookspark.bookie.disk.control_state import (
    ControlState,
    LedgersNoted,
    LogsNoted,
    WithoutNoted,
    WriteNumbered,
    WrittenUpTo,
)
from bookspark.bookie.disk.synced_note import SyncedNote
from bookspark.protocol.bookie.bookie_boot import HealedNoted, LossyBootNoted
from bookspark.protocol.bookie.bookie_ledger import (
    EntriesLost,
    FenceNoted,
    FenceUnsureNoted,
    LastAddConfirmedNoted,
    LimboCleared,
    LimboNoted,
    MasterKeyNoted,
)
from bookspark.protocol.bookie.garbage_collection import CollectionNoted
from bookspark.protocol.bookie.read_only_switch import ReadOnlySwitched
from tests.bookie.kit import KEY
from tests.bookie.told.telling import Telling, attempt, digest, told_files

_RECORDS = [
    MasterKeyNoted(5, KEY),
    FenceNoted(5),
    LastAddConfirmedNoted(5, 7),
    LimboNoted(6, 2),
    LimboCleared(6, 2),
    FenceUnsureNoted(7),
    EntriesLost(5, 1, 3, 99),
    EntriesLost(5, 7, 7),
    LossyBootNoted(3, 30),
    HealedNoted(2),
    CollectionNoted(9),
    ReadOnlySwitched(4, True),
]


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
                disk, _, files = told_files(telling)
                telling.muted = True
                file = disk.open("/a/control.log", create=True)
                file.write([bytes(changed)], 0)
                if noted is not None:
                    SyncedNote(disk, "/a/control.synced", 0).write(noted, number)
                control = ControlLog(files, "/a")
                scan = control.scan()
                telling.muted = False
                telling.line(
                    f"    {name} {what} {noted} {number}: end {scan.end} of {scan.size} damaged {scan.damaged} "
                    f"{len(scan.records)} {tuple(scan.copy)} {scan.logs}"
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
        )
    telling.section("written")
    for rule in (
        "",
        "write *.log* 2 no-space",
        "write *.log* 3 no-space",
        "write *.log* 4 no-space",
        "write *.log* 5 no-space",
        "write *.log* 1 no-space",
        "write *.log* 1 io-error",
        "sync *.log* 1 io-error",
        "sync *.log.new 1 no-space",
        "truncate * 1 io-error",
        "write *.synced 1 no-space",
        "open /a/control.log 2 too-many-files",
        "open /a/control.log 1.. too-many-files",
        "rename * 1 io-error",
    ):
        telling.section(rule or "no fault")
        _, faults, files = told_files(telling)
        control = ControlLog(files, "/a")
        attempt(telling, "begin", lambda: control.begin([encode_records([FenceNoted(1)])], control.scan(), 1))
        attempt(telling, "append", lambda: control.append(numbered[1], 2))
        if rule:
            faults.add(rule)
        for what, call in (
            ("append", lambda: control.append(numbered[2], 3)),
            ("log", lambda: control.note_log(3)),
            ("log again", lambda: control.note_log(3)),
            ("removal", lambda: control.note_removal([3, 9], [7])),
            ("without", lambda: control.note_without([2])),
            ("without again", lambda: control.note_without([2])),
            ("all logs", lambda: control.note_all_logs([4], [7])),
            ("rewrite", lambda: control.rewrite([encode_records([FenceNoted(n)]) for n in range(3)], 9)),
            ("append", lambda: control.append(numbered[3], 10)),
            ("sync", control.sync_note),
            ("sync", control.sync_note),
        ):
            attempt(telling, what, call)
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
                attempt(telling, f"begin {rule}", lambda: again.begin(content, scan, 11))
                faults.clear()
                attempt(telling, "append", lambda: again.append(numbered[4], 12))
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
            f"{lac} {lafr}: packed {isinstance(one.ledgers.packed[3], bytes)} {one.ledgers.look(3)} "
            f"{list(one.records())[1:]} {one.plain_bytes()}"
        )
    for count in (64, 65):
        one = ControlState()
        one.of(3).replay(MasterKeyNoted(3, KEY))
        one.replay([EntriesLost(3, 2 * n, 2 * n) for n in range(count)])
        one.ledgers.rest_all()
        telling.line(
            f"{count} ranges: packed {isinstance(one.ledgers.packed[3], bytes)} {len(one.ledgers.look(3).lost)} "
            f"{one.plain_bytes()[0]} {len(one.plain_bytes()[1])}"
        )


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
