"""The story of everything that is done in steps, with steps so small that there are some."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

from bookspark.wire.header import Flag
from tests.bookie.told.space import Rewriter, reclaim
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling

RECOVERY, VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)


def story_of_small_steps(telling: Telling) -> None:
    """Everything that is done in steps, with steps so small that there are some."""

    small = {
        "holdings.holdings._LEDGERS_A_STEP": 2,
        "holdings.holdings._ROWS_A_STEP": 2,
        "holdings.holdings._ROWS_LOOKED_AT": 3,
        "holdings.checkpointing._WEIGHT_A_STEP": 30,
        "holdings.checkpointing._ROWS_A_STEP": 2,
        "holdings.boot._LEDGERS_SEEN_MAX": 2,
        "holdings.boot._LOST_A_WRITE": 2,
        "holdings.boot._RUN_MIN": 2,
        "holdings.what_is_back._LEDGERS_A_STEP": 2,
        "holdings.what_is_back._ROWS_A_STEP": 2,
        "holdings.scrubbing._ROWS_A_STEP": 3,
        "holdings.scrubbing._GROUP_BYTES": 2000,
        "holdings.scrubbing._LOOK_BYTES": 656,
        "holdings.volatile_ledgers._ROWS_MAX": 2,
        "holdings.volatile_ledgers._SETTLED_MAX": 2,
        "holdings.volatile_ledgers._LEDGERS_A_STEP": 1,
        "disk.control_state._LEDGERS_A_PART": 2,
        "disk.control_state._IN_USE_MAX": 2,
        "disk.control_state._LEDGERS_A_STEP": 1,
        "disk.control_state._LOST_PACKED_MAX": 2,
        "disk.index._PACKED_ROWS_MAX": 3,
        "disk.packed_dict._A_STEP": 1,
        "disk.sorted_ids._PART_MAX": 2,
        "disk.index_block._LEDGERS_MAX": 4,
        "disk.index_block._BYTES_MAX": 150,
        "disk.checkpoint._READ_BYTES": 64,
        "disk.log_scan._READ_BYTES": 1500,
        "disk.log_scan._PAGE_BYTES": 256,
        "disk.entry_log._COPY_BYTES": 500,
        "space.living._ROWS_A_STEP": 2,
        "space.living._A_LEDGER": 1,
        "space.reclaiming._IDS_A_STEP": 3,
        "space.garbage_collection._IDS_A_STEP": 2,
        "space.garbage_collection._LEDGERS_A_STEP": 1,
        "space.rewriting.BLOCK_ENTRIES_MAX": 3,
        "space.rewriting.BLOCK_PAYLOAD_BYTES_MAX": 60,
        "space.rewriting._SLICE_BYTES": 900,
        "ledgers.held_copies._ROWS_A_TURN": 2,
        "holdings.reads._EXTENT_BYTES_MAX": 1500,
        "disk.control_log._REWRITE_BYTES_MIN": 100,
        "space.choosing._SMALL_LOGS_MIN": 2,
        "space.choosing._JOBS_MAX": 2,
    }
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
    from tests.bookie.told.storage import ALONE

    return ALONE
