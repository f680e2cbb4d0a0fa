"""Stories of a storage's files: logs, checkpoints, boots, room, damage."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

from bookspark.bookie.disk.checkpoint import Snapshot, write_checkpoint
from bookspark.bookie.disk.index import ChangingRows, location
from bookspark.bookie.holdings.kept_files import KeptFile
from bookspark.bookie.space.reclaiming import unlimited
from bookspark.bookie.space.rewriting import Job, NoRewriterError, Rewritten, rewrite
from bookspark.errors import BookieError, BookKeeperError, NoSuchLedgerError, UnreadableRecordError
from bookspark.metadata.memory.memory_store import MemoryStore
from bookspark.protocol.bookie.reach import Reach
from bookspark.testing.power_cuts import everything_kept, nothing_kept
from bookspark.wire.header import Flag
from tests.bookie.telling import Telling, ToldStorage
from tests.metadata.kit import ledger

RECOVERY, VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)


def story_logs_and_checkpoints(telling: Telling) -> None:
    run = ToldStorage(telling, "/a", entry_log_bytes_max=1500)
    run.boot()
    run.checkpoint()
    for entry_id in range(6):
        run.add(5, entry_id, payload=bytes(400))
        run.add(4 + entry_id, 10)
        run.commit()
    run.state()
    run.checkpoint()
    run.checkpoint()
    run.add(5, 6)
    run.commit(1.5)
    run.checkpoint()
    run.state()
    run.add(5, 7)
    run.add(20, 0)
    run.commit()
    run.checkpoint()
    run.state()
    run.kill()
    run.boot()
    run.state()
    run.add(5, 8)
    run.commit()
    run.close()
    run.boot()
    run.state()


def story_checkpoints_of_two_directories(telling: Telling) -> None:
    telling.brief = True
    run = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=2500)
    run.boot()
    for ledger_id in range(4, 12):
        run.add(ledger_id, 0, last_add_confirmed=-1)
    run.commit()
    run.checkpoint()
    run.add(4, 1, last_add_confirmed=0, last_add_fully_replicated=0)
    run.add(5, 1)
    run.commit()
    prepared = run.steps("prepare", run.storage.checkpoint())
    run.add(6, 1)
    run.add(30, 0)
    run.commit()
    run.storage.write_checkpoints(prepared)
    run.state()
    run.fail("rename /a/checkpoint.new 1 io-error")
    run.checkpoint()
    run.fail("write /b/checkpoint* 1 no-space")
    run.checkpoint()
    run.fail()
    run.checkpoint()
    run.state()
    run.hurt(next(path for path in run.disk.files() if path.startswith("/a/checkpoint.")), 60)
    run.add(8, 1, 3)
    run.commit()
    run.checkpoint()
    run.checkpoint()
    run.state()
    run.storage.garbage_collection.note([4, 5], run.done("noted"))
    run.commit()
    run.steps("forget", run.storage.garbage_collection.forget([4, 5]))
    run.add(4, 0)
    run.commit()
    run.checkpoint()
    run.state()
    run.kill()
    run.boot()
    run.state()
    run.hurt("/b/checkpoint", 30)
    run.kill()
    run.boot()
    run.state()


class Rewriter:
    """Rewrites in this thread. ``fails``: by the number of the job's log, what is raised."""

    def __init__(self, run: ToldStorage) -> None:
        self.run, self.fails = run, dict[int, OSError]()

    def rewrite(self, job: Job) -> Rewritten:
        self.run.telling.note(
            f"job {job.number:x} of {[source.number for source in job.sources]} at {job.bytes_per_second}"
        )
        if job.number in self.fails:
            raise self.fails[job.number]
        made = rewrite(self.run.files, job, lambda seconds: self.run.telling.note(f"wait {seconds:.3f}"))
        self.run.telling.note(
            f"made {list(zip(*made.rows, strict=True))} of {made.size}, bad {list(zip(*made.damaged, strict=True))}"
        )
        return made


