"""Records that the bookie service and its tasks exchange through the metadata store.

Law: the driver writes the service's record, each task its own, and no process another's. A task obeys only the run that submitted
it, so a driver believed dead can't move the tasks of its successor. Records, as JSON::

    services/<service>                   orders: the run that owns the service, and whether to stop
    service_tasks/<service>.<partition>  the bookies of a task, written again at every change
    home_claims/<roots>.<number>         the host of a claimed number, from before its home is made until its bookie serves

A claim is made by creating its record, so two tasks never take the same number.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from bookspark.errors import MetadataVersionError, UnreadableRecordError
from bookspark.spark.bookies.homes import home_number
from bookspark.spark.bookies.placement import Claim, Known, Wanted
from bookspark.store.metadata.bookie_homes import read_home
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct
from bookspark.store.metadata.store import MetadataStore, change_record

log = logging.getLogger(__name__)

SERVICES, TASKS, CLAIMS = "services", "service_tasks", "home_claims"


class ServiceRecord(msgspec.Struct, frozen=True):
    """The driver's orders for the tasks."""

    run: str
    """The run that owns the service: a random id, new at each start of a BookieService."""
    stop: bool = False


class BookieReport(msgspec.Struct, frozen=True):
    """A task's view of a bookie."""

    home: str
    phase: str = ""
    """``serving``, or a phase of its boot or end."""
    bookie_id: str = ""
    """Empty while unknown."""
    address: str = ""
    """``host:port`` of its request server; empty while unknown."""
    pid: int = 0
    """Process id; 0 if the bookie does not run."""
    adopted: bool = False
    """Whether the bookie ran before the task did."""
    failures: int = 0
    """Failures since the bookie last served for ``SERVED_WELL_SECONDS``."""
    problem: str = ""
    """The bookie's last error; empty while it serves."""


class TaskReport(msgspec.Struct, frozen=True):
    run: str
    attempt: int
    """Number of earlier submissions of the barrier job by that run."""
    partition: int
    host: str
    executor_id: str = ""
    """Spark's id; ``driver`` in local mode."""
    executor_pid: int = 0
    """Process id of the executor; 0 if unknown."""
    bookies: tuple[BookieReport, ...] = ()
    retired: tuple[str, ...] = ()
    """Decommissioned bookies with directories on the host; they have no keeper."""


class ClaimRecord(msgspec.Struct, frozen=True):
    """A number taken by a task on ``host``."""

    host: str


learn(ServiceRecord, TaskReport, ClaimRecord)

Record = TypeVar("Record", ServiceRecord, TaskReport)


def service_name(master: str, roots: Sequence[str]) -> str:
    """The service's name, a hash of its roots and master, so that a run finds the records of a killed run."""
    return "bookies-" + hashlib.sha256("\0".join([master, *roots]).encode()).hexdigest()[:12]


def roots_name(roots: Sequence[str]) -> str:
    """A name for the homes in these roots, under any master."""
    return hashlib.sha256("\0".join(roots).encode()).hexdigest()[:12]


def read_service(store: MetadataStore, service: str) -> ServiceRecord | None:
    """The service's record, or None. Raises MetadataStoreError, and UnreadableRecordError."""
    record = store.read_record(SERVICES, service)
    return None if record is None else read_struct(record.value, ServiceRecord, f"record of service {service}")


def write_service(store: MetadataStore, service: str, record: ServiceRecord) -> None:
    """Replace the service's record, whatever run wrote it. Raises MetadataStoreError."""
    _replace(store, SERVICES, service, record)


def ask_service_to_stop(store: MetadataStore, service: str, run: str = "") -> str:
    """Order the service's tasks (only those of ``run``, if given) to stop their bookies. Returns the run; empty if another run
    owns the service, or if it has no record, which orders its tasks to stop too. Raises MetadataStoreError, and
    UnreadableRecordError."""
    what = f"record of service {service}"
    owner = ""

    def stopped(document: bytes | None) -> bytes | None:
        nonlocal owner
        owner = "" if document is None else read_struct(document, ServiceRecord, what).run
        if document is None or run not in ("", owner):
            owner = ""
            return None
        return proven_struct(ServiceRecord(owner, stop=True), what)

    # Conditional on the version: a run that takes the service over meanwhile keeps its own record.
    change_record(store, SERVICES, service, what, stopped)
    return owner


