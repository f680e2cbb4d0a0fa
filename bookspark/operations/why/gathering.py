"""Looks at a cluster: one pass over ZooKeeper and the bookies' statuses, and closer looks for questions.

Law: a look changes nothing. Every request has a deadline, and a missing reply is recorded as missing. After one failure of
ZooKeeper the look does not ask it again.
"""

from __future__ import annotations

import heapq
import random
import ssl
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from bookspark.errors import BookKeeperError, ConfigurationError, MetadataStoreError, ReadError, UnreadableRecordError
from bookspark.logs import LogReader, LogRegistry
from bookspark.logs.chain.reader import AT_THE_END
from bookspark.logs.readers.lag import readers_of
from bookspark.logs.readers.records import records_of
from bookspark.operations.changes.change_record import Kept
from bookspark.operations.changes.looking import Looking
from bookspark.operations.why.facts import (
    EXPIRED,
    SLOW_ZOOKEEPER_SECONDS,
    DiskFacts,
    Facts,
    LaneFacts,
    LedgerFacts,
    LogFacts,
    Ranges,
)
from bookspark.operations.why.words import NAMED
from bookspark.protocol.changes.observed import Observed
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.protocol.ledger.placement import Placement
from bookspark.protocol.logs.commits import Position
from bookspark.protocol.logs.lanes import LaneId, lane_id, lane_of, writers_of_lanes
from bookspark.protocol.logs.log_record import LOG_LABEL, LogRecord
from bookspark.protocol.logs.orphans import is_of
from bookspark.store.autorecovery.status import TaskStatus, autorecovery_status, task_statuses
from bookspark.store.client import BookKeeper
from bookspark.store.client.inspection.held_ranges import held_ranges
from bookspark.store.cluster_view import ClusterView, learn_time
from bookspark.store.metadata.lost_records import read_lost_records
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.metadata.zookeeper.exposure import Exposure
from bookspark.store.metadata.zookeeper.layout import parse_address
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.support.addresses import split_address
from bookspark.support.certificates import ends_by_option, ends_of

DEADLINES: dict[str, Any] = {
    "answer_timeout_seconds": 3.0,
    "connect_timeout_seconds": 2.0,
    "metadata_timeout_seconds": 5.0,
}
"""Client options that bound a look: bookies are asked in parallel, so a dozen hanging bookies cost one deadline."""
_READS = 5
_APART_SECONDS = 1.5
"""Time between two looks at facts that may change."""

_LEDGERS_LOOKED_AT = 200
"""Most ledgers whose log is looked up."""


class Gathering:
    """Repeated looks at one cluster: later looks read only ledgers that may have changed."""

    def __init__(self, bookkeeper: BookKeeper) -> None:
        self._bookkeeper = bookkeeper
        self._looking: Looking | None = None
        self._recovering: dict[int, float] = {}
        """Ledgers in recovery, with the monotonic time of their first look."""

    def look(self, apart_seconds: float = _APART_SECONDS) -> Facts:
        """The cluster's present facts. ``apart_seconds``: time in recovery after which a ledger is reported. A failure of
        ZooKeeper is a fact and never raises MetadataStoreError. Raises ConfigurationError."""
        found: dict[str, Any] = {
            "zookeeper": self._bookkeeper.zookeeper,
            "at_ms": time.time_ns() // 1_000_000,
            "own_certificates": _own_certificates(self._bookkeeper),
        }
        try:
            self._look(found, apart_seconds)
            clock = self._bookkeeper.metadata.clock
            found |= {"at_ms": clock.known_ms(), "clock_ahead_ms": clock.host_ahead_ms()}
        except MetadataStoreError as error:
            found["zookeeper_problem"] = str(error)
        return Facts(**found)

    def _look(self, found: dict[str, Any], apart_seconds: float) -> None:
        began = time.monotonic()
        store = self._bookkeeper.metadata
        found["zookeeper_seconds"] = _read_seconds(store, _opening_seconds(store, began))
        if self._looking is None:
            self._looking = Looking(self._bookkeeper)
        # Independent queries run in parallel, because a slow ZooKeeper delays each one.
        with ThreadPoolExecutor(3, "look") as beside:
            status, documents = beside.submit(autorecovery_status, store), beside.submit(_documents, store)
            exposure = beside.submit(_exposure, store)
            observed = self._looking.look(at_once=True)
        found |= {"autorecovery": status.result(), "exposure": exposure.result(), **documents.result()}
        found["observed"], found["cluster"] = observed, self._looking.cluster
        found["shown_certificates"] = _shown_certificates(found["cluster"])
        found["misplaced"] = _misplaced(observed)
        found["logs"] = _logs_of(store, found["cluster"], observed, found["tasks"])
        found["open_ledgers"] = len(self._looking.open_ledgers)
        found["recovering"] = self._stand(store, self._looking, apart_seconds)

    def _stand(self, store: MetadataStore, looking: Looking, apart_seconds: float) -> frozenset[int]:
        """Ledgers in recovery for at least ``apart_seconds``."""

        def in_recovery(ledger_ids: set[int]) -> set[int]:
            found = store.read_ledgers(sorted(ledger_ids), {})
            return {one.ledger_id for one, _ in found if one.state is LedgerState.IN_RECOVERY}

        now = set(looking.in_recovery)
        began = time.monotonic()
        self._recovering = {one: self._recovering.get(one, began) for one in now}
        if any(began - since < apart_seconds for since in self._recovering.values()):
            threading.Event().wait(apart_seconds)
            now = in_recovery(now)
        ended = time.monotonic()
        return frozenset(one for one in now if ended - self._recovering[one] >= apart_seconds)


