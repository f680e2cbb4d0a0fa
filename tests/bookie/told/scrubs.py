"""Stories of a bookie that looks at its own files."""

from __future__ import annotations

from collections.abc import Callable

from bookspark.bookie.holdings.kept_files import KeptFile
from bookspark.errors import BookieError
from tests.bookie.told.space import Rewriter, reclaim
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling


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
    run.storage.scrubbing.begin(6500)
    for read_bytes in (0, 1000, 10**9):
        run.storage.scrubbing._read_bytes = read_bytes
        run.say("left", (run.storage.scrubbing.left_bytes, run.storage.scrubbing.part))
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