def reclaim(run: ToldStorage, rewriter: Rewriter | None, threshold: float = 0.0, **options: object) -> None:
    job_bytes = options.pop("job_bytes", 4000)
    speed = options.pop("pace", unlimited)

    def pace(directory: object, left: int) -> int:
        run.telling.note(f"left {left}")
        return speed(directory, left)  # type: ignore[no-any-return,operator]

    steps = run.storage.reclaiming.reclaim(rewriter, threshold, job_bytes, pace, **{"entry_logs": True, **options})  # type: ignore
    run.say("reclaimed", run.steps(f"reclaim {threshold} {options}", steps))


def collect(run: ToldStorage, store: object) -> None:
    gc = run.storage.garbage_collection
    run.say("collected", run.steps("collect", gc.collect(store)))  # type: ignore[arg-type]
    run.say("kept", (gc.kept, gc.collected))


def story_space_comes_back(telling: Telling) -> None:
    telling.brief = True
    run = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=3000)
    run.boot()
    rewriter = Rewriter(run)
    for entry_id in range(3):
        for ledger_id in range(4, 10):
            run.add(ledger_id, 2 * entry_id, 2 * entry_id + 1, last_add_confirmed=entry_id)
        run.commit()
    run.seal()
    run.steps("forget", run.storage.garbage_collection.forget([6, 7]))
    reclaim(run, None)
    run.fail("free_bytes /a 1.. io-error")
    reclaim(run, rewriter, below=66)
    run.fail()
    run.state()
    reclaim(run, rewriter, pace=lambda directory, left: 1 << 20)
    run.state()
    run.read(4, 0, 5)
    run.read(4, 1, 2)
    run.read(4, 3, 3, cached=True)
    run.fail("sync *control.log 1 io-error")
    run.fail()
    run.steps("forget", run.storage.garbage_collection.forget([4], suspects={4}))
    run.steps("forget none", run.storage.garbage_collection.forget([5], suspects=set()))
    reclaim(run, rewriter, 0.9, entry_logs=False)
    run.state()
    for entry_id in range(6, 12):
        run.add(8, entry_id, payload=bytes(600))
        run.commit()
    run.seal()
    numbers = sorted(run.storage.logs)
    rewriter.fails = {run.storage.holdings.next_log + n: NoRewriterError(10, "nobody") for n in range(200)}
    reclaim(run, rewriter)
    rewriter.fails = {run.storage.holdings.next_log + n: OSError(28, "no room") for n in range(200)}
    reclaim(run, rewriter)
    rewriter.fails = {}
    run.disk.capacity_bytes = run.disk.used_bytes() + 100
    reclaim(run, rewriter)
    run.disk.capacity_bytes = 1 << 50
    run.hurt(run.storage.logs[numbers[0]].path, 1200)
    run.fail("unlink *.arrows 1 io-error")
    reclaim(run, rewriter, job_bytes=10_000)
    run.fail()
    run.state()
    reclaim(run, rewriter)
    run.checkpoint()
    run.state()
    run.kill()
    run.boot()
    run.state()
    for entry_id in range(12, 15):
        run.add(8, entry_id)
        run.add(8, entry_id + 20, entry_id + 23)
    run.commit()
    run.seal()
    run.fail("rename *.arrow.new 1 io-error")
    reclaim(run, rewriter)
    run.fail("write *control.log 1 no-space")
    reclaim(run, rewriter)
    run.fail("write *checkpoint* 1 no-space")
    reclaim(run, rewriter, 1.0)
    run.fail()
    reclaim(run, rewriter, 1.0)
    run.state()
    run.close()
    run.lose("/a/checkpoint")
    run.lose("/b/checkpoint")
    run.boot()
    run.state()


def story_logs_in_which_nothing_can_be_read(telling: Telling) -> None:
    telling.brief = True
    for what in ("unreadable", "flipped", "gone"):
        telling.section(what)
        run = ToldStorage(telling, "/a", "/b")
        run.boot()
        for ledger_id in (4, 5, 6):
            run.add(ledger_id, 0, 3)
        run.commit()
        run.seal()
        path = run.storage.logs[64].path
        if what == "flipped":
            run.hurt(path, 1000)
            run.hurt(path, 1900)
        elif what == "gone":
            run.lose(path)
        run.fail(*(["read /a/logs/*.arrows 1.. io-error"] if what == "unreadable" else []))
        run.state()
        reclaim(run, Rewriter(run))
        run.state()
        run.say("lacking", run.storage.lacking(9))
        reclaim(run, Rewriter(run))
        run.fail()
        run.state()
        run.close()
        run.boot()
        run.state()


