"""Executors requested from Spark while bookies are out of reach, without Spark."""

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
    """A coverage, and its requests to Spark."""
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


def test_coverage_requests_an_executor_from_yarn_and_returns_misplaced_executors() -> None:
    """YARN put the replacement of a lost executor on the remaining host, and the lost executor's host stayed without."""
    one, calls = asked("yarn", spark_executor_instances="2", spark_executor_cores="2")
    one.ask({"2": "h2", "3": "h2"}, {"2", "3"}, MISSING)
    assert calls == [("total", 3, {"h1": 2})]
    one.ask({"2": "h2", "3": "h2", "4": "h2"}, {"2", "3"}, MISSING)
    assert calls[1:] == [("end", "4"), ("total", 3, {"h1": 2})]
    one.send_back({"2": "h2", "3": "h2", "5": "h1"})
    assert calls[3:] == [("end", "3")], "the host has one now, so the one in excess goes back"
    one.complete({"2": "h2", "5": "h1"})
    assert len(calls) == 4


def test_unrequested_executors_are_not_sent_back() -> None:
    one, calls = asked("yarn")
    one.complete({"1": "h1"})
    one.complete({"1": "h1", "2": "h1"})
    assert calls == []


def test_coverage_replaces_an_executor_of_a_standalone_master() -> None:
    one, calls = asked("spark://m:7077")
    one.ask({"1": "h2", "4": "h2"}, {"1", "4"}, MISSING)
    one.ask({"1": "h2"}, {"1"}, MISSING)
    one.complete({"1": "h2", "4": "h2"})
    assert calls == [("replace", "4")]


def test_no_executor_is_requested_where_it_would_not_help() -> None:
    one, calls = asked("yarn")
    one.ask({"1": "h1"}, {"1"}, (Missing("bookie-c", "its directories are not there"),))
    local, local_calls = asked("local[4]")
    local.ask({"driver": "h1"}, {"driver"}, MISSING)
    assert calls == local_calls == []
