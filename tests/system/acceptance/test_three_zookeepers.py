"""The guide to three ZooKeeper servers: its settings file, its commands, and its statements about lost servers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bookspark import BookKeeper
from bookspark.errors import MetadataStoreError
from bookspark.local import LocalCluster
from bookspark.store.metadata.zookeeper.embedded import _jars
from bookspark.store.metadata.zookeeper.java import find_java
from tests.awaiting import SECONDS_MAX, await_that

GUIDE = (Path(__file__).resolve().parents[3] / "docs/clusters/zookeeper.md").read_text()
SERVERS = (1, 2, 3)
HOSTS = {number: f"127.0.71.{number}" for number in SERVERS}


class Server:
    """A server on a loopback address of its own, started from pyspark's jars as the guide's ``zkServer.sh`` does."""

    def __init__(self, folder: Path, number: int) -> None:
        self.data = folder / f"data-{number}"
        self.number = number
        (block,) = re.findall(r"(?:^    \w[\w.]*=.*\n)+", GUIDE, re.MULTILINE)
        text = re.sub("^    ", "", block, flags=re.MULTILINE).replace("/var/lib/zookeeper", str(self.data))
        for host in SERVERS:
            text = text.replace(f"zk{host}.example.org", HOSTS[host])
        self.settings = folder / f"zoo-{number}.cfg"
        self.settings.write_text(f"{text}clientPortAddress={HOSTS[number]}\n")
        self.log = folder / f"zookeeper-{number}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.make_empty()

    def make_empty(self) -> None:
        """Create the directory and the server number in it, as the guide does."""
        shutil.rmtree(self.data, ignore_errors=True)
        command = f"mkdir -p {self.data} && echo {self.number} > {self.data}/myid"
        assert command.replace(str(self.data), "/var/lib/zookeeper").replace(str(self.number), "1") in GUIDE
        subprocess.run(command, shell=True, check=True)

    def start(self) -> None:
        heap = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=WARN")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with self.log.open("ab") as log:
            command = [find_java(), *heap, "-cp", ":".join(_jars()), main, str(self.settings)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    found = [Server(tmp_path, number) for number in SERVERS]
    try:
        for one in found:
            one.start()
        yield found
    finally:
        for one in found:
            one.kill()


def bookspark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bookspark", *arguments], capture_output=True, text=True, timeout=300)


def await_quorum(connection: str) -> None:
    client = KazooClient(connection.removeprefix("zk://").partition("/")[0])
    client.start(SECONDS_MAX)
    client.stop()
    client.close()


def test_cluster_survives_losing_one_of_three_zookeepers_as_the_guide_says(
    servers: list[Server], tmp_path: Path
) -> None:
    (told,) = re.findall(r"BOOKSPARK_ZOOKEEPER=(\S+)", GUIDE)
    connection = re.sub(r"zk(\d)\.example\.org", r"127.0.71.\1", told)
    await_quorum(connection)
    assert bookspark("init", "--zookeeper", connection).returncode == 0
    assert bookspark("bookies", "--zookeeper", connection).returncode == 0
    # An election takes the servers some seconds, and more on a busy machine.
    patient = {"metadata_timeout_seconds": 120.0}
    with LocalCluster(3, tmp_path / "bookies", connection) as cluster, cluster.bookkeeper(**patient) as bookkeeper:
        with bookkeeper.create_ledger() as ledger:
            ledger.append(b"three")
        # One of three servers is killed: the cluster works as before.
        servers[0].kill()
        with bookkeeper.create_ledger() as second:
            second.append(b"two")
        # Two servers are killed: an open ledger is written, and no ledger can be created.
        third = bookkeeper.create_ledger()
        servers[1].kill()
        third.append(b"one")
        with BookKeeper(connection, metadata_timeout_seconds=3.0) as impatient, pytest.raises(MetadataStoreError):
            impatient.create_ledger()
        # An empty server with its old number copies everything from the others.
        servers[1].start()
        registered = bookkeeper.metadata.bookies
        await_that(lambda: len(registered()) == 3, what="the bookies, registered again", despite=MetadataStoreError)
        third.close()
        servers[0].make_empty()
        servers[0].start()
        ids = sorted(one.ledger_id for one in (ledger, second, third))

        def first_knows_all() -> bool:
            with BookKeeper(f"zk://{HOSTS[1]}:2181/bookspark") as alone:
                return alone.list_ledgers() == ids

        await_that(first_knows_all, what="the emptied server to know all ledgers", despite=MetadataStoreError)
        assert [next(bookkeeper.open_ledger(one).read()).payload for one in ids] == [b"three", b"two", b"one"]
