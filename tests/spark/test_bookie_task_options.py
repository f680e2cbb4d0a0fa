"""Options that a barrier task gives to its bookies in addition to the service's options."""

from __future__ import annotations

import sys

import pytest

from bookspark.servers.daemon.lease_server import Status
from bookspark.spark.bookies.bookie_task import Executor, TaskKeeper, TaskSpec, executor_of
from bookspark.spark.bookies.placement import Claim, Share, Wanted
from bookspark.spark.bookies.service_records import TaskReport, claim_number, read_claims
from bookspark.store.metadata.memory.memory_store import MemoryStore


def configs(tmp_path, **options):
    spec = TaskSpec("service", "run", 1, Wanted(), "instance", (str(tmp_path),), "h:2181", options, True)
    report = TaskReport("run", 1, 0, "host", "7", 123)
    return [keeper._config for keeper in TaskKeeper(spec, report, Share([0, 1], {0: "bookie-a"}), "10.0.0.7")._keepers]


def test_bookie_gets_its_executor_as_label_and_its_host(tmp_path):
    for config in configs(tmp_path):
        assert (config.labels, config.host) == ({"executor": "7"}, "10.0.0.7")


def test_service_options_override_the_tasks_labels_and_host(tmp_path):
    for config in configs(tmp_path, labels={"zone": "a", "executor": "mine"}, host="10.0.0.8", rack="r1"):
        assert (config.labels, config.host, config.rack) == ({"zone": "a", "executor": "mine"}, "10.0.0.8", "r1")


def test_known_bookie_is_started_under_its_id(tmp_path):
    assert [config.bookie_id for config in configs(tmp_path)] == ["bookie-a", ""]


@pytest.mark.parametrize(
    ("options", "port"),
    [
        ({"host": "127.0.0.1"}, -1),
        ({"host": "::1"}, -1),
        ({"host": "127.0.0.1", "metrics_port": 0}, 0),
        ({"host": "127.0.0.1", "metrics_port": 8000}, 8000),
        ({}, 0),
        ({"host": "127.0.0.1", "shared_secret_file": "/secrets"}, 0),
        ({"host": "127.0.0.1", "tls_certificate": "/c.pem", "tls_client_ca": "/ca.pem"}, 0),
    ],
    ids=["loopback", "loopback v6", "none wanted", "fixed", "network", "secret", "certificates"],
)
def test_bookie_has_metrics_by_default_where_they_open_no_door(tmp_path, options, port):
    """A first cluster's console had no history and no latencies, because nobody had set ``metrics_port``."""
    assert {config.metrics_port for config in configs(tmp_path, **options)} == {port}


def test_bookie_without_the_extra_metrics_has_none(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert {config.metrics_port for config in configs(tmp_path, host="127.0.0.1")} == {0}


def test_new_bookie_is_restarted_under_the_id_that_it_got(tmp_path):
    """Its task restarted it without an id for as long as the task lasted: with a disk emptied meanwhile it began as a new
    bookie."""
    spec = TaskSpec("service", "run", 1, Wanted(), "instance", (str(tmp_path),), "h:2181", {}, True)
    [keeper] = TaskKeeper(spec, TaskReport("run", 1, 0, "host"), Share([1]), None)._keepers
    keeper._note(Status("checking cookies", 12))
    assert keeper._config.bookie_id == ""
    keeper._note(Status("opening storage", 12, "bookie-b"))
    keeper._note(Status("serving", 12, "bookie-b", "h:1"))
    assert keeper._config.bookie_id == "bookie-b"


def test_claim_is_dropped_when_its_bookie_serves(tmp_path):
    """The claim stayed until the next attempt. If the bookie was decommissioned before that, a new bookie was made in its
    place."""
    store, roots = MemoryStore(), (str(tmp_path),)
    for number, host in enumerate(("host", "host", "other")):
        claim_number(store, roots, number, host)
    wanted = Wanted(claims=(Claim(0, "host"), Claim(2, "other")))
    spec = TaskSpec("service", "run", 1, wanted, "instance", roots, "h:2181", {}, True)
    task = TaskKeeper(spec, TaskReport("run", 1, 0, "host"), Share([0, 1, 2], to_claim=[1]), None)
    for keeper in task._keepers:
        keeper._note(Status("registering", 12, "bookie-b"))
    task._give_up_claims(store)
    assert len(read_claims(store, roots)) == 3
    for keeper in task._keepers:
        keeper._note(Status("serving", 12, "bookie-b"))
    task._give_up_claims(store)
    assert read_claims(store, roots) == (Claim(2, "other"),)


def test_executor_host_comes_from_its_command_line():
    """The driver may see its own side of a gateway, or its loopback address."""
    command = [
        "/usr/bin/java",
        "-cp",
        "x",
        "Backend",
        "--driver-url",
        "spark://d",
        "--executor-id",
        "7",
        "--hostname",
        "nm1",
    ]
    assert executor_of(command, 12) == Executor("7", 12, "nm1")
    assert executor_of(["java", "org.apache.spark.deploy.SparkSubmit"], 12) == Executor("driver", 12, "")
