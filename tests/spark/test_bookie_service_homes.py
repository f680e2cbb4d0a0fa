"""Checks before the bookies' job is submitted, and its arguments and settings, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import ConfigurationError
from bookspark.spark.bookies import bookies_job
from bookspark.spark.bookies.barrier_job import TaskFor
from bookspark.spark.bookies.bookies_job import parse_arguments
from bookspark.spark.bookies.slots import Need, await_slots, slots_to_come


class Context:
    """The parts of a SparkContext that are used."""

    def __init__(self, master: str, total: int, executors: int, **conf: str) -> None:
        self.master = master
        self._conf = conf
        scala = SimpleNamespace(
            resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
            statusTracker=lambda: SimpleNamespace(getExecutorInfos=lambda: [None] * (executors + 1)),
            maxNumConcurrentTasks=lambda profile: total,
        )
        self._jsc = SimpleNamespace(sc=lambda: scala)

    def getConf(self) -> Any:
        return {name.replace("_", "."): value for name, value in self._conf.items()}


def all_of(tasks: int) -> Need:
    return Need(tasks, tasks, leave_free=True)


def test_existing_bookies_are_served_with_the_available_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a standalone master that had lost a worker, a new driver had too few slots, and all leases ran out."""
    monkeypatch.setattr("bookspark.spark.bookies.slots.SLOTS_SECONDS", 0.0)
    context = Context("spark://host:7077", 2, 1, spark_cores_max="3")
    assert await_slots(context, Need(3, 1, leave_free=False)).room(leave_free=False) == 2
    with pytest.raises(ConfigurationError, match="too few slots: 3 bookies need 3 slots; there are 2 on 1 executors"):
        await_slots(Context("spark://host:7077", 2, 1), Need(3, 3, leave_free=False))


def test_one_slot_of_each_executor_stays_free() -> None:
    assert await_slots(Context("local-cluster[3,2,1024]", 6, 3), all_of(3)).room(leave_free=True) == 3
    with pytest.raises(ConfigurationError) as caught:
        await_slots(
            Context("spark://host:7077", 6, 3, spark_executor_instances="3", spark_executor_cores="2"), all_of(4)
        )
    assert str(caught.value) == (
        "too few slots: 4 bookies need 4 slots, and one on each executor stays free, so 7 in all; there are 6 on 3 executors; "
        "set for example spark.executor.instances=4 and spark.executor.cores=2 (spark.cores.max=8 on a standalone cluster), "
        "ask for one core for each host instead of each bookie, or ask for fewer bookies"
    )


def test_promised_executors_are_awaited() -> None:
    """On a busy host they register later than the refusal for too few slots may come."""
    context = Context("local-cluster[3,2,1024]", 6, 3)
    scala = context._jsc.sc()
    totals = iter([0, 0, 2, 4])
    scala.maxNumConcurrentTasks = lambda profile: next(totals, 6)
    assert await_slots(context, all_of(3)).total == 6
    assert next(totals, None) is None


@pytest.mark.parametrize(
    ("master", "conf", "slots"),
    [
        ("local-cluster[3, 2, 1024]", (None, None), (6, 3)),
        ("yarn", ("4", "5"), (20, 4)),
        ("yarn", ("4", None), (4, 4)),
        ("k8s://host", ("4", None), None),
        ("local[4]", ("4", "5"), None),
        ("spark://host:7077", (None, "5"), None),
        ("spark://host:7077", (None, None, "3"), (3, 1)),
        ("yarn", ("2", None, "3"), (2, 2)),
    ],
)
def test_slots_to_come_follow_from_the_master_and_settings(
    master: str, conf: tuple[str | None, ...], slots: tuple[int, int] | None
) -> None:
    assert slots_to_come(master, *conf) == slots


def test_dynamic_allocation_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(ConfigurationError, match=r"set spark\.dynamicAllocation\.enabled=false"):
        await_slots(Context("yarn", 6, 3, spark_dynamicAllocation_enabled="true"), all_of(3))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bokies", "3"], "unknown option '--bokies'; did you mean '--bookies'?"),
        (["--bookies", "three"], "Invalid value for '--bookies': "),
        (["--option", "lease_second=3"], "unknown bookie option 'lease_second'; did you mean 'lease_seconds'?"),
        (["--option", "lease_seconds"], "write NAME=VALUE"),
        (["orders"], "'orders' is not expected here"),
    ],
)
def test_job_refuses_wrong_arguments_in_a_single_line(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_arguments(arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_job_parses_typed_bookie_options() -> None:
    options = parse_arguments(
        ["--directory", "/a", "--directory=/b", "--option", "lease_seconds=5", "--option=host=::1"]
    )
    assert options.directory == ["/a", "/b"]
    assert (options.create, options.one_core_per, options.wait_for_missing) == (False, TaskFor.BOOKIE, 30.0)
    more = parse_arguments(["--directory", "/a", "--create", "--one-core-per", "host", "--wait-for-missing", "0"])
    assert (more.create, more.one_core_per, more.wait_for_missing) == (True, TaskFor.HOST, 0.0)
    assert options.bookie_options == {"lease_seconds": 5, "host": "::1"}


@pytest.mark.parametrize("master", ["yarn", "spark://host:7077"])
def test_job_bounds_sparks_wait_and_takes_no_more_cores_than_needed(
    monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """The guides for clusters name no settings file, and without it Spark waits ten minutes for slots in silence."""
    given = {"spark.master": master, "spark.python.task.killTimeout": "3s"}
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr("pyspark.SparkContext._ensure_initialized", lambda: None)
    monkeypatch.setattr(bookies_job, "SparkConf", lambda: SimpleNamespace(get=given.get, contains=given.__contains__))
    check = "spark.scheduler.barrier.maxConcurrentTasksCheck"
    cores = {} if master == "yarn" else {"spark.cores.max": "3"}
    assert bookies_job._settings(3) == {f"{check}.interval": "1s", f"{check}.maxFailures": "8", **cores}
