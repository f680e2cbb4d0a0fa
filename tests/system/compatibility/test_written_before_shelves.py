"""Data written before the shelves is read, and the same data is still written with the same bytes.

The files come from that version: three bookies with sealed and rewritten logs, of which two were killed (one of them without
the journal, so it boots lossy), with ledgers of every digest, durability and replication, closed, recovered, open and deleted;
an autorecovery task; and four logs, written by Spark.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from bookspark import BookKeeper, LedgerState, errors
from bookspark.local import LocalCluster
from bookspark.logs.chain import codec
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.store.metadata.records.codec import (
    decode_cookie,
    decode_ledger,
    decode_task,
    encode_cookie,
    encode_ledger,
    encode_task,
)
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.wire.messages import BookieStatus
from tests.awaiting import SECONDS_MAX
from tests.system.compatibility.restored import WRITTEN, manifest, payload, records, restore, unpack
from tests.system.compatibility.wire_samples import samples

LEDGERS = {int(ledger_id): facts for ledger_id, facts in manifest()["ledgers"].items()}
NODES = {path: value for path, (value, _) in records().items()}


@pytest.fixture(scope="module")
def cluster(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    chroot = f"{zookeeper.connection_string}/written-before-shelves"
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


@pytest.mark.parametrize("ledger_id", LEDGERS)
def test_every_entry_of_an_older_ledger_is_read(bookkeeper: BookKeeper, ledger_id: int) -> None:
    facts = LEDGERS[ledger_id]
    before = decode_ledger(ledger_id, NODES[f"/ledgers/00/0000/L{ledger_id:04}"])
    assert (before.state.name, before.digest_type.name) == (facts["state"], facts["digest"])
    assert before.ledger_type.name == facts.get("ledger_type", "PD_JOURNAL")
    password = facts["password"].encode()
    if before.ack_quorum == 1:
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
    assert tasks.list_tasks() == manifest()["tasks"] and not tasks.enabled()
    assert bookkeeper.metadata.auditors.delay_seconds() == 77


@pytest.mark.parametrize("name", manifest()["logs"])
def test_rows_of_an_older_log_are_read(cluster: LocalCluster, name: str) -> None:
    password = ["--password", "log"] if name == "small" else []
    command = [
        sys.executable,
        "-m",
        "bookspark.operations.cli.main",
        "log",
        "read",
        "--zookeeper",
        cluster.zookeeper,
        *password,
    ]
    lines = subprocess.run([*command, name], check=True, capture_output=True, timeout=SECONDS_MAX).stdout.splitlines()
    assert len(lines) == manifest()["logs"][name]
    if name == "small":
        assert lines == [b"small %04d with some more words" % i for i in range(200)]
    if name == "streamed":
        assert lines == [b"streamed %d" % i for i in range(50)]


def test_each_metadata_record_is_encoded_as_before() -> None:
    for path, value in NODES.items():
        name = path.rpartition("/")[2]
        if name.startswith("L0") and path.startswith("/ledgers/0"):
            ledger_id = int(path.removeprefix("/ledgers/").replace("/", "").replace("L", ""))
            assert encode_ledger(decode_ledger(ledger_id, value)) == value
        elif path.startswith("/ledgers/cookies/"):
            assert encode_cookie(decode_cookie(value, path)) == value
        elif name.startswith("urL"):
            assert encode_task(decode_task(int(name[3:]), value)) == value
        elif path.startswith("/bookspark/logs/"):
            assert codec.encode_record(codec.decode_record(value, name)) == value


def test_each_cookie_on_disk_is_encoded_as_before(tmp_path) -> None:
    for home in unpack(tmp_path):
        value = (home / "COOKIE").read_bytes()
        assert encode_cookie(decode_cookie(value, str(home))) == value


LATER = {"kind COLLECT", "kind SWITCH_READ_ONLY", "kind FETCH"} | {
    f"{shape} {one.name}" for shape in ("batch", "one entry") for one in DigestType if one.bookkeepers
}
"""Later requests, which an older bookie answers with BAD_REQUEST, and entries of later digest types."""


@pytest.mark.parametrize("name", sorted(samples().keys() - LATER - {"status"}))
def test_each_wire_message_is_encoded_as_before(name: str) -> None:
    written = json.loads((WRITTEN / "wire.json").read_text())
    if name == "status":
        # A later status may have more fields. The older fields must still be there.
        before, now = json.loads(bytes.fromhex(written[name])), json.loads(samples()[name])
        assert before.items() <= now.items()
        return
    assert samples()[name].hex() == written[name]


def test_older_status_is_decoded_and_lacks_only_later_fields() -> None:
    written = bytes.fromhex(json.loads((WRITTEN / "wire.json").read_text())["status"])
    now = samples()["status"]
    before, after = json.loads(written), json.loads(now)
    healing = after.pop("healing")
    assert {name: healing[name] for name in before["healing"]} == before.pop("healing")
    assert {name: after[name] for name in before} == before
    assert msgspec.json.decode(written, type=BookieStatus) == msgspec.json.decode(now, type=BookieStatus)


def test_every_wire_sample_is_compared_or_listed_as_later() -> None:
    assert samples().keys() - LATER == json.loads((WRITTEN / "wire.json").read_text()).keys()
