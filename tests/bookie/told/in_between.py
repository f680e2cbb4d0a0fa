"""Stories of what comes in between: rows that leave in steps, adds that wait for a comparison, bookies that stop meanwhile."""

from __future__ import annotations

from concurrent.futures import Future
from unittest.mock import patch

from bookspark.bookie.steps import Steps
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.wire.header import Flag
from tests.bookie.kit import KEY, OTHER_KEY
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling

RECOVERY, VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)


def story_rows_of_a_directory_leave_in_steps(telling: Telling) -> None:
    telling.brief = True
    for looked_at, reads in ((2, False), (3, True), (100, True)):
        telling.section(f"{looked_at} rows a look, {'with' if reads else 'without'} requests in between")
        with (
            patch("bookspark.bookie.holdings.holdings._ROWS_LOOKED_AT", looked_at),
            patch("bookspark.bookie.holdings.holdings._LEDGERS_A_STEP", 2),
        ):
            _rows_leave(telling, reads=reads)


def _rows_leave(telling: Telling, *, reads: bool) -> None:
    run = ToldStorage(telling, "/a", "/b", "/c", entry_log_bytes_max=3000)
    run.boot()
    sweeps: list[Steps[None]] = []
    run.storage.holdings.carry_through = sweeps.append
    run.storage.holdings.made_objects = lambda: telling.note("made objects")
    for ledger_id in (3, 4, 5, 6, 7, 9):
        for entry_id in range(0, 8, 2):
            run.add(ledger_id, entry_id)
            run.add(ledger_id, entry_id + 1, flags=VOLATILE if ledger_id == 7 else 0)
    run.commit()
    index = run.storage.holdings.index
    elsewhere = index.get(4).where[0]
    for entry_id in range(8, 16, 2):
        index.of(5).insert(entry_id, entry_id, elsewhere, 656)
        run.storage.holdings.control.of(5).note(entry_id, entry_id)
    run.state()
    plan = run.storage.plan_read(4, 0, 9, 0, sparse=False)
    run.storage._results._retire(run.storage.live[1], "on purpose")
    run.say("gone", run.storage.holdings.gone)

    def look() -> None:
        for ledger_id in (3, 4, 5, 7, 99):
            run.say(f"last of {ledger_id}", run.storage.last_entry_id(ledger_id))
            run.read(ledger_id, 0, 9)
            run.read(ledger_id, 4, 20, sparse=True)
            run.say("lacking", run.storage.holdings.lacking(ledger_id))
            run.storage.held_ranges(ledger_id, lambda held: telling.line(f"  = held {held}"))
            run.storage.holdings.when_left(ledger_id, lambda ledger_id=ledger_id: telling.line(f"  = left {ledger_id}"))
        run.say("ranges", [list(zip(*run.storage.ranges(at, 2, 5, only=False)[0], strict=True)) for at in (0, 4, 5)])
        run.say("moved", [run.storage.has_moved(piece) for piece in plan.pieces])
        for ledger_id in (4, 7):
            run.sync(ledger_id)
            run.add(ledger_id, 3, flags=VOLATILE)
            run.add(ledger_id, 30, flags=RECOVERY)
        run.commit()

    if reads:
        look()
    for number in range(40):
        for sweep in list(sweeps):
            if next(sweep, "end") == "end":
                sweeps.remove(sweep)
                telling.line(f"  = a sweep ended after {number}")
        if number == 1 and reads:
            look()
        if number == 2:
            run.storage._results._retire(run.storage.live[0], "on purpose too")
            run.say("gone", run.storage.holdings.gone)
        if not sweeps:
            break
    look()
    run.state()
    run.say("lacking", run.storage.lacking(3))
    run.say("lacking", run.storage.lacking(30))
    run.checkpoint()
    run.close()
    run.boot()
    run.state()


class Later:
    """Disk threads that work when the story says so. ``full``: no thread can be started."""

    def __init__(self, telling: Telling) -> None:
        self.telling, self.full, self.calls = telling, False, []

    def run(self, where: int, function) -> Future:
        if self.full:
            raise RuntimeError("no thread")
        self.telling.note(f"thread for {where >> 32}:{where & 0xFFFFFFFF}")
        self.calls.append(function)
        return Future()

    def work(self) -> None:
        self.telling.line(f"threads work ({len(self.calls)})")
        calls, self.calls = self.calls, []
        for call in calls:
            call()

    def close(self) -> None:
        self.telling.note("threads closed")


