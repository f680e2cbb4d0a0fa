"""What Spark is asked for while bookies are out of reach: without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.spark.bookies import barrier_job
from bookspark.spark.bookies.barrier_job import Coverage
from bookspark.spark.bookies.placement import Missing

MISSING = (Missing("bookie-c", "", "h1"),)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier_job, "PAUSES_SECONDS", (0.0,))


def asked(master: str, **conf: str) -> tuple[Coverage, list[tuple[Any, ...]]]:
    """A coverage, and what it asks of Spark."""
    calls: list[tuple[Any, ...]] = []
    scala = SimpleNamespace(
        killExecutor=lambda executor: calls.append(("end", executor)),
        killAndReplaceExecutor=lambda executor: calls.append(("replace", executor)),
        requestTotalExecutors=lambda total, tasks, hosts: calls.append(("total", total, dict(hosts))),
    )

    class HashMap(dict[str, int]):
        put = dict.__setitem__

    spark = SimpleNamespace(python=SimpleNamespace(PythonUtils=SimpleNamespace(toScalaMap=lambda hosts: hosts)))
    jvm = SimpleNamespace(
        java=SimpleNamespace(util=SimpleNamespace(HashMap=HashMap)),
        org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(api=spark))),
    )
    settings = {name.replace("_", "."): value for name, value in conf.items()}
    context = SimpleNamespace(master=master, getConf=lambda: settings, _jvm=jvm, _jsc=SimpleNamespace(sc=lambda: scala))
    return Coverage(context), calls


def test_yarn_is_asked_for_one_more_and_what_came_to_the_wrong_host_goes_back() -> None:
    """YARN put the replacement of a lost executor on the host that was left, and the lost one's host stayed without."""
    one, calls = asked("yarn", spark_executor_instances="2", spark_executor_cores="2")
    one.ask({"2": "h2", "3": "h2"}, {"2", "3"}, MISSING)
    assert calls == [("total", 3, {"h1": 2})]
    one.ask({"2": "h2", "3": "h2", "4": "h2"}, {"2", "3"}, MISSING)
    assert calls[1:] == [("end", "4"), ("total", 3, {"h1": 2})]
    one.send_back({"2": "h2", "3": "h2", "5": "h1"})
    assert calls[3:] == [("end", "3")], "the host has one now, so the one in excess goes back"
    one.complete({"2": "h2", "5": "h1"})
    assert len(calls) == 4


def test_nobody_is_sent_back_who_was_not_asked_for() -> None:
    one, calls = asked("yarn")
    one.complete({"1": "h1"})
    one.complete({"1": "h1", "2": "h1"})
    assert calls == []


def test_a_standalone_master_gives_no_more_so_one_is_replaced() -> None:
    one, calls = asked("spark://m:7077")
    one.ask({"1": "h2", "4": "h2"}, {"1", "4"}, MISSING)
    one.ask({"1": "h2"}, {"1"}, MISSING)
    one.complete({"1": "h2", "4": "h2"})
    assert calls == [("replace", "4")]


def test_nothing_is_asked_for_where_no_executor_would_help() -> None:
    one, calls = asked("yarn")
    one.ask({"1": "h1"}, {"1"}, (Missing("bookie-c", "its directories are not there"),))
    local, local_calls = asked("local[4]")
    local.ask({"driver": "h1"}, {"driver"}, MISSING)
    assert calls == local_calls == []
