"""Fixtures that tests of all layers share."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import settings

from bookspark.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.awaiting import await_that

pytest_plugins = ["bookspark.testing.plugin"]

settings.register_profile("bookspark", deadline=None)  # a machine under load is no bug
settings.load_profile("bookspark")


@pytest.fixture(scope="module", autouse=True)
def _no_session_outlives_its_module() -> Iterator[None]:
    """A kazoo client that nobody closed looks for its ZooKeeper for ever, and takes numbers of the ``random`` of later tests."""
    yield
    await_that(lambda: not any("zk_loop" in thread.name for thread in threading.enumerate()))


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """A ZooKeeper for the whole session. Tests don't stop it, and keep apart by ``chroot``."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def chroot(zookeeper: EmbeddedZooKeeper) -> str:
    """The connection string of a cluster of this test's own: ``127.0.0.1:port/…``."""
    return f"{zookeeper.connection_string}/tests/{uuid.uuid4().hex}"
