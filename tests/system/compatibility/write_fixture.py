"""Writes the fixture ``written/`` anew, with the code of this tree.

    python -m tests.system.compatibility.write_fixture FOLDER

Law: nothing in the fixture is made by hand. A cluster with Spark writes all of it: three bookies with rewritten, sealed and open
entry logs, of which the first stops and two are killed (SIGKILL), one of them without a journal, so that it boots lossy. ::

    bookies.tar.xz    the bookies' directories
    zookeeper.json    path of each persistent node -> its value in base64, and its version
    manifest.json     expected answers of the cluster
    wire.json         name of each message of ``wire_samples`` -> its bytes in hexadecimal
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient

from bookspark import BookKeeper
from bookspark.local import LocalCluster
from bookspark.logs import open_log
from bookspark.logs.lane_ending import end_lane
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication
from bookspark.protocol.logs.retention import Retention
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.spark.connector.data_source import register
from bookspark.spark.session import session
from bookspark.store.client.writing.ledger_handle import LedgerHandle
from tests.awaiting import await_that
from tests.system.compatibility.restored import BOOKIES, ENTRY_LOG_BYTES_MAX, payload, row
from tests.system.compatibility.wire_samples import samples

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELAY_SECONDS = 77
PASSWORD = "log"
"""Of the log ``small``."""
RETENTION = Retention(1 << 46, 1 << 46)
"""Beyond the age and size of any log here."""
_OF_A_PROCESS = ("LOCK", "bookie.json", "bookie.log*")
"""Files that belong to a run of a bookie, not to its data."""


def _groups(payloads: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    return (payloads[first : first + 100] for first in range(0, len(payloads), 100))


class Ledgers:
    """Writes ledgers, and keeps the facts about them."""

    def __init__(self, bookkeeper: BookKeeper) -> None:
        self._bookkeeper = bookkeeper
        self._facts: dict[int, dict[str, Any]] = {}

    def write(self, entries: int, size: int = 100, password: str = "", **choices: Any) -> LedgerHandle:
        """A ledger, still open, with every entry on all bookies of its write set."""
        handle = self._bookkeeper.create_ledger(password=password.encode(), **choices)
        ledger_id, last = handle.ledger_id, entries - 1
        payloads = [payload(ledger_id, i, size) for i in range(entries)]
        # An entry by itself, and batches of several.
        handle.append(payloads[0])
        for some in _groups(payloads[1:]):
            handle.append_batch(some)
        if choices.get("ledger_type") is LedgerType.VD_JOURNAL:
            handle.sync()
        for bookie_id in handle.metadata.last_fragment.ensemble:
            await_that(partial(self._holds, bookie_id, ledger_id, entries), what=f"{ledger_id} on {bookie_id}")
        self._facts[ledger_id] = {"first": 0, "last": last, "password": password, "sizes": size}
        return handle

    def _holds(self, bookie_id: str, ledger_id: int, entries: int) -> bool:
        runs = self._bookkeeper.list_ranges(bookie_id, ledger_id).to_pylist()
        held: int = sum(run["last_entry_id"] - run["first_entry_id"] + 1 for run in runs)
        return held == entries

    def facts(self) -> dict[int, dict[str, Any]]:
        """By ledger id, what the test checks."""
        found = {}
        for ledger_id, facts in self._facts.items():
            now = self._bookkeeper.get_ledger_metadata(ledger_id)
            found[ledger_id] = {
                **facts,
                "state": now.state.name,
                "digest": now.digest_type.name,
                "ledger_type": now.ledger_type.name,
                "replication": now.replication.value,
                "accepted_loss": now.accepted_loss is not None,
            }
        return found


def write(folder: Path) -> None:
    """Write the fixture into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        cluster = LocalCluster(BOOKIES, Path(name, "cluster"), entry_log_bytes_max=ENTRY_LOG_BYTES_MAX)
        with cluster:
            told = _fill(cluster, Path(name))
            nodes = dict(_persistent(cluster.zookeeper, "/"))
        with tarfile.open(folder / "bookies.tar.xz", "w:xz") as archive:
            for number in range(len(BOOKIES)):
                archive.add(Path(name, "cluster", f"bookie-{number}"), f"bookie-{number}", filter=_data)
    _write(folder / "manifest.json", told)
    _write(folder / "zookeeper.json", nodes)
    _write(folder / "wire.json", {name: message.hex() for name, message in samples().items()})