def story_deleted_ledgers(telling: Telling) -> None:
    run = ToldStorage(telling, "/a")
    run.boot()
    for ledger_id in range(4, 14):
        run.add(ledger_id, 0)
    run.fence(20)
    run.commit()

    class Store(MemoryStore):
        answers: dict[int, Exception] = {}
        listed: Exception | None = None
        highest: Exception | None = None

        def read_ledger(self, ledger_id: int) -> object:  # type: ignore[override]
            if ledger_id in self.answers:
                telling.note(f"asked of {ledger_id}")
                raise self.answers[ledger_id]
            return super().read_ledger(ledger_id)

        def list_ledgers(self) -> object:  # type: ignore[override]
            if self.listed is not None:
                raise self.listed
            return super().list_ledgers()

        def highest_ledger_id(self) -> int:
            if self.highest is not None:
                raise self.highest
            return super().highest_ledger_id()

    store = Store()
    store.note_given_id(12)
    for ledger_id in (4, 5, 6):
        store.create_ledger(ledger(ledger_id))
    store.highest = BookKeeperError("no highest id")
    collect(run, store)
    store.highest, store.listed = None, BookKeeperError("no list")
    collect(run, store)
    store.listed = None
    store.answers = {
        7: NoSuchLedgerError("gone"), 8: UnreadableRecordError("garbled"), 9: ConnectionError("away"), 10: ConnectionError(),
        11: NoSuchLedgerError("gone"),
    }  # fmt: skip
    gc = run.storage.garbage_collection.collect(store)
    collect(run, store)
    run.state()
    run.fail("write *control.log 1.. io-error")
    store.answers = {9: NoSuchLedgerError("gone"), 10: NoSuchLedgerError("gone")}
    collect(run, store)
    run.state()
    run.fail()
    collect(run, store)
    gc.close()
    run.kill(everything_kept)
    run.boot()
    collect(run, store)
    run.state()
    collect(run, store)
    run.say("held", run.steps("held", run.storage.garbage_collection.held()))


def story_scrubbing(telling: Telling) -> None:
    telling.brief = True
    run = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=3000, journal_write_data=False, background_sync_bytes=1)
    run.boot()
    for entry_id in range(5):
        for ledger_id in (4, 5, 6):
            run.add(ledger_id, entry_id, last_add_confirmed=entry_id - 1)
        run.commit()
    run.steps("forget", run.storage.garbage_collection.forget([6]))
    run.checkpoint()
    run.storage.scrubbing.load()
    run.say("progress", (run.storage.scrubbing.progress, run.storage.scrubbing.part, run.storage.scrubbing.under_way))
    run.scrub()
    run.say("ahead", run.storage.scrubbing.ahead_seconds(7000, 100.0))
    logs = {number: stored.path for number, stored in run.storage.logs.items()}
    first = logs[min(logs)]
    run.hurt(first, 500)
    run.hurt(first, 1100)
    run.hurt(first, 12)
    run.hurt(first.replace("arrows", "synced"), 2)
    run.hurt("/a/control.log", 20)
    run.hurt("/b/control.synced", 3)
    run.hurt("/b/checkpoint", 3)
    run.hurt(next(path for path in run.disk.files() if path.startswith("/a/checkpoint.")), 33)
    run.lose("/b/unclean")
    run.scrub(9000)
    run.state()
    good = [False]
    run.storage.kept_files.others = [
        KeptFile("/a/cookie", lambda: good[0], lambda: telling.note("renewed the cookie")),
        KeptFile("/b/cookie", lambda: 1 / 0 if False else False, _raising(BookieError("cookie can't be written"))),
        KeptFile("/c/cookie", _raising(OSError(5, "no cookie")), lambda: None),
    ]
    run.steps("look", run.storage.kept_files.look())
    good[0] = True
    run.fail("exists /a/logs 1 io-error", "write /b/control.log.new 1.. no-space")
    run.hurt("/b/control.log", 20)
    run.steps("look", run.storage.kept_files.look())
    run.fail("read /a/scrub 1.. io-error", "write /b/scrub.new 1.. no-space")
    run.storage.scrubbing.save()
    run.storage.scrubbing.load()
    run.say("progress", run.storage.scrubbing.progress)
    run.fail("read *.arrows 1.. io-error")
    run.scrub(12000)
    run.state()
    run.storage.holdings.suspected.update({min(run.storage.logs), 999})
    run.say("suspected", run.storage.scrubbing.suspected)
    run.say("taken", run.steps("take suspected", run.storage.scrubbing.take_suspected()))
    run.close()
    run.boot()
    run.state()


