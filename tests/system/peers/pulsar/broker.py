"""A Pulsar broker from Maven Central's jars, as a JVM of its own, and Pulsar's client, which judges it.

Law: everything listens on loopback, at free ports, and ends with the ``with`` block. The broker keeps its metadata below its
own path of ZooKeeper, and its ledgers in the given cluster. Its settings are Pulsar's defaults, except for places, memory
limits, short ledgers (so that many begin and end), and deduplication. Without deduplication, a producer that resends messages
which a dying broker did not acknowledge writes them twice.
"""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from bookspark.lab.bench.peers.services import end, fetched, free_ports, wait_listening, write_settings
from bookspark.support.cache_folder import cache_folder
from tests.awaiting import await_that
from tests.processes import Output

HERE = Path(__file__).parent
_LOGGING = HERE.parents[3] / "bookspark/lab/bench/peers/java/log4j2.xml"
TOPICS = "persistent://public/default/"
_START_SECONDS = 180.0
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
_JVM = [
    "java",
    *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Djava.net.preferIPv4Stack=true",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    f"-Dlog4j.configurationFile={_LOGGING}",
]


def class_path() -> str:
    """The class path of broker and judge: downloads the jars and compiles ``Messages.java``. Raises CalledProcessError."""
    place = cache_folder() / "pulsar"
    place.mkdir(parents=True, exist_ok=True)
    jars, classes = fetched(HERE / "pom.xml", place / "jars"), place / "classes"
    subprocess.run(
        ["javac", "-nowarn", "-proc:none", "-d", classes, "-cp", f"{jars}/*", HERE / "java/Messages.java"],
        check=True,
        timeout=300,
        stderr=subprocess.DEVNULL,
    )
    return f"{classes}:{jars}/*"


class Broker:
    """A broker whose ledgers are in the cluster at ``zookeeper`` (``host:port/path``). ``home``: a new folder for its
    settings and logs."""

    def __init__(self, path: str, home: Path, zookeeper: str) -> None:
        host = zookeeper.partition("/")[0]
        self._path, self._home = path, home
        self._port, self._web_port = free_ports(2)
        self._own = f"zk:{host}/pulsar"
        self._ledgers = f"zk+hierarchical://{zookeeper}/ledgers"
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Broker:
        self._home.mkdir()
        settings = {
            "clusterName": "judges",
            "metadataStoreUrl": self._own,
            "configurationMetadataStoreUrl": self._own,
            "bookkeeperMetadataServiceUri": self._ledgers,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "brokerServicePort": self._port,
            "webServicePort": self._web_port,
            "functionsWorkerEnabled": "false",
            "transactionCoordinatorEnabled": "false",
            "brokerDeduplicationEnabled": "true",
            "brokerDeduplicationEntriesInterval": 1000,
            "brokerDeleteInactiveTopicsEnabled": "false",
            # Acknowledged messages stay.
            "defaultRetentionTimeInMinutes": -1,
            "defaultRetentionSizeInMB": -1,
            "managedLedgerDefaultEnsembleSize": 3,
            "managedLedgerDefaultWriteQuorum": 3,
            "managedLedgerDefaultAckQuorum": 2,
            "managedLedgerCacheSizeMB": 16,
            "managedLedgerMaxEntriesPerLedger": 5000,
            "managedLedgerMinLedgerRolloverTimeMinutes": 0,
            # Reads go to bookies.
            "managedLedgerCacheEvictionTimeThresholdMillis": 100,
            "numIOThreads": 2,
            "numHttpServerThreads": 8,
        }
        write_settings(self._home / "broker.conf", settings)
        made = self._java(
            "begin",
            "org.apache.pulsar.PulsarClusterMetadataSetup",
            *("--cluster", "judges", "--metadata-store", self._own, "--configuration-metadata-store", self._own),
            *("--existing-bk-metadata-service-uri", self._ledgers),
            *("--web-service-url", f"http://127.0.0.1:{self._web_port}"),
            *("--broker-service-url", self.url),
        )
        if made.wait(_START_SECONDS):
            raise RuntimeError(f"Pulsar's metadata was not made; see {self._home}/begin.out")
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._process is not None:
            end(self._process)

    @property
    def url(self) -> str:
        """The address for Pulsar's clients."""
        return f"pulsar://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the broker. Returns once it is ready; raises RuntimeError if it ends."""
        self._process = self._java(
            "broker", "org.apache.pulsar.PulsarBrokerStarter", "-c", str(self._home / "broker.conf")
        )
        wait_listening(self._web_port, self._process)
        await_that(lambda: self.asked("GET", "brokers/ready") is not None, _START_SECONDS, "the broker's readiness")

    def stop(self, how: signal.Signals) -> None:
        """Send the broker this signal, and wait for its end."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(120)

    def asked(self, method: str, path: str) -> str | None:
        """The response of the broker's admin interface; None if it refuses or does not answer."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._web_port}/admin/v2/{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                said: str = answer.read().decode()
        except OSError:
            return None
        return said

    def ledgers(self, topic: str) -> list[int]:
        """The ledgers of a topic's messages, from the broker. Raises RuntimeError if it does not list them."""
        told = self.asked("GET", f"persistent/public/default/{topic}/internalStats")
        if told is None:
            raise RuntimeError(f"the broker does not tell the ledgers of {topic}")
        return [ledger["ledgerId"] for ledger in json.loads(told)["ledgers"]]

    def delete(self, topic: str) -> None:
        """Delete a topic. Raises RuntimeError if the broker refuses."""
        if self.asked("DELETE", f"persistent/public/default/{topic}?force=true") is None:
            raise RuntimeError(f"the broker did not delete {topic}")

    def judge(self, *words: object) -> Judge:
        """Begin a command of ``Messages.java``, with a topic by its short name."""
        command, topic, *rest = map(str, words)
        with open(self._home / f"{command}-{topic}.out", "ab") as said:
            process = subprocess.Popen(
                [
                    *(*_JVM, "-Xmx256m", f"-Dlog.file={self._home}/{command}-{topic}.log", "-cp", self._path),
                    *("Messages", self.url, command, TOPICS + topic, *rest),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        judge = Judge(process)
        self._stack.callback(judge.end)
        return judge

    def _java(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        memory = ("-Xmx512m", "-XX:MaxDirectMemorySize=512m")
        with open(self._home / f"{name}.out", "ab") as said:
            return subprocess.Popen(
                [*_JVM, *memory, f"-Dlog.file={self._home}/{name}.log", "-cp", self._path, *command],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )


class Judge:
    """A running command of ``Messages.java``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process, self._output = process, Output(process.stdout)

    def end(self) -> None:
        """Kill the command, if it has not ended."""
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait(60)
        # A thread reads its last lines.
        await_that(lambda: self._output.over, what="the end of the output")
        self._process.stdout.close()

    def wait_for(self, pattern: str, seconds: float = 600.0) -> str:
        """The next line that matches. Raises AssertionError if the command ends first, or the line does not come in time."""
        return self._output.wait_for(pattern, seconds).string.strip()

    def verdict(self, seconds: float = 600.0) -> str:
        """The verdict at the end of the command. Raises AssertionError if the command fails."""
        return self.wait_for("^ok ", seconds).removeprefix("ok ")