def _fill(cluster: LocalCluster, folder: Path) -> dict[str, Any]:
    """Write everything, and end the bookies. Returns the manifest."""
    bookkeeper = cluster.bookkeeper()
    bookies = [bookie.bookie_id for bookie in cluster.bookies]
    ledgers = Ledgers(bookkeeper)
    _write_early(cluster, ledgers)
    deleted = _write_deleted(bookkeeper)
    for bookie_id in bookies:
        bookkeeper.collect_now(bookie_id)
        assert any(one.rewritten for one in bookkeeper.list_entry_logs(bookie_id)), f"{bookie_id} rewrote no log"
    _write_logs(cluster, folder)
    unread = _produce(cluster)
    store = bookkeeper.metadata
    marked = min(ledgers.facts())
    store.underreplication.mark([Mark(marked, {bookies[1]: Reason.LOST}, "marked by the fixture")])
    store.underreplication.disable()
    store.auditors.set_delay(DELAY_SECONDS)
    _write_late(cluster, ledgers)
    for bookie_id in bookies:
        found = bookkeeper.list_entry_logs(bookie_id)
        assert {(one.sealed, one.rewritten) for one in found} == {(True, True), (True, False), (False, False)}, found
    # This ledger is last: the bookie without a journal is killed before it removes its unclean marker.
    ledgers.write(25)
    cluster.bookies[2].kill()
    assert Path(cluster.bookies[2].directories[0], "unclean").exists(), "it would boot as after a clean stop"
    cluster.bookies[1].kill()
    cluster.bookies[0].stop()
    return {
        "ledgers": ledgers.facts(),
        "logs": {"lines": 200, "rows": 200, "small": 200, "streamed": 50},
        "retention": asdict(RETENTION),
        "unread": unread,
        "deleted": deleted,
        "tasks": [marked],
        "delay_seconds": DELAY_SECONDS,
        "bookies": bookies,
        "instance_id": store.instance_id,
    }


# -- Ledgers


def _write_deleted(bookkeeper: BookKeeper) -> int:
    """Write and delete a ledger. Returns its id."""
    with bookkeeper.create_ledger() as handle:
        handle.append_batch([b"deleted" * 100] * 100)
    bookkeeper.delete_ledger(handle.ledger_id)
    return handle.ledger_id


def _write_early(cluster: LocalCluster, ledgers: Ledgers) -> None:
    """Ledgers that end before a garbage collection, which rewrites their entry logs."""
    ledgers.write(300, password="secret", custom_metadata={"team": b"billing"}).close()
    for digest_type in DigestType:
        ledgers.write(20, password="key", digest_type=digest_type).close()
    for ledger_type in LedgerType:
        for replication in Replication:
            ledgers.write(40, ledger_type=ledger_type, replication=replication).close()
    ledgers.write(2000, 60, ack_quorum=3, digest_type=DigestType.CRC32).close()
    # A recovery closes this ledger with an accepted loss, while a bookie is down that may have acknowledged another entry.
    lossy = ledgers.write(10, ack_quorum=1)
    down = cluster.bookies[1]
    down.kill()
    with cluster.bookkeeper() as recoverer:
        recoverer.open_ledger(lossy.ledger_id, accept_loss_as="fixture", lost_bookies=[down.bookie_id])
    down.start()


