"""A Pulsar broker from Maven Central's jars, as a JVM of its own, and Pulsar's client, which judges it.

Law: the broker keeps its metadata below its own path of ZooKeeper, and its ledgers in the given cluster. Its settings are
Pulsar's defaults, except for places, memory limits, short ledgers (so that many begin and end), and deduplication. Without
deduplication, a producer that resends messages which a dying broker did not acknowledge writes them twice.
"""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path

from bookspark.lab.bench.peers.services import free_ports, write_settings
from tests.awaiting import await_that
from tests.system.peers.java_programs import Judge, Programs, Server

TOPICS = "persistent://public/default/"
_START_SECONDS = 180.0


class Broker:
    """A broker whose ledgers are in the cluster at ``zookeeper`` (``host:port/path``). ``home``: the folder for its settings."""

    def __init__(self, programs: Programs, home: Path, zookeeper: str) -> None:
        port, self._web_port = free_ports(2)
        self._programs = programs
        self.url = f"pulsar://127.0.0.1:{port}"
        """The address for Pulsar's clients."""
        own = f"zk:{zookeeper.partition('/')[0]}/pulsar"
        ledgers = f"zk+hierarchical://{zookeeper}/ledgers"
        settings = {
            "clusterName": "judges",
            "metadataStoreUrl": own,
            "configurationMetadataStoreUrl": own,
            "bookkeeperMetadataServiceUri": ledgers,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "brokerServicePort": port,
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
        write_settings(home / "broker.conf", settings)
        made = programs.begin(
            "begin",
            "org.apache.pulsar.PulsarClusterMetadataSetup",
            *("--cluster", "judges", "--metadata-store", own, "--configuration-metadata-store", own),
            *("--existing-bk-metadata-service-uri", ledgers),
            *("--web-service-url", f"http://127.0.0.1:{self._web_port}"),
            *("--broker-service-url", self.url),
        )
        if made.wait(_START_SECONDS):
            raise RuntimeError("Pulsar's metadata was not made; see begin.out")
        starter = "org.apache.pulsar.PulsarBrokerStarter"
        self._server = Server(programs, "broker", self._web_port, starter, "-c", home / "broker.conf")
        self.start()

    def start(self) -> None:
        """Start the broker. Returns once it is ready; raises RuntimeError if it ends."""
        self._server.start()
        await_that(lambda: self.asked("GET", "brokers/ready") is not None, _START_SECONDS, "the broker's readiness")

    def stop(self, how: signal.Signals) -> None:
        """Send the broker this signal, and wait for its end."""
        self._server.stop(how)

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
        return self._programs.judge(f"{command}-{topic}", "Messages", self.url, command, TOPICS + topic, *rest)
