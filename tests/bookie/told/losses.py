"""Stories of what is lost: copies that can't be read, and lossy boots."""

from __future__ import annotations

from bookspark.protocol.bookie.bookie_boot import LossyBootNoted
from bookspark.protocol.bookie.bookie_ledger import (
    EntriesLost,
    FenceNoted,
    LimboNoted,
)
from bookspark.testing.power_cuts import everything_kept, nothing_kept
from bookspark.wire.header import Flag
from tests.bookie.told.space import Rewriter, reclaim
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling

RECOVERY, VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)


def story_losses(telling: Telling) -> None:
    run = ToldStorage(telling, "/a", "/b")
    run.boot()
    for ledger_id in range(4, 8):
        for entry_id in range(0, 8, 2):
            run.add(ledger_id, entry_id, entry_id + 1)
    run.commit()
    boots = run.storage.lossy_boots
    boots.note_lost(4, [(20, 22), (25, 25)], run.done("note lost"))
    run.commit()
    boots.clear_limbo(4, 1, run.done("clear limbo"))
    boots.clear_limbo(99, 1, run.done("clear limbo of 99"))
    boots.note_healed(1, run.done("healed"))
    run.commit()
    run.state()
    log = next(iter(run.storage.logs.values())).path
    run.hurt(log, 1000)
    run.read(4, 0, 7)
    run.read(4, 0, 9)
    run.read(4, 0, 30, sparse=True)
    run.commit()
    run.state()
    run.say("lacking", run.storage.lacking(1))
    run.say("lacking", run.storage.lacking(10))
    run.add(4, 0, 5, flags=RECOVERY)
    run.commit()
    run.state()
    run.checkpoint()
    run.state()
    run.fail("write *control.log 1.. no-space")
    run.hurt(log, 1700)
    run.read(4, 4, 7)
    run.read(4, 6, 7)
    run.commit()
    run.state()
    run.checkpoint()
    run.fail()
    run.checkpoint()
    run.state()
    run.fail("read *.arrows 1.. io-error")
    run.read(5, 0, 7)
    run.fail("open *.arrows 1.. io-error")
    run.storage.files.clear()
    run.read(5, 2, 7)
    run.fail("open *.arrows 1.. too-many-files")
    run.storage.files.clear()
    run.read(5, 4, 7)
    run.fail("open *.arrows 1 io-error")
    run.storage.files.clear()
    run.read(5, 4, 7)
    run.fail("read *.arrows 1 io-error")
    run.read(5, 4, 7)
    run.fail()
    run.lose(log)
    run.storage.files.clear()
    run.read(6, 0, 7)
    run.commit()
    run.state()
    run.kill(everything_kept)
    run.boot()
    run.state()
    reclaim(run, Rewriter(run), 1.0)
    run.close()
    run.storage.holdings.lost([EntriesLost(5, 3, 3)])
    run.close()


def story_lossy_boots(telling: Telling) -> None:
    from bookspark.protocol.bookie.bookie_boot import PhaseOne

    run = ToldStorage(telling, "/a", "/b", journal_write_data=False)
    run.boot(starts=False)
    run.storage.lossy_boots.note_first_mark(3)
    run.storage.lossy_boots.note_first_mark(3)
    run.start()
    for ledger_id in range(4, 10):
        run.add(ledger_id, 0, 3)
    run.commit()
    run.kill(nothing_kept)
    run.boot(starts=False)
    boots = run.storage.lossy_boots
    for name in ("unclean", "losses", "fences_lost", "unreadable", "mark", "healed_boot", "limbo_count"):
        run.say(name, getattr(boots, name))
    found = PhaseOne(LossyBootNoted(7, 20), (LimboNoted(4, 7), LimboNoted(6, 7), FenceNoted(5)))
    boots.note_lossy_boot(found)
    run.storage.end_phase_one()
    run.start()
    run.state()
    for name in ("unclean", "losses", "fences_lost", "unreadable", "mark", "healed_boot", "limbo_count"):
        run.say(name, getattr(boots, name))
    for start, count in ((0, 1), (5, 9), (7, 1)):
        run.say("limbo", boots.limbo(start, count))
    for ledger_id in (4, 5, 6, 7, 15, 25):
        run.read(ledger_id, 0, 5)
        run.read(ledger_id, 5, 5, sparse=True)
        run.say("absent", run.storage.absent(ledger_id))
    run.add(4, 4)
    run.add(5, 4)
    run.add(15, 0)
    run.add(25, 0)
    run.commit()
    boots.clear_limbo(4, 6, run.done("clear limbo"))
    boots.clear_limbo(4, 7, run.done("clear limbo"))
    run.commit()
    run.say("limbo", boots.limbo(0, 9))
    boots.note_healed(7, run.done("healed"))
    run.commit()
    run.say("limbo", (boots.limbo(0, 9), boots.limbo_count))
    run.state()
    run.kill(nothing_kept)
    run.boot("write /a/control.log.new 1.. no-space", starts=False)
    boots = run.storage.lossy_boots
    boots.note_lossy_boot(PhaseOne(LossyBootNoted(8, 20), ()), fences_lost=True)
    run.state()
    run.storage.end_phase_one()
    run.start()
    run.add(4, 9)
    run.state()
    run.close()
    run.boot("sync /b/control.log 1 io-error", starts=False)
    run.storage.lossy_boots.note_lossy_boot(PhaseOne(LossyBootNoted(9, 20), (LimboNoted(4, 9),)))
    run.start()
    run.state()
    run.add(5, 9)
    run.commit()
    run.close()
    for rule in (
        "write /a/control.log.new 1 no-space",
        "write /a/control.log 1 no-space",
        "write /b/control.log.new 1 io-error",
    ):
        telling.line(f"behind at the boot: {rule}")
        run.boot()
        run.lac(6, run.storage.holdings.control.write_number)
        run.fail("sync /b/control.log 1 io-error")
        run.commit()
        run.kill()
        run.boot(rule)
        run.state()
        for directory, used in run.storage.disks.measure():
            run.steps(f"look at {directory.path}", run.storage.disks.look(directory, used))
        run.commit()
        run.add(4, 20, flags=RECOVERY)
        run.commit()
        run.state()
        run.close()
