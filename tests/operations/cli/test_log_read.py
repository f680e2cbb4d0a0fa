"""``bookspark log append``, ``read`` and ``tail``, and the rows that they write and print; also ``truncate``, ``list`` and
``readers``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime

import pytest
import typer

from bookspark.local import LocalCluster
from bookspark.logs import Committer, LogAddress, LogRegistry, LogRun, create_log, delete_log
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.store.client import BookKeeper
from tests.operations.cli.conftest import Run


@pytest.fixture(scope="module")
def times(cluster: LocalCluster) -> list[int]:
    """Create log ``events`` with three commits of two rows each; the commits' times."""
    log = LogAddress(cluster.zookeeper, "events")
    times = [1_000, 2_000, 3_000]
    with cluster.bookkeeper() as bookkeeper:
        registry = LogRegistry(bookkeeper.metadata)
        registry.ensure("events", {}, b"")
        run = LogRun.of(log, registry.claim("events", "run"))
        committer = Committer(bookkeeper, run)
        for number, time_ms in enumerate(times):
            _commit(bookkeeper, committer, run, number, time_ms)
        committer.close()
    return times


def _commit(bookkeeper: BookKeeper, committer: Committer, run: LogRun, number: int, time_ms: int) -> None:
    with run.create_ledger(bookkeeper, LogOptions(), "data") as ledger:
        ledger.append_batch([f"{number} a".encode(), f"{number} b".encode()])
    rows = (EntryRange(ledger.ledger_id, 0, 1, 2, 6),)
    committer.commit(Commit("q", number, run.run, run.epoch, rows, time_ms))


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ([], "0 a|0 b|1 a|1 b|2 a|2 b"),
        (["--since", "2000"], "1 a|1 b|2 a|2 b"),
        (["--since", "1970-01-01T00:00:01.5Z", "--before", "3000"], "1 a|1 b"),
        (["--before", "1000"], ""),
        (["--since", "3001"], ""),
        (["--from-row", "1", "--until-row", "3"], "0 b|1 a"),
        (["--since", "1000", "--from-row", "3", "--before", "9000", "--until-row", "99"], "1 b|2 a|2 b"),
    ],
)
def test_read_prints_the_rows_between_given_rows_and_times(
    on_cluster: Run, times: list[int], options: list[str], printed: str
) -> None:
    outcome = on_cluster("log", "read", "events", *options)
    assert (outcome.status, "|".join(outcome.text.splitlines()), outcome.err) == (0, printed, "")


def test_read_shows_lane_position_and_time_of_each_row_as_tail_does(on_cluster: Run, cluster: LocalCluster) -> None:
    """Two lanes were one list of values, without a word about whose they are."""
    with cluster.bookkeeper() as bookkeeper:
        log = create_log(bookkeeper, "placed")
        for name, rows in (("a", [b"one", b"\xff"]), ("b", [b"two"])):
            with log.producer(name) as producer:
                for row in rows:
                    producer.append(row)
        with log.reader() as reader:
            read = [(row.lane, row.position, row.time_ms) for row in reader]
    found = [json.loads(line) for line in on_cluster("log", "read", "placed", "--json").text.splitlines()]
    places = [(row["lane"], row["position"]) for row in found]
    assert places == [(1, 0), (1, 1), (2, 0)]
    assert [row.get("payload") for row in found] == ["one", None, "two"] and found[1]["payload_base64"] == "/w=="
    times_ms = [round(datetime.fromisoformat(row["time"]).timestamp() * 1000) for row in found]
    assert sorted(read) == [(*place, time_ms) for place, time_ms in zip(places, times_ms, strict=True)]
    (second,) = on_cluster("log", "read", "placed@1", "--from-row", "1", "--json").text.splitlines()
    assert json.loads(second) == found[1]


def test_describe_shows_no_choice_as_a_number_and_where_a_lane_ends(on_cluster: Run) -> None:
    """`fewer_copies` was 1, and a comma stood between lanes and within them."""
    assert on_cluster("log", "create", "choices").status == 0
    assert on_cluster("log", "append", "choices", stdin=b"x").status == 0
    shown = on_cluster("log", "describe", "choices").text
    assert re.search(r"fewer_copies\W+yes\W", shown) and re.search(r"rows, \w+; choices@1: 1 row,", shown)


def test_read_without_producers_shows_the_time_of_the_commit(on_cluster: Run, times: list[int]) -> None:
    found = [
        json.loads(line) for line in on_cluster("log", "read", "events", "--since", "2000", "--json").text.splitlines()
    ]
    assert [(row["position"], row["time"][17:23], row["payload"]) for row in found] == [
        (2, "02.000", "1 a"), (3, "02.000", "1 b"), (4, "03.000", "2 a"), (5, "03.000", "2 b"),
    ]  # fmt: skip


def test_invalid_time_is_refused_with_an_example(on_cluster: Run, times: list[int]) -> None:
    outcome = on_cluster("log", "read", "events", "--since", "14:05")
    assert outcome.status == 2 and "--since" in outcome.err and "2026-11-22T14:05:00+01:00" in outcome.err


@pytest.mark.parametrize(
    ("options", "effect"),
    [(["--no-fewer-copies"], "nothing can be written until there are 5"), ([], "its ledgers get 3 copies at most")],
    ids=["never fewer", "fewer"],
)
def test_create_warns_of_an_ensemble_that_the_cluster_can_not_have(
    on_cluster: Run, options: list[str], effect: str
) -> None:
    log = f"wide{len(options)}"
    outcome = on_cluster("log", "create", log, "--ensemble-size", "5", *options)
    assert outcome.status == 0 and outcome.err.count("\n") == 1
    assert "needs 5 bookies (ensemble size), and the cluster has 3" in outcome.err and effect in outcome.err
    assert on_cluster("log", "alter", log, "--ensemble-size", "3").err == ""


