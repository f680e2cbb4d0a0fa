"""Stories of space that comes back: logs are rewritten and removed, deleted ledgers forgotten."""

from __future__ import annotations

from typing import ClassVar
from unittest.mock import patch

from bookspark.bookie.space.reclaiming import unlimited
from bookspark.bookie.space.rewriting import Job, NoRewriterError, Rewritten, rewrite
from bookspark.errors import BookKeeperError, NoSuchLedgerError, UnreadableRecordError
from bookspark.metadata.memory.memory_store import MemoryStore
from bookspark.testing.power_cuts import everything_kept
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling
from tests.metadata.kit import ledger


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
        return speed(directory, left)

    steps = run.storage.reclaiming.reclaim(rewriter, threshold, job_bytes, pace, **{"entry_logs": True, **options})
    run.say("reclaimed", run.steps(f"reclaim {threshold} {options}", steps))


def collect(run: ToldStorage, store: object) -> None:
    gc = run.storage.garbage_collection
    run.say("collected", run.steps("collect", gc.collect(store)))
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


def story_logs_are_removed_between_jobs(telling: Telling) -> None:
    telling.brief = True
    for remove_bytes in (1, 3000, 1 << 30):
        telling.section(f"a checkpoint for each {remove_bytes} bytes")
        run = ToldStorage(telling, "/a", "/b", entry_log_bytes_max=1500)
        run.boot()
        for entry_id in range(8):
            for ledger_id in (4, 5):
                run.add(ledger_id, entry_id)
            run.commit()
        run.seal()
        with patch("bookspark.bookie.space.reclaiming._REMOVE_BYTES", remove_bytes):
            reclaim(run, Rewriter(run), job_bytes=1000)
        run.state()
        run.disk.capacity_bytes = run.disk.used_bytes() + 3000
        reclaim(run, Rewriter(run), 1.1, job_bytes=2000)
        run.state()


def story_deleted_ledgers(telling: Telling) -> None:
    run = ToldStorage(telling, "/a")
    run.boot()
    for ledger_id in range(4, 14):
        run.add(ledger_id, 0)
    run.fence(20)
    run.commit()

    class Store(MemoryStore):
        answers: ClassVar[dict[int, Exception]] = {}
        listed: Exception | None = None
        highest: Exception | None = None

        def read_ledger(self, ledger_id: int) -> object:
            if ledger_id in self.answers:
                telling.note(f"asked of {ledger_id}")
                raise self.answers[ledger_id]
            return super().read_ledger(ledger_id)

        def list_ledgers(self) -> object:
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
        7: NoSuchLedgerError("gone"),
        8: UnreadableRecordError("garbled"),
        9: ConnectionError("away"),
        10: ConnectionError(),
        11: NoSuchLedgerError("gone"),
    }
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
