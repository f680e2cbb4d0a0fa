"""Who looks after which home, and who is refused before a job is submitted: without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.errors import ConfigurationError
from bookspark.spark.bookies.bookies_job import parse_arguments
from bookspark.spark.bookies.homes import Seen, divide_homes, find_homes, home_directories
from bookspark.spark.bookies.slots import await_slots, slots_to_come


def test_a_first_attempt_makes_as_many_homes_as_bookies_one_for_each_task() -> None:
    seen = [Seen(partition, "a", ()) for partition in range(3)]
    assert divide_homes(seen, 3, create=True) == {0: (0,), 1: (1,), 2: (2,)}


def test_homes_that_exist_stay_on_their_host_and_only_missing_ones_are_made() -> None:
    seen = [Seen(0, "a", (1,)), Seen(1, "b", (4,)), Seen(2, "b", (4,))]
    assert divide_homes(seen, 3, create=True) == {0: (1,), 1: (4,), 2: (0,)}


def test_more_homes_than_bookies_are_all_looked_after() -> None:
    assert divide_homes([Seen(0, "a", (0, 1, 2, 3, 4))], 2, create=True) == {0: (0, 1, 2, 3, 4)}


def test_a_later_attempt_makes_no_homes_and_fewer_tasks_take_over() -> None:
    seen = [Seen(0, "a", (0, 1, 2)), Seen(1, "a", (0, 1, 2))]
    assert divide_homes(seen, 3, create=False) == {0: (0, 2), 1: (1,)}
    assert divide_homes([Seen(0, "a", ())], 3, create=False) == {0: ()}


@given(
    st.dictionaries(st.sampled_from("abc"), st.frozensets(st.integers(0, 9), max_size=5), min_size=1),
    st.integers(1, 4),
    st.integers(1, 8),
    st.booleans(),
)
def test_every_home_has_exactly_one_task_and_it_is_on_its_host(
    hosts: dict[str, frozenset[int]], tasks: int, bookies: int, create: bool
) -> None:
    owner: dict[int, str] = {}
    for host, homes in hosts.items():
        for home in homes:
            owner.setdefault(home, host)
    by_host = {host: tuple(sorted(home for home in owner if owner[home] == host)) for host in hosts}
    seen = [Seen(n, host, by_host[host]) for n, host in enumerate(sorted(hosts) * tasks)]
    divided = divide_homes(seen, bookies, create)
    assert divided == divide_homes(list(reversed(seen)), bookies, create), "tasks would disagree"
    given_out = [(seen[partition].host, home) for partition, homes in divided.items() for home in homes]
    assert len({home for _, home in given_out}) == len(given_out), "looked after twice"
    assert {(host, home) for home, host in owner.items()} <= set(given_out)
    assert len(given_out) == (max(bookies, len(owner)) if create else len(owner))


def test_homes_are_found_in_any_root(tmp_path: Path) -> None:
    roots = [str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path / "missing")]
    for path in ("one/bookie-3", "two/bookie-3", "two/bookie-11", "two/zookeeper", "one/bookie-x"):
        (tmp_path / path).mkdir(parents=True)
    assert find_homes(roots) == (3, 11)
    assert home_directories(roots[:2], 11) == [f"{roots[0]}/bookie-11", f"{roots[1]}/bookie-11"]


class Context:
    """Just what is asked of a SparkContext."""

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


def test_one_slot_for_each_executor_stays_free() -> None:
    assert await_slots(Context("local-cluster[3,2,1024]", 6, 3), 3).for_bookies == 3
    with pytest.raises(ConfigurationError) as caught:
        await_slots(Context("spark://host:7077", 6, 3, spark_executor_instances="3", spark_executor_cores="2"), 4)
    assert str(caught.value) == (
        "too few slots: 4 bookies need 4 slots, and one on each executor stays free, so 7 in all; there are 6 on 3 executors; "
        "set for example spark.executor.instances=4 and spark.executor.cores=2 (spark.cores.max=8 on a standalone cluster), "
        "or ask for fewer bookies"
    )


def test_executors_that_are_promised_are_waited_for() -> None:
    """On a busy host they register later than the refusal of too few slots may come."""
    context = Context("local-cluster[3,2,1024]", 6, 3)
    scala = context._jsc.sc()
    totals = iter([0, 0, 2, 4])
    scala.maxNumConcurrentTasks = lambda profile: next(totals, 6)
    assert await_slots(context, 3).total == 6
    assert next(totals, None) is None


@pytest.mark.parametrize(
    ("master", "conf", "slots"),
    [
        ("local-cluster[3, 2, 1024]", (None, None), (6, 3)),
        ("yarn", ("4", "5"), (20, 4)),
        ("yarn", ("4", None), None),
        ("local[4]", ("4", "5"), None),
        ("spark://host:7077", (None, "5"), None),
    ],
)
def test_what_an_application_was_promised(
    master: str, conf: tuple[str | None, str | None], slots: tuple[int, int] | None
) -> None:
    assert slots_to_come(master, *conf) == slots


def test_dynamic_allocation_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(ConfigurationError, match=r"set spark\.dynamicAllocation\.enabled=false"):
        await_slots(Context("yarn", 6, 3, spark_dynamicAllocation_enabled="true"), 3)


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
def test_the_job_says_in_one_line_what_is_wrong_with_its_arguments(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_arguments(arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_job_takes_typed_bookie_options() -> None:
    options = parse_arguments(
        ["--directory", "/a", "--directory=/b", "--option", "lease_seconds=5", "--option=host=::1"]
    )
    assert options.directory == ["/a", "/b"]
    assert options.bookie_options == {"lease_seconds": 5, "host": "::1"}