def story_adds_wait_for_comparisons(telling: Telling) -> None:
    telling.brief = True
    run = ToldStorage(telling, "/a", loop=True)
    run.boot()
    later = Later(telling)
    run.storage._adds.comparisons._threads = later

    def pass_on() -> None:
        run.turn(2)
        run.commit()
        run.turn(2)

    def facts() -> None:
        waiting = {ledger_id: len(queue) for ledger_id, queue in run.storage._adds.comparisons.waiting.items()}
        run.say("waiting", (waiting, run.storage.bytes_in_flight))

    for entry_id in range(4):
        run.add(5, entry_id)
        run.add(6, entry_id, flags=VOLATILE)
    run.add(5, 1)
    pass_on()
    telling.section("the same, another one, and what comes behind")
    run.storage.when_below(700, lambda: telling.line("  = relieved"))
    run.add(5, 1)
    run.add(5, 2, payload=b"another")
    run.add(5, 2, 5)
    run.add(5, 9, master_key=OTHER_KEY)
    run.add(6, 1, 2, flags=VOLATILE)
    run.sync(6)
    run.ask("settle")
    facts()
    later.work()
    pass_on()
    facts()
    later.work()
    pass_on()
    later.work()
    pass_on()
    facts()
    telling.section("a fence comes meanwhile")
    run.add(5, 3)
    run.fence(5)
    run.add(5, 4)
    later.work()
    pass_on()
    facts()
    telling.section("what is held changes meanwhile")
    run.add(6, 3, flags=VOLATILE)
    rows = run.storage.holdings.index.get(6)
    run.storage.holdings.lose(6, [rows.where[3]])
    later.work()
    pass_on()
    facts()
    telling.section("what is held can't be read")
    run.fail("read *.arrows 1.. io-error")
    run.storage.files.clear()
    run.add(6, 0, 1, flags=VOLATILE)
    later.work()
    pass_on()
    run.fail("open *.arrows 1.. too-many-files")
    run.storage.files.clear()
    run.add(6, 2, flags=VOLATILE)
    later.work()
    pass_on()
    run.fail()
    telling.section("it trips")
    with patch.object(run.storage._adds._held, "compare", side_effect=ValueError("on purpose")):
        run.add(6, 2, flags=VOLATILE)
        later.work()
        pass_on()
    telling.section("no thread")
    later.full = True
    run.add(6, 2, flags=VOLATILE)
    pass_on()
    later.full = False
    facts()
    telling.section("the bookie stops")
    run.add(6, 2, flags=VOLATILE)
    run.add(6, 9, flags=VOLATILE)
    run.sync(6)
    run.ask("settle")
    facts()
    run.close()
    later.work()
    pass_on()
    facts()
    run.state()


def story_a_bookie_stops_meanwhile(telling: Telling) -> None:
    telling.brief = True
    for rule in (
        "",
        "write *.arrows 2 no-space",
        "write *.arrows 2.. io-error",
        "sync *.synced 2.. io-error",
        "truncate *.arrows 1 io-error",
        "unlink */unclean 1 io-error",
        "write /a/checkpoint* 1 no-space",
        "sync *control.synced 2.. io-error",
    ):
        for journal in (True, False):
            telling.section(f"{rule or 'no fault'}, {'with' if journal else 'without'} a journal")
            run = ToldStorage(
                telling,
                "/a",
                "/b",
                journal_write_data=journal,
                background_sync_interval_ms=50,
                trust_boot_id=not journal,
            )
            run.asked["boot_id"] = "boot"
            run.boot()
            for ledger_id in (4, 5):
                run.add(ledger_id, 0)
            run.commit(0.01)
            if rule:
                run.fail(rule)
            for ledger_id in (4, 5):
                run.add(ledger_id, 1)
                run.add(ledger_id, 0)
                run.sync(ledger_id, Assignment(0), KEY)
            run.lac(4, 0)
            run.close()
            run.fail()
            run.state()
            run.boot()
            run.state()
            run.idle(2.0)
            run.close()


def story_an_idle_directory(telling: Telling) -> None:
    telling.brief = True
    for rule in (
        "",
        "unlink */unclean 1 io-error",
        "sync_directory /a 1 io-error",
        "sync *.synced 1 io-error",
        "exists */unclean 1 io-error",
    ):
        telling.section(rule or "no fault")
        run = ToldStorage(
            telling, "/a", journal_write_data=False, background_sync_interval_ms=50, background_sync_bytes=1500
        )
        run.boot()
        run.idle(1.0)
        run.add(4, 0)
        run.commit(0.01)
        run.idle(0.01)
        run.add(4, 1)
        run.add(4, 2)
        run.commit(0.01)
        if rule:
            run.fail(rule)
        run.idle(0.5)
        run.commit(0.6)
        run.idle(1.0)
        run.idle(1.0)
        run.add(4, 3)
        run.commit()
        run.state()
