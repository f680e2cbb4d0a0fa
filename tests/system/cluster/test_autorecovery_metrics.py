"""Prometheus metrics and probes of an autorecovery process."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookspark.errors import MetadataStoreError
from bookspark.local import LocalCluster
from bookspark.store.autorecovery import process
from bookspark.store.autorecovery.autorecovery_config import autorecovery_config
from bookspark.store.autorecovery.process import Autorecovery
from bookspark.support.metrics.tables import AUTORECOVERY, CLIENT, ZOOKEEPER
from tests.awaiting import SECONDS_MAX, await_that

ALL_TABLES = {one.name for one in (*AUTORECOVERY, *CLIENT, *ZOOKEEPER)}


def get(running, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{running.metrics_port}{path}", timeout=SECONDS_MAX) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(running):
    families = list(text_string_to_metric_families(get(running, "/metrics")[1]))
    names = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    samples = [sample for family in families for sample in family.samples]
    return names, {(one.name, one.labels.get("state", "")): one.value for one in samples}


def test_autorecovery_metrics_show_bookies_and_the_enabled_switch(new_chroot):
    config = autorecovery_config(metrics_port=-1, lost_bookie_delay_seconds=3600.0)
    with (
        LocalCluster(bookies=2, zookeeper=new_chroot()) as cluster,
        Autorecovery(cluster.bookkeeper(), config) as running,
    ):
        assert running.metrics_port > 0
        await_that(lambda: scrape(running)[1]["bookspark_autorecovery_auditors", ""] == 1)
        names, told = scrape(running)
        assert names == ALL_TABLES
        assert told["bookspark_cluster_bookies", "writable"] == 2 and told["bookspark_cluster_bookies", "down"] == 0
        assert told["bookspark_autorecovery_enabled", ""] == 1
        store = cluster.bookkeeper().metadata
        store.underreplication.disable()
        cluster.bookies[0].stop()
        await_that(lambda: scrape(running)[1]["bookspark_cluster_bookies", "down"] == 1)
        assert scrape(running)[1]["bookspark_autorecovery_enabled", ""] == 0
        assert scrape(running)[1]["bookspark_cluster_bookies", "writable"] == 1


def test_autorecovery_probes_and_metrics_without_metadata_store_or_worker(new_chroot, monkeypatch):
    def no_answer(*_):
        raise MetadataStoreError("no answer")

    with LocalCluster(bookies=1, zookeeper=new_chroot()) as cluster:
        running = Autorecovery(cluster.bookkeeper(), autorecovery_config(metrics_port=-1))
        try:
            running.start()
            assert get(running, "/health") == (200, "healthy\n")
            assert get(running, "/ready") == (200, "ready\n")
            monkeypatch.setattr(process, "cluster_figures", no_answer)
            names = scrape(running)[0]
            assert "bookspark_autorecovery_failed_repairs_total" in names and "bookspark_cluster_bookies" not in names
            running._worker.stop()
            status, why = get(running, "/health")
            assert status == 503 and why.startswith("the thread of the worker has ended")
        finally:
            running.stop()
        with pytest.raises(urllib.error.URLError):
            get(running, "/health")


def test_autorecovery_serves_no_metrics_port_by_default(new_chroot):
    with (
        LocalCluster(bookies=1, zookeeper=new_chroot()) as cluster,
        Autorecovery(cluster.bookkeeper(), autorecovery_config()) as running,
    ):
        assert running.metrics_port == 0
