"""Output and exit status of ``bookspark simulate``."""

from __future__ import annotations

import json
import shlex

import pytest
from typer.testing import CliRunner

from bookspark.operations.cli.main import command_line

DISKS_LOST = "--ensemble 2 --write-quorum 2 --ack-quorum 1 --crashes 1 --crash-loses everything --no-journal-write-data"


def run(arguments):
    result = CliRunner().invoke(command_line(["simulate"]), ["simulate", *shlex.split(arguments)])
    return result.exit_code, result.stdout.splitlines()


def test_run_without_a_violation_exits_with_0_and_a_json_object():
    code, lines = run(f"--exhaustive {DISKS_LOST}")
    document = json.loads(lines[-1])
    assert code == 0
    assert document["finished"] is True
    assert document["violation"] is None
    assert document["states"] > 7_000


def test_violation_exits_with_1_and_its_numbered_story():
    code, lines = run(f"--exhaustive {DISKS_LOST} --no-limbo")
    document = json.loads(lines[-1])
    assert code == 1
    assert document["violation"]["invariant"] == "no_divergence_between_writer_and_metadata"
    assert [line.split(".")[0].strip() for line in lines[:17]] == [str(n) for n in range(1, 18)]
    assert lines[-2].startswith("again: bookspark simulate --exhaustive")


def test_printed_command_tells_the_story_again():
    _, first = run("--random 50 --seed 400 --no-limbo --ensemble 2 --crash-loses everything")
    again = next(line for line in first if line.startswith("again: "))
    code, second = run(again.removeprefix("again: bookspark simulate "))
    assert code == 1
    assert [line for line in second if line[:3].strip().isdigit()] == [
        line for line in first if line[:3].strip().isdigit()
    ]
    assert json.loads(second[-1])["schedules"] == 1


def test_search_that_reaches_its_limit_reports_not_finished():
    code, lines = run(f"--exhaustive --states-max 300 {DISKS_LOST}")
    assert code == 0
    assert json.loads(lines[-1])["finished"] is False


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--exhaustive --random 5",
        "--exhaustive --entrys 2",
        "--exhaustive --ensemble 2",
        "--exhaustive --crash-loses nothing",
        "--exhaustive --ensemble-changes sometimes",
        "--exhaustive --replicators -1",
        "--random 5 --ensemble 2 --write-quorum 3",
        "--random 0",
    ],
)
def test_bad_options_exit_with_2(arguments):
    assert run(arguments)[0] == 2
