"""Stories of boots: after damage, of older or fewer directories, with torn tails."""

from __future__ import annotations

from functools import partial

from bookspark.bookie.disk.index import location
from bookspark.protocol.bookie.reach import Reach
from bookspark.testing.power_cuts import everything_kept, nothing_kept
from bookspark.wire.header import Flag
from tests.bookie.told.space import Rewriter, reclaim
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling

RECOVERY, VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)


def _boots_after_damage(what: str, telling: Telling) -> None:
    telling.brief = True
    telling.muted = True
    made = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=1500)
    made.boot()
    for entry_id in range(4):
        made.add(4, entry_id, last_add_confirmed=entry_id - 1)
        made.add(5, entry_id)
        made.commit()
    made.fence(4)
    made.checkpoint()
    made.add(4, 4, flags=RECOVERY)
    made.add(5, 4)
    made.commit()
    made.seal()
    reclaim(made, Rewriter(made), below=120)
    made.add(4, 5, flags=RECOVERY)
    made.add(5, 5)
    made.commit(2.0)
    made.kill(everything_kept)
    telling.muted = False
    files = made.disk.files()
    logs = sorted(path for path in files if "/logs/" in path)
    for path in [path for path in files if path.startswith("/a")]:
        if what == "lost with its note" and not path.endswith(".arrows"):
            continue
        if what[:4] != "lost" and not files[path]:
            continue
        telling.section(f"{what} {path}")
        run = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=1500)
        run.disk = made.disk.crashed(everything_kept)
        if what[:4] == "lost":
            run.disk.lose(path)
            if what != "lost":
                run.disk.lose(path.replace(".arrows", ".synced"))
        elif what == "flipped":
            run.disk.flip(path, min(450, len(files[path]) - 1), 1, cached=False)
        else:
            file = run.disk.open(path)
            half = len(files[path]) // 2
            file.truncate(half)
            if what == "zeros":
                file.write([bytes(len(files[path]) - half)], half)
            file.sync()
        run.disk.evict()
        if run.boot():
            run.state()
            run.read(4, 0, 9)
            run.read(5, 0, 9)
            run.say(
                "phase one",
                (
                    run.storage.lossy_boots.losses,
                    run.storage.lossy_boots.unclean,
                    run.storage.lossy_boots.fences_lost,
                ),
            )
    run.say("logs", logs)


vars().update(
    (f"story_boots_after_something_is_{what.replace(' ', '_')}", partial(_boots_after_damage, what))
    for what in ("lost", "lost with its note", "flipped", "cut", "zeros")
)


def story_boots_of_older_or_fewer_directories(telling: Telling) -> None:
    telling.brief = True
    telling.muted = True
    made = ToldStorage(telling, "/a", "/b", "/c")
    made.boot()
    for ledger_id in range(3, 9):
        made.add(ledger_id, 0)
    made.commit()
    older = made.disk.crashed(everything_kept)
    for ledger_id in range(3, 9):
        made.add(ledger_id, 1)
    made.fence(3)
    made.commit()
    made.kill(everything_kept)
    reach = {directory.path: directory.reach() for directory in made.storage.holdings.directories}
    telling.muted = False

    def run_of(disk: object) -> ToldStorage:
        run = ToldStorage(telling, "/a", "/b", "/c")
        run.disk = disk
        return run

    run = run_of(made.disk.crashed(everything_kept))
    run.boot(noted=reach)
    run.state()
    run = run_of(older)
    run.boot(noted=reach)
    run.state()
    run.add(3, 2)
    run.commit()
    run = run_of(made.disk.crashed(everything_kept))
    run.boot(noted={"/b": Reach(99, location(1, 0)), "/c": Reach(0, location(1 << 20, 5))})
    run.state()
    run = run_of(made.disk.crashed(everything_kept))
    run.boot("list /b 1.. io-error")
    run.state()
    run.add(4, 9)
    run.commit()
    run.close()
    run.boot()
    run.state()
    run.close()
    run.asked["without"] = ["/a"]
    run.boot()
    run.add(5, 9)
    run.fence(6)
    run.commit()
    run.close()
    run.asked["without"] = ["/b", "/c"]
    run.boot()
    run.add(5, 10)
    run.fence(7)
    run.commit()
    run.close()
    run.asked["without"] = []
    run.boot()
    run.state()
    run.close()


def story_torn_tails(telling: Telling) -> None:
    for keep in ("nothing", "half", "all but a sector"):
        telling.section(f"{keep}")
        telling.muted = True
        run = ToldStorage(telling, "/a", journal_write_data=False, background_sync_interval_ms=3_600_000)
        run.boot()
        run.add(5, 0)
        run.commit()
        run.add(5, 1, flags=RECOVERY)
        run.commit(1.1)
        run.add(5, 2, payload=bytes(range(256)) * 3)
        run.add(5, 3)
        run.commit()
        path = run.storage.holdings.logs[1][1].path
        size = run.disk.open(path).size()
        run.kill(nothing_kept)
        telling.muted = False
        file = run.disk.open(path)
        content = run.storage.holdings.files.get(1).read(size, 0)
        if keep != "nothing":
            content = content[: size - 300] if keep == "half" else content[:2304] + bytes(128) + content[2432:]
            file.write([content], 0)
            file.sync()
        run.boot(starts=False)
        run.state()
        run.storage.end_phase_one()
        run.start()
        run.read(5, 0, 9)
        run.add(5, 4)
        run.commit()
        run.close()
        run.boot()
        run.state()
