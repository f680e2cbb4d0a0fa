"""Repairs in which the target bookie fetches the entries itself (FETCH)."""

from __future__ import annotations

import threading

import pytest

from bookspark.local import LocalCluster
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.repair.entry_copying import RUN_BYTES
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.store.autorecovery import copying
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.worker import ReplicationWorker
from bookspark.store.client.inspection.bookie_questions import large_batch_ends
from bookspark.store.client.network.ledger_requests import LedgerRequests
from bookspark.store.wire.header import Kind
from bookspark.store.wire.messages import FetchFrom
from tests.authority import Authority
from tests.awaiting import SECONDS_MAX, await_that
from tests.secret_files import write_secrets
from tests.system.cluster.copies import replication_factors, start_all

pytestmark = pytest.mark.acceptance

ENTRIES = 3000
PASSWORD = b"of the ledger"


@pytest.fixture(scope="module")
def cluster(new_chroot):
    with LocalCluster(bookies=4, zookeeper=new_chroot()) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(new_chroot, tmp_path_factory):
    """A cluster with TLS on both sides and a secret, and the options of its clients."""
    files = tmp_path_factory.mktemp("security")
    authority = Authority(files / "authority")
    secret = write_secrets(files / "secret")
    options = {"tls_certificate": authority.certificate("bookie"), "shared_secret_file": secret}
    with LocalCluster(bookies=4, **options, tls_client_ca=str(authority.file), zookeeper=new_chroot()) as running:
        client = {"tls_ca": str(authority.file), "tls_certificate": authority.certificate("client")}
        yield running, client | {"shared_secret_file": secret}


@pytest.fixture
def asked(monkeypatch):
    """Counts the reads and fetches that this process, the repairing worker, requests, and the limits of its reads."""
    counts = {"reads": 0, "fetches": 0, "limits": set()}

    def counted(name, method):
        def call(*arguments):
            counts[name] += 1
            if name == "reads":
                counts["limits"].update(arguments[3:])
            return method(*arguments)

        return call

    monkeypatch.setattr(LedgerRequests, "read", counted("reads", LedgerRequests.read))
    monkeypatch.setattr(LedgerRequests, "fetch", counted("fetches", LedgerRequests.fetch))
    return counts


def closed(bookkeeper, digest_type="CRC32C"):
    # A bookie that is suspended next must have its copies already.
    ledger = bookkeeper.create_ledger(3, 3, 3, digest_type=digest_type, password=PASSWORD)
    ledger.append_batch([b"%d " % i * 200 for i in range(ENTRIES)])
    ledger.close()
    return ledger.ledger_id


def bookies_of(cluster, bookkeeper, ledger_id):
    ensemble = bookkeeper.get_ledger_metadata(ledger_id).last_fragment.ensemble
    return [next(bookie for bookie in cluster.bookies if bookie.bookie_id == one) for one in ensemble]


def repaired(cluster, bookkeeper, ledger_id, lost, client=None, entries=ENTRIES, **options):
    """Repair, and return the copied counts. The lost bookie is started again and still holds its copy. The target is
    restarted first: the old process may still hold bookies of other tests in quarantine."""
    for bookie in {*cluster.bookies} - {*bookies_of(cluster, bookkeeper, ledger_id)}:
        bookie.stop()
        bookie.start()
    lost.stop()
    config = AutorecoveryConfig(**{"poll_seconds": 0.2, "retry_seconds": 0.2} | options)
    with cluster.bookkeeper(answer_timeout_seconds=20.0, **client or {}) as own:
        worker = ReplicationWorker(own, config)
        bookkeeper.metadata.underreplication.mark([Mark(ledger_id, {lost.bookie_id: Reason.LOST}, "by a test")])
        worker.start()
        try:
            await_that(lambda: not bookkeeper.metadata.underreplication.list_tasks())
            quarantined = own.context.runtime.connections.quarantined()
        finally:
            worker.stop()
            start_all(*cluster.bookies)
    metadata = bookkeeper.get_ledger_metadata(ledger_id)
    assert lost.bookie_id not in metadata.last_fragment.ensemble
    assert set(replication_factors(bookkeeper, metadata, entries)) == {3}
    return worker.progress(), quarantined


