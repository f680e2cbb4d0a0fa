"""What a barrier task tells the bookies that it starts, beside the service's options."""

from __future__ import annotations

from bookspark.spark.bookies.bookie_task import TaskKeeper, TaskSpec
from bookspark.spark.bookies.service_records import TaskReport


def configs(tmp_path, **options):
    spec = TaskSpec("service", "run", 1, 2, True, (str(tmp_path),), "h:2181", options, True)
    report = TaskReport("run", 1, 0, "host", "7", 123)
    return [keeper._config for keeper in TaskKeeper(spec, report, [0, 1], "10.0.0.7")._keepers]


def test_the_executor_and_its_host(tmp_path):
    for config in configs(tmp_path):
        assert (config.labels, config.host) == ({"executor": "7"}, "10.0.0.7")


def test_options_come_first(tmp_path):
    for config in configs(tmp_path, labels={"zone": "a", "executor": "mine"}, host="10.0.0.8", rack="r1"):
        assert (config.labels, config.host, config.rack) == ({"zone": "a", "executor": "mine"}, "10.0.0.8", "r1")
