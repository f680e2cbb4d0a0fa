"""A BookKeeper cluster with ledgers, the cluster that they are copied into, and readers of the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bookspark.local import LocalCluster
from bookspark.operations.moving import EntryReader, Source
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster


@pytest.fixture(scope="module")
def there(new_chroot: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    place = new_chroot()
    begin_cluster(place, LedgerManager.BOOKKEEPER)
    with LocalCluster(3, tmp_path_factory.mktemp("there"), place, bookkeeper_port=-1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def here(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(3, zookeeper=new_chroot()) as cluster:
        yield cluster


@pytest.fixture
def source(there: LocalCluster) -> Iterator[Source]:
    with Source(f"{there.zookeeper}/ledgers") as source:
        yield source


@pytest.fixture
def reader(source: Source) -> Iterator[EntryReader]:
    with EntryReader(source.addresses()) as reader:
        yield reader
