"""An autorecovery process: an auditor, which works while it is elected, and a replication worker.

Law: any number of these processes may run, on any host, and each may be killed at any moment. With the option ``metrics_port``
it answers Prometheus and probes: healthy while its threads run, ready while ZooKeeper answers it. A scrape reads counts from
ZooKeeper and changes nothing.

In a cluster begun for BookKeeper's clients, BookKeeper's autorecovery may work instead: our process does not start beside
theirs. Theirs, started later, waits for the office of the auditor, which has one election for all; its workers respect our
locks.

Source: ``AutoRecoveryMain`` of BookKeeper.
"""

from __future__ import annotations

import logging
from typing import Self

from bookspark.errors import ConfigurationError, MetadataStoreError
from bookspark.store.autorecovery.auditor import Auditor
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.status import cluster_figures, worker_figures
from bookspark.store.autorecovery.worker import ReplicationWorker
from bookspark.store.client import BookKeeper
from bookspark.store.decisions.recorder import record_into
from bookspark.store.metadata.short_waits import waits_at_most
from bookspark.support.addresses import address_text
from bookspark.support.extras import extra_needed
from bookspark.support.metrics.described import Figures
from bookspark.support.metrics.tables import AUTORECOVERY
from bookspark.support.metrics.web import PORTS, Page, WebServer

_ANSWER_SECONDS_MAX = 4.0

log = logging.getLogger(__name__)


class Autorecovery:
    """An auditor and a replication worker that share a client. ``stop`` closes the client."""

    def __init__(self, bookkeeper: BookKeeper, config: AutorecoveryConfig) -> None:
        """Raises MetadataStoreError if the metadata store can't be reached, and ConfigurationError if BookKeeper's
        autorecovery works in this cluster."""
        self._bookkeeper = bookkeeper
        record_into(bookkeeper.context.config.record_decisions, "autorecovery")
        self._web: WebServer | None = None
        try:
            _refuse_beside_bookkeepers(bookkeeper)
            self._worker = ReplicationWorker(bookkeeper, config)
            self._auditor = Auditor(bookkeeper, config, self._worker.name)
            if config.metrics_port:
                self._web = self._answer_http(config)
        except BaseException:
            self._close()
            raise

    @property
    def name(self) -> str:
        """Name in ``bookspark autorecovery status``."""
        return self._worker.name

    def start(self) -> None:
        self._worker.start()
        self._auditor.start()

    def stop(self) -> None:
        """Release the locks of unfinished repairs and resign. Unreleased locks end with the session."""
        self._auditor.stop()
        self._worker.stop()
        self._close()

    @property
    def metrics_port(self) -> int:
        return 0 if self._web is None else self._web.port

    def _close(self) -> None:
        if self._web is not None:
            self._web.close()
        self._bookkeeper.close()

    # -- pages

    def _answer_http(self, config: AutorecoveryConfig) -> WebServer:
        with extra_needed("metrics_port"):
            from bookspark.support.metrics.families import FiguresCollector, page_of
        own = FiguresCollector(AUTORECOVERY, lambda: (self._figures(), {}))
        pages = {
            "/metrics": page_of(own, self._bookkeeper.metrics()),
            "/health": lambda: _probe(self._why_unhealthy(), "healthy"),
            "/ready": lambda: _probe(self._why_not_ready(), "ready"),
        }
        web = WebServer(
            config.metrics_host, max(0, config.metrics_port), pages, tries=PORTS, names=(config.metrics_host,)
        )
        log.info("metrics and probes are answered at %s", address_text(config.metrics_host, web.port))
        return web

    def _figures(self) -> Figures:
        told = {**worker_figures(self._worker.progress()), **self._auditor.figures()}
        try:
            with waits_at_most(_ANSWER_SECONDS_MAX):
                return {**told, **cluster_figures(self._bookkeeper.metadata)}
        except MetadataStoreError as error:
            log.warning("the metrics of the cluster are not updated: %s", error)
            return told

    def _why_unhealthy(self) -> str:
        ended = [name for name, one in (("worker", self._worker), ("auditor", self._auditor)) if one.ended]
        return f"the thread of the {' and of the '.join(ended)} has ended; start the process again" if ended else ""

    def _why_not_ready(self) -> str:
        try:
            with waits_at_most(_ANSWER_SECONDS_MAX):
                self._bookkeeper.metadata.underreplication.enabled()
        except MetadataStoreError as error:
            return f"ZooKeeper does not answer: {error}"
        return ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def _refuse_beside_bookkeepers(bookkeeper: BookKeeper) -> None:
    found = bookkeeper.metadata.auditors.foreign()
    if found:
        raise ConfigurationError(
            f"autorecovery of Apache BookKeeper is at work in this cluster ({', '.join(sorted(found))}); one of the two does the "
            "work at a time: stop theirs first, then start this one"
        )


def _probe(problem: str, good: str) -> Page:
    return Page(503 if problem else 200, f"{problem or good}\n".encode())
