"""A cluster of three bookies for each module, a client, and a new log for each test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from bookspark.local import LocalCluster
from bookspark.logs import Log, create_log
from bookspark.store.client import BookKeeper
from tests.awaiting import PATIENT


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bookkeeper(cluster: LocalCluster) -> Iterator[BookKeeper]:
    with cluster.bookkeeper(**PATIENT) as bookkeeper:
        yield bookkeeper


@pytest.fixture
def log(bookkeeper: BookKeeper) -> Log:
    return create_log(bookkeeper, f"log-{uuid.uuid4().hex[:8]}")
