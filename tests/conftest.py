"""Fixtures for the tests of all layers, the choice of tests, and their distribution over the workers of ``pytest -n``."""

from __future__ import annotations

import gc
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from bookspark.local import LocalCluster
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests import spark_classes, zygote
from tests.awaiting import await_that
from tests.promises import judges_a_promise

pytest_plugins = ["bookspark.testing.plugin", "tests.reporting", "tests.spark.fixtures"]

# All servers started by tests listen on loopback, including those of Spark in its own processes.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
spark_classes.use()
zygote.use()
# No deadline for an example, nor for drawing it: a slow machine is no bug.
settings.register_profile("bookspark", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bookspark")


def _give_zookeeper_time() -> None:
    """A busy machine needs more time than a call may take in production. Session timeouts stay as they are: tests wait for
    the sessions of killed processes to end."""
    init, bookkeeper = ZooKeeperStore.__init__, LocalCluster.bookkeeper
    init.__defaults__ = (ZOOKEEPER_SECONDS,)
    init.__kwdefaults__["start_timeout_seconds"] = ZOOKEEPER_SECONDS

    def patient(cluster: LocalCluster, **options: Any) -> Any:
        return bookkeeper(cluster, **{"metadata_timeout_seconds": ZOOKEEPER_SECONDS} | options)

    LocalCluster.bookkeeper = patient


ZOOKEEPER_SECONDS = 60.0
_give_zookeeper_time()


WORKERS_MAX = 8
FEW_MODULES = 8
ACCEPTANCE = Path(__file__).with_name("system") / "acceptance"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also tests/system/acceptance, and tests with that mark")
    parser.addoption("--release", action="store_true", help="all, and tests with that mark")


def _left_out(config: pytest.Config) -> list[str]:
    """The marks of tests that run only if their module is named."""
    return [] if config.option.release else ["release"] if config.option.all else ["release", "acceptance"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without ``--all`` or ``--release``, collect the acceptance tests only if they are named."""
    if collection_path != ACCEPTANCE or "acceptance" not in _left_out(config):
        return None
    named = (config.invocation_params.dir / arg.partition("::")[0] for arg in config.args)
    return None if any(path.is_relative_to(ACCEPTANCE) for path in named) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if judges_a_promise(item.path):
            item.add_marker("promise")
    marks = _left_out(config)
    named = {config.invocation_params.dir / arg.partition("::")[0] for arg in config.args}
    later = {item for item in items if item.path not in named and any(map(item.get_closest_marker, marks))}
    if later:
        config.hook.pytest_deselected(items=[item for item in items if item in later])
        items[:] = [item for item in items if item not in later]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The number of workers for ``-n auto``: two for each core, because the tests wait more than they compute; none for a
    few modules, which run faster than the workers start."""
    if len(config.args) <= FEW_MODULES and all(arg.partition("::")[0].endswith(".py") for arg in config.args):
        return 0
    return min(2 * len(os.sched_getaffinity(0)), WORKERS_MAX)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """The scheduler of ``scheduling``, unless ``--dist`` chooses another."""
    if config.option.dist != "load":
        return None
    from tests.scheduling import ByModule

    return ByModule(config, log)


@pytest.fixture(scope="module", autouse=True)
def _no_session_outlives_its_module() -> Iterator[None]:
    """An unclosed kazoo client searches for its ZooKeeper for ever and draws numbers from the ``random`` of later tests;
    so does the reporting thread of an unclosed reader, once it reports.

    Threads left by an earlier module are that module's failure, not this one's.
    """
    before = _connecting_threads()
    yield
    if _connecting_threads() - before:
        gc.collect()
        await_that(lambda: not _connecting_threads() - before, what="the end of the threads that look for a ZooKeeper")


def _connecting_threads() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if "zk_loop" in thread.name or thread.name == "bookspark-tell-readers"
    }


@pytest.fixture(scope="session")
def zookeeper(bookspark_zookeeper: EmbeddedZooKeeper) -> EmbeddedZooKeeper:
    """A ZooKeeper for all tests of this process. Tests must not stop it; each has a ``chroot`` of its own."""
    return bookspark_zookeeper


@pytest.fixture(scope="session")
def new_chroot(zookeeper: EmbeddedZooKeeper) -> Callable[[], str]:
    """Makes connection strings of new clusters: ``127.0.0.1:port/…``. A cluster on such a chroot starts in a second less
    than with a ZooKeeper of its own."""
    return lambda: f"{zookeeper.connection_string}/tests/{uuid.uuid4().hex}"


@pytest.fixture
def chroot(new_chroot: Callable[[], str]) -> str:
    """The connection string of a new cluster for this test alone."""
    return new_chroot()
