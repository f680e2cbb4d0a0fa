"""Stories of what is answered before its sync, and of a loop that writes itself."""

from __future__ import annotations

from unittest.mock import patch

from bookspark.testing.power_cuts import nothing_kept
from bookspark.wire.header import Flag
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling

RECOVERY, VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)


def story_acknowledged_before_the_sync(telling: Telling) -> None:
    run = ToldStorage(
        telling,
        "/a",
        "/b",
        journal_write_data=False,
        background_sync_bytes=3000,
        background_sync_interval_ms=50,
        trust_boot_id=True,
    )
    run.asked["boot_id"] = "boot-1"
    run.boot()
    run.add(4, 0, 2)
    run.add(5, 0)
    run.commit()
    run.state()
    run.add(4, 1)
    run.add(4, 3, flags=RECOVERY)
    run.add(5, 1)
    run.commit(0.01)
    run.add(5, 2, payload=bytes(4000))
    run.commit()
    run.add(4, 4, flags=VOLATILE)
    run.commit(0.06)
    run.idle(0.06)
    run.commit()
    run.idle(1.0)
    run.idle(1.0)
    run.state()
    run.add(4, 5)
    run.commit()
    run.kill()
    run.boot()
    run.state()
    run.add(4, 6)
    run.commit()
    run.kill()
    run.asked["boot_id"] = "boot-2"
    run.boot()
    run.state()
    run.add(4, 7)
    run.commit()
    run.checkpoint()
    run.storage.end_phase_one()
    run.state()
    run.add(4, 8)
    run.commit()
    run.kill(nothing_kept)
    run.boot()
    run.state()
    run.storage.end_phase_one()
    run.add(4, 9)
    run.add(5, 9)
    run.commit()
    run.add(4, 10)
    run.close()
    run.boot()
    run.state()


def story_some_are_told_in_each_turn(telling: Telling) -> None:
    telling.brief = True
    with (
        patch("bookspark.bookie.holdings.commit_results._TOLD_A_TURN", 2),
        patch("bookspark.bookie.holdings.long_polls._TOLD_A_TURN", 2),
    ):
        for rule in ("", "write *.arrows 2.. no-space", "write *.arrows 2.. io-error", "sync *.arrows 2 io-error"):
            telling.section(rule or "no fault")
            run = ToldStorage(telling, "/a", "/b", loop=True, request_bytes_in_flight_max=1000)
            run.boot()
            run.add(4, 0)
            run.turn()
            run.commit()
            run.turn()
            for target in range(5):
                run.poll(4, target // 2)
            if rule:
                run.fail(rule)
            run.storage.when_below(3000, lambda: telling.line("  = relieved"))
            for entry_id in range(1, 8):
                run.add(4, entry_id, last_add_confirmed=entry_id - 1)
            run.add(5, 0)
            run.fence(6)
            run.turn()
            run.commit()
            run.say("in flight", run.storage.bytes_in_flight)
            for _ in range(6):
                run.turn()
                run.say("in flight", (run.storage.bytes_in_flight, run.storage.last_entry_id(4)))
                run.add(4, 20)
            run.state()
            for _ in range(8):
                run.commit()
                run.turn()
            run.state()


def story_a_full_disk_that_the_loop_has_not_heard_of(telling: Telling) -> None:
    for journal in (True, False):
        run = ToldStorage(telling, "/a", "/b", loop=True, journal_write_data=journal)
        run.boot()

        def at_once(run: ToldStorage = run) -> None:
            """What was asked goes to the disk before the loop hears of anything."""
            for directory in run.storage.live:
                directory.commit._end_turn()
            run.commit()

        run.add(4, 0)
        at_once()
        run.turn(2)
        run.fail("write *.arrows 1 no-space")
        run.add(4, 1)
        at_once()
        for entry_id in (2, 3):
            run.add(4, entry_id)
            run.lac(4, entry_id - 3)
            at_once()
        run.fence(6)
        run.say("queued", [directory.commit._writer._no_space is not None for directory in run.storage.live])
        at_once()
        run.turn(4)
        at_once()
        run.turn(3)
        run.state()
        run.add(4, 1, flags=RECOVERY)
        run.add(5, 1)
        at_once()
        run.turn(2)
        for directory, used in run.storage.disks.measure():
            run.steps(f"look at {directory.path}", run.storage.disks.look(directory, used))
        at_once()
        run.turn(2)
        run.add(4, 1)
        at_once()
        run.turn(2)
        run.state()


def story_a_loop_that_writes_itself(telling: Telling) -> None:
    run = ToldStorage(telling, "/a", loop=True)
    run.boot()
    shared = [False]
    run.storage.loop_is_shared = lambda: shared[0]
    for entry_id in range(20):
        run.add(5, entry_id)
        run.turn()
        run.say("queued", run.storage.live[0].commit.queued)
        run.commit()
        run.turn()
    for entry_id in range(20, 23):
        run.add(5, entry_id)
    run.turn()
    shared[0] = True
    run.add(5, 23)
    run.turn()
    run.commit()
    run.turn()
    shared[0] = False
    for entry_id in range(24, 29):
        run.add(5, entry_id)
    run.turn()
    run.commit()
    run.turn()
    for size in ((32 << 10) - 600, 32 << 10):
        run.add(5, size, payload=bytes(size))
        run.turn()
        run.commit()
        run.turn()
    run.fence(6)
    run.turn()
    run.add(5, 70_000)
    run.turn()
    run.commit()
    run.turn(2)
    run.add(5, 70_001)
    telling.now += 0.1
    run.turn()
    run.add(5, 70_002)
    run.turn()
    run.commit()
    run.turn()
    run.add(5, 0)
    run.turn(3)
    run.commit()
    run.turn(2)
    run.add(5, 80_000, flags=VOLATILE)
    run.turn()
    run.commit()
    run.turn()
    run.add(5, 80_001)
    run.turn()
    run.commit()
    run.turn()
    run.state()
    run.close()
    run.turn()
