"""The story of some minutes of a bookie's maintenance."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from bookspark.errors import BookKeeperError
from bookspark.metadata.memory.memory_store import MemoryStore
from tests.bookie.told.loop import StoryLoop, pass_by, run_on_loop, told_server, turns
from tests.bookie.told.space import Rewriter
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling
from tests.metadata.kit import ledger


def story_some_minutes_of_maintenance(telling: Telling) -> None:

    class Store(MemoryStore):
        fails = False

        def highest_ledger_id(self) -> int:
            telling.note(f"asked at {telling.now:.2f}")
            telling.now += 0.1
            if self.fails:
                raise ValueError("on purpose")
            return super().highest_ledger_id()

    telling.brief = telling.clocked = True

    async def story(loop: StoryLoop) -> None:
        run = ToldStorage(
            telling,
            "/a",
            "/b",
            loop=loop,
            entry_log_bytes_max=2000,
            checkpoint_interval_seconds=6,
            gc_wait_time_seconds=90,
            scrub_interval_hours=0.1,
            disk_check_interval_seconds=2,
            minor_compaction_interval_seconds=100,
            major_compaction_interval_seconds=250,
        )
        run.boot()
        store = Store()
        store.note_given_id(20)
        for ledger_id in (4, 5, 6):
            store.create_ledger(ledger(ledger_id))
        rewriter = Rewriter(run)
        server = told_server(telling, run, metadata=store, rewriter=rewriter)
        maintenance = server._maintenance
        maintenance.start()

        async def until(seconds: float, what: str) -> None:
            await pass_by(seconds - telling.now)
            telling.section(f"{telling.now:.1f} {what}")
            telling.line(f"  = collection {maintenance.collection}")
            telling.line(f"  = scrub {run.storage.scrubbing.progress} {run.storage.scrubbing.part:.3f}")
            run.state()

        for n in range(6):
            for ledger_id in (4, 5, 6, 7):
                run.add(ledger_id, n)
            await turns()
        await until(101.5, "some adds")
        telling.line(f"collects {maintenance.collect_now()} {maintenance.collect_now()}")
        await until(102.5, "collected")
        await until(150, "nothing")
        run.disk.capacity_bytes = run.disk.used_bytes() + 10
        await until(154, "full")
        run.disk.capacity_bytes = 1 << 50
        await until(160, "room again")
        store.fails = True
        await until(200, "a collection failed")
        store.fails = False
        first = min(run.storage.logs)
        run.hurt(run.storage.logs[first].path, 700)
        await until(280, "damage")
        run.read(4, 0, 9)
        run.read(5, 0, 9)
        await until(285, "told")
        telling.line(f"  = marks {store.underreplication.list_tasks()}")
        with patch.object(store.underreplication, "mark", side_effect=BookKeeperError("no")):
            run.storage.holdings.ledgers_lacking.add(4)
            await until(286, "not told")
        await until(287, "told later")
        rewriter.fails = {run.storage.holdings.next_log + n: OSError(28, "no room") for n in range(200)}
        run.fail("write *checkpoint* 1 no-space", "free_bytes * 1 io-error")
        for n in range(6, 9):
            for ledger_id in (4, 5, 6, 7):
                run.add(ledger_id, n)
            await turns()
        run.seal()
        await until(380, "failing jobs")
        rewriter.fails = {}
        with patch.object(run.storage.reclaiming, "reclaim", side_effect=ValueError("on purpose")):
            await until(460, "failing passes")
        with patch.object(run.storage, "checkpoint", side_effect=ValueError("on purpose")):
            await until(470, "failing checkpoints")
        await until(652, "the next scrub")
        with patch.object(run.storage.scrubbing, "group", side_effect=ValueError("on purpose")):
            await until(654, "a failing scrub")
        run.lose("/a/control.synced")
        await until(850, "a lost note")
        run.storage.holdings.carry_through(iter((None, None)))
        run.storage.holdings.carry_through(_failing())
        await until(860, "steps")
        await maintenance.stop()
        telling.line(f"  = tasks {[task.done() for task in maintenance._tasks][:6]}")

    with patch("bookspark.bookie.holdings.scrubbing._GROUP_BYTES", 1500):
        run_on_loop(telling, story)


def _failing() -> Any:
    yield None
    raise ValueError("on purpose")
