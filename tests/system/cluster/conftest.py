"""A cluster of real bookie processes, shared by the tests of a module that leave it as they found it."""

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
    """A client with the usual deadlines. With short deadlines, a bookie that a slow disk holds up would count as dead."""
    return cluster.bookkeeper()


@pytest.fixture
def everyone_is_back(cluster):
    """For modules whose tests kill and suspend the bookies of their cluster: after each test all of them serve."""
    yield

    def bring_back(bookie):
        if bookie.pid is not None:
            bookie.resume()
        bookie.start()

    with ThreadPoolExecutor(len(cluster.bookies)) as pool:
        list(pool.map(bring_back, cluster.bookies))
