"""A cluster for BookKeeper's clients: LAYOUT, ledger ids, records and registrations, with real processes."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from bookspark import DigestType
from bookspark.errors import InvalidArgumentError, MetadataStoreError
from bookspark.local import LocalCluster
from bookspark.protocol.ledger.ledger_metadata import BOOKKEEPERS_LEDGER_ID_MAX
from bookspark.servers.bookkeeper.messages import Operation
from bookspark.store.metadata.records.bookkeeper_format import is_bookkeepers, is_service_info
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore, begin_cluster
from tests.awaiting import SECONDS_MAX
from tests.servers.bookkeeper.kit import KEY, PASSWORD, Caller, body, read_2, request
from tests.servers.bookkeeper.test_digest_types import record

LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"


def test_init_creates_a_cluster_for_bookkeepers_clients(chroot: str) -> None:
    command = [sys.executable, "-m", "bookspark", "init", "--bookkeeper", "--zookeeper", chroot]
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS_MAX)
    with contextlib.closing(ZooKeeperStore(chroot)) as store:
        assert store.layout.manager is LedgerManager.BOOKKEEPER
        assert store.client.get(store.layout.layout)[0] == LAYOUT
        assert store.layout.ledger(1).endswith("/ledgers/00/0000/L0001")


def test_ledger_ids_are_drawn_as_bookkeepers_clients_draw_them(chroot: str) -> None:
    with contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager.BOOKKEEPER)) as store:
        assert store.last_ledger_id() == -1
        assert [store.new_ledger_id() for _ in range(3)] == [0, 1, 2]
        # A node of BookKeeper's client, not yet deleted.
        theirs = store.client.create(f"{store.layout.idgen}/ID-", b"", ephemeral=True, sequence=True)
        assert theirs.endswith("/ID-0000000003")
        assert store.last_ledger_id() == 3
        store.client.delete(theirs)
        assert (store.last_ledger_id(), store.new_ledger_id(), store.last_ledger_id()) == (3, 4, 4)
        assert store.highest_ledger_id() == 4


def test_init_for_bookkeepers_clients_is_refused_in_an_existing_cluster(chroot: str) -> None:
    begin_cluster(chroot)
    with pytest.raises(MetadataStoreError, match=r"ledger manager hierarchical.*stays as it is"):
        begin_cluster(chroot, LedgerManager.BOOKKEEPER)


def test_ledger_ids_beyond_31_bits_are_refused_in_a_bookkeeper_cluster(chroot: str) -> None:
    """BookKeeper's clients use other paths for longer ids."""
    with contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager.BOOKKEEPER)) as store:
        for make in (store.note_given_id, lambda one: store.create_ledger(record(one))):
            make(BOOKKEEPERS_LEDGER_ID_MAX)
            with pytest.raises(InvalidArgumentError, match="from 0 to 2147483646"):
                make(BOOKKEEPERS_LEDGER_ID_MAX + 1)


def test_a_bookie_serves_the_same_ledger_through_both_ports(chroot: str, tmp_path: Path) -> None:
    begin_cluster(chroot, LedgerManager.BOOKKEEPER)
    with LocalCluster(1, tmp_path, chroot, bookkeeper_port=-1) as cluster, cluster.bookkeeper() as bookkeeper:
        [(bookie_id, registration)] = bookkeeper.metadata.bookies().items()
        store = bookkeeper.metadata
        assert is_service_info(store.client.get(store.layout.bookie(bookie_id, False))[0])
        ledger = bookkeeper.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.BOOKKEEPER_HMAC, password=PASSWORD
        )
        assert is_bookkeepers(store.client.get(store.layout.ledger(ledger.ledger_id))[0])
        ledger.append(b"by one")
        host, _, port = str(registration.bookkeeper_address).rpartition(":")
        assert f"{host}:{port}" != registration.address
        caller = Caller((host, int(port)))
        with contextlib.closing(caller.socket):
            caller.send(read_2(ledger.ledger_id, 0))
            assert caller.answer_2()[3] == body(ledger.ledger_id, 0, b"by one", digest_type=DigestType.BOOKKEEPER_HMAC)
            made = body(ledger.ledger_id, 1, b"by the other", 0, 18, digest_type=DigestType.BOOKKEEPER_HMAC)
            fields = {"ledgerId": ledger.ledger_id, "entryId": 1, "masterKey": KEY, "body": made, "flag": 1}
            caller.send(request(Operation.ADD_ENTRY, 5, "add", **fields))
            assert caller.answer().status == 0
        reader = bookkeeper.open_ledger(ledger.ledger_id, PASSWORD)
        assert [entry.payload for entry in reader.read(0, 1)] == [b"by one", b"by the other"]