def _misplaced(observed: Observed) -> dict[int, bool]:
    topology, placement = observed.topology(), Placement(observed.placement)
    draws, found = random.Random(), dict[int, bool]()
    for shape, ledgers in observed.fragments.by_shape().items():
        what = topology, shape.ensemble, shape.write_quorum
        if not shape.open and placement.breaks(*what):
            movable = bool(placement.misplaced(*what, draws))
            found |= {ledger_id: movable or found.get(ledger_id, False) for ledger_id in ledgers}
    return found


def _logs_of(
    store: MetadataStore, cluster: ClusterView, observed: Observed, tasks: Iterable[TaskStatus]
) -> dict[int, str]:
    lacking = {one.ledger_id for one in tasks}
    lacking |= {one.ledger_id for name in cluster.down() for one in observed.fragments.of(name)}
    newest = heapq.nlargest(_LEDGERS_LOOKED_AT, lacking)
    labels = {one.ledger_id: one.custom_metadata.get(LOG_LABEL) for one, _ in store.read_ledgers(newest, {})}
    return {one: lane_of(label.decode(errors="replace"))[0] for one, label in labels.items() if label is not None}


def gather(bookkeeper: BookKeeper) -> Facts:
    """One look, as ``Gathering.look``."""
    return Gathering(bookkeeper).look()


def _own_certificates(bookkeeper: BookKeeper) -> dict[str, int]:
    config = bookkeeper.config
    access = parse_address(bookkeeper.zookeeper).access
    own = ends_by_option(tls_ca=config.tls_ca, tls_certificate=config.tls_certificate)
    zookeepers = ends_by_option(tls_ca=access.tls_ca, tls_certificate=access.tls_certificate)
    return {
        **{f"{option} {getattr(config, option)}": end for option, end in own.items()},
        **{f"{option} {getattr(access, option)} of the ZooKeeper address": end for option, end in zookeepers.items()},
    }


def _shown_certificates(cluster: ClusterView) -> dict[str, int]:
    """By bookie, the end of the certificate that it shows, if it was refused as expired. A few bookies are asked."""
    found = {}
    for name in [name for name, why in cluster.problems.items() if EXPIRED in why][:NAMED]:
        registration = cluster.bookies[name].registration
        if registration is None:
            continue
        host, port = split_address(registration.address)
        with suppress(OSError, ValueError):
            shown = ends_of(ssl.get_server_certificate((host, port), timeout=DEADLINES["connect_timeout_seconds"]))
            if shown is not None:
                found[name] = shown.first_ms
    return found


def _documents(store: MetadataStore) -> dict[str, Any]:
    found: dict[str, Any] = {"tasks": tuple(task_statuses(store, {})), "change": None}
    with suppress(UnreadableRecordError):
        # `bookspark cluster status` reports it. Without the record, a change's effects look like an operator's orders.
        change = Kept(store).read()
        found["change"] = change if change is not None and change.under_way else None
    with suppress(UnreadableRecordError):
        # Bookies then collect nothing, and report the reason.
        found["lost_records"] = read_lost_records(store)
    return found


def _exposure(store: MetadataStore) -> Exposure:
    return store.exposure() if isinstance(store, ZooKeeperStore) else Exposure()


def _opening_seconds(store: MetadataStore, began: float) -> list[float]:
    """Durations of the session's first small reads if this look opened it: sequential, as those of ``_read_seconds``."""
    return store.connection.figures.since(began)[:_READS] if isinstance(store, ZooKeeperStore) else []


