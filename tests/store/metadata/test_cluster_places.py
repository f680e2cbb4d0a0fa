"""Creation of clusters, and the error where no cluster exists."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookspark.errors import MetadataStoreError, NoSuchClusterError
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore, begin_cluster


def names_below(zookeeper: str) -> set[str]:
    """Paths of all nodes of the ZooKeeper ensemble."""
    with contextlib.closing(ZooKeeperStore(f"{zookeeper}/looking", begin=LedgerManager.HIERARCHICAL)) as store:
        paths = [""]
        for path in paths:
            paths += (f"{path}/{name}" for name in store.client.get_children(path or "/") if name != "zookeeper")
    return {path for path in paths if not path.startswith("/looking")}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    """A path in a ZooKeeper in which no other test has created a cluster, not even at its root."""
    with EmbeddedZooKeeper(tmp_path) as server:
        yield f"{server.connection_string}/tests/{uuid.uuid4().hex}"


def test_mistyped_connection_string_raises_and_creates_no_node(place: str) -> None:
    servers, _, path = place.partition("/")
    begin_cluster(f"{place}/orders")
    with contextlib.closing(ZooKeeperStore(f"{servers}/looking", begin=LedgerManager.HIERARCHICAL)) as store:
        for number in range(120):
            store.client.ensure_path(f"/tests/another-{number}")
    before = names_below(servers)
    for typed in (f"{place}/order", f"{place}/orders/ledgers", f"{servers}/other/{path}", servers):
        client = BookKeeper(typed)
        with pytest.raises(NoSuchClusterError, match=f"no cluster at zk://{typed}") as refused, client:
            client.list_ledgers()
        assert "bookspark init" in str(refused.value)
    with pytest.raises(NoSuchClusterError, match=f"there is one at zk://{place}/orders[,;]"):
        ZooKeeperStore(f"{place}/order")
    assert names_below(servers) == before


def test_cluster_created_twice_is_the_same_cluster(chroot: str) -> None:
    first = begin_cluster(chroot, LedgerManager.FLAT)
    assert begin_cluster(chroot) == first
    with contextlib.closing(ZooKeeperStore(chroot)) as store:
        assert (store.instance_id, store.layout.manager) == (first, LedgerManager.FLAT)


def test_new_cluster_over_records_of_a_removed_cluster_is_refused(chroot: str) -> None:
    """BookKeeper's shell removes only the nodes below "ledgers": a log of the old cluster then named ledgers of the new one."""
    with contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager.BOOKKEEPER)) as store:
        first = store.instance_id
        store.write_record("logs", "orders", b"names ledger 0", None)
        store.client.delete(store.layout.ledgers, recursive=True)
        with pytest.raises(
            MetadataStoreError, match=r"/bookspark in ZooKeeper has records \(logs\) of a cluster .*deleteall"
        ):
            begin_cluster(chroot, LedgerManager.BOOKKEEPER)
        store.client.delete(store.layout.record("logs", "orders"))
        store.client.ensure_path(f"{store.layout.deletions}/logs-0")
        # An empty node of the record kind is no record, and neither is the count of deletions.
        assert begin_cluster(chroot, LedgerManager.BOOKKEEPER) != first