def _write_late(cluster: LocalCluster, ledgers: Ledgers) -> None:
    """A recovered ledger, large enough to seal an entry log, and ledgers that stay open."""
    recovered = ledgers.write(600, 150, password="p")
    with cluster.bookkeeper() as recoverer:
        recoverer.open_ledger(recovered.ledger_id, b"p")
    ledgers.write(20, digest_type=DigestType.DUMMY)
    ledgers.write(31, ledger_type=LedgerType.VD_JOURNAL)
    ledgers.write(12, replication=Replication.GUARANTEED)
    ledgers.write(15, ack_quorum=1)


# -- Logs


def _write_logs(cluster: LocalCluster, folder: Path) -> None:
    """Four logs of the Spark sink."""
    spark = session("fixture", master="local[2]")
    try:
        register(spark, cluster.zookeeper)
        small = {"compression": "zstd_dictionary", "password": PASSWORD}
        for first in (0, 100):
            _append(spark, "small", _texts(spark, "small", first, first + 100), **small)
            _append(spark, "rows", _rows(spark, first, first + 100), rowFormat="arrow")
        _append(spark, "lines", _texts(spark, "lines", 0, 100))
        _stream(spark, folder)
    finally:
        spark.stop()


def _append(spark: SparkSession, log: str, rows: DataFrame, **options: str) -> None:
    rows.coalesce(1).write.format("bookspark").mode("append").option("log", log).options(**options).save()


def _texts(spark: SparkSession, log: str, first: int, end: int) -> DataFrame:
    return spark.createDataFrame([(row(log, number),) for number in range(first, end)], "value string")


def _rows(spark: SparkSession, first: int, end: int) -> DataFrame:
    return spark.createDataFrame(
        [(number, row("rows", number)) for number in range(first, end)], "id long, text string"
    )


def _stream(spark: SparkSession, folder: Path) -> None:
    """50 rows by a streaming query of five micro-batches."""
    files = folder / "streamed"
    files.mkdir()
    for number in range(5):
        file = files / f"{number}.txt"
        file.write_text("".join(f"{row('streamed', 10 * number + i)}\n" for i in range(10)))
        # Spark takes the oldest first.
        os.utime(file, (number, number))
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(files))
    writer = lines.writeStream.format("bookspark").option("log", "streamed")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def _produce(cluster: LocalCluster) -> list[int]:
    """Lanes 1 and 2 of the log ``lines``: one ended, one with an open ledger. And a group that read 30 rows. Returns the numbers
    of the other rows."""
    bookkeeper = cluster.bookkeeper()
    log = open_log(bookkeeper, "lines")
    log.alter(retention_ms=RETENTION.retention_ms, retention_bytes=RETENTION.retention_bytes)
    with log.producer("ended") as producer:
        for number in range(100, 150):
            text = b"%d" % number
            # Each combination of a key and headers.
            key, headers = text if number % 2 else None, (("number", text),) if number % 4 > 1 else ()
            producer.append(row("lines", number).encode(), key=key, headers=headers)
    end_lane(bookkeeper, "lines@1")
    producer = log.producer("open")
    producer.append_batch([row("lines", number).encode() for number in range(150, 200)])
    with log.reader(group="billing") as reader:
        read = {one.value.decode() for one in islice(reader, 30)}
        reader.commit()
    return [number for number in range(200) if row("lines", number) not in read]


# -- Files


def _data(file: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if any(fnmatch(Path(file.name).name, each) for each in _OF_A_PROCESS) else file


def _persistent(zookeeper: str, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each persistent node but ZooKeeper's own."""
    client = KazooClient(zookeeper)
    client.start()
    try:
        waiting = [path]
        while waiting:
            path = waiting.pop()
            value, stat = client.get(path)
            if stat.ephemeralOwner or path == "/zookeeper":
                continue
            yield path, {"value": base64.b64encode(value).decode(), "version": stat.version}
            waiting += [f"{path.rstrip('/')}/{child}" for child in sorted(client.get_children(path), reverse=True)]
    finally:
        client.stop()
        client.close()


def _write(path: Path, document: dict[Any, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
