"""Stories of disks that fill up or fail."""

from __future__ import annotations

from bookspark.wire.header import Flag
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling

RECOVERY, VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)


def story_room_runs_out(telling: Telling) -> None:
    telling.brief = True
    run = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=4000, journal_write_data=True)
    run.boot()
    disks = run.storage.disks

    def look(*used: float) -> None:
        for directory, part in zip(run.storage.live, used, strict=False):
            run.steps(f"look at {directory.path}: {part}", disks.look(directory, part))
        run.commit()
        run.say("disks", (disks.read_only, disks.any_full, disks.full, disks.reasons, disks.free_bytes))
        run.say("nearly full", [disks.nearly_full(directory) for directory in run.storage.live])

    for ledger_id in (4, 5):
        run.add(ledger_id, 0)
    run.commit()
    run.say("measured", [(directory.path, used) for directory, used in disks.measure()])
    for used in (
        (0.91, 0.1),
        (0.95, 0.9),
        (0.96, 0.95),
        (0.98, 0.96),
        (0.97, 0.94),
        (0.92, 0.92),
        (0.89, 0.91),
        (0.5, 0.89),
        (0.5, 0.5),
    ):
        look(*used)
        run.add(4, int(1000 * used[0]))
        run.add(4, 2000 + int(1000 * used[0]), flags=RECOVERY)
        run.commit()
    run.state()
    for read_only in (True, True, False):
        run.ask("switch_read_only", read_only)
        run.commit()
        look(0.1, 0.1)
        run.add(5, 10)
        run.add(5, 11, flags=RECOVERY)
        run.commit()
    run.ask("switch_read_only", True)
    run.commit()
    run.fail("write /a/control.log 1 no-space", "write /b/control.log 1 no-space")
    run.ask("switch_read_only", False)
    run.commit()
    run.say("switched", disks.switched)
    run.state()
    look(0.2, 0.2)
    run.fail("free_bytes /a 1.. io-error")
    run.say("measured", [(directory.path, used) for directory, used in disks.measure()])
    run.fail("write /a/logs/*.arrows 1 no-space")
    run.ask("switch_read_only", False)
    for entry_id in range(20, 24):
        run.add(4, entry_id, entry_id + 1)
        run.add(5, entry_id)
    run.fence(4)
    run.commit()
    run.add(4, 30, flags=RECOVERY)
    run.commit()
    run.state()
    look(0.2, 0.2)
    run.add(4, 31, flags=RECOVERY)
    run.commit()
    run.fail("open /a/logs/* 1 too-many-files", "write /b/logs/*.arrows 1 short:5")
    run.seal()
    for ledger_id in (6, 7):
        run.add(ledger_id, 0, 2)
        run.add(ledger_id, 3, flags=VOLATILE)
        run.sync(ledger_id)
    run.commit()
    run.commit()
    run.state()
    run.fail("write /a/control.log 1 no-space", "write /a/control.log.new 1 no-space")
    run.fence(7)
    run.add(6, 9)
    run.commit()
    look(0.2, 0.2)
    look(0.2, 0.2)
    run.state()
    run.disk.capacity_bytes = run.disk.used_bytes() + 700
    for entry_id in range(40, 44):
        run.add(7, entry_id, flags=RECOVERY)
        run.commit()
    run.say("measured", [(directory.path, round(used, 3)) for directory, used in disks.measure()])
    run.checkpoint()
    run.disk.capacity_bytes = 1 << 50
    run.state()
    run.close()
    run.disk.capacity_bytes = run.disk.used_bytes() + 40
    run.boot()
    run.state()
    run.add(6, 50)
    run.close()
    run.disk.capacity_bytes = 1 << 50
    run.boot()
    run.state()


def story_directories_fail(telling: Telling) -> None:
    telling.brief = True
    for rule in (
        "sync /a/logs/*.arrows 1 io-error",
        "write /a/logs/*.arrows 2 io-error",
        "write /a/logs/*.synced 2 io-error",
        "sync /a/control.log 1 io-error",
        "write /a/control.synced 1 io-error",
        "sync /a/control.synced 1 io-error",
        "open /a/logs/*.arrows 1 io-error",
        "preallocate /a/* 1 io-error",
        "preallocate /a/* 1 no-space",
        "truncate /a/* 1 io-error",
        "sync_directory /a/logs 2 io-error",
        "sync /a/logs/*.synced 1 no-space",
        "read /a/logs/*.arrows 1.. io-error",
    ):
        telling.section(f"{rule}")
        telling.muted = True
        run = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=1500)
        run.boot()
        for ledger_id in (4, 5):
            run.add(ledger_id, 0)
            run.add(ledger_id, 1, payload=bytes(900))
        run.commit()
        run.state()
        telling.muted = False
        run.fail(rule)
        run.poll(4, 2)
        for ledger_id in (4, 5):
            run.add(ledger_id, 2)
            run.add(ledger_id, 0)
        run.fence(6)
        run.commit()
        run.read(4, 0, 9)
        run.read(4, 1, 9, sparse=True)
        run.add(4, 3, last_add_confirmed=2)
        run.fence(6)
        run.commit(1.5)
        run.seal()
        run.checkpoint()
        run.state()
        run.say("lacking", run.storage.lacking(9))
        run.fail()
        run.close()
        run.boot()
        run.state()
    for rule in ("sync /a/* 1.. io-error", "sync /a/control.log 1.. io-error"):
        telling.section(f"alone: {rule}")
        run = ToldStorage(telling, "/a", journal_write_data=False, trust_boot_id=True)
        run.asked["boot_id"] = "boot"
        run.boot()
        run.add(4, 0)
        run.add(4, 1, flags=VOLATILE)
        run.commit()
        run.fail(rule)
        run.add(4, 2)
        run.sync(4)
        run.fence(5)
        run.commit(1.0)
        run.commit(1.0)
        run.add(4, 3)
        run.ask("settle")
        run.idle(3.0)
        run.state()
        run.close()
        run.boot()
        run.state()
