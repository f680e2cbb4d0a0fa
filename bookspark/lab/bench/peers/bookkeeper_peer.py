"""Apache BookKeeper as the peer: its jars, a ZooKeeper and three bookies, a JVM each, and the client that times it.

Law: all servers listen on free ports of loopback, and end with the ``with`` block. Bookies use DbLedgerStorage, with the
settings and JVM options of BookKeeper's own start scripts, except three settings, which bound disk use and listening
sockets.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bookspark.lab.bench.peers.services import end, fetched, free_ports, wait_listening, write_settings

_JAVA = Path(__file__).parent / "java"
BOOKIES = 3
_START_SECONDS = 180.0
_OPENED = ("java.nio", "jdk.internal.misc", "java.io", "java.util.zip")
_JVM = [
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.leakDetectionLevel=disabled",
    "-Dio.netty.tryReflectionSetAccessible=true",
    *(word for name in _OPENED for word in ("--add-opens", f"java.base/{name}=ALL-UNNAMED")),
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-XX:+ParallelRefProcEnabled",
    "-XX:+DisableExplicitGC",
]
_BOOKIE_MEMORY = ["-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g"]
_CLIENT_MEMORY = ["-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=2g"]


def build(cache: Path) -> list[str]:
    """Fetch the jars into ``cache`` and compile the client there. Returns the class path, as arguments of ``java``. Needs
    ``mvn`` and ``javac``; raises CalledProcessError if either fails."""
    jars, classes = fetched(_JAVA / "bookkeeper-pom.xml", cache / "jars"), cache / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["javac", "-nowarn", "-d", classes, "-cp", f"{jars}/*", _JAVA / "BenchLedger.java"],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return ["-cp", f"{classes}:{jars}/*"]


class Peer:
    """A cluster with its data in the new folder ``home``: ``with Peer(...) as peer: peer.run(workloads)``. ``settings`` are
    added to each bookie's."""

    def __init__(self, class_path: Sequence[str], home: Path, settings: Mapping[str, str]) -> None:
        self._class_path = list(class_path)
        self._home = home
        self._settings = settings
        self._zookeeper_port, *self._ports = free_ports(1 + BOOKIES)
        self._zookeeper: subprocess.Popen[bytes] | None = None
        self._bookies: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Peer:
        self._home.mkdir(parents=True)
        self._configure()
        try:
            self._zookeeper = self._java("zookeeper", ["-Xmx512m"], _ZOOKEEPER, str(self._home / "zoo.cfg"))
            wait_listening(self._zookeeper_port, self._zookeeper)
            first = str(self._home / "bookie0.conf")
            if self._java("format", ["-Xmx512m"], _SHELL, "-conf", first, "initnewcluster").wait(_START_SECONDS):
                raise RuntimeError(f"the peer's cluster was not formatted; see {self._home}/format.out")
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        if self._zookeeper is not None:
            end(self._zookeeper)
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        return [bookie.pid for bookie in self._bookies]

    @property
    def directories(self) -> list[Path]:
        """A folder for each bookie."""
        return [self._home / f"bookie{k}" for k in range(BOOKIES)]

    @property
    def metadata_uri(self) -> str:
        """The cluster's metadata, as a URI for BookKeeper's clients."""
        return f"zk+hierarchical://127.0.0.1:{self._zookeeper_port}/ledgers"

    def start(self) -> None:
        """Start the bookies. Returns once they listen; raises RuntimeError if a bookie does not."""
        self._bookies = [
            self._java(f"bookie{k}", _BOOKIE_MEMORY, _BOOKIE, "-c", str(self._home / f"bookie{k}.conf"))
            for k in range(BOOKIES)
        ]
        for port, bookie in zip(self._ports, self._bookies, strict=True):
            wait_listening(port, bookie)

    def stop(self) -> None:
        for bookie in self._bookies:
            bookie.terminate()
        for bookie in self._bookies:
            end(bookie)
        self._bookies = []

    def run(self, workloads: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Run ``workloads`` in a new client, like ``timed_by_client``."""
        return timed_by_client(self._class_path, self._home, self.metadata_uri, self.pids, workloads)

    def _java(self, name: str, memory: Sequence[str], *command: str) -> subprocess.Popen[bytes]:
        return _started(self._class_path, self._home, name, memory, *command)

    def _configure(self) -> None:
        write_settings(
            self._home / "zoo.cfg",
            {
                "tickTime": 2000,
                "dataDir": self._home / "zookeeper",
                "clientPort": self._zookeeper_port,
                "clientPortAddress": "127.0.0.1",
                "admin.enableServer": "false",
                "maxClientCnxns": 0,
            },
        )
        for k, port in enumerate(self._ports):
            data = self._home / f"bookie{k}"
            data.mkdir()
            write_settings(
                self._home / f"bookie{k}.conf",
                {
                    "bookiePort": port,
                    "listeningInterface": "lo",
                    "advertisedAddress": "127.0.0.1",
                    "allowLoopback": "true",
                    "metadataServiceUri": self.metadata_uri,
                    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
                    "journalDirectories": data / "journal",
                    "ledgerDirectories": data / "ledgers",
                    "indexDirectories": data / "index",
                    # The next three settings bound disk use and listening sockets.
                    "journalMaxBackups": 0,
                    "httpServerEnabled": "false",
                    "enableStatistics": "false",
                    **self._settings,
                },
            )


def timed_by_client(
    class_path: Sequence[str], home: Path, metadata_uri: str, pids: Sequence[int], workloads: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Run ``workloads`` (described in ``BenchLedger.java``) in a new client of BookKeeper's, on the cluster at
    ``metadata_uri``, whose bookies are the processes ``pids``. Its log goes to the folder ``home``. Yields the lines that
    it prints. Raises RuntimeError with the end of a failed client's output."""
    client = _started(
        class_path,
        home,
        "client",
        _CLIENT_MEMORY,
        "BenchLedger",
        metadata_uri,
        ",".join(map(str, pids)),
        *workloads,
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    try:
        for line in client.stdout:
            yield json.loads(line)
        if client.wait() != 0:
            last_words = (home / "client.out").read_text()[-2000:]
            raise RuntimeError(f"the client of BookKeeper failed:\n{last_words}")
    finally:
        end(client)
        client.stdout.close()


def _started(
    class_path: Sequence[str], home: Path, name: str, memory: Sequence[str], *command: str, stdout: int | None = None
) -> subprocess.Popen[bytes]:
    """A JVM with BookKeeper's own options. Its output and its log go to ``home``."""
    with open(home / f"{name}.out", "ab") as output:
        return subprocess.Popen(
            [
                os.environ.get("JAVA", "java"),
                *_JVM,
                *memory,
                f"-Dlog4j.configurationFile={_JAVA / 'log4j2.xml'}",
                f"-Dlog.file={home / name}.log",
                *class_path,
                *command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=stdout or output,
            stderr=output,
            start_new_session=True,
        )


_ZOOKEEPER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_SHELL = "org.apache.bookkeeper.bookie.BookieShell"
_BOOKIE = "org.apache.bookkeeper.server.Main"