def story_scrubbing_what_was_rewritten(telling: Telling) -> None:
    run = ToldStorage(telling, "/a", "/b")
    telling.muted = True
    run.boot()
    for entry_id in range(5):
        for ledger_id in (4, 5, 6, 8):
            run.add(ledger_id, 3 * entry_id, last_add_confirmed=entry_id - 1)
        run.commit()
    run.seal()
    reclaim(run, Rewriter(run))
    telling.muted = False
    run.state()
    run.scrub(8000)
    path = next(stored.path for stored in run.storage.logs.values() if stored.path.endswith("arrow"))
    for byte in (3, 1300, len(run.disk.files()[path]) - 3):
        run.hurt(path, byte)
    run.scrub(15000)
    run.state()
    run.read(4, 0, 20, sparse=True)
    run.read(8, 0, 20, sparse=True)
    run.close()
    run.boot()
    run.state()


def _raising(error: Exception) -> Callable[[], bool]:
    def call() -> bool:
        raise error

    return call


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
        "sync /a/logs/*.arrows 1 io-error", "write /a/logs/*.arrows 2 io-error", "write /a/logs/*.synced 2 io-error",
        "sync /a/control.log 1 io-error", "write /a/control.synced 1 io-error", "sync /a/control.synced 1 io-error",
        "open /a/logs/*.arrows 1 io-error", "preallocate /a/* 1 io-error", "preallocate /a/* 1 no-space", "truncate /a/* 1 io-error",
        "sync_directory /a/logs 2 io-error", "sync /a/logs/*.synced 1 no-space", "read /a/logs/*.arrows 1.. io-error",
    ):  # fmt: skip
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


def story_boots_after_damage(telling: Telling) -> None:
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
        for what in ("lost", "flipped", "cut", "zeros"):
            if what != "lost" and not files[path]:
                continue
            telling.section(f"{what} {path}")
            run = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=1500)
            run.disk = made.disk.crashed(everything_kept)
            if what == "lost":
                run.disk.lose(path)
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
        run.disk = disk  # type: ignore[assignment]
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
    run.asked["without"] = ["/a", "/b", "/c"]
    run.boot()


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


