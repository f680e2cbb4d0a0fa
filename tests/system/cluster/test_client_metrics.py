"""Prometheus metrics of a client."""

from __future__ import annotations

import prometheus_client
from prometheus_client.parser import text_string_to_metric_families

from bookspark.local import LocalCluster
from bookspark.support.metrics.tables import CLIENT, ZOOKEEPER
from tests.awaiting import await_that


def scrape(registry):
    """Names of the families, and samples by name and labels except ``client``."""
    families = list(text_string_to_metric_families(prometheus_client.generate_latest(registry).decode()))
    names = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    samples = [sample for family in families for sample in family.samples]
    assert all(sample.labels["client"] == "writer" for sample in samples)
    return names, {
        (one.name, *(value for name, value in sorted(one.labels.items()) if name != "client")): one.value
        for one in samples
    }


def test_client_metrics_match_its_calls(new_chroot):
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as cluster:
        # Long intervals: no explicit LAC is sent during a scrape, and no bookie leaves quarantine.
        options = {"explicit_lac_interval_seconds": 3600.0, "quarantine_seconds": 3600.0}
        bookkeeper = cluster.bookkeeper(client_name="writer", **options)
        registry = prometheus_client.CollectorRegistry()
        registry.register(bookkeeper.metrics())
        assert scrape(registry) == (set(), {}), "a scrape makes no connection"
        ledger = bookkeeper.create_ledger(2, 2, 2)
        for _ in range(3):
            ledger.append(b"entry")
        names, told = scrape(registry)
        assert names == {one.name for one in (*CLIENT, *ZOOKEEPER)}
        assert told["bookspark_client_appended_entries_total",] == 3
        assert told["bookspark_client_appended_bytes_total",] == 15
        assert told["bookspark_client_request_seconds_count", "add"] == 6, "each of two bookies answered"
        assert 0 < told["bookspark_client_request_seconds_sum", "add"] < 60
        assert told["bookspark_client_connections",] >= 2
        assert told["bookspark_client_writers",] == 1
        assert told["bookspark_client_sent_bytes_total",] > 15 < told["bookspark_client_received_bytes_total",]
        assert told["bookspark_client_requests_in_flight",] == 0
        assert told["bookspark_zookeeper_connected",] == 1 and told["bookspark_zookeeper_call_seconds_count",] > 0
        assert told["bookspark_client_ensemble_changes_total",] == 0
        abandoned = bookkeeper.create_ledger(3, 2, 2)
        lost = ledger.metadata.last_fragment.ensemble[0]
        next(one for one in cluster.bookies if one.bookie_id == lost).kill()
        ledger.append(b"entry")
        assert scrape(registry)[1]["bookspark_client_ensemble_changes_total",] == 1
        # The fence goes to all three bookies, including the killed bookie.
        bookkeeper.open_ledger(abandoned.ledger_id)
        await_that(lambda: scrape(registry)[1]["bookspark_client_failed_connections_total",] > 0)
        assert scrape(registry)[1]["bookspark_client_quarantined_bookies",] == 1
        assert list(bookkeeper.open_ledger(ledger.ledger_id).read())[-1].payload == b"entry"
        assert scrape(registry)[1]["bookspark_client_request_seconds_count", "read"] >= 1
        bookkeeper.close()
        assert scrape(registry) == (set(), {})
