"""Kafka as the peer of the sink and the source: its brokers (KRaft, a JVM each), and the jars that Spark needs for them.

Law: all brokers listen on free ports of loopback, and end with the ``with`` block. Topics have a replica on each broker.
With three brokers, two must be in sync for a write, like the ack quorum of a ledger. Everything else is Kafka's default: it
acknowledges rows in the page cache, without a sync.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Self

import pyspark

from bookspark.lab.bench.peers.services import fetched, free_ports, wait_listening, write_settings

_JAVA = Path(__file__).parent / "java"
PARTITIONS = 2
_MEMORY = ["-Xms512m", "-Xmx512m"]
_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_CONNECTOR = ("spark-sql-kafka", "kafka-clients", "commons-pool2")


def kafka_jars(cache: Path) -> tuple[Path, list[Path]]:
    """The folder of the brokers' jars, and the jars that Spark needs. Needs ``mvn``, ``javac`` and ``jar``; raises
    CalledProcessError if any of them fails."""
    jars = fetched(_JAVA / "kafka-pom.xml", cache / "kafka-jars")
    classes, tokens = cache / "kafka-classes", cache / "kafka-tokens.jar"
    spark = Path(pyspark.__file__).parent / "jars"
    classes.mkdir(parents=True, exist_ok=True)
    sources = sorted((_JAVA / "kafka-tokens").glob("*.java"))
    subprocess.run(["javac", "-nowarn", "-d", classes, "-cp", f"{spark}/*", *sources], check=True)
    subprocess.run(["jar", "--create", "--file", tokens, "-C", classes, "."], check=True)
    return jars, [tokens, *(jar for jar in sorted(jars.glob("*.jar")) if jar.name.startswith(_CONNECTOR))]


class Kafka:
    """Brokers with their data in the new folder ``home``: ``with Kafka(...) as kafka: kafka.servers``."""

    def __init__(self, jars: Path, home: Path, brokers: int) -> None:
        self._jars, self._home, self._count = jars, home, brokers
        self._controller, *self._ports = free_ports(1 + brokers)
        self._brokers: list[subprocess.Popen[bytes]] = []

    @property
    def servers(self) -> str:
        """``host:port`` of each broker, separated by commas."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def __enter__(self) -> Self:
        self._home.mkdir(parents=True)
        try:
            for number in range(self._count):
                settings = self._configure(number)
                arguments = ("format", "-t", _CLUSTER_ID, "-c", str(settings))
                if self._java(f"format{number}", "kafka.tools.StorageTool", *arguments).wait():
                    raise RuntimeError(f"Kafka's disk was not formatted; see {self._home}/format{number}.out")
                self._brokers.append(self._java(f"broker{number}", "kafka.Kafka", str(settings)))
            for port, broker in zip(self._ports, self._brokers, strict=True):
                wait_listening(port, broker)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        for broker in self._brokers:
            # The brokers' data is temporary, and a clean stop takes minutes after the controller's end.
            broker.kill()
        for broker in self._brokers:
            broker.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def _java(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self._home / f"{name}.out", "wb") as out:
            command = ["java", *_MEMORY, "-cp", f"{self._jars}/*", *arguments]
            return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=self._home)

    def _configure(self, number: int) -> Path:
        first = number == 0
        listeners = [f"PLAINTEXT://127.0.0.1:{self._ports[number]}"]
        path = self._home / f"broker{number}.properties"
        write_settings(
            path,
            {
                "process.roles": "broker,controller" if first else "broker",
                "node.id": number + 1,
                "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
                "controller.listener.names": "CONTROLLER",
                "listeners": ",".join(
                    [*listeners, f"CONTROLLER://127.0.0.1:{self._controller}"] if first else listeners
                ),
                "advertised.listeners": listeners[0],
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "log.dirs": self._home / f"broker{number}",
                "num.partitions": PARTITIONS,
                "default.replication.factor": self._count,
                "min.insync.replicas": min(self._count, 2),
                "offsets.topic.replication.factor": 1,
                "transaction.state.log.replication.factor": 1,
                "transaction.state.log.min.isr": 1,
            },
        )
        return path