def story_of_small_steps(telling: Telling) -> None:
    """Everything that is done in steps, with steps so small that there are some."""
    from contextlib import ExitStack

    small = {
        "holdings.holdings._LEDGERS_A_STEP": 2, "holdings.holdings._ROWS_A_STEP": 2, "holdings.holdings._ROWS_LOOKED_AT": 3,
        "holdings.checkpointing._WEIGHT_A_STEP": 30, "holdings.checkpointing._ROWS_A_STEP": 2, "holdings.boot._LEDGERS_SEEN_MAX": 2,
        "holdings.boot._LOST_A_WRITE": 2, "holdings.boot._RUN_MIN": 2, "holdings.what_is_back._LEDGERS_A_STEP": 2,
        "holdings.what_is_back._ROWS_A_STEP": 2, "holdings.scrubbing._ROWS_A_STEP": 3, "holdings.scrubbing._GROUP_BYTES": 2000,
        "holdings.scrubbing._LOOK_BYTES": 656, "holdings.volatile_ledgers._ROWS_MAX": 2, "holdings.volatile_ledgers._SETTLED_MAX": 2,
        "holdings.volatile_ledgers._LEDGERS_A_STEP": 1, "disk.control_state._LEDGERS_A_PART": 2, "disk.control_state._IN_USE_MAX": 2,
        "disk.control_state._LEDGERS_A_STEP": 1, "disk.control_state._LOST_PACKED_MAX": 2, "disk.index._PACKED_ROWS_MAX": 3,
        "disk.packed_dict._A_STEP": 1, "disk.sorted_ids._PART_MAX": 2, "disk.index_block._LEDGERS_MAX": 4, "disk.index_block._BYTES_MAX": 150,
        "disk.checkpoint._READ_BYTES": 64, "disk.log_scan._READ_BYTES": 1500, "disk.log_scan._PAGE_BYTES": 256, "disk.entry_log._COPY_BYTES": 500,
        "space.living._ROWS_A_STEP": 2, "space.living._A_LEDGER": 1, "space.reclaiming._IDS_A_STEP": 3, "space.garbage_collection._IDS_A_STEP": 2,
        "space.garbage_collection._LEDGERS_A_STEP": 1, "space.rewriting.BLOCK_ENTRIES_MAX": 3, "space.rewriting.BLOCK_PAYLOAD_BYTES_MAX": 60,
        "space.rewriting._SLICE_BYTES": 900, "ledgers.held_copies._ROWS_A_TURN": 2, "holdings.reads._EXTENT_BYTES_MAX": 1500,
        "disk.control_log._REWRITE_BYTES_MIN": 100, "space.choosing._SMALL_LOGS_MIN": 2, "space.choosing._JOBS_MAX": 2,
    }  # fmt: skip
    with ExitStack() as stack:
        for name, value in small.items():
            stack.enter_context(patch(f"bookspark.bookie.{name}", value))
        _small_steps(telling)


