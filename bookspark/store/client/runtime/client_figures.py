"""A client's figures for Prometheus; ``metrics.tables.CLIENT`` describes them.

Law: who scrapes changes nothing and connects to nothing: a client that was not used yet in this process, or is closed, tells
nothing. The figures are gathered in the I/O thread, which owns them, in one turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.runtime.runtime import Runtime
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.store.wire.header import Kind
from bookspark.support.metrics.described import Figures

_ANSWER_SECONDS_MAX = 5.0
_PREFIX = "bookspark_client_"


def client_figures(context: ClientContext) -> tuple[Figures, Mapping[str, str]]:
    """The figures of this moment, and the label that all of them have. Raises TimeoutError if the I/O thread hangs."""
    label = {"client": context.config.client_name}
    runtime = context.running
    if runtime is None:
        return {}, label
    answer: Future[Figures] = Future()
    runtime.io.submit(lambda: answer.set_result(_gathered(runtime)))
    told = dict(answer.result(_ANSWER_SECONDS_MAX))
    if isinstance(runtime.store, ZooKeeperStore):
        told |= runtime.store.connection.figures.figures()
    return told, label


def _gathered(runtime: Runtime) -> Figures:
    connections, room, traffic = runtime.connections, runtime.room, runtime.connections.traffic
    told: Figures = {
        "request_seconds": {(Kind(kind).name.lower(),): found.copy() for kind, found in traffic.seconds.items()},
        "failed_requests_total": {(reason,): count for reason, count in traffic.failed.items()},
        "failed_connections_total": traffic.unreachable,
        "sent_bytes_total": traffic.sent_bytes,
        "received_bytes_total": traffic.received_bytes,
        "appended_entries_total": traffic.appended_entries,
        "appended_bytes_total": traffic.appended_bytes,
        "ensemble_changes_total": traffic.ensemble_changes,
        "connections": connections.count,
        "bookies_behind": connections.count_behind,
        "queued_bytes": connections.queued_bytes,
        "requests_in_flight": connections.requests_in_flight,
        "quarantined_bookies": len(connections.quarantined()),
        "writers": runtime.writers,
        "kept_bytes": room.held,
        "waiting_appends": len(room.waiting),
    }
    return {f"{_PREFIX}{name}": found for name, found in told.items()}