def ask_to_stop(store: MetadataStore) -> dict[str, list[TaskReport]]:
    """Order the tasks of every service to stop their bookies, which ends their job. Returns the reports by service. Raises
    MetadataStoreError."""
    asked = {}
    for service in store.list_records(SERVICES):
        if run := ask_service_to_stop(store, service):
            asked[service] = read_tasks(store, service, run)
    return asked


def read_tasks(store: MetadataStore, service: str, run: str) -> list[TaskReport]:
    """The last report of each partition of ``run``, from any attempt, in the order of partitions. Raises MetadataStoreError."""
    reports = []
    for name in store.list_records(TASKS):
        if name.startswith(service + "."):
            document = store.read_record(TASKS, name)
            try:
                report = None if document is None else read_struct(document.value, TaskReport, f"report of task {name}")
            except UnreadableRecordError as error:
                log.warning("%s", error)
                continue
            if report is not None and report.run == run:
                reports.append(report)
    return sorted(reports, key=lambda report: report.partition)


def write_task(store: MetadataStore, service: str, report: TaskReport) -> None:
    """Replace the task's record. Raises MetadataStoreError."""
    _replace(store, TASKS, f"{service}.{report.partition}", report)


def delete_service(store: MetadataStore, service: str, run: str) -> None:
    """Delete every record of ``run``, and none of a run that has taken the service over. Raises MetadataStoreError."""
    _delete_of_run(store, SERVICES, service, ServiceRecord, run)
    for name in store.list_records(TASKS):
        if name.startswith(service + "."):
            _delete_of_run(store, TASKS, name, TaskReport, run)


def _delete_of_run(store: MetadataStore, kind: str, name: str, shape: type[Record], run: str) -> None:
    stored = store.read_record(kind, name)
    # Records that are unreadable or were written meanwhile are another run's.
    with suppress(UnreadableRecordError, MetadataVersionError):
        if stored is not None and read_struct(stored.value, shape, f"{kind} record {name!r}").run == run:
            store.delete_record(kind, name, stored.version)


def read_wanted(store: MetadataStore, roots: Sequence[str]) -> Wanted:
    """Known bookies by number, and claimed numbers of homes in ``roots``. Raises MetadataStoreError."""
    # Claims first: a claim is dropped only when its bookie has a cookie here, so no bookie is overlooked.
    claims = read_claims(store, roots)
    known, others = [], []
    for bookie_id in store.list_cookies():
        cookie = store.read_cookie(bookie_id)
        if cookie is None:
            continue
        number = home_number(cookie.value.directories, roots)
        if number is None:
            others.append(bookie_id)
        else:
            home = read_home(store, bookie_id)
            known.append(Known(bookie_id, number, "" if home is None else home.host))
    known.sort(key=lambda bookie: (bookie.number, bookie.bookie_id))
    return Wanted(tuple(known), claims, others=tuple(others))


def read_claims(store: MetadataStore, roots: Sequence[str]) -> tuple[Claim, ...]:
    """The present claims of homes in ``roots``. Raises MetadataStoreError."""
    claims = []
    for name in store.list_records(CLAIMS):
        document = store.read_record(CLAIMS, name)
        service, _, number = name.rpartition(".")
        if document is not None and service == roots_name(roots):
            claims.append(Claim(int(number), read_struct(document.value, ClaimRecord, f"claim {name}").host))
    return tuple(sorted(claims, key=lambda claim: claim.number))


def claim_number(store: MetadataStore, roots: Sequence[str], number: int, host: str) -> bool:
    """Take the number for a home on ``host``; False if it is taken. Raises MetadataStoreError."""
    name = f"{roots_name(roots)}.{number}"
    try:
        store.write_record(CLAIMS, name, proven_struct(ClaimRecord(host), f"claim {name}"), None)
    except MetadataVersionError:
        return False
    return True


def drop_claim(store: MetadataStore, roots: Sequence[str], number: int) -> None:
    """Give the number up: its bookie is known, or its home will not be made. Raises MetadataStoreError."""
    store.delete_record(CLAIMS, f"{roots_name(roots)}.{number}")


def _replace(store: MetadataStore, kind: str, name: str, record: Record) -> None:
    what = f"{kind} record {name!r}"
    document = proven_struct(record, what)
    change_record(store, kind, name, what, lambda _: document)
