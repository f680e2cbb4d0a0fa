"""The thread that keeps the bookies' job submitted, without Spark: it goes on or says why not."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import BookieError, MetadataStoreError, NotEnoughBookiesError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.spark.bookies import barrier_job
from bookspark.spark.bookies.barrier_job import BarrierJob, JobSize, TaskFor, root_cause
from bookspark.spark.bookies.bookie_service import BookieService
from bookspark.spark.bookies.bookie_task import TaskSpec, claim
from bookspark.spark.bookies.placement import Claim, Known, Missing, Seen, Share, Wanted, divide
from bookspark.spark.bookies.service_records import (
    CLAIMS,
    SERVICES,
    ServiceRecord,
    TaskReport,
    ask_to_stop,
    claim_number,
    delete_service,
    drop_claim,
    read_claims,
    read_service,
    read_wanted,
    write_service,
    write_task,
)
from bookspark.spark.bookies.slots import Slots
from bookspark.store.metadata.bookie_homes import BookieHome, note_home
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.documents import proven_struct
from bookspark.store.metadata.records.versioned import Versioned


def job(monkeypatch: pytest.MonkeyPatch, store: Any, attempts: int) -> BarrierJob:
    """A job that fails ``attempts`` times at once and then stops."""
    monkeypatch.setattr(barrier_job, "_RESUBMIT_SECONDS", (0.0,))
    spec = TaskSpec("service", "run", 0, Wanted(), "instance", ("/nowhere",), "h:2181", {}, False)
    job = BarrierJob(SimpleNamespace(master="yarn"), spec, store, JobSize(1, TaskFor.BOOKIE, False), lambda line: None)

    def submit() -> None:
        if job.spec.attempt == attempts:
            job.stopping.set()
        else:
            raise RuntimeError("an executor was lost")

    monkeypatch.setattr(job, "_submit", submit)
    monkeypatch.setattr(job, "_spark_lives", lambda: True)
    monkeypatch.setattr(job, "_await_room", lambda: True)
    return job


def test_failed_job_is_resubmitted_while_zookeeper_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(kind: str) -> list[str]:
        raise MetadataStoreError("ZooKeeper does not answer")

    kept = job(monkeypatch, SimpleNamespace(list_records=away), attempts=6)
    kept.keep_submitted()
    assert (kept.spec.attempt, kept.failure) == (6, "")


def test_job_that_fails_without_a_bookie_is_abandoned_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = job(monkeypatch, SimpleNamespace(list_records=lambda kind: []), attempts=6)
    kept.keep_submitted()
    assert kept.failure == "the bookies' barrier job fails: an executor was lost"


def test_root_cause_of_a_failed_job_is_the_bookspark_error_of_its_task() -> None:
    ours = NotEnoughBookiesError("3 bookies are needed")
    kind = f"{type(ours).__module__}.{type(ours).__qualname__}"
    text = f"Job aborted\norg.apache.spark.SparkException: Task failed\nTraceback\n  File x\n{kind}: {ours}\n\n\tat org.apache"
    assert root_cause(Exception(text)) == "3 bookies are needed"
    assert root_cause(Exception("o1.save\n: org.apache.spark.SparkException: Job aborted\n\tat x")) == "Job aborted"
    deep = "x\n: org.apache.spark.SparkException: Job aborted\n\tat x\nCaused by: java.io.IOException: No space left\n\tat y"
    assert root_cause(Exception(deep)) == "Job aborted: IOException: No space left"
    assert root_cause(Exception("first\nsecond")) == "first"
    assert root_cause(ValueError()) == "ValueError"


def test_stop_of_a_replaced_run_leaves_the_next_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replaced driver wrote its stop over the record of the new run, whose tasks then released everything."""
    store = MemoryStore()
    write_service(store, "service", ServiceRecord("next run"))
    kept = job(monkeypatch, store, attempts=0)
    kept.start()
    kept.stop(5.0)
    assert read_service(store, "service") == ServiceRecord("next run")
    write_service(store, "service", ServiceRecord("run"))
    kept.stop(5.0)
    assert read_service(store, "service") == ServiceRecord("run", stop=True)


class TakenOverMeanwhile(MemoryStore):
    """Another run takes the service over between the first read of its record and the next write."""

    taken = False

    def read_record(self, kind: str, name: str) -> Versioned[bytes] | None:
        found = super().read_record(kind, name)
        if kind == SERVICES and not self.taken:
            self.taken = True
            write_service(self, name, ServiceRecord("next run"))
        return found


def test_run_that_takes_over_during_its_predecessors_stop_is_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = TakenOverMeanwhile()
    store.write_record(SERVICES, "service", proven_struct(ServiceRecord("run"), "record"), None)
    kept = job(monkeypatch, store, attempts=0)
    kept.start()
    kept.stop(5.0)
    assert read_service(store, "service") == ServiceRecord("next run")


