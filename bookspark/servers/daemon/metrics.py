"""A bookie's figures for Prometheus, at ``http://<host>:<metrics_port>/metrics``; ``metrics.tables`` describes them.

Law: a scrape asks the bookie once and changes nothing. Without an answer in time the scrape fails, so Prometheus sees a hung
bookie. Each figure has the label ``bookie_id``.

The loop gathers its figures in one turn, which takes some 0.1 ms and walks over directories and logs, never over ledgers. Figures
of commit threads are copied without a lock (``metrics.histogram``). So a scrape delays no add and no read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.bookie.holdings.disk_marks import Takes
from bookspark.store.bookie.serving.server import BookieServer
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.header import Kind, Status
from bookspark.store.wire.messages import BookieStatus, HealingStatus
from bookspark.support.certificates import DAY_MS
from bookspark.support.metrics.described import Figures
from bookspark.support.metrics.families import FiguresCollector, page_of
from bookspark.support.metrics.histogram import together
from bookspark.support.metrics.tables import BOOKIE, ZOOKEEPER
from bookspark.support.metrics.web import Page

_ANSWER_SECONDS_MAX = 5.0
_PREFIX = "bookspark_bookie_"
_NO_HEALING = HealingStatus(0, 0, 0, 0, 0.0)

BookieFigures = tuple[str, Figures]
"""A bookie's id, and its figures."""


def metrics_page(
    post: Post, figures: Callable[[], BookieFigures], session: Callable[[], Figures]
) -> Callable[[], Page]:
    """The function that makes the page ``/metrics``. ``post`` calls ``figures`` on the bookie's loop. ``session``: figures of the
    ZooKeeper session, in any thread."""

    def ask() -> tuple[Figures, Mapping[str, str]]:
        answer: Future[BookieFigures] = Future()

        def on_loop() -> None:
            try:
                answer.set_result(figures())
            except Exception as error:
                answer.set_exception(error)

        post(on_loop)
        bookie_id, told = answer.result(_ANSWER_SECONDS_MAX)
        return {**told, **session()}, {"bookie_id": bookie_id}

    return page_of(FiguresCollector((*BOOKIE, *ZOOKEEPER), ask))


def bookie_figures(server: BookieServer) -> BookieFigures:
    """All figures of a bookie. To be called on its loop."""
    status = server.status()
    told = {**_of_status(status), **_of_requests(server), **_of_directories(server.storage, status)}
    return status.bookie_id, {f"{_PREFIX}{name}": found for name, found in told.items()}


def _of_status(status: BookieStatus) -> Figures:
    healing = status.healing or _NO_HEALING
    collection = status.collection
    return {
        "info": {(status.version,): 1},
        "clock_ahead_seconds": status.clock_ahead_ms / 1000,
        "certificate_days": {
            (option,): (end_ms - time.time_ns() // 1_000_000) / DAY_MS
            for option, end_ms in status.certificate_ends.items()
        },
        "kept": float(bool(status.keeper)),
        "read_only": float(status.read_only),
        "ledgers": status.ledgers,
        "collections_total": 0 if collection is None else collection.number,
        "collection_seconds": 0.0 if collection is None else collection.seconds,
        "collection_failed": float(collection is not None and bool(collection.problem)),
        "lossy_boot": status.lossy_boot,
        "healed_boot": status.healed_boot,
        "limbo_ledgers": status.limbo_ledgers,
        "lacking_ledgers": status.lacking_ledgers,
        "lost_copies_total": status.lost_copies,
        "unread_copies": status.unread_copies,
        "healing_ledgers": healing.ledgers,
        "healing_ledgers_left": healing.ledgers_left,
        "healing_seconds": healing.seconds,
        "healing_entries_total": healing.entries_copied,
        "healing_bytes_total": healing.bytes_copied,
        "healing_lost_entries": healing.entries_lost,
        "scrub_ratio": status.scrub_part,
        "scrub_finished_timestamp_seconds": status.scrub_finished_ms / 1000,
        "scrub_dead_bytes_total": status.scrub_dead_bytes,
        "renewed_files_total": status.renewed_files,
    }


def _of_requests(server: BookieServer) -> Figures:
    bookie, admission, _ = server.behind
    storage, traffic = bookie.storage, bookie.storage.traffic
    commits = [directory.commit for directory in storage.holdings.directories]
    requests: dict[tuple[str, ...], int] = {}
    for (kind, status), count in traffic.answers.items():
        named = kind if isinstance(kind, str) else _name(Kind, kind), _name(Status, status)
        requests[named] = requests.get(named, 0) + count
    return {
        "add_seconds": together(commit.adds.copy() for commit in commits),
        "read_seconds": traffic.reads.copy(),
        "group_adds": together(commit.groups.entry_batches.copy() for commit in commits),
        "group_bytes": together(commit.groups.bytes.copy() for commit in commits),
        "requests_total": requests,
        "refusals_total": bookie.refusals.count,
        "added_entries_total": traffic.entries_in,
        "added_bytes_total": traffic.bytes_in,
        "read_entries_total": traffic.entries_out,
        "read_bytes_total": traffic.bytes_out,
        "fences_total": traffic.fences,
        "connections": len(admission.connections),
        "strangers": len(admission.strangers),
        "reading_paused": float(admission.paused),
        "add_in_flight_bytes": storage.bytes_in_flight,
        "read_in_flight_bytes": bookie.read_room.total,
        "unfinished_bytes": admission.memory.bound + admission.memory.slack,
        "reads_waiting": bookie.read_room.waiting,
    }


def _of_directories(storage: Storage, status: BookieStatus) -> Figures:
    directories = {(directory.path,): directory for directory in storage.holdings.directories}
    failed: dict[tuple[str, ...], float] = dict.fromkeys(directories, 0.0)
    failed |= {(path,): 1.0 for path in status.failed_directories}
    return {
        "sync_seconds": {path: one.commit.syncs for path, one in directories.items()},
        "queued_turns": {path: one.commit.queued for path, one in directories.items()},
        "index_ledgers": len(storage.holdings.index),
        "checkpoint_bytes": {path: sum(part.size for part in one.parts or ()) for path, one in directories.items()},
        "log_bytes": {path: one.bytes for path, one in directories.items()},
        "garbage_bytes": {path: storage.reclaiming.garbage.get(path[0], 0) for path in directories},
        "free_bytes": {path: storage.disks.free_bytes_of(one) for path, one in directories.items()},
        "directory_failed": failed,
        "directory_full": {path: float(one.takes is not Takes.ALL) for path, one in directories.items()},
        "directory_read_errors_total": {path: one.read_errors for path, one in directories.items()},
        "collected_ledgers_total": storage.garbage_collection.collected,
        "removed_log_bytes_total": storage.reclaiming.removed_bytes,
        "rewritten_log_bytes_total": storage.reclaiming.rewritten_bytes,
        "failed_rewrites_total": storage.reclaiming.failures,
    }


def _name(kind: type[Kind] | type[Status], number: int) -> str:
    try:
        return kind(number).name.lower()
    except ValueError:
        return "unknown"
