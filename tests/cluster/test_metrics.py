"""A bookie's figures for Prometheus."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bookspark.errors import BookieError
from bookspark.local import LocalCluster


def test_what_prometheus_is_told(new_chroot):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with LocalCluster(bookies=1, metrics_port=port, zookeeper=new_chroot()) as cluster:
        bookkeeper = cluster.bookkeeper()
        bookkeeper.create_ledger(1, 1, 1).append(b"entry")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        told = {sample.name: sample for family in families for sample in family.samples}
        bookie_id = cluster.bookies[0].bookie_id
        assert {sample.labels["bookie_id"] for sample in told.values()} == {bookie_id}
        status = bookkeeper.bookie_status(bookie_id)
        assert told["bookspark_bookie_ledgers"].value == status.ledgers == 1
        assert told["bookspark_bookie_log_bytes"].value == status.log_bytes > 0
        assert told["bookspark_bookie_read_only"].value == 0
        with pytest.raises(BookieError, match=rf"metrics can't be answered at 127.0.0.1:{port}"):
            cluster.add_bookie(metrics_port=port)
