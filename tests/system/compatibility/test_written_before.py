"""Data written before is read, and the same data is still written with the same bytes.

``write_fixture`` made the files of ``written/`` with the tree of 2026-11-30: three bookies with rewritten, sealed and open entry
logs, of which two were killed (one of them without a journal, so it boots lossy), with ledgers of every digest type, durability
and replication, closed, recovered, open and deleted; an autorecovery task; and four logs, by Spark and by producers. As long as
nothing is released, a change of a format makes the fixture anew. From 0.1.0 on it stays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bookspark import BookKeeper, LedgerState, errors
from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry, open_log
from bookspark.logs.chain import codec
from bookspark.logs.chain.stamps import stamp_of, stamped
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication
from bookspark.protocol.logs.ended_lanes import Ended
from bookspark.protocol.logs.log_record import ENCODING_LABEL
from bookspark.protocol.logs.reader_record import ReaderRecord
from bookspark.protocol.logs.retention import Retention
from bookspark.store.metadata.bookie_homes import BookieHome
from bookspark.store.metadata.bookie_reach import BookieReach
from bookspark.store.metadata.records.codec import (
    decode_cookie,
    decode_ledger,
    decode_task,
    encode_cookie,
    encode_ledger,
    encode_task,
)
from bookspark.store.metadata.records.documents import proven_struct, read_struct
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.wire.messages import BookieStatus
from tests.awaiting import SECONDS_MAX
from tests.system.compatibility.restored import WRITTEN, manifest, payload, records, restore, row, unpack
from tests.system.compatibility.wire_samples import samples

LEDGERS = {int(ledger_id): facts for ledger_id, facts in manifest()["ledgers"].items()}
LOGS = manifest()["logs"]
PASSWORDS = dict.fromkeys(LOGS, b"") | {"small": b"log"}
NODES = {path: value for path, (value, _) in records().items()}
WIRE = json.loads((WRITTEN / "wire.json").read_text())


@pytest.fixture(scope="module")
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    chroot = f"{zookeeper.connection_string}/written-before"
    with restore(tmp_path_factory.mktemp("restored"), chroot) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bookkeeper(cluster: LocalCluster) -> BookKeeper:
    return cluster.bookkeeper()


def test_restored_cluster_keeps_bookie_ids_instance_id_and_ledger_ids(
    cluster: LocalCluster, bookkeeper: BookKeeper
) -> None:
    assert [bookie.bookie_id for bookie in cluster.bookies] == manifest()["bookies"]
    assert bookkeeper.metadata.instance_id == manifest()["instance_id"]
    given_out = bookkeeper.metadata.last_ledger_id()
    assert bookkeeper.create_ledger().ledger_id == given_out + 1 > max(LEDGERS)


def test_fixture_has_every_kind_of_ledger() -> None:
    kinds = {
        "digest": DigestType.__members__,
        "ledger_type": LedgerType.__members__,
        "replication": {one.value for one in Replication},
        "state": {"OPEN", "CLOSED"},
        "accepted_loss": {False, True},
    }
    for fact, values in kinds.items():
        assert {facts[fact] for facts in LEDGERS.values()} == set(values), fact


@pytest.mark.parametrize("ledger_id", LEDGERS)
def test_every_entry_of_a_ledger_is_read(bookkeeper: BookKeeper, ledger_id: int) -> None:
    facts = LEDGERS[ledger_id]
    before = decode_ledger(ledger_id, NODES[f"/ledgers/00/0000/L{ledger_id:04}"])
    assert (before.state.name, before.digest_type.name) == (facts["state"], facts["digest"])
    assert (before.ledger_type.name, before.replication.value) == (facts["ledger_type"], facts["replication"])
    assert (before.accepted_loss is not None) == facts["accepted_loss"]
    password = facts["password"].encode()
    if before.ack_quorum == 1 and not before.closed:
        # One of its bookies booted lossy. With an ack quorum of 1 it may have acknowledged an entry alone, so the ledger
        # can't be closed.
        with pytest.raises(errors.LedgerRecoveryError, match="limbo"):
            bookkeeper.open_ledger(ledger_id, password=password)
        reader = bookkeeper.open_ledger_no_recovery(ledger_id, password=password)
        entries = reader.read_unconfirmed(facts["first"], facts["last"])
    else:
        reader = bookkeeper.open_ledger(ledger_id, password=password)
        assert reader.metadata.state is LedgerState.CLOSED and reader.last_add_confirmed == facts["last"]
        entries = reader.read(facts["first"], facts["last"])
    assert [entry.payload for entry in entries] == [
        payload(ledger_id, i, facts["sizes"]) for i in range(facts["first"], facts["last"] + 1)
    ]


def test_deleted_ledger_stays_deleted(bookkeeper: BookKeeper) -> None:
    with pytest.raises(errors.NoSuchLedgerError):
        bookkeeper.open_ledger(manifest()["deleted"])


def test_autorecovery_keeps_its_task_switch_and_delay(bookkeeper: BookKeeper) -> None:
    tasks = bookkeeper.metadata.underreplication
    # A recovery above may have ended before a bookie's answer, and marked the ledger too.
    assert set(manifest()["tasks"]) <= set(tasks.list_tasks()) and not tasks.enabled()
    assert bookkeeper.metadata.auditors.delay_seconds() == manifest()["delay_seconds"]


@pytest.mark.parametrize("name", LOGS)
def test_rows_of_a_log_are_read(cluster: LocalCluster, name: str) -> None:
    command = [sys.executable, "-m", "bookspark.operations.cli.main", "log", "read", "--zookeeper", cluster.zookeeper]
    environment = os.environ | {"BOOKSPARK_PASSWORD": PASSWORDS[name].decode()}
    answer = subprocess.run([*command, name], check=True, capture_output=True, timeout=SECONDS_MAX, env=environment)
    lines = answer.stdout.decode().splitlines()
    expected = [row(name, number) for number in range(LOGS[name])]
    if name == "rows":
        assert [json.loads(line) for line in lines] == [{"id": i, "text": text} for i, text in enumerate(expected)]
    else:
        assert lines == expected


def test_lanes_retention_and_readers_of_a_log_are_kept(bookkeeper: BookKeeper) -> None:
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get("lines")
    assert [lane.number for lane in registry.lanes_of("lines")] == [0, 1, 2] and registry.ended_lanes(record) == [1]
    assert registry.get("lines@1").ended_rows == 50
    assert registry.retention(record) == Retention(**manifest()["retention"])
    with open_log(bookkeeper, "lines").reader(group="billing") as reader:
        read = [one.value.decode() for one in reader]
    assert Counter(read) == Counter(row("lines", number) for number in manifest()["unread"])


def test_producer_continues_the_lane_of_its_name(bookkeeper: BookKeeper) -> None:
    with open_log(bookkeeper, "lines").producer("open") as producer:
        assert producer.last_sequence == 49
        assert producer.position == 50


# -- Bytes


def _struct(kind: type[Any]) -> Callable[[bytes, str], bytes]:
    return lambda value, name: proven_struct(read_struct(value, kind, name), name)


def _cookie(value: bytes, name: str) -> bytes:
    found: Cookie = decode_cookie(value, name)
    return encode_cookie(found)


def _task(value: bytes, name: str) -> bytes:
    return encode_task(decode_task(int(name.removeprefix("urL")), value))


CODECS: dict[str, Callable[[bytes, str], bytes]] = {
    "/ledgers/00/0000/": lambda value, name: encode_ledger(decode_ledger(int(name.removeprefix("L")), value)),
    "/ledgers/cookies/": _cookie,
    "/ledgers/underreplication/ledgers/0000/0000/0000/0000/": _task,
    "/bookspark/logs/": lambda value, name: codec.encode_name(codec.decode_name(value, name)),
    "/bookspark/log_records/": lambda value, name: codec.encode_record(codec.decode_record(value, name)),
    "/bookspark/retention/": _struct(Retention),
    "/bookspark/ended/": _struct(Ended),
    "/bookspark/positions/": _struct(dict[str, int]),
    "/bookspark/readers/": _struct(ReaderRecord),
    "/bookspark/bookie_homes/": _struct(BookieHome),
    "/bookspark/bookie_reach/": _struct(BookieReach),
}
"""By folder, the decoded and again encoded record of a node."""
TEXTS = {
    "/ledgers/LAYOUT",
    "/ledgers/INSTANCEID",
    "/ledgers/underreplication/lostbookierecoverydelay",
}
"""Nodes whose values are plain texts."""


def folder_of(path: str) -> str:
    return path.rpartition("/")[0] + "/"


def test_fixture_has_records_of_every_codec() -> None:
    filled = {path for path, value in NODES.items() if value}
    assert {folder_of(path) for path in filled - TEXTS} == CODECS.keys() and filled > TEXTS


@pytest.mark.parametrize("folder", CODECS)
def test_metadata_records_are_encoded_as_before(folder: str) -> None:
    for path, value in NODES.items():
        if value and folder_of(path) == folder:
            assert CODECS[folder](value, path.removeprefix(folder)) == value, path


def test_each_cookie_on_disk_is_encoded_as_before(tmp_path: Path) -> None:
    homes = unpack(tmp_path)
    assert len(homes) == len(manifest()["bookies"])
    for home in homes:
        value = (home / "COOKIE").read_bytes()
        assert _cookie(value, str(home)) == value


@pytest.mark.parametrize("name", LOGS)
def test_headers_and_commits_of_a_log_are_encoded_as_before(bookkeeper: BookKeeper, name: str) -> None:
    registry = LogRegistry(bookkeeper.metadata)
    links = [link for lane in registry.lanes_of(name) for link in registry.get(lane).commit_ledgers]
    commits = 0
    for link in links:
        header, *rest = bookkeeper.open_ledger_no_recovery(link.ledger_id, PASSWORDS[name]).read()
        value = bytes(header.payload)
        assert codec.encode_header(codec.decode_header(value, link.ledger_id)) == value
        for entry in rest:
            value = bytes(entry.payload)
            assert codec.encode_commit(codec.decode_commit(value, link.ledger_id, entry.entry_id)) == value
        commits += len(rest)
    assert commits >= 2


def test_rows_of_a_producer_are_encoded_as_before(bookkeeper: BookKeeper) -> None:
    kinds: Counter[tuple[bool, bool]] = Counter()
    for ledger_id in bookkeeper.list_ledgers():
        if bookkeeper.get_ledger_metadata(ledger_id).custom_metadata.get(ENCODING_LABEL) != b"stamped":
            continue
        for entry in bookkeeper.open_ledger_no_recovery(ledger_id).read():
            value = bytes(entry.payload)
            one = stamp_of(value, f"entry {entry.entry_id} of ledger {ledger_id}")
            assert stamped(one.time_ms, one.sequence, one.value, one.key, one.headers) == value
            kinds[one.key is not None, one.headers != ()] += 1
    assert kinds == {(False, False): 63, (True, False): 13, (False, True): 12, (True, True): 12}


@pytest.mark.parametrize("name", sorted(WIRE))
def test_each_wire_message_is_encoded_as_before(name: str) -> None:
    assert samples()[name].hex() == WIRE[name]


def test_every_wire_sample_is_compared() -> None:
    assert samples().keys() == WIRE.keys()


def test_status_is_decoded_as_before() -> None:
    written = bytes.fromhex(WIRE["status"])
    assert msgspec.json.encode(msgspec.json.decode(written, type=BookieStatus)) == written
