"""Fixtures for pytest: clusters of real bookie processes. Name the plugin in the top ``conftest.py``::

    pytest_plugins = ["bookspark.testing.plugin"]

A module gets three bookies with default options, unless it says otherwise::

    pytestmark = pytest.mark.cluster(bookies=5, journal_write_data=False)

``local_cluster``
    A ``LocalCluster`` that the tests of a module share.
``faulty_cluster``
    A ``FaultyCluster`` that the tests of a module share. It is mended after each test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bookspark.local import LocalCluster
from bookspark.testing.faulty_cluster import FaultyCluster


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "cluster(**options): options of the LocalCluster or FaultyCluster that the tests of a module share"
    )


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    marker = request.node.get_closest_marker("cluster")
    return {} if marker is None else marker.kwargs


@pytest.fixture(scope="module")
def local_cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A LocalCluster that the tests of a module share. Each test has to leave it as it found it."""
    with LocalCluster(**_options(request)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def _faulty_cluster_of_module(request: pytest.FixtureRequest) -> Iterator[FaultyCluster]:
    with FaultyCluster(**_options(request)) as cluster:
        yield cluster


@pytest.fixture
def faulty_cluster(_faulty_cluster_of_module: FaultyCluster) -> Iterator[FaultyCluster]:
    """A FaultyCluster that the tests of a module share. Break it as you like: it is mended after each test."""
    yield _faulty_cluster_of_module
    _faulty_cluster_of_module.mend()
