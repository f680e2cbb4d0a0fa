"""Status of autorecovery for people and metrics: outstanding work and an estimate of its duration.

Law: it decides nothing. The estimate assumes that all entries of a ledger are equally large, omits entries lacking on live
bookies, and uses the workers' rate while they were at work.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.replication_plan import repairs
from bookspark.protocol.repair.underreplication_task import Missed, Reason, Task
from bookspark.store.cluster_view import known_bookies
from bookspark.store.metadata.autorecovery.auditors import CheckReport
from bookspark.store.metadata.autorecovery.underreplication_tasks import Progress
from bookspark.store.metadata.store import MetadataStore
from bookspark.support.metrics.described import Figures


class TaskStatus(msgspec.Struct, frozen=True):
    ledger_id: int
    bookies: dict[str, Reason]
    detail: str
    marked_seconds_ago: float
    attempts: int
    error: str
    next_attempt_seconds: float
    """Seconds until the next attempt; 0: now."""
    holder: str | None
    """The worker that repairs the ledger now."""
    missed: tuple[Missed, ...] = ()

    @property
    def entries_lost(self) -> bool:
        """Were all bookies reached at the last attempt, and none gave some entries?"""
        return any(missed.lost for missed in self.missed)


class AutorecoveryStatus(msgspec.Struct, frozen=True):
    auditor: str | None
    enabled: bool
    checking: bool
    lost: tuple[str, ...] | None
    """Bookies whose entries others take over; None: unknown without an auditor."""
    away: dict[str, float] | None
    """Absent bookies, each with the seconds until it counts as lost; None: unknown."""
    last_check: CheckReport | None
    """The last exact check; None: none yet."""
    workers: dict[str, Progress]
    ledgers: int
    """Ledgers known to lack copies."""
    being_repaired: int
    failed: int
    missed: dict[int, tuple[Missed, ...]]
    """Entries that the last attempts could not copy, by ledger."""
    unreadable: dict[int, str]
    """Ledgers with an undecodable task or metadata, with the reason; not repaired."""
    bytes_left: int
    bytes_per_second: float | None
    """Rate of all workers together while they were at work; None before the first copy."""
    seconds_left: float | None
    """Estimated seconds to go; None: unknown, as without an auditor."""


def autorecovery_status(store: MetadataStore) -> AutorecoveryStatus:
    """The present status. Raises MetadataStoreError."""
    tasks, auditors = store.underreplication, store.auditors
    unreadable: dict[int, str] = {}
    # With a slow ZooKeeper each request takes long: independent requests run concurrently.
    with ThreadPoolExecutor(6, "status") as beside:
        ask = beside.submit
        progress, holders, enabled = ask(tasks.progress), ask(tasks.holders), ask(tasks.enabled)
        noted, elected, checked = ask(auditors.state), ask(auditors.auditor), ask(auditors.last_check)
        found = list(tasks.tasks(tasks.list_tasks(), unreadable))
        by_id = {task.ledger_id: task for task in found}
        bytes_left = sum(bytes_to_copy(one, by_id[one.ledger_id]) for one, _ in store.read_ledgers(by_id, unreadable))
    workers, state, auditor = progress.result(), noted.result(), elected.result()
    busy = [one for one in workers.values() if one.seconds > 0]
    bytes_per_second = sum(one.bytes / one.seconds for one in busy) or None
    ledgers_per_second = sum(one.ledgers / one.seconds for one in busy) or None
    now_ms = store.clock.known_ms()
    # The last state of a gone auditor may be outdated.
    known = None if auditor is None else state
    seconds_left = _longest(((bytes_left, bytes_per_second), (len(found), ledgers_per_second)))
    return AutorecoveryStatus(
        auditor=auditor,
        enabled=enabled.result(),
        checking=known is not None and known.checking,
        lost=None if known is None else known.lost,
        away=None if known is None else {bookie: _seconds(at_ms - now_ms) for bookie, at_ms in known.waiting.items()},
        last_check=checked.result(),
        workers=workers,
        ledgers=len(found),
        being_repaired=len(holders.result().keys() & by_id.keys()),
        failed=sum(bool(task.error) for task in found),
        missed={task.ledger_id: task.missed for task in found if task.missed},
        unreadable=unreadable,
        bytes_left=bytes_left,
        bytes_per_second=bytes_per_second,
        seconds_left=None if auditor is None else seconds_left,
    )


def cluster_figures(store: MetadataStore) -> Figures:
    """Counts from ZooKeeper, by a few requests, however many ledgers there are. Raises MetadataStoreError."""
    tasks, auditors = store.underreplication, store.auditors
    auditor, check = auditors.auditor(), auditors.last_check()
    state = None if auditor is None else auditors.state()
    cluster = known_bookies(store)
    registered = cluster.registered()
    read_only = sum(one.read_only for one in registered.values())
    told: Figures = {
        "autorecovery_enabled": float(tasks.enabled()),
        "autorecovery_auditors": float(auditor is not None),
        "autorecovery_underreplicated_ledgers": len(tasks.list_tasks()),
        "autorecovery_repairs_under_way": len(tasks.holders()),
        "autorecovery_lost_bookies": 0 if state is None else len(state.lost),
        "autorecovery_away_bookies": 0 if state is None else len(state.waiting),
        "autorecovery_check_finished_timestamp_seconds": 0.0 if check is None else check.finished_at_ms / 1000,
        "autorecovery_check_marked_ledgers": 0 if check is None else check.marked,
        "autorecovery_check_skipped_bookies": 0 if check is None else len(check.skipped),
        "autorecovery_check_unreadable_ledgers": 0 if check is None else len(check.unreadable),
        "cluster_bookies": {
            ("writable",): len(registered) - read_only,
            ("read_only",): read_only,
            ("down",): len(cluster.down()),
        },
    }
    return {f"bookspark_{name}": found for name, found in told.items()}


def worker_figures(progress: Progress) -> Figures:
    told: Figures = {
        "repaired_ledgers_total": progress.ledgers,
        "failed_repairs_total": progress.failed,
        "copied_entries_total": progress.entries,
        "copied_bytes_total": progress.bytes,
        "busy_seconds_total": progress.seconds,
        "clock_ahead_seconds": progress.clock_ahead_ms / 1000,
    }
    return {f"bookspark_autorecovery_{name}": found for name, found in told.items()}


def task_statuses(store: MetadataStore, unreadable: dict[int, str]) -> list[TaskStatus]:
    """Every task, ascending by ledger id. Reasons of undecodable tasks go into ``unreadable``. Raises MetadataStoreError."""
    tasks = store.underreplication
    holders, now_ms = tasks.holders(), store.clock.known_ms()
    return [
        TaskStatus(
            ledger_id=task.ledger_id,
            bookies=dict(task.bookies),
            detail=task.detail,
            marked_seconds_ago=_seconds(now_ms - task.marked_at_ms),
            attempts=task.attempts,
            error=task.error,
            next_attempt_seconds=0.0 if task.due(now_ms) else _seconds(task.not_before_ms - now_ms),
            holder=holders.get(task.ledger_id),
            missed=task.missed,
        )
        for task in tasks.tasks(tasks.list_tasks(), unreadable)
    ]


def bytes_to_copy(metadata: LedgerMetadata, task: Task) -> int:
    """Estimated bytes that other bookies must take over. 0 for a ledger that is not closed: its length is unknown."""
    entries = metadata.last_entry_id + 1
    if not metadata.closed or not entries:
        return 0
    replaced = {*task.of(Reason.LOST), *task.of(Reason.MISPLACED)}
    ids = sum(len(repair.lost) * (repair.last - repair.first + 1) for repair in repairs(metadata, replaced))
    more = metadata.length * (metadata.copies_wanted - metadata.write_quorum) if metadata.lacks_copies else 0
    return more + round(ids * metadata.write_quorum / metadata.ensemble_size * metadata.length / entries)


def _seconds(ms: int) -> float:
    return max(0.0, round(ms / 1000, 1))


def _longest(works: Iterable[tuple[int, float | None]]) -> float | None:
    """Seconds of the longest work; None if a rate is unknown."""
    seconds = [count / rate if rate else None for count, rate in works if count]
    known = [one for one in seconds if one is not None]
    return None if len(known) < len(seconds) else max(known, default=0.0)
