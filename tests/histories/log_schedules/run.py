"""One schedule: writers, readers and cleaners run while calls fail and processes die; then all of them end without faults; then
everything is read once more, checked, and deleted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from random import Random
from typing import Any

from bookspark.logs import LogRegistry, delete_log
from bookspark.logs.chain.maintenance import collect_orphans
from bookspark.logs.chain.registry import NAMES, RECORDS
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import EPOCH_LABEL, LOG_ID_LABEL, LOG_LABEL, LogRecord, NoSuchLogError
from tests.histories.log_schedules.actors import LOG, Stage
from tests.histories.log_schedules.cluster import World
from tests.histories.log_schedules.groups import Groups, stand_ins
from tests.histories.log_schedules.readers import read_on
from tests.histories.log_schedules.stand_ins import All, notes_for_whom, small, threads_as_actors
from tests.histories.log_schedules.turns import Turns

CALM_FROM, STEPS_MAX = 1500, 30_000
"""The step at which faults end, and a step by which every actor must have ended."""
STEPS_TOLD = 120


def ledger_of_somebody_else(log: LogRecord) -> dict[str, Any]:
    """A ledger with the log's labels and a non-numeric epoch."""
    labels = {LOG_LABEL: LOG.encode(), LOG_ID_LABEL: str(log.log_id).encode(), EPOCH_LABEL: b"theirs"}
    return {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "password": b"", "custom_metadata": labels}


class Kind(Enum):
    """Special events of a schedule, beside the common ones."""

    STEADY = "steady"
    """None."""
    ANEW = "anew"
    """The log is deleted, and recreated by the next process that needs it."""
    RETENTION = "retention"
    """Rows expire by time and by bytes."""
    OFFLOAD = "offload"
    """Rows are copied to tables, and their ledgers deleted."""
    GROUPS = "groups"
    """Groups of readers save their places; the log is recreated, or its rows expire, or neither."""
    OFFLOAD_ANEW = "offload-anew"
    """The log is offloaded, deleted and recreated."""
    QUERIES = "queries"
    """Checkpoints of queries are set back, queries follow one another, and lanes end, often."""
    RECOVERIES = "recoveries"
    """Open ledgers, of producers first, are recovered under their writers."""
    STARTS = "starts"
    """Streaming queries start at the end of the log."""


