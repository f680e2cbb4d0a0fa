"""What the bookie service and its tasks tell each other, through the metadata store.

Law: the driver writes the service's record, each task writes its own record, and nobody writes another's. A task obeys only the
run that it was submitted by. So a driver that was believed dead can't move the tasks of its successor. Records, as JSON::

    services/<service>                   what is wanted: the run that owns the service, and whether to stop
    service_tasks/<service>.<partition>  what one task looks after, written again whenever that changes
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from bookspark.errors import MetadataVersionError
from bookspark.metadata.records.codec import learn
from bookspark.metadata.store import MetadataStore

SERVICES, TASKS = "services", "service_tasks"
_WRITE_ATTEMPTS = 5


class ServiceRecord(msgspec.Struct, frozen=True):
    """What the driver wants of the tasks."""

    run: str
    """The run that owns the service: a random id, new at each start of a BookieService."""
    stop: bool = False
    """Whether the tasks are to stop their bookies."""


class BookieReport(msgspec.Struct, frozen=True):
    """A bookie, as the task that looks after it sees it."""

    home: str
    """The bookie's first directory."""
    phase: str = ""
    """What the bookie is doing: ``serving``, or a phase of its boot or of its end."""
    bookie_id: str = ""
    """The bookie's id; empty while it is not known."""
    address: str = ""
    """``host:port`` of its request server; empty while it is not known."""
    pid: int = 0
    """Its process id; 0 if it does not run."""
    adopted: bool = False
    """Whether the bookie ran before the task did."""
    failures: int = 0
    """How often it failed since it last served for ``SERVED_WELL_SECONDS``."""
    problem: str = ""
    """Its last words; empty while it serves."""


class TaskReport(msgspec.Struct, frozen=True):
    """What one task looks after."""

    run: str
    """The run that submitted the task."""
    attempt: int
    """How many times that run had submitted the barrier job before."""
    partition: int
    """The task's number in the job."""
    host: str
    """The host's name."""
    executor_id: str = ""
    """Spark's id of the task's executor; ``driver`` in local mode."""
    executor_pid: int = 0
    """The process id of that executor; 0 if it is not known."""
    bookies: tuple[BookieReport, ...] = ()
    """The bookies that the task looks after."""


learn(ServiceRecord, TaskReport)

Record = TypeVar("Record", ServiceRecord, TaskReport)


def service_name(master: str, roots: Sequence[str]) -> str:
    """A name that is the same in each run over the same roots and master: a run finds and replaces what a killed run left
    behind."""
    return "bookies-" + hashlib.sha256("\0".join([master, *roots]).encode()).hexdigest()[:12]


def read_service(store: MetadataStore, service: str) -> ServiceRecord | None:
    """The service's record; None if there is none. Raises MetadataStoreError."""
    found = store.read_record(SERVICES, service)
    return None if found is None else msgspec.json.decode(found.value, type=ServiceRecord)


def write_service(store: MetadataStore, service: str, record: ServiceRecord) -> None:
    """Replace the service's record, whoever wrote the one before. Raises MetadataStoreError."""
    _replace(store, SERVICES, service, record)


def read_tasks(store: MetadataStore, service: str, run: str) -> list[TaskReport]:
    """The last report of each partition of ``run``, of whichever attempt, in the order of partitions. Raises
    MetadataStoreError."""
    reports = []
    for name in store.list_records(TASKS):
        if name.startswith(service + "."):
            found = store.read_record(TASKS, name)
            report = None if found is None else msgspec.json.decode(found.value, type=TaskReport)
            if report is not None and report.run == run:
                reports.append(report)
    return sorted(reports, key=lambda report: report.partition)


def write_task(store: MetadataStore, service: str, report: TaskReport) -> None:
    """Replace the task's record. Raises MetadataStoreError."""
    _replace(store, TASKS, f"{service}.{report.partition}", report)


def delete_service(store: MetadataStore, service: str) -> None:
    """Delete every record of the service. Raises MetadataStoreError."""
    for name in store.list_records(TASKS):
        if name.startswith(service + "."):
            store.delete_record(TASKS, name)
    store.delete_record(SERVICES, service)


def _replace(store: MetadataStore, kind: str, name: str, record: Record) -> None:
    for attempt in range(_WRITE_ATTEMPTS):
        found = store.read_record(kind, name)
        try:
            store.write_record(kind, name, msgspec.json.encode(record), None if found is None else found.version)
            return
        except MetadataVersionError:
            if attempt == _WRITE_ATTEMPTS - 1:
                raise