def test_stop_command_also_stops_a_run_that_takes_over_meanwhile() -> None:
    """The command gave the record back to the replaced run, so the next run released the bookies instead of stopping them."""
    store = TakenOverMeanwhile()
    store.write_record(SERVICES, "service", proven_struct(ServiceRecord("run"), "record"), None)
    report = TaskReport("next run", attempt=0, partition=0, host="nm1")
    write_task(store, "service", report)
    assert ask_to_stop(store) == {"service": [report]}
    assert read_service(store, "service") == ServiceRecord("next run", stop=True)


def test_job_whose_tasks_ended_distinguishes_a_command_from_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    kept = job(monkeypatch, store, attempts=0)
    monkeypatch.setattr(kept, "_submit", lambda: None)
    write_service(store, "service", ServiceRecord("run"))
    assert ask_to_stop(store) == {"service": []}
    kept.keep_submitted()
    assert (kept.told_to_stop, kept.failure) == (True, "")
    other = job(monkeypatch, store, attempts=0)
    monkeypatch.setattr(other, "_submit", lambda: None)
    write_service(store, "service", ServiceRecord("next run"))
    other.keep_submitted()
    assert (other.told_to_stop, other.failure) == (False, "another run of the same bookie service took over")


def test_start_raises_at_once_if_a_command_stops_its_bookies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start waited until its timeout and then complained that no task had reported."""
    store = MemoryStore()
    kept = job(monkeypatch, store, attempts=0)
    monkeypatch.setattr(kept, "_submit", lambda: None)
    write_service(store, "service", ServiceRecord("run", stop=True))
    kept.keep_submitted()
    service: Any = SimpleNamespace(
        _wait_for_missing=0.0, _size=JobSize(1, TaskFor.BOOKIE, False), _first=True, _made_all=True
    )
    with pytest.raises(BookieError, match="stop-bookies"):
        BookieService._await_serving(service, kept, time.monotonic() + 60.0)


@pytest.mark.parametrize(("first", "local", "told"), [(True, False, 1), (False, False, 0), (True, True, 0)])
def test_first_start_on_a_single_host_of_a_cluster_warns(first: bool, local: bool, told: int) -> None:
    """YARN may put all executors on one host, and there was no warning."""
    lines: list[str] = []
    bookies = {name: SimpleNamespace(host="nm1") for name in ("bookie-a", "bookie-b")}
    service: Any = SimpleNamespace(_first=first, _local=local, bookies=bookies, _progress=lines.append)
    BookieService._tell_if_too_close(service)
    assert [line.startswith("warning: all 2 bookies were made on nm1") for line in lines] == [True] * told


def test_home_number_is_claimed_once_and_bookies_are_known_by_directories() -> None:
    store, roots = MemoryStore(), ("/disk1", "/disk2")
    assert claim_number(store, roots, 0, "h1") and not claim_number(store, roots, 0, "h2")
    assert read_claims(store, roots) == (Claim(0, "h1"),) and read_claims(store, ("/disk1",)) == ()
    drop_claim(store, roots, 0)
    assert claim_number(store, roots, 0, "h2")
    store.write_cookie(Cookie("bookie-b", ("/disk1/bookie-1", "/disk2/bookie-1"), store.instance_id, "n"), None)
    store.write_cookie(Cookie("bookie-x", ("/tmp/elsewhere",), store.instance_id, "n"), None)
    note_home(store, "bookie-b", BookieHome("h1", ("/disk1/bookie-1", "/disk2/bookie-1")))
    assert read_wanted(store, roots) == Wanted((Known("bookie-b", 1, "h1"),), (Claim(0, "h2"),), others=("bookie-x",))


def test_bookie_whose_cookie_replaces_its_claim_during_the_read_is_known() -> None:
    """Cookies were read before claims, so a bookie that became known in between was neither known nor claimed."""
    store, roots = MemoryStore(), ("/disk1",)
    claim_number(store, roots, 0, "h1")
    read_record = store.read_record

    def becomes_known(kind: str, name: str) -> Any:
        found = read_record(kind, name)
        if kind == CLAIMS and found is not None:
            store.write_cookie(Cookie("bookie-a", ("/disk1/bookie-0",), store.instance_id, "n"), None)
            drop_claim(store, roots, 0)
        return found

    store.read_record = becomes_known  # type: ignore[method-assign]
    assert read_wanted(store, roots).known == (Known("bookie-a", 0),)


def test_end_of_a_run_keeps_the_records_of_the_next_run() -> None:
    """A run that ended slowly deleted the record of the next run, whose tasks then stopped all bookies."""
    store = MemoryStore()
    write_service(store, "service", ServiceRecord("next run"))
    write_task(store, "service", TaskReport("next run", 0, 0, "h1"))
    write_task(store, "service", TaskReport("run", 0, 1, "h1"))
    delete_service(store, "service", "run")
    assert read_service(store, "service") == ServiceRecord("next run")
    assert store.list_records("service_tasks") == ["service.0"]
    delete_service(store, "service", "next run")
    assert store.list_records("services") == store.list_records("service_tasks") == []


def test_home_number_claimed_meanwhile_ends_the_attempt_and_the_next_attempt_skips_it() -> None:
    """The attempt went on with one bookie less than requested."""
    store, roots = MemoryStore(), ("/disk1",)
    claim_number(store, roots, 0, "h1")
    with pytest.raises(BookieError, match="bookie-0 is not made here: its number was taken meanwhile"):
        claim(store, roots, Share(to_claim=[0]), "h2")
    [share] = divide([Seen(0, "h2")], replace(read_wanted(store, roots), bookies=2)).values()
    claim(store, roots, share, "h2")
    assert read_wanted(store, roots).claims == (Claim(0, "h1"), Claim(1, "h2"))


class NoSpark:
    """A SparkContext that counts cancellations."""

    master = "yarn"

    def __init__(self) -> None:
        self.cancelled = 0

    def cancelJobGroup(self, run: str) -> None:
        self.cancelled += 1


def test_attempt_that_ends_while_it_is_cancelled_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cancellation mark stayed, and executors on hosts without a task were no longer watched for."""
    store, spark = MemoryStore(), NoSpark()
    kept = job(monkeypatch, store, attempts=9)
    kept._context = spark
    monkeypatch.setattr(barrier_job, "_COVERAGE_SECONDS", 0.0)
    monkeypatch.setattr(barrier_job, "slots_of", lambda context: Slots(2, 1))
    monkeypatch.setattr(barrier_job, "executors_of", lambda context: {str(len(attempts)): "h"})
    monkeypatch.setattr(barrier_job, "Coverage", lambda context: SimpleNamespace(send_back=lambda executors: None))
    attempts: list[int] = []

    def reported() -> tuple[Missing, ...]:
        # The attempt is over: the cancellation meets no job, and the next attempt is submitted.
        attempts.append(kept.spec.attempt)
        if len(attempts) == 3:
            kept.stopping.set()
        else:
            kept.spec = replace(kept.spec, attempt=kept.spec.attempt + 1)
        return (Missing("bookie-a", "is away"),)

    monkeypatch.setattr(kept, "missing", reported)
    kept._watch_coverage()
    assert attempts == [0, 1, 2] and spark.cancelled == 3