def _small_steps(telling: Telling) -> None:
    telling.brief = True
    run = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=3000)
    run.boot()
    for entry_id in range(0, 14, 2):
        for ledger_id in (4, 5, 6, 7, 8, 9, 11):
            run.add(ledger_id, entry_id, entry_id + (entry_id % 4) // 2, last_add_confirmed=entry_id - 2)
        run.commit()
    run.lac(4, 12, 11)
    run.lac(5, 2)
    for ledger_id in (20, 21, 22):
        run.fence(ledger_id)
    run.commit()
    run.checkpoint()
    run.state()
    run.storage.held_ranges(4, lambda held: telling.line(f"  = held {held}"))
    run.add(4, 0, 13)
    run.commit()
    run.storage.held_ranges(4, lambda held: telling.line(f"  = held {held}"))
    for ledger_id in (6, 7, 30, 31, 32):
        run.add(ledger_id, 20, 22, flags=VOLATILE)
        run.sync(ledger_id)
        run.commit()
        run.say("synced", run.storage.volatile.last_add_synced(ledger_id, run_alone()))
    run.checkpoint()
    run.checkpoint()
    run.state()
    run.scrub()
    first = min(run.storage.logs)
    path = run.storage.logs[first].path
    run.hurt(path, 700)
    run.hurt(path, 1500)
    run.hurt(path, 2200)
    run.scrub(9000)
    run.state()
    run.add(4, 0, 13, flags=RECOVERY)
    run.add(6, 0, 13, flags=RECOVERY)
    run.commit()
    run.checkpoint()
    run.state()
    run.steps("forget", run.storage.garbage_collection.forget([8, 9, 21]))
    run.say("held", sorted(run.steps("held", run.storage.garbage_collection.held())))
    run.seal()
    rewriter = Rewriter(run)
    for _ in range(4):
        reclaim(run, rewriter, pace=lambda directory, left: 1 << 16)
    run.state()
    for ledger_id in (4, 5, 6, 7, 11):
        run.read(ledger_id, 0, 30, sparse=True)
    reclaim(run, rewriter, 1.0)
    run.checkpoint()
    run.kill()
    run.boot()
    run.state()
    run.fail("sync /b/control.log 1 io-error")
    run.storage.lossy_boots.note_lost(11, [(n, n) for n in range(30, 40, 2)], run.done("note lost"))
    run.commit()
    run.state()
    run.say("lacking", run.storage.lacking(2))
    run.fail()
    run.checkpoint()
    run.kill()
    run.boot()
    run.state()
    run.kill()
    for path in ("/a/checkpoint", "/b/checkpoint"):
        run.lose(path)
    run.lose(next(path for path in run.disk.files() if path.startswith("/b/logs") and path.endswith("arrow")))
    run.boot()
    run.state()


def run_alone() -> object:
    from tests.bookie.telling import ALONE

    return ALONE


def story_a_look_at_stopped_directories(telling: Telling) -> None:
    from bookspark.bookie.offline.inspection import Inspection, rebuild_index
    from bookspark.bookie.offline.power_loss import lose_unsynced
    from bookspark.bookie.offline.scrub import scrub

    telling.brief = telling.muted = True
    run = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=2000)
    run.boot()
    for entry_id in range(4):
        for ledger_id in (4, 5, 6):
            run.add(ledger_id, entry_id, last_add_confirmed=entry_id - 1)
        run.commit()
    run.checkpoint()
    run.seal()
    reclaim(run, Rewriter(run), job_bytes=1000)
    run.add(4, 4, 6)
    run.add(4, 5, 8)
    run.commit()
    run.kill(everything_kept)
    telling.muted = False

    def look() -> None:
        for directory in ("/a", "/b"):
            telling.line(f"scrub {directory}")
            try:
                found = scrub(run.files, directory)
            except OSError as error:
                telling.line(f"  = {error}")
                continue
            telling.line(
                f"  = {found.files} files {found.size} bytes {found.batches} {found.entries} torn {found.torn}"
            )
            for damage in found.damages:
                telling.line(f"  - {damage}")
        telling.line("inspect")
        try:
            inspection = Inspection(run.files, ["/a", "/b"])
            for log in inspection.logs():
                telling.line(f"  {log}")
                for batch in inspection.batches(log.number):
                    telling.note(f"{batch[:6]} {len(batch.entries)}")
            for row in [*inspection.rows(), *inspection.rows(5)]:
                telling.note(f"{tuple(row)}")
            telling.line(f"  damaged {inspection.damaged}")
            list(inspection.batches(12345))
        except Exception as error:
            telling.line(f"  = {type(error).__name__}: {error}")

    look()
    files = run.disk.files()
    made = run.disk
    telling.section("rows that name batches of others")
    run.disk = made.crashed(everything_kept)
    run.files = _told_files(run)
    wrong = Snapshot(None, location(1 << 20, 0), False, frozenset(), whole=True)
    wheres = [row.where for ledger_id in (4, 5) for row in run.storage.holdings.index.get(ledger_id).covering(0, 99)]  # type: ignore[union-attr]
    for ledger_id in (3, 4, 5):
        rows = ChangingRows.empty()
        for number, where in enumerate(wheres):
            rows.append(2 * number, 2 * number, where, 656)
        wrong.add(ledger_id, -1, -1, 0, rows)
    wrong.end()
    for directory in ("/a", "/b"):
        write_checkpoint(run.disk, directory, [], [wrong])
    look()
    for path in files:
        telling.section(f"flipped {path}")
        run.disk = made.crashed(everything_kept)
        run.files = _told_files(run)
        run.disk.flip(path, min(450, len(files[path]) - 1), 1, cached=False)
        run.disk.evict()
        look()
    for path in [path for path in files if path.startswith("/b")]:
        telling.section(f"lost {path}")
        run.disk = made.crashed(everything_kept)
        run.files = _told_files(run)
        run.disk.lose(path)
        look()
        try:
            run.say("rebuilt", rebuild_index(run.files, ["/a", "/b"]))
        except Exception as error:
            telling.line(f"  = {type(error).__name__}: {error}")
        for directory in ("/a", "/b"):
            telling.line(f"lose what is not synced in {directory}")
            try:
                lose_unsynced(directory, run.files)
            except Exception as error:
                telling.line(f"  = {type(error).__name__}: {error}")


def _told_files(run: ToldStorage) -> object:
    from bookspark.testing.faulty_files import FaultyFileSystem
    from tests.bookie.telling import ToldFiles

    return ToldFiles(run.telling, FaultyFileSystem(run.disk))
