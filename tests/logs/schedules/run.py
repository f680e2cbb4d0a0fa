"""One schedule: some writers, readers and cleaners at once, while calls fail and processes die; then calm, in which everything
that was begun ends; then all is read once more, checked, and deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from bookspark.logs import LogRegistry, delete_log, producer, producer_ledgers
from bookspark.logs.chain import committer, compaction, reader
from bookspark.logs.chain.maintenance import collect_orphans
from bookspark.protocol.logs.log_options import LogOptions
from tests.logs.schedules.actors import LOG, Stage
from tests.logs.schedules.cluster import World
from tests.logs.schedules.turns import Actor, Turns

CALM_FROM, STEPS_MAX = 1500, 15_000
"""When faults end, and when everything that was begun has ended by far."""
STEPS_TOLD = 120


def run(seed: int) -> dict[str, int]:
    """Run the schedule of a seed. Returns what it came to. Raises AssertionError, with the schedule's steps as a note."""
    random = Random(seed)
    turns = Turns(random, STEPS_MAX)
    world = World(turns)
    stage = Stage(world)
    world.faults.lost_adds = random.choice([0.0, 0.01, 0.05])
    world.faults.lost_writes = random.choice([0.0, 0.01, 0.05])
    world.faults.refused = random.choice([0.0, 0.0, 0.01, 0.03])
    turns.crash_chance = random.choice([0.0, 0.002, 0.01])
    turns.calm_from, turns.calm = (
        CALM_FROM,
        partial(vars(world.faults).update, lost_adds=0.0, lost_writes=0.0, refused=0.0),
    )
    LogRegistry(world.records).create(LOG, LogOptions(), b"")
    begun = {
        "queries": random.randrange(3),
        "services": random.randrange(3),
        "applications": random.choice([0, 0, 1]),
        "batch writes": random.randrange(3),
        "readers": random.randrange(1, 3),
        "truncations": random.choice([0, 0, 1, 3]),
        "collections": random.choice([0, 1, 2]),
        "alterations": random.choice([0, 0, 1, 3]),
        "ended lanes": random.choice([0, 0, 1, 2]),
    }
    does: dict[str, Callable[[int], tuple[str, Callable[[], object], bool]]] = {
        "queries": lambda n: (f"query{n}", partial(stage.query, f"query{n}", random.randrange(2, 8)), True),
        "services": lambda n: (f"service{n}", partial(stage.service, f"service{n}", random.randrange(2, 12)), True),
        "applications": lambda n: (f"app{n}", partial(stage.application, f"app{n}", random.randrange(2, 6)), True),
        "batch writes": lambda n: (f"write{n}", partial(stage.batch_write, f"write{n}", object()), False),
        "readers": lambda n: (f"reader{n}", partial(stage.reader, random.randrange(5, 30)), False),
        "truncations": lambda n: (f"truncation{n}", stage.truncate, False),
        "collections": lambda n: (f"collection{n}", stage.collect, False),
        "alterations": lambda n: (f"alteration{n}", stage.alter, False),
        "ended lanes": lambda n: (f"ender{n}", stage.end_some_lane, False),
    }
    for what, count in begun.items():
        for number in range(count):
            name, act, lasts = does[what](number)
            delay = random.randrange(400) if what not in ("queries", "services", "applications") else 0
            turns.begin(name, partial(_later, stage, delay, act), lasts=lasts)
    try:
        with _small(random), _threads_as_actors(turns):
            turns.run()
            _end(stage, world)
    except Exception as error:
        last = "\n".join(turns.told[-STEPS_TOLD:])
        raise AssertionError(f"seed {seed}: {error}; the last steps:\n{last}") from error
    finally:
        world.close()
    return {"steps": turns.steps, "rows": len(stage.history.rows), "runs": stage.runs}


def _later(stage: Stage, delay: int, act: Callable[[], object]) -> None:
    for _ in range(delay):
        stage.turns.step("is not there yet")
    stage.with_errors(act)  # type: ignore[arg-type]


def _end(stage: Stage, world: World) -> None:
    """All is over: nobody writes any more."""
    client: Any = world.client(None)
    stage.ends()
    stage.history.check_acknowledged()
    # A commit whose writer died before it told anybody may be seen or not, until somebody recovers it.
    world.tell_all()
    ends = stage.ends()
    assert stage.newest() == ends
    collect_orphans(client, LOG, b"")
    assert stage.ends() == ends
    stage.history.check(ends)
    delete_log(client, LOG, b"")
    assert not world.records.list_ledgers(), f"left behind: {world.records.list_ledgers()}"


def _small(random: Random) -> Any:
    """Small ledgers and chains, and clocks that jump."""
    chosen = [
        mock.patch.object(committer, "COMMITS_PER_LEDGER_MAX", random.choice([2, 5, 1000])),
        mock.patch.object(compaction, "CHAIN_MAX", random.choice([1, 3, 64])),
        mock.patch.object(reader, "COMMITS_AT_ONCE", random.choice([1, 2, 8])),
        mock.patch.object(producer_ledgers, "LEDGER_BYTES_MAX", random.choice([1, 60, 1 << 30])),
    ]
    clock = lambda: 1_700_000_000_000_000_000 + random.randrange(-5, 5) * 1_000_000  # noqa: E731
    chosen += [mock.patch.object(module, "time_ns", clock) for module in (producer, producer_ledgers)]
    chosen.append(mock.patch.object(committer, "time", SimpleNamespace(time_ns=clock, monotonic=lambda: 1e9)))
    return _All(chosen)


class _All:
    def __init__(self, entered: list[Any]) -> None:
        self._entered = entered

    def __enter__(self) -> None:
        for one in self._entered:
            one.__enter__()

    def __exit__(self, *error: object) -> None:
        for one in reversed(self._entered):
            one.__exit__(*error)


def _threads_as_actors(turns: Turns) -> Any:
    """Threads that the log code starts are actors of the same process, and who waits for them lets others go on."""

    class Thread:
        def __init__(self, target: Callable[..., object], name: str, args: Any = (), daemon: bool = True) -> None:
            self._target, self._name, self._args = target, name, args
            self._actor: Actor | None = None

        def start(self) -> None:
            owner = turns.current
            process = None if owner is None else owner.process
            self._actor = turns.begin(self._name, partial(self._target, *self._args), process)

        def join(self, timeout: float | None = None) -> None:
            if self._actor is not None:
                turns.join(self._actor)

    class Waited(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            while not self.done():
                turns.step("waits for what another thread makes")
            return super().result(0)

    def wait(futures: Sequence[Waited], seconds: float) -> None:
        for future in futures:
            with suppress(Exception):
                future.result(seconds)

    names = {name: getattr(threading, name) for name in dir(threading) if name != "Thread"}
    fake = SimpleNamespace(Thread=Thread, **names)
    patches = [mock.patch.object(module, "threading", fake) for module in (producer, producer_ledgers)]
    patches += [
        mock.patch.object(producer_ledgers, "Future", Waited),
        mock.patch.object(producer_ledgers, "wait", wait),
    ]
    return _All(patches)