def assert_readable_from_target_alone(cluster, bookkeeper, ledger_id, before):
    """Also after a kill of the target: its log holds the whole ledger, including the master key."""
    after = bookies_of(cluster, bookkeeper, ledger_id)
    [target] = [bookie for bookie in after if bookie not in before]
    others = [bookie for bookie in cluster.bookies if bookie is not target]
    target.kill()
    target.start()
    for bookie in others:
        bookie.stop()
    try:
        found = [e.payload for e in bookkeeper.open_ledger_no_recovery(ledger_id, password=PASSWORD).read()]
    finally:
        start_all(*others)
    assert found == [b"%d " % i * 200 for i in range(ENTRIES)]


@pytest.mark.parametrize("digest_type", ["CRC32C", "HMAC"])
def test_target_bookie_fetches_entries_and_the_worker_reads_none(cluster, asked, digest_type):
    with cluster.bookkeeper() as bookkeeper:
        ledger_id = closed(bookkeeper, digest_type)
        before = bookies_of(cluster, bookkeeper, ledger_id)
        done, _ = repaired(cluster, bookkeeper, ledger_id, before[0])
        assert asked["reads"] == 0 and asked["fetches"] > 0
        assert done.entries == ENTRIES and done.bytes > ENTRIES * 600
        assert_readable_from_target_alone(cluster, bookkeeper, ledger_id, before)


def test_entry_batches_are_copied_whole(cluster, asked):
    """Each run cut the batch in which it ended. Its source made two of it, at three times the cost of the whole copy."""
    with cluster.bookkeeper() as bookkeeper:
        ledger = bookkeeper.create_ledger(3, 3, 3)
        # A run is slightly longer than two batches: a repair that ignores batch ends would cut almost each of them.
        for _ in range(21):
            ledger.append_batch([bytes(4000)] * 105)
        ledger.close()
        before = bookies_of(cluster, bookkeeper, ledger.ledger_id)
        repaired(cluster, bookkeeper, ledger.ledger_id, before[0], entries=21 * 105)
        [target] = {one.bookie_id for one in bookies_of(cluster, bookkeeper, ledger.ledger_id)} - {
            one.bookie_id for one in before
        }
        assert batches(bookkeeper, target, ledger.ledger_id) == [(105 * i, 105 * i + 104) for i in range(21)]
        assert asked["reads"] == 0 and 0 < asked["fetches"] <= 8, "four batches at a time, and not two"


def batches(bookkeeper, bookie_id, ledger_id):
    rows = bookkeeper.list_ranges(bookie_id, ledger_id).to_pylist()
    return sorted((row["first_entry_id"], row["last_entry_id"]) for row in rows)


def test_batch_ends_are_listed_for_large_batches_only(cluster):
    """A ledger of many short entries has a batch for each."""
    with cluster.bookkeeper() as bookkeeper:
        for entry_bytes, count in ((100, 20), (9_000, 2)):
            ledger = bookkeeper.create_ledger(3, 3, 3)
            for _ in range(5):
                ledger.append_batch([bytes(entry_bytes)] * count)
            ledger.close()
            bookie = bookies_of(cluster, bookkeeper, ledger.ledger_id)[0].bookie_id
            ends = [last for _, last in batches(bookkeeper, bookie, ledger.ledger_id)]
            assert ends == [count * i - 1 for i in range(1, 6)]
            told = large_batch_ends(bookkeeper.context, bookie, ledger.ledger_id)
            assert told == (ends if entry_bytes * count > 16 << 10 else [])


def test_bookies_fetch_with_tls_and_the_secret(guarded, asked):
    cluster, client = guarded
    with cluster.bookkeeper(**client) as bookkeeper:
        ledger_id = closed(bookkeeper)
        lost = bookies_of(cluster, bookkeeper, ledger_id)[0]
        repaired(cluster, bookkeeper, ledger_id, lost, client)
        assert asked["reads"] == 0 and asked["fetches"] > 0


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (lambda bookie, digest: FetchFrom("192.0.2.1:1", digest), "not reachable"),
        (lambda bookie, digest: FetchFrom(bookie, "CRC32"), "digest mismatch: entry"),
        (lambda bookie, digest: FetchFrom(bookie, "MD5"), "digests of type 'MD5'"),
    ],
    ids=["an unknown bookie", "digests that do not match", "an unknown digest"],
)
def test_worker_reads_entries_that_the_target_could_not_fetch(cluster, asked, monkeypatch, caplog, source, told):
    caplog.set_level("INFO")
    monkeypatch.setattr(copying, "FetchFrom", source)
    with cluster.bookkeeper() as bookkeeper:
        ledger_id = closed(bookkeeper)
        lost = bookies_of(cluster, bookkeeper, ledger_id)[0]
        repaired(cluster, bookkeeper, ledger_id, lost)
        assert asked["reads"] > 0 and asked["fetches"] > 0
        assert "could not fetch entry" in caplog.text and told in caplog.text