def _read_seconds(store: MetadataStore, took: list[float]) -> float:
    """The median duration of ``_READS`` reads, or of fewer if all are slow: the rest could not make the median fast. ``took``:
    durations of earlier reads."""
    while len(took) < _READS and not (len(took) > _READS // 2 and min(took) > SLOW_ZOOKEEPER_SECONDS):
        began = time.monotonic()
        store.underreplication.enabled()
        took.append(time.monotonic() - began)
    return statistics.median(took)


# -- Closer looks


def gather_ledger(bookkeeper: BookKeeper, ledger_id: int) -> LedgerFacts:
    """The ledger and the held ranges of its bookies; for an open ledger at two moments. Raises NoSuchLedgerError,
    UnreadableRecordError, MetadataStoreError."""
    metadata = bookkeeper.get_ledger_metadata(ledger_id)
    before, began = _held(bookkeeper, ledger_id, metadata.last_fragment.ensemble), time.monotonic()
    if metadata.closed:
        return LedgerFacts(metadata, before)
    threading.Event().wait(_APART_SECONDS)
    metadata = bookkeeper.get_ledger_metadata(ledger_id)
    held = _held(bookkeeper, ledger_id, metadata.last_fragment.ensemble)
    return LedgerFacts(metadata, held, before, time.monotonic() - began, _log_of(bookkeeper, metadata.custom_metadata))


def _held(bookkeeper: BookKeeper, ledger_id: int, bookies: tuple[str, ...]) -> dict[str, Ranges]:
    found: dict[str, Ranges] = {}
    for bookie in bookies:
        try:
            found[bookie] = held_ranges(bookkeeper, bookie, ledger_id).get(ledger_id, [])
        except ReadError:
            # A silent bookie is absent from the result.
            continue
    return found


def _log_of(bookkeeper: BookKeeper, labels: Any) -> LogRecord | None:
    name = labels.get(LOG_LABEL, b"").decode(errors="replace")
    try:
        record = LogRegistry(bookkeeper.metadata).find(name) if name else None
        return record if record is not None and is_of(record, labels) else None
    except (ConfigurationError, UnreadableRecordError):
        return None


def gather_disk(bookkeeper: BookKeeper, facts: Facts, bookie: str) -> DiskFacts:
    """The contents of the bookie's disks by its index. Raises ReadError, MetadataStoreError."""
    logs = tuple(bookkeeper.list_entry_logs(bookie))
    rows = bookkeeper.list_ranges(bookie).group_by("ledger_id").aggregate([("bytes", "sum")]).to_pylist()
    there = set(bookkeeper.list_ledgers())
    named = {one.ledger_id for one in facts.observed.fragments.of(bookie)}
    live = deleted = elsewhere = deleted_bytes = elsewhere_bytes = 0
    for row in rows:
        ledger_id, count = row["ledger_id"], row["bytes_sum"]
        if ledger_id in named:
            live += count
        elif ledger_id in there:
            elsewhere, elsewhere_bytes = elsewhere + 1, elsewhere_bytes + count
        else:
            deleted, deleted_bytes = deleted + 1, deleted_bytes + count
    return DiskFacts(logs, live, deleted, deleted_bytes, elsewhere, elsewhere_bytes)


def gather_log(bookkeeper: BookKeeper, name: str, password: bytes) -> LogFacts:
    """The log ``name``, else the log that query ``name`` owns, else the log that query or group ``name`` reads.

    Raises NoSuchLogError, UnauthorizedAccessError (wrong password), MetadataStoreError."""
    registry = LogRegistry(bookkeeper.metadata)
    record, asked = (
        _find_log(registry, name) or _log_that_is_read(bookkeeper.metadata, name) or (registry.get(name), "")
    )
    log = lane_id(record)
    found_lanes = registry.find_each(registry.lanes_of(log))
    lanes = [one for one in found_lanes if one is not None and one.ended_rows is None]
    writers = writers_of_lanes(registry.find(log.lane(0)) or record, lanes)
    found = tuple(_lane(bookkeeper, one, writers[one.name], password) for one in lanes)
    try:
        readers = tuple(readers_of(bookkeeper, log, password))
    except MetadataStoreError:
        raise
    except BookKeeperError:
        readers = ()
    return LogFacts(record, found, readers, asked)


def lane_end(bookkeeper: BookKeeper, lane: LaneId, password: bytes) -> tuple[Position, int | None]:
    """The lane's end, and the commit time of its newest row, in ms since 1970; None: no commit. Raises as ``LogReader``."""
    reader = LogReader(bookkeeper, lane, password, AT_THE_END)
    last, end, opened = deque(reader.commits(), 1), reader.end(), reader.open_rows
    if opened is not None and opened.rows:
        return end, opened.stamp_at(opened.rows - 1).time_ms
    return end, last[0].commit.time_ms if last else None


def _lane(bookkeeper: BookKeeper, record: LogRecord, writer: str, password: bytes) -> LaneFacts:
    ensemble: tuple[str, ...] = ()
    try:
        for link in record.commit_ledgers[-1:]:
            ensemble = bookkeeper.get_ledger_metadata(link.ledger_id).last_fragment.ensemble
        position, time_ms = lane_end(bookkeeper, lane_id(record), password)
        ago = None if time_ms is None else max(0.0, (learn_time(bookkeeper) - time_ms) / 1000)
        return LaneFacts(record, writer, position.rows, position.batches, ago, "", ensemble)
    except MetadataStoreError:
        raise
    except BookKeeperError as error:
        return LaneFacts(record, writer, problem=str(error), ensemble=ensemble)


def _find_log(registry: LogRegistry, name: str) -> tuple[LogRecord, str] | None:
    names = registry.names()
    if name in names:
        return registry.get(name), ""
    for one in names:
        record = registry.find(one)
        if record is not None and name in (record.owner, record.owner_query):
            return record, ""
    return None


def _log_that_is_read(store: MetadataStore, name: str) -> tuple[LogRecord, str] | None:
    registry = LogRegistry(store)
    for one in registry.names():
        record = registry.find(one)
        if record is None:
            continue
        if any(name in (reader.name, reader.reader) for reader in records_of(store, record.log_id).values()):
            return record, name
    return None
