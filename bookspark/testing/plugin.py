"""Fixtures for pytest: clusters of real bookie processes. Name the plugin in the top ``conftest.py``::

    pytest_plugins = ["bookspark.testing.plugin"]

A module gets three bookies with default options; a mark changes them::

    pytestmark = pytest.mark.cluster(bookies=5, journal_write_data=False)

``bookspark_zookeeper``
    An ``EmbeddedZooKeeper`` for the whole session, with a chroot for each cluster.
``local_cluster``
    A ``LocalCluster`` shared by the tests of a module.
``faulty_cluster``
    A ``FaultyCluster`` shared by the tests of a module, mended after each test.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from bookspark.local import LocalCluster
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.testing.faulty_cluster import FaultyCluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cluster(**options): options of the LocalCluster or FaultyCluster that the tests of a module share"
    )


@pytest.fixture(scope="session")
def bookspark_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """Shared, because its start takes longer than that of three bookies. Users stay within a chroot and do not stop it."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def _cluster_options(request: pytest.FixtureRequest, bookspark_zookeeper: EmbeddedZooKeeper) -> dict[str, Any]:
    marker = request.node.get_closest_marker("cluster")
    chroot = f"{bookspark_zookeeper.connection_string}/clusters/{uuid.uuid4().hex}"
    return {"zookeeper": chroot} | ({} if marker is None else marker.kwargs)


@pytest.fixture(scope="module")
def local_cluster(_cluster_options: dict[str, Any]) -> Iterator[LocalCluster]:
    """A LocalCluster shared by the tests of a module. Each test leaves it unchanged."""
    with LocalCluster(**_cluster_options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def _faulty_cluster_of_module(_cluster_options: dict[str, Any]) -> Iterator[FaultyCluster]:
    with FaultyCluster(**_cluster_options) as cluster:
        yield cluster


@pytest.fixture
def faulty_cluster(_faulty_cluster_of_module: FaultyCluster) -> Iterator[FaultyCluster]:
    """A FaultyCluster shared by the tests of a module. Tests break it freely: it is mended after each test."""
    yield _faulty_cluster_of_module
    _faulty_cluster_of_module.mend()
