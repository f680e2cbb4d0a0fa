"""The thread of a bookie service, without Spark: it goes on, or says why it does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.spark.bookies import bookie_service
from bookspark.spark.bookies.bookie_service import BookieService


def service(monkeypatch: pytest.MonkeyPatch, store: object, attempts: int) -> BookieService:
    """Its job fails at once so many times, and then its bookies are told to stop."""
    monkeypatch.setattr(bookie_service, "_RESUBMIT_SECONDS", (0.0,))
    context: Any = SimpleNamespace(master="local[2]")
    service = BookieService(SimpleNamespace(sparkContext=context), 1, ["/nowhere"])  # type: ignore[arg-type]

    def submit(tasks: int) -> None:
        if service._attempt == attempts:
            service._stopping.set()
        else:
            raise RuntimeError("an executor was lost")

    monkeypatch.setattr(service, "_submit", submit)
    monkeypatch.setattr(service, "_spark_lives", lambda: True)
    monkeypatch.setattr(service, "_room", lambda: 1)
    monkeypatch.setattr(service, "_store", store)
    return service


def test_the_job_is_submitted_again_while_zookeeper_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(kind: str) -> list[str]:
        raise MetadataStoreError("ZooKeeper does not answer")

    kept = service(monkeypatch, SimpleNamespace(list_records=away), attempts=6)
    kept._keep_submitted()
    assert (kept._attempt, kept.failure) == (6, "")


def test_a_job_that_fails_without_a_bookie_is_given_up_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = service(monkeypatch, SimpleNamespace(list_records=lambda kind: []), attempts=6)
    kept._keep_submitted()
    assert kept.failure == "the bookies' barrier job fails: an executor was lost"
