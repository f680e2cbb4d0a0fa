"""A bookie on an IPv6 address: its addresses stand in brackets wherever it tells them, and clients use them."""

from __future__ import annotations

import re

from bookspark.local import LocalCluster
from bookspark.operations.console.figures import counts_of
from bookspark.store.metadata.records.bookkeeper_format import rpc_address, service_info
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster


def test_ipv6_addresses_stand_in_brackets_and_are_dialled(chroot):
    begin_cluster(chroot, LedgerManager.BOOKKEEPER)
    with LocalCluster(1, zookeeper=chroot, host="::1", metrics_port=-1, bookkeeper_port=-1) as cluster:
        bookie = cluster.bookies[0].bookie_id
        with cluster.bookkeeper() as client:
            assert client.create_ledger(1, 1, 1).append(b"x") == 0
            registration = client.metadata.bookies()[bookie]
            status = client.bookie_status(bookie)
        addresses = (
            registration.address,
            status.metrics_address,
            registration.bookkeeper_address,
            cluster.bookies[0].address,
        )
        assert all(re.fullmatch(r"\[::1\]:\d+", address) for address in addresses), addresses
        assert counts_of({bookie: status.metrics_address})[bookie]


def test_ipv6_address_for_bookkeepers_clients_is_a_host_without_brackets():
    """BookKeeper's registration has host and port apart."""
    document = service_info("[::1]:3181", b"{}")
    assert b"[" not in document and rpc_address(document) == "[::1]:3181"