@pytest.mark.parametrize("seconds", [1.0, 3.0])
def test_hung_source_bookie_does_not_put_the_target_in_quarantine(cluster, asked, seconds):
    """The target waits for 5 s, and the worker waited for twice its own timeout."""
    with cluster.bookkeeper() as bookkeeper:
        ledger_id = closed(bookkeeper)
        lost, *sources = bookies_of(cluster, bookkeeper, ledger_id)
        [target] = [bookie for bookie in cluster.bookies if bookie not in (lost, *sources)]
        sources[0].suspend()
        try:
            lost.stop()
            _, quarantined = repaired_without_looking(cluster, bookkeeper, ledger_id, lost, seconds)
        finally:
            sources[0].resume()
            start_all(*cluster.bookies)
        assert target.bookie_id not in quarantined


def test_worker_copies_entries_to_an_older_bookie_without_fetch(cluster, asked, monkeypatch, caplog):
    """An older bookie answers as any bookie does to an unknown kind of request."""
    caplog.set_level("INFO")
    made = LedgerRequests._header
    unknown = max(Kind) + 1
    monkeypatch.setattr(
        LedgerRequests,
        "_header",
        lambda self, kind, **fields: made(self, unknown if kind is Kind.FETCH else kind, **fields),
    )
    with cluster.bookkeeper() as bookkeeper:
        ledger_id = closed(bookkeeper)
        before = bookies_of(cluster, bookkeeper, ledger_id)
        done, quarantined = repaired(cluster, bookkeeper, ledger_id, before[0])
        assert asked["reads"] > 0 and asked["fetches"] > 0 and done.entries == ENTRIES
        assert asked["limits"] == {RUN_BYTES}, "what passes this process is no more than without fetches"
        assert f"unknown kind {unknown}" in caplog.text
        assert not quarantined.keys() - {before[0].bookie_id}
        assert_readable_from_target_alone(cluster, bookkeeper, ledger_id, before)


def repaired_without_looking(cluster, bookkeeper, ledger_id, lost, seconds):
    with cluster.bookkeeper(answer_timeout_seconds=seconds) as own:
        worker = ReplicationWorker(own, AutorecoveryConfig(poll_seconds=0.2, retry_seconds=0.2))
        bookkeeper.metadata.underreplication.mark([Mark(ledger_id, {lost.bookie_id: Reason.LOST}, "by a test")])
        worker.start()
        try:
            await_that(lambda: not bookkeeper.metadata.underreplication.list_tasks())
            return worker.progress(), own.context.runtime.connections.quarantined()
        finally:
            worker.stop()


def test_worker_with_a_bandwidth_limit_fetches_nothing(cluster, asked):
    """The process that copies keeps the limit, so the worker must copy."""
    with cluster.bookkeeper() as bookkeeper:
        ledger_id = closed(bookkeeper)
        lost = bookies_of(cluster, bookkeeper, ledger_id)[0]
        repaired(cluster, bookkeeper, ledger_id, lost, copy_bytes_per_second=100 << 20)
        assert asked["reads"] > 0 and asked["fetches"] == 0


def test_fetch_without_the_master_key_copies_nothing(cluster):
    with cluster.bookkeeper() as bookkeeper:
        ledger_id = closed(bookkeeper)
        holders = bookies_of(cluster, bookkeeper, ledger_id)
        [target] = [bookie for bookie in cluster.bookies if bookie not in holders]
        runtime = bookkeeper.context.runtime
        requests = LedgerRequests(runtime.io, runtime.connections, ledger_id, b"k" * 16, None, SECONDS_MAX)
        answers, came = [], threading.Event()
        source = FetchFrom(holders[0].bookie_id, "CRC32C")
        action = act.SendAdd((target.bookie_id,), 0, 99, 99)
        requests.fetch(target.bookie_id, action, source, 0, lambda answer: (answers.append(answer), came.set()))
        assert came.wait(SECONDS_MAX)
        [answer] = answers
        assert not isinstance(answer.response, Positive) or answer.header.last_entry_id == -1
        assert bookkeeper.list_ranges(target.bookie_id, ledger_id).num_rows == 0
