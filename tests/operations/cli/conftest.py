"""The ``bookspark`` command, run in this process, and a cluster for it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from bookspark.local import LocalCluster
from bookspark.operations.cli.main import main
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore


@dataclass(frozen=True)
class Outcome:
    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as cluster:
        yield cluster


@pytest.fixture
def bookspark(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """``bookspark("ledger", "list")`` runs that command line and returns its outcome."""

    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["bookspark", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfdbinary.readouterr()
        return Outcome(int(end.value.code or 0), out, err.decode())

    return run


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only half a second for ZooKeeper: no server answers in these tests."""
    assert ZooKeeperStore.__init__.__kwdefaults__ is not None
    monkeypatch.setitem(ZooKeeperStore.__init__.__kwdefaults__, "start_timeout_seconds", 0.5)


@pytest.fixture
def on_cluster(bookspark: Run, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The ``bookspark`` fixture with BOOKSPARK_ZOOKEEPER set to the cluster."""
    monkeypatch.setenv("BOOKSPARK_ZOOKEEPER", cluster.zookeeper)
    return bookspark
