"""A bookie's figures for Prometheus: what STATUS tells, at ``http://<host>:<metrics_port>/metrics``.

Law: a scrape asks the bookie once and changes nothing. If the bookie does not answer in time, the scrape fails, so Prometheus
sees a bookie that hangs. Names begin with ``bookspark_bookie_``. Sizes are in bytes. Each figure has the label ``bookie_id``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bookspark.bookie.commit.commit_thread import Post
from bookspark.daemon.web import Page
from bookspark.wire.messages import BookieStatus

Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)

_ANSWER_SECONDS_MAX = 5.0
_PREFIX = "bookspark_bookie_"
_FIGURES = {
    "ledgers": "Ledgers that the bookie knows.",
    "log_bytes": "Size of the bookie's logs.",
    "free_bytes": "Free space of the bookie's disks.",
    "read_only": "1 while the bookie takes no new entries.",
    "lossy_boot": "The number of the last boot after which entries may have been lost.",
    "healed_boot": "The number of the last such boot of which everything is back.",
    "limbo_ledgers": "Ledgers of which entries may be missing.",
    "lost_copies": "Copies of batches that were found unreadable since the start.",
    "lacking_ledgers": "Ledgers of which entries were lost here that are not all back yet.",
    "scrub_part": "How much of the scrub's round is done, 0 to 1.",
    "scrub_dead_bytes": "Damaged bytes that hold no entry any more, as the scrub found them since the start.",
    "renewed_files": "Damaged control logs, checkpoints, notes, markers and cookies that were written anew since the start.",
    "scrub_finished_ms": "When the last whole round of the scrub ended, in ms since 1970. 0: none did yet.",
}
_HEALING_FIGURES = {
    "ledgers": "Ledgers that healing looks at.",
    "ledgers_left": "Ledgers that healing still has to look at.",
    "seconds": "How long healing has run.",
}
_HEALING_COUNTS = {
    "entries_copied": "Entries that were brought back.",
    "bytes_copied": "Bytes that were brought back.",
}


def metrics_page(post: Post, status: Callable[[], BookieStatus]) -> Callable[[], Page]:
    """What makes the page ``/metrics``. ``post`` has ``status`` called on the bookie's loop."""
    registry = CollectorRegistry()
    registry.register(_Figures(post, status))
    return lambda: Page(200, generate_latest(registry), CONTENT_TYPE_LATEST)


class _Figures(Collector):
    def __init__(self, post: Post, status: Callable[[], BookieStatus]) -> None:
        self._post = post
        self._status = status

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that to register this does not ask the bookie."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        answer: Future[BookieStatus] = Future()
        self._post(lambda: answer.set_result(self._status()))
        status = answer.result(_ANSWER_SECONDS_MAX)
        for name, text in _FIGURES.items():
            yield _figure(GaugeMetricFamily, name, text, status, getattr(status, name))
        failed = GaugeMetricFamily(
            f"{_PREFIX}directory_failed",
            "1 for each directory that is not in use any more; the reason is in the bookie's status.",
            labels=("bookie_id", "directory"),
        )
        for path in status.directories:
            failed.add_metric((status.bookie_id, path), float(path in status.failed_directories))
        for path in status.failed_directories.keys() - set(status.directories):
            failed.add_metric((status.bookie_id, path), 1.0)
        yield failed
        if status.healing is None:
            return
        for name, text in _HEALING_FIGURES.items():
            yield _figure(GaugeMetricFamily, f"healing_{name}", text, status, getattr(status.healing, name))
        for name, text in _HEALING_COUNTS.items():
            yield _figure(CounterMetricFamily, f"healing_{name}", text, status, getattr(status.healing, name))


def _figure(kind: type[Family], name: str, text: str, status: BookieStatus, value: float) -> Family:
    family = kind(f"{_PREFIX}{name}", text, labels=("bookie_id",))
    family.add_metric((status.bookie_id,), float(value))
    return family
