"""Errors that end the main job early, and its exit status."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest

from bookspark.errors import NotEnoughBookiesError
from bookspark.lab.demo.inputs import Content
from bookspark.lab.demo.job import pasteable_lines
from bookspark.lab.demo.spark_side import ComparisonError, Digest, compare
from bookspark.spark.short_jobs import plain_reason
from tests.operations.cli.conftest import Run

COUNTED, READ = Content(3, 30, 20), Digest(3, 30, Decimal(7))


def test_folder_that_can_not_be_ingested_is_an_error_in_one_line(bookspark: Run, tmp_path: Path) -> None:
    for folder, words in ((tmp_path / "missing", "does not exist"), (tmp_path, "has no files")):
        outcome = bookspark("run", str(folder))
        assert outcome.status == 2
        assert outcome.err.startswith("bookspark: folder ") and words in outcome.err and outcome.err.count("\n") == 1


def test_run_folder_that_is_not_empty_is_an_error_in_one_line(bookspark: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("line\n")
    outcome = bookspark("run", str(tmp_path), "--directory", str(tmp_path))
    assert outcome.status == 2
    assert "not empty" in outcome.err and outcome.err.count("\n") == 1


def test_equal_digests_are_accepted() -> None:
    compare("events", COUNTED, READ, Digest(3, 30, Decimal(7)), Digest(3, 30, Decimal(7)))


@pytest.mark.parametrize(
    "other",
    [Digest(2, 30, Decimal(7)), Digest(3, 31, Decimal(7)), Digest(3, 30, Decimal(8))],
    ids=["lost row", "other size", "other content"],
)
def test_log_and_stream_that_differ_from_the_input_are_refused(other: Digest) -> None:
    with pytest.raises(ComparisonError, match=r"^log 'events' differs from its input"):
        compare("events", COUNTED, READ, other, READ)
    with pytest.raises(ComparisonError, match=r"^the stream out of log 'events' differs from its input"):
        compare("events", COUNTED, READ, READ, other)


@pytest.mark.parametrize("counted", [Content(4, 30), Content(3, 29)])
def test_input_that_spark_reads_differently_counts_as_changed(counted: Content) -> None:
    with pytest.raises(ComparisonError, match="changed meanwhile"):
        compare("events", counted, READ, READ, READ)


def test_plain_reason_is_one_line() -> None:
    ours = NotEnoughBookiesError("log 'x' needs 3 writable bookies,\nand 2 are registered")
    assert plain_reason(ours) == "log 'x' needs 3 writable bookies, and 2 are registered"
    worker = f'An exception was thrown\n  File "x"\nbookspark.protocol.errors.NotEnoughBookiesError: {plain_reason(ours)}\n\n'
    assert plain_reason(RuntimeError(worker)) == plain_reason(ours)
    stream = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: disk full SQLSTATE: XXKST\n=== Query ==="
    )
    assert plain_reason(RuntimeError(stream)) == "RuntimeError: disk full"
    call = "An error occurred while calling o76.save.\n: org.apache.spark.SparkException: Job aborted\n\tat org.apache"
    assert plain_reason(RuntimeError(call)) == "RuntimeError: org.apache.spark.SparkException: Job aborted"


def test_pasteable_lines_name_the_cluster() -> None:
    lines = pasteable_lines("host:1/a b")
    assert [what for what, _ in lines] == ["write", "read", "audit"]
    assert all(re.search(r"bookspark'? (ledger|audit)", line) and "'host:1/a b'" in line for _, line in lines)
