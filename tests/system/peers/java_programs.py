"""Java programs on another project's jars: class path, servers, judges, and the cluster and steps of their stories.

Law: a peer's folder has ``pom.xml``, which names the jars, and ``java/``, the classes that are compiled with them and with the
peers' common ``java/``. Everything listens on loopback, at free ports, and ends with the ``with`` block.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from bookspark.lab.bench.peers.services import end, fetched, wait_listening
from bookspark.local import LocalBookie, LocalCluster
from bookspark.store.client.bookkeeper import BookKeeper
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster
from bookspark.support.cache_folder import cache_folder
from tests.awaiting import await_that
from tests.processes import Output

BOOKIES = 4
_PEERS = Path(__file__).parent
_LOGGING = _PEERS.parents[2] / "bookspark/lab/bench/peers/java/log4j2.xml"
# The packages that Pulsar's own start script opens.
_OPENED = (
    "java.base/sun.net",
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)
_JVM = (
    "java",
    *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Djava.net.preferIPv4Stack=true",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    f"-Dlog4j.configurationFile={_LOGGING}",
)
_SERVER_MEMORY = ("-Xmx512m", "-XX:MaxDirectMemorySize=512m")
_JUDGE_MEMORY = ("-Xmx256m",)


def class_path(peer: str) -> str:
    """The class path of a peer's programs: downloads the jars and compiles the classes. Raises CalledProcessError."""
    here, place = _PEERS / peer, cache_folder() / peer
    place.mkdir(parents=True, exist_ok=True)
    jars, classes = fetched(here / "pom.xml", place / "jars"), place / "classes"
    sources = [*_PEERS.glob("java/*.java"), *here.glob("java/*.java")]
    subprocess.run(
        ["javac", "-nowarn", "-proc:none", "-d", classes, "-cp", f"{jars}/*", *sources],
        check=True,
        timeout=300,
    )
    return f"{classes}:{jars}/*"


class Programs:
    """The JVMs of one peer. ``home``: a new folder for their output and logs."""

    def __init__(self, peer: str, home: Path) -> None:
        self._path, self._home = class_path(peer), home
        self._stack = ExitStack()
        home.mkdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def begin(self, name: str, *command: object) -> subprocess.Popen[bytes]:
        """Begin a server's command. Its output goes to ``<name>.out``."""
        with open(self._home / f"{name}.out", "ab") as output:
            process = subprocess.Popen(
                self._command(name, _SERVER_MEMORY, command), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._stack.callback(lambda: end(process) if process.poll() is None else None)
        return process

    def judge(self, name: str, *command: object) -> Judge:
        """Begin a program that prints its observations. Its errors go to ``<name>.out``."""
        with open(self._home / f"{name}.out", "ab") as errors:
            process = subprocess.Popen(
                self._command(name, _JUDGE_MEMORY, command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        judge = Judge(process)
        self._stack.callback(judge.end)
        return judge

    def _command(self, name: str, memory: tuple[str, ...], command: tuple[object, ...]) -> list[str]:
        return [*_JVM, *memory, f"-Dlog.file={self._home}/{name}.log", "-cp", self._path, *map(str, command)]


class Server:
    """A server that listens on ``port`` and is killed and started again."""

    def __init__(self, programs: Programs, name: str, port: int, *command: object) -> None:
        self.port = port
        self._begin: Callable[[], subprocess.Popen[bytes]] = lambda: programs.begin(name, *command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server. Returns once it listens; raises RuntimeError if it ends."""
        self._process = self._begin()
        wait_listening(self.port, self._process)

    def stop(self, how: signal.Signals) -> None:
        """Send the server this signal, and wait for its end."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(120)


class Judge:
    """A running program that prints a line for each observation, and at last "ok ..."."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process, self._output = process, Output(process.stdout)

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        """Kill the program, if it has not ended."""
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(60)
        # A thread reads its last lines.
        await_that(lambda: self._output.over, what="the end of the output")
        self._process.stdout.close()

    def wait_for(self, pattern: str, seconds: float = 600.0) -> str:
        """The next line that matches. Raises AssertionError if the program ends first, or the line does not come in time."""
        return self._output.wait_for(pattern, seconds).string.strip()

    def verdict(self, seconds: float = 600.0) -> str:
        """The verdict at the end of the program. Raises AssertionError if the program fails."""
        return self.wait_for("^ok ", seconds).removeprefix("ok ")

    def printed(self, word: str) -> int:
        """The number in the last line "<word> <number>" so far; -1 before the first."""
        numbers = [line.split()[1] for line in self._output.lines if line.startswith(f"{word} ")]
        return int(numbers[-1]) if numbers else -1


@contextmanager
def a_cluster(home: Path, **options: object) -> Iterator[LocalCluster]:
    """Four bookies for BookKeeper's clients, with ``options``, and their ZooKeeper. The cluster's path there is /bookspark."""
    with EmbeddedZooKeeper(home / "zookeeper", 0) as zookeeper:
        place = f"{zookeeper.connection_string}/bookspark"
        begin_cluster(place, LedgerManager.BOOKKEEPER)
        with LocalCluster(BOOKIES, home / "bookies", place, bookkeeper_port=-1, **options) as cluster:
            yield cluster


def bookie_of_open_ledger(cluster: LocalCluster, client: BookKeeper, ledgers: Iterable[int] = ()) -> LocalBookie:
    """A bookie that the writer of the newest open ledger sends copies to. Without ``ledgers`` the choice is among all. Raises
    AssertionError if none is open."""
    for ledger_id in sorted(ledgers or client.list_ledgers(), reverse=True):
        metadata = client.get_ledger_metadata(ledger_id)
        if not metadata.closed:
            return next(each for each in cluster.bookies if each.bookie_id in metadata.fragments[-1].ensemble)
    raise AssertionError("no ledger is open")


def payload(head: bytes, size: int) -> bytes:
    """``Payloads.of`` of ``java/Payloads.java``: the bytes that follow from ``head``, with it first."""
    digest = hashlib.sha256(head).digest()
    return (head + digest * (size // len(digest) + 1))[:size]


def read_whole(client: BookKeeper, ledger_id: int) -> Iterator[bytes]:
    """The payloads of a ledger of any BookKeeper client, up to its last add confirmed (LAC)."""
    with client.open_ledger_no_recovery(ledger_id, client.get_ledger_metadata(ledger_id).password) as reader:
        if (last := reader.last_add_confirmed) >= 0:
            for entry in reader.read(0, last):
                yield entry.payload


class Steps:
    """Prints each step of a story with the seconds since the one before."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self, step: str, result: object = "") -> None:
        self._begun, before = time.monotonic(), self._begun
        load = os.getloadavg()[0]
        seconds = self._begun - before
        print(f"{seconds:6.1f} s  load {load:4.1f}  {step}{': ' if result != '' else ''}{result}", flush=True)


def main(
    peer: str,
    description: str | None,
    items: str,
    count: int,
    story: Callable[[Path, int, int, Steps], None],
    arguments: list[str],
) -> int:
    """The command of a peer: calls ``story`` with a folder, the count of ``items`` and their size. Returns 0."""
    parser = argparse.ArgumentParser(f"scripts/peers {peer}", description=description)
    parser.add_argument(f"--{items}", type=int, default=count, help="how many are written", dest="count")
    parser.add_argument("--bytes", type=int, default=1024, help="of each", dest="size")
    parser.add_argument("--keep", type=Path, help="a new folder for data and logs, which is kept")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix=f"{peer}-") as folder:
        home = options.keep or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        story(home, options.count, options.size, Steps())
    return 0
