"""The thread that keeps the bookies' job submitted, without Spark: it goes on, or says why it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import MetadataStoreError, NotEnoughBookiesError
from bookspark.spark.bookies import barrier_job
from bookspark.spark.bookies.barrier_job import BarrierJob, root_cause
from bookspark.spark.bookies.bookie_task import TaskSpec


def job(monkeypatch: pytest.MonkeyPatch, store: Any, attempts: int) -> BarrierJob:
    """It fails at once so many times, and then its bookies are told to stop."""
    monkeypatch.setattr(barrier_job, "_RESUBMIT_SECONDS", (0.0,))
    spec = TaskSpec("service", "run", 0, 1, True, ("/nowhere",), "h:2181", {}, False)
    job = BarrierJob(SimpleNamespace(), spec, store)

    def submit(tasks: int) -> None:
        if job.spec.attempt == attempts:
            job.stopping.set()
        else:
            raise RuntimeError("an executor was lost")

    monkeypatch.setattr(job, "_submit", submit)
    monkeypatch.setattr(job, "_spark_lives", lambda: True)
    monkeypatch.setattr(job, "_room", lambda: 1)
    return job


def test_the_job_is_submitted_again_while_zookeeper_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(kind: str) -> list[str]:
        raise MetadataStoreError("ZooKeeper does not answer")

    kept = job(monkeypatch, SimpleNamespace(list_records=away), attempts=6)
    kept.keep_submitted()
    assert (kept.spec.attempt, kept.spec.create, kept.failure) == (6, False, "")


def test_a_job_that_fails_without_a_bookie_is_given_up_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = job(monkeypatch, SimpleNamespace(list_records=lambda kind: []), attempts=6)
    kept.keep_submitted()
    assert kept.failure == "the bookies' barrier job fails: an executor was lost"


def test_the_cause_of_a_failed_job_is_our_own_error_in_a_task() -> None:
    ours = NotEnoughBookiesError("3 bookies are needed")
    kind = f"{type(ours).__module__}.{type(ours).__qualname__}"
    text = f"Job aborted\norg.apache.spark.SparkException: Task failed\nTraceback\n  File x\n{kind}: {ours}\n\n\tat org.apache"
    assert root_cause(Exception(text)) == "3 bookies are needed"
    assert root_cause(Exception("o1.save\n: org.apache.spark.SparkException: Job aborted\n\tat x")) == "Job aborted"
    assert root_cause(Exception("first\nsecond")) == "first"
    assert root_cause(ValueError()) == "ValueError"
