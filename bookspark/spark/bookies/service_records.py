"""What the bookie service and its tasks tell each other, through the metadata store.

Law: the driver writes the service's record and a task writes its own; nobody writes another's. A task obeys only the
run that it was submitted by, so that a driver that was thought dead can't move the tasks of its successor. Records::

    services/<service>                   what is wanted: the run that owns the service, whether to stop
    service_tasks/<service>.<partition>  what one task looks after, written anew whenever that changes
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
    run: str
    """Random, of one BookieService."""
    stop: bool = False


class BookieReport(msgspec.Struct, frozen=True):
    """A bookie as the task that looks after it sees it. ``home`` is its first directory; ``problem`` its last words
    if it does not serve, ``failures`` how often it failed since it last served well, ``adopted`` whether it ran
    before the task did."""

    home: str
    phase: str = ""
    bookie_id: str = ""
    address: str = ""
    pid: int = 0
    adopted: bool = False
    failures: int = 0
    problem: str = ""


class TaskReport(msgspec.Struct, frozen=True):
    run: str
    attempt: int
    """How many times the barrier job had been submitted before."""
    partition: int
    host: str
    executor_id: str = ""
    executor_pid: int = 0
    bookies: tuple[BookieReport, ...] = ()


learn(ServiceRecord, TaskReport)

Record = TypeVar("Record", ServiceRecord, TaskReport)


def service_name(master: str, roots: Sequence[str]) -> str:
    """The same for each run of the same service, so that a run finds and replaces what a killed one left behind."""
    return "bookies-" + hashlib.sha256("\0".join([master, *roots]).encode()).hexdigest()[:12]


def read_service(store: MetadataStore, service: str) -> ServiceRecord | None:
    found = store.read_record(SERVICES, service)
    return None if found is None else msgspec.json.decode(found.value, type=ServiceRecord)


def write_service(store: MetadataStore, service: str, record: ServiceRecord) -> None:
    """Replace the service's record, whoever wrote the one before."""
    _replace(store, SERVICES, service, record)


def read_tasks(store: MetadataStore, service: str, run: str) -> list[TaskReport]:
    """What the tasks of ``run`` last said, one report for each, of whichever attempt."""
    reports = []
    for name in store.list_records(TASKS):
        if name.startswith(service + "."):
            found = store.read_record(TASKS, name)
            report = None if found is None else msgspec.json.decode(found.value, type=TaskReport)
            if report is not None and report.run == run:
                reports.append(report)
    return sorted(reports, key=lambda report: report.partition)


def write_task(store: MetadataStore, service: str, report: TaskReport) -> None:
    _replace(store, TASKS, f"{service}.{report.partition}", report)


def delete_service(store: MetadataStore, service: str) -> None:
    """Remove every record of the service."""
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
