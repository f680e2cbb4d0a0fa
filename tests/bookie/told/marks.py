"""Stories of boots whose directories do not tell the same."""

from __future__ import annotations

from functools import partial

from bookspark.bookie.disk.control_log import ControlLog, encode_records
from bookspark.bookie.disk.control_state import LogsNoted, WriteNumbered
from bookspark.protocol.bookie.bookie_boot import HealedNoted, LossyBootNoted
from bookspark.protocol.bookie.bookie_ledger import EntriesLost, FenceNoted, LimboCleared, LimboNoted, MasterKeyNoted
from bookspark.testing.power_cuts import everything_kept
from tests.bookie.kit import KEY
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling


def _directories_that_differ(what: str, telling: Telling) -> None:
    telling.brief = True
    mark, later, healed = LossyBootNoted(2, 9), LossyBootNoted(3, 9), HealedNoted(2)
    limbo = [LimboNoted(4, 2), LimboNoted(5, 2)]
    cases = {
        "the same": ([mark, *limbo], [mark, *limbo]),
        "one is healed": ([mark, *limbo, LimboCleared(4, 2), LimboCleared(5, 2), healed], [mark, *limbo]),
        "one is healed in part": ([mark, *limbo, LimboCleared(4, 2)], [mark, *limbo]),
        "one had a later boot": ([mark, *limbo], [mark, later, LimboNoted(4, 3)]),
        "one had a later boot and healed the first": ([mark, *limbo, healed], [mark, *limbo, later]),
        "one knows of none": ([mark, *limbo], []),
        "numbers in any order": ([later, mark, HealedNoted(3), healed], [mark, *limbo, healed]),
        "both healed another one": ([mark, healed], [later, HealedNoted(3)]),
        "a fence in one": ([FenceNoted(4)], [MasterKeyNoted(5, KEY)]),
        "losses in one": ([EntriesLost(4, 0, 0, -1), EntriesLost(5, 3, 9)], []),
        "other logs": ([], [LogsNoted([64, 128], [192])]),
    }  # fmt: skip
    for name, (of_a, of_b) in cases.items():
        telling.section(f"{name}, {what}")
        telling.muted = True
        made = ToldStorage(telling, "/a", "/b")
        made.boot()
        for ledger_id in (4, 5):
            made.add(ledger_id, 0)
        made.commit()
        made.close()
        telling.muted = False
        for path, records in (("/a", of_a), ("/b", of_b)):
            control = ControlLog(made.disk, path)
            control.begin(None, control.scan(), 2)
            for number, record in enumerate(records, 3):
                if not (what == "a lacks the last" and path == "/a" and record is records[-1]):
                    control.append(encode_records([WriteNumbered(number), record]), number)
            control.close()
        if what in ("b is damaged", "both are damaged"):
            made.disk.flip("/b/control.log", 60, 1)
        if what == "both are damaged":
            made.disk.flip("/a/control.log", 60, 1)
        made.disk.evict()
        for without in ([], ["/b"]):
            run = ToldStorage(telling, "/a", "/b")
            run.disk = made.disk.crashed(everything_kept)
            run.asked["without"] = without
            if run.boot():
                run.state()
                for ledger_id in (4, 5, 7):
                    run.read(ledger_id, 0, 3)
                run.add(4, 1)
                run.commit()
                run.close()


vars().update(
    (f"story_directories_that_differ_when_{what.replace(' ', '_')}", partial(_directories_that_differ, what))
    for what in ("all is whole", "b is damaged", "a lacks the last", "both are damaged")
)


def _boots_on_failing_disks(operation: str, telling: Telling) -> None:
    """The operation fails once, at the first, second … time, in the first directory; then the next boot is sound."""
    telling.brief = True
    telling.muted = True
    made = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=1500, journal_write_data=False)
    made.boot()
    for entry_id in range(3):
        for ledger_id in (4, 5):
            made.add(ledger_id, entry_id)
        made.commit()
    made.checkpoint()
    for ledger_id in (4, 5):
        made.add(ledger_id, 3)
        made.add(ledger_id, 4, payload=bytes(1400))
        made.add(ledger_id, 5)
    made.commit()
    made.hurt("/a/logs/00000040.arrows", 500)
    made.lose("/a/logs/00000080.arrows")
    telling.muted = False
    for number in range(1, 9):
        for fault in ("io-error", "no-space"):
            if fault == "no-space" and operation not in ("write", "sync", "open"):
                continue
            rule = f"{operation} /a* {number} {fault}"
            telling.section(rule)
            run = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=1500, journal_write_data=False)
            run.disk = made.disk.crashed(everything_kept)
            run.disk.open("/a/half.new", create=True)
            run.disk.open("/a/logs/half.new", create=True)
            opened = run.boot(rule)
            if opened:
                run.state()
                run.add(4, 9)
                run.commit()
                run.read(4, 0, 9)
            run.kill()
            if (
                not any(call.kind == operation for call in run.faults.calls)
                or len([c for c in run.faults.calls if c.kind == operation and c.path.startswith("/a")]) < number
            ):
                telling.line("  = never")
                break
            if run.boot():
                run.state()


vars().update(
    (f"story_boots_on_a_disk_that_fails_to_{operation}", partial(_boots_on_failing_disks, operation))
    for operation in (
        "exists",
        "list",
        "open",
        "read",
        "write",
        "sync",
        "truncate",
        "rename",
        "unlink",
        "sync_directory",
        "make_directory",
    )
)
