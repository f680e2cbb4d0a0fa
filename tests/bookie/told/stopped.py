"""The story of looks into the directories of a stopped bookie."""

from __future__ import annotations

from bookspark.bookie.disk.checkpoint import Snapshot, write_checkpoint
from bookspark.bookie.disk.index import ChangingRows, location
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.power_cuts import everything_kept
from tests.bookie.told.space import Rewriter, reclaim
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling, ToldFiles


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
    wheres = [row.where for ledger_id in (4, 5) for row in run.storage.holdings.index.get(ledger_id).covering(0, 99)]
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

    return ToldFiles(run.telling, FaultyFileSystem(run.disk))