def test_appended_lines_are_followed_by_tail(on_cluster: Run, cluster: LocalCluster) -> None:
    assert on_cluster("log", "create", "lines").status == 0
    outcome = on_cluster("log", "append", "lines", stdin=b"one\n\nthree")
    assert (outcome.status, outcome.text) == (0, "3 rows appended to lane 1 of log lines, the last one is row 2\n")
    assert on_cluster("log", "append", "lines", "--producer", "other", stdin=b"").text.startswith(
        "0 rows appended to lane 2"
    )
    assert on_cluster("log", "append", "nothing", stdin=b"x").status == 2
    assert on_cluster("log", "create", "single").status == 0
    assert on_cluster("log", "append", "single", stdin=b"x").text.startswith("1 row appended")
    command = [sys.executable, "-m", "bookspark.operations.cli.main", "log", "tail", "lines", "--since", "0", "--json"]
    environment = {**os.environ, "BOOKSPARK_ZOOKEEPER": cluster.zookeeper}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        try:
            found = [json.loads(process.stdout.readline()) for _ in range(3)]
            appended = on_cluster("log", "append", "lines", stdin=b"\xff\n").status
            found.append(json.loads(process.stdout.readline()))
        finally:
            process.kill()
    assert appended == 0
    assert [(row["lane"], row["position"]) for row in found] == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert [row.get("payload") for row in found] == ["one", "", "three", None] and found[3]["payload_base64"] == "/w=="


def test_truncation_asks_for_confirmation(on_cluster: Run, times: list[int]) -> None:
    outcome = on_cluster("log", "truncate", "events", "2", stdin=b"n\n")
    assert outcome.status != 0 and "before row 2" in outcome.err
    assert len(on_cluster("log", "read", "events").text.splitlines()) == 6
    assert on_cluster("log", "truncate", "events", "2", "--yes").status == 0
    assert len(on_cluster("log", "read", "events").text.splitlines()) == 4


@pytest.mark.parametrize("command", [["truncate", "asked@1", "1"], ["delete", "asked"]])
def test_log_created_again_during_the_question_is_not_the_one_that_was_asked_for(
    on_cluster: Run, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    questions = list[str]()

    def confirmed(question: str, **options: bool) -> bool:
        questions.append(question)
        with cluster.bookkeeper() as bookkeeper:
            delete_log(bookkeeper, "asked", b"")
            with create_log(bookkeeper, "asked").producer("a") as producer:
                producer.append(b"new")
                producer.append(b"new")
        return True

    monkeypatch.setattr(typer, "confirm", confirmed)
    with cluster.bookkeeper() as bookkeeper:
        with create_log(bookkeeper, "asked").producer("a") as producer:
            producer.append(b"old")
        before = LogRegistry(bookkeeper.metadata).get("asked").log_id
    outcome = on_cluster("log", *command)
    assert outcome.status == 2 and str(before) in outcome.err and str(before) in questions[0]
    assert on_cluster("log", "read", "asked").text.split() == ["new", "new"]
    assert on_cluster("log", "delete", "asked", "--yes").status == 0


def test_list_long_shows_ledgers_and_bytes_of_each_log(
    on_cluster: Run, times: list[int], cluster: LocalCluster
) -> None:
    with cluster.bookkeeper() as bookkeeper, bookkeeper.create_ledger(3, 2, 2) as ledger:
        ledger.append(b"x" * 10_000)
    assert "events" in on_cluster("log", "list").text.splitlines()
    assert "events" in json.loads(on_cluster("log", "list", "--json").text)
    rows = {one["log"]: one for one in json.loads(on_cluster("log", "list", "--long", "--json").text)}
    assert rows["events"]["ledgers"] == 4 and rows["events"]["open"] == 0 and rows["events"]["bytes"] > 18
    assert rows["events"]["bytes_of_copies"] == 3 * rows["events"]["bytes"]
    assert rows[None]["bytes"] >= 10_000 and rows[None]["bytes_of_copies"] >= 20_000
    sizes = [one["bytes_of_copies"] for one in rows.values()]
    assert sizes == sorted(sizes, reverse=True)
    printed = on_cluster("log", "list", "--long").text
    assert printed.index("(no log)") < printed.index("events")


def test_readers_of_a_log_without_readers_says_so(on_cluster: Run, times: list[int]) -> None:
    """Once, the command printed an empty table."""
    outcome = on_cluster("log", "readers", "events")
    assert outcome.status == 0 and outcome.text == "" and "nobody reads log events now" in outcome.err
    assert json.loads(on_cluster("log", "readers", "events", "--json").text) == []


def test_truncation_that_frees_no_ledgers_names_the_commands_that_do(on_cluster: Run, cluster: LocalCluster) -> None:
    """The ledgers of a closed producer stay because the producer may return. Ending its lane releases them."""
    with cluster.bookkeeper() as bookkeeper:
        log = create_log(bookkeeper, "kept")
        with log.producer("gone") as producer:
            producer.append(b"x")
    told = on_cluster("log", "truncate", "kept@1", "1", "--yes").text
    commands = ["bookspark log end kept@1", "bookspark log collect kept@1"]
    assert "deleted: no ledger" in told and all(one in told for one in commands)
    texts = [on_cluster(*one.split()[1:]).text for one in commands]
    assert "1 lane ended: kept@1" in texts[0] and "none" not in texts[1]