def run(seed: int, kind: Kind = Kind.STEADY) -> dict[str, int]:
    """Run the schedule of a seed. Returns its figures. Raises AssertionError with the schedule's last steps."""
    random = Random(seed)
    turns = Turns(random, STEPS_MAX)
    world = World(turns)
    stage = Stage(world)
    world.faults.lost_adds = random.choice([0.0, 0.01, 0.05])
    world.faults.lost_writes = random.choice([0.0, 0.01, 0.05])
    world.faults.refused = random.choice([0.0, 0.0, 0.01, 0.03])
    turns.crash_chance, turns.pause_chance = random.choice([0.0, 0.002, 0.01]), random.choice([0.0, 0.003, 0.03])
    turns.calm_from, turns.calm = (
        CALM_FROM,
        partial(vars(world.faults).update, lost_adds=0.0, lost_writes=0.0, refused=0.0),
    )
    beside = random.choice([Kind.STEADY, Kind.ANEW, Kind.ANEW, Kind.RETENTION]) if kind is Kind.GROUPS else kind
    offloaded = kind in (Kind.OFFLOAD, Kind.OFFLOAD_ANEW)
    stage.makes_anew, stage.fills_ledgers = beside in (Kind.ANEW, Kind.OFFLOAD_ANEW), kind is not Kind.STEADY
    begun = {
        "queries": random.randrange(3),
        "services": random.randrange(3),
        "applications": random.choice([0, 0, 1]),
        "batch writes": random.randrange(3),
        "readers": random.randrange(1, 3),
        "truncations": random.choice([0, 0, 1, 3]),
        "collections": random.choice([0, 1, 2]),
        "alterations": random.choice([0, 0, 1, 3]),
        "ended lanes": random.choice([0, 0, 1, 3]),
        "followers": random.choice([0, 0, 0, 1, 2]),
        "restored checkpoints": random.choice([0, 0, 1, 2, 4]),
    }
    if stage.makes_anew:
        begun["deletions"] = random.randrange(1, 4)
        begun["collections"] += random.choice([0, 3, 6])
        begun["batch writes"] += random.choice([0, 3])
    rows_max = 12
    if kind is Kind.QUERIES:
        often = {"queries": [1, 2], "followers": [0, 1, 2], "restored checkpoints": [0, 4, 8], "ended lanes": [0, 3, 6]}
        begun |= {what: random.choice(counts) for what, counts in often.items()}
        begun |= {"batch writes": random.choice([0, 3]), "services": random.randrange(2)}
        begun["idle ends"], stage.tasks_enter = random.choice([0, 0, 2]), True
        stage.restores, rows_max = random.choice([0, 2, 4]), random.choice([12, 40])
    if kind is Kind.RECOVERIES:
        begun["services"], begun["recoveries"], rows_max = random.randrange(1, 3), random.randrange(5, 40), 40
        world.goes_on_after_fences = True
    if beside is Kind.RETENTION:
        begun["expiries"] = random.randrange(1, 3)
    offloads = None
    if offloaded:
        # It needs pyspark's types.
        from tests.histories.log_schedules.offloads import Offloads

        offloads = Offloads(stage)
        begun["offloads"] = random.randrange(1, 6)
        if stage.makes_anew:
            # Often enough for an offload to run during the deletion.
            begun["offloads"], begun["deletions"] = random.randrange(4, 9), random.randrange(2, 5)
    starts = None
    if kind is Kind.STARTS:
        # It needs pyspark's types.
        from tests.histories.log_schedules.starts import Starts

        starts = Starts(stage)
        begun["starting queries"] = random.randrange(1, 3)
        begun["batch writes"] += random.randrange(1, 4)
    groups = Groups(stage)
    if kind is Kind.GROUPS:
        stage.session_ends = random.choice([0.0, 0.0, 0.01, 0.05])
        begun["groups"], begun["readers of a group"] = random.choice([0, 1, 1]), random.choice([0, 2, 3])
    bounds = random.choice([0, 50, 300]), random.choice([0, 1, 40, 200])
    does: dict[str, Callable[[int], tuple[str, Callable[[], object], bool]]] = {
        "queries": lambda n: (f"query{n}", partial(stage.query, f"query{n}", random.randrange(2, 8)), True),
        "services": lambda n: (
            f"service{n}",
            partial(stage.service, f"service{n}", random.randrange(2, rows_max)),
            True,
        ),
        "applications": lambda n: (f"app{n}", partial(stage.application, f"app{n}", random.randrange(2, 6)), True),
        "batch writes": lambda n: (f"write{n}", partial(stage.batch_write, f"write{n}", object()), False),
        "readers": lambda n: (f"reader{n}", partial(read_on, stage, random.randrange(5, 30)), False),
        "truncations": lambda n: (f"truncation{n}", stage.truncate, False),
        "collections": lambda n: (f"collection{n}", stage.collect, False),
        "alterations": lambda n: (f"alteration{n}", stage.alter, False),
        "recoveries": lambda n: (f"recovery{n}", stage.recover, False),
        "expiries": lambda n: (f"expiry{n}", partial(stage.expire, *bounds), False),
        "offloads": lambda n: (f"offload{n}", offloads.offload if offloads else stage.collect, False),
        "groups": lambda n: (f"group{n}", partial(groups.group, f"group{n}", False, random.randrange(10, 60)), True),
        "readers of a group": lambda n: (
            f"sharer{n}",
            partial(groups.group, "sharers", True, random.randrange(10, 60)),
            True,
        ),
        "deletions": lambda n: (f"deletion{n}", partial(stage.delete, f"deletion{n}"), True),
        "followers": lambda n: (f"follower{n}", partial(stage.follower, f"follower{n}", random.randrange(1, 5)), True),
        "restored checkpoints": lambda n: (f"restorer{n}", stage.set_back, False),
        "ended lanes": lambda n: (f"ender{n}", partial(stage.end_some_lane, f"ender{n}"), True),
        "idle ends": lambda n: (f"idle{n}", stage.end_idle, False),
        "starting queries": lambda n: (
            f"start{n}",
            partial(starts.query, f"start{n}", random.randrange(2, 9)) if starts else stage.collect,
            True,
        ),
    }
    for what, count in begun.items():
        for number in range(count):
            name, act, lasts = does[what](number)
            delay = random.randrange(400) if what not in ("queries", "services", "applications") else 0
            turns.begin(name, partial(stage.with_errors, act), lasts=lasts, delay=delay)  # type: ignore[arg-type]
    try:
        with (
            small(random, turns, world.truth, offloaded or beside is Kind.RETENTION),
            All(offloads.stand_ins() if offloads else []),
            All(stand_ins(stage) if kind is Kind.GROUPS else []),
            All(starts.stand_ins() if starts else []),
            threads_as_actors(turns),
            notes_for_whom(world.made_for),
        ):
            log = LogRegistry(world.records).create(LOG, LogOptions(), b"")
            if random.random() < 0.3:
                world.client(None).create_ledger(**ledger_of_somebody_else(log))
            turns.run()
            _end(stage, world, offloads, groups, starts)
    except Exception as error:
        last = "\n".join(turns.told[-STEPS_TOLD:])
        raise AssertionError(f"seed {seed}: {error}; the last steps:\n{last}") from error
    finally:
        world.close()
    rows = sum(len(history.rows) for history in stage.histories.values())
    return {
        "steps": turns.steps,
        "rows": rows,
        "runs": stage.runs,
        "logs": len(stage.histories),
        "group reads": groups.reads,
    }


def _end(stage: Stage, world: World, offloads: Any, groups: Groups, starts: Any) -> None:
    """Check and delete the log after all writers have ended."""
    client: Any = world.client(None)
    record = LogRegistry(world.records).find(LOG)
    if record is not None and not stage.is_deleted(record.log_id):
        history = stage.history(record.log_id)
        stage.ends()
        history.check_acknowledged()
        # A commit whose writer died before it answered may be visible or not, until a recovery.
        world.tell_all()
        ends = stage.ends()
        if offloads is not None:
            offloads.at_the_end(client)
            assert stage.ends() == ends
        groups.at_the_end(ends)
        if starts is not None:
            starts.at_the_end(ends)
        assert stage.newest() == ends
        collect_orphans(client, LOG, b"")
        assert stage.ends() == ends
        history.check(ends)
    # A deletion may have been interrupted.
    with suppress(NoSuchLogError):
        delete_log(client, LOG, b"")
    assert not world.records.list_ledgers(), f"left behind: {world.records.list_ledgers()}"
    left = world.records.list_records(RECORDS)
    # A client that created a log or lane when its log was just deleted may have left a record of it.
    names = world.records.list_records(NAMES)
    assert not names, f"left behind: {names}"
    assert not [one for one in left if "@" not in one and int(one) in stage.histories], f"left behind: {left}"
