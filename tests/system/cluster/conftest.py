"""A cluster of real bookie processes, shared by the tests of a module, which leave it unchanged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bookspark.local import LocalCluster


@pytest.fixture(scope="module")
def cluster(new_chroot):
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as running:
        yield running


@pytest.fixture(scope="module")
def bookkeeper(cluster):
    """A client with the default timeouts. With short ones, a bookie behind a slow disk would count as dead."""
    return cluster.bookkeeper()


@pytest.fixture
def everyone_is_back(cluster):
    """After each test all bookies serve again, for modules whose tests kill and suspend them."""
    yield

    def bring_back(bookie):
        if bookie.pid is not None:
            bookie.resume()
        bookie.start()

    with ThreadPoolExecutor(len(cluster.bookies)) as pool:
        list(pool.map(bring_back, cluster.bookies))