def test_job_is_resubmitted_when_zookeeper_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outdated knowledge was trusted for as long as the attempt lasted."""
    store, spark = MemoryStore(), NoSpark()
    kept = job(monkeypatch, store, attempts=9)
    kept._context, kept._tasks = spark, 1
    away = [True]

    def list_cookies() -> list[str]:
        if away[0]:
            raise MetadataStoreError("ZooKeeper does not answer")
        return []

    monkeypatch.setattr(store, "list_cookies", list_cookies)
    claim_number(store, ("/nowhere",), 0, "h1")
    wanted = kept._look()
    assert (wanted.certain, wanted.claims) == (False, ())
    kept.spec = replace(kept.spec, wanted=wanted)
    write_task(store, "service", TaskReport("run", 0, 0, "h1"))
    monkeypatch.setattr(barrier_job, "_COVERAGE_SECONDS", 0.0)
    monkeypatch.setattr(barrier_job, "slots_of", lambda context: Slots(2, 1))
    monkeypatch.setattr(barrier_job, "_LOOK_AGAIN_SECONDS", 0.0)
    looks = iter(range(3))

    def executors_of(context: object) -> dict[str, str]:
        # ZooKeeper is away for the first looks.
        if next(looks) == 1:
            away[0] = False
        return {}

    monkeypatch.setattr(barrier_job, "executors_of", executors_of)

    def cancelled() -> None:
        spark.cancelled += 1
        kept.stopping.set()

    monkeypatch.setattr(kept, "_cancel", cancelled)
    kept._watch_coverage()
    assert spark.cancelled == 1 and kept._look().claims == (Claim(0, "h1"),)


def test_attempt_that_waits_for_lost_slots_is_resubmitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark waits for them without end, and the leases of the bookies on the remaining executors ran out."""
    kept = job(monkeypatch, MemoryStore(), attempts=9)
    kept._context, kept._tasks = NoSpark(), 3
    slots = [Slots(3, 3)] * 3 + [Slots(2, 2)] * 4
    monkeypatch.setattr(barrier_job, "_COVERAGE_SECONDS", 0.0)
    monkeypatch.setattr(barrier_job, "_SHORT_SECONDS", 0.0)
    monkeypatch.setattr(barrier_job, "slots_of", lambda context: slots.pop(0))

    def not_reported() -> None:
        if not slots:
            kept.stopping.set()

    monkeypatch.setattr(kept, "missing", not_reported)
    kept._watch_coverage()
    assert kept._context.cancelled == 1, "once for each attempt"
