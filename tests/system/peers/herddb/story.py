"""A HerdDB server on Bookspark's bookies, while both are killed and restarted.

Law: HerdDB keeps all data on bookies and in ZooKeeper (mode diskless-cluster): its transaction log, and each page of a table in
a ledger of its own. So each start gets an empty base directory. Rows are inserted, each in a transaction of its own, while

==========  =======================================================================
at 15 %     the server is killed (SIGKILL) and started again
at 35 %     a bookie with a copy of the open ledger is killed
at 55 %     the server is stopped cleanly and started again, while the bookie is dead
at 75 %     the bookie is started again
==========  =======================================================================

At last the server is killed once more. Then each row is there once, with its value: read from HerdDB's next server, and by
Bookspark's client from the ledgers. Settings are HerdDB's defaults, except for places, three copies, little memory for data (so
that pages are read back), frequent checkpoints, and a short retention of the log's ledgers (so that they are deleted).
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from bookspark import BookKeeper
from bookspark.lab.bench.peers.services import free_ports, write_settings
from bookspark.local import LocalCluster
from tests.system.peers.java_programs import (
    Programs,
    Server,
    Steps,
    a_cluster,
    bookie_of_open_ledger,
    payload,
    read_whole,
)

_ROW = re.compile(rb"numbers:(....)", re.DOTALL)


class Database:
    """A HerdDB server whose ledgers are in the cluster. ``home``: the folder for its settings and base directories."""

    def __init__(self, programs: Programs, home: Path, cluster: LocalCluster) -> None:
        self._host, _, self._path = cluster.zookeeper.removeprefix("zk://").partition("/")
        (port,) = free_ports(1)
        self._home, self._starts = home, 0
        self._server = Server(programs, "server", port, "Rows", "serve", home / "server.properties")
        self.url = f"jdbc:herddb:zookeeper:{self._host}/herd"

    def start(self) -> None:
        """Start the server with an empty base directory. Returns once it listens; raises RuntimeError if it ends."""
        self._starts += 1
        settings = {
            "server.mode": "diskless-cluster",
            "server.node.id": "judged",
            "server.base.dir": self._home / f"base-{self._starts}",
            "server.host": "127.0.0.1",
            "server.port": self._server.port,
            "server.zookeeper.address": self._host,
            "server.zookeeper.path": "/herd",
            "server.bookkeeper.start": "false",
            "server.bookkeeper.ledgers.path": f"/{self._path}/ledgers",
            "server.bookkeeper.ensemble.size": 3,
            "server.bookkeeper.write.quorum.size": 3,
            "server.bookkeeper.ack.quorum.size": 2,
            "server.bookkeeper.ledgers.max.size": 4 << 20,
            "server.bookkeeper.ledgers.retention.period": 40_000,
            "server.checkpoint.period": 10_000,
            "server.memory.data.limit": 16 << 20,
        }
        write_settings(self._home / "server.properties", settings)
        self._server.start()

    def stop(self, how: signal.Signals) -> None:
        """Send the server this signal, and wait for its end."""
        self._server.stop(how)


def story(home: Path, count: int, size: int, step: Steps) -> None:
    """Insert ``count`` rows with values of ``size`` bytes under all faults, and check. Raises AssertionError at a violation."""
    with (
        a_cluster(home) as cluster,
        Programs("herddb", home / "herddb") as programs,
        BookKeeper(cluster.zookeeper) as client,
    ):
        database = Database(programs, home, cluster)
        database.start()
        step("server started")
        inserter = programs.judge("insert", "Rows", "insert", database.url, count, size)

        def reached(part: float) -> None:
            inserter.wait_for(f"^inserted {int(count * part) // 100 * 100}$")
            step(f"{part:.0%} inserted")

        reached(0.15)
        database.stop(signal.SIGKILL)
        database.start()
        step("server killed and started again")
        reached(0.35)
        bookie = bookie_of_open_ledger(cluster, client)
        bookie.kill()
        step("bookie killed", bookie.bookie_id)
        reached(0.55)
        database.stop(signal.SIGTERM)
        database.start()
        step("server stopped and started again")
        reached(0.75)
        bookie.start()
        step("bookie started again")
        step("judge", inserter.verdict())
        database.stop(signal.SIGKILL)
        database.start()
        step("server killed and started again")
        step("judge", programs.judge("read", "Rows", "read", database.url, count, size).verdict())
        database.stop(signal.SIGTERM)
        step("server stopped")
        step("read by Bookspark's client", read_by_bookspark(client, count, size))


def read_by_bookspark(client: BookKeeper, count: int, size: int) -> str:
    """Read all ledgers, and find each row with its value. Raises AssertionError."""
    ledgers = list(client.list_ledgers())
    rows, entries = set(), 0
    for ledger_id in ledgers:
        for entry in read_whole(client, ledger_id):
            entries += 1
            for match in _ROW.finditer(entry):
                row = int.from_bytes(match[1], "big")
                assert entry[match.start() :][:size] == payload(match[0], size), (
                    f"ledger {ledger_id}: another value of row {row}"
                )
                rows.add(row)
    assert rows == set(range(count)), f"rows {sorted(set(range(count)) ^ rows)[:20]} ..."
    return f"each of {count} rows in {entries} entries of {len(ledgers)} ledgers"
