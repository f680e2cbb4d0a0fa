"""Who may begin a cluster, and what everybody else is told where none is."""

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
    """Every node of the ensemble, by its path."""
    with contextlib.closing(ZooKeeperStore(f"{zookeeper}/looking", begin=LedgerManager.HIERARCHICAL)) as store:
        paths = [""]
        for path in paths:
            paths += (f"{path}/{name}" for name in store.client.get_children(path or "/") if name != "zookeeper")
    return {path for path in paths if not path.startswith("/looking")}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    """A place of a ZooKeeper that no other test has begun a cluster in, not even at its root."""
    with EmbeddedZooKeeper(tmp_path) as server:
        yield f"{server.connection_string}/tests/{uuid.uuid4().hex}"


def test_a_mistyped_place_is_no_empty_cluster_and_stays_as_it_was(place: str) -> None:
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


def test_what_is_begun_twice_is_one_cluster(chroot: str) -> None:
    first = begin_cluster(chroot, LedgerManager.FLAT)
    assert begin_cluster(chroot) == first
    with contextlib.closing(ZooKeeperStore(chroot)) as store:
        assert (store.instance_id, store.layout.manager) == (first, LedgerManager.FLAT)


def test_no_cluster_is_begun_over_the_records_of_one_that_was_removed(chroot: str) -> None:
    """BookKeeper's shell removes what is below "ledgers", and no more: a log of the old cluster named ledgers of the new one."""
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
        # The node of the kind alone is no record, and neither is what counts deletions.
        assert begin_cluster(chroot, LedgerManager.BOOKKEEPER) != first
