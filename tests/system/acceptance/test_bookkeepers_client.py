"""An unmodified client of Apache BookKeeper 4.17.3 on our bookies; each client reads ledgers of the other.

docs/compatibility.md has the table. ``Judge.java`` carries out each line with BookKeeper's client. Its jars come from Maven
Central, as those of ``bench compare``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookspark import BookKeeper, DigestType, LedgerType, Replication, errors
from bookspark.local import LocalCluster
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster
from tests.authority import Authority
from tests.awaiting import await_that
from tests.servers.bookkeeper.judge import Judge, judging
from tests.servers.bookkeeper.rounds import (
    BOOKIES,
    DIGESTS,
    VERSIONS,
    Rounds,
    drawn,
    ends_at_an_ensemble_change,
    payload,
    told,
)

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(2400)
ROUNDS_SEED = 2164
"""The first eight rounds of this seed are of many kinds."""


def uri(cluster: LocalCluster) -> str:
    """The metadata service URI in the form of BookKeeper's clients."""
    return f"zk+hierarchical://{cluster.zookeeper.removeprefix('zk://')}/ledgers"


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    place = new_chroot()
    begin_cluster(place, LedgerManager.BOOKKEEPER)
    with LocalCluster(BOOKIES, zookeeper=place, bookkeeper_port=-1) as made:
        yield made


@pytest.fixture(scope="module")
def judge(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with judging(uri(cluster), tmp_path_factory.mktemp("judge") / "stderr") as made:
        yield made


@pytest.fixture(scope="module")
def bookkeeper(cluster: LocalCluster) -> BookKeeper:
    return cluster.bookkeeper()


_names = iter(range(1_000_000))


def create(
    judge: Judge, version: str = "v3", digest: str = "CRC32C", quorums: str = "3 3 2", flags: str = "-"
) -> tuple[str, int]:
    name = f"w{next(_names)}"
    return name, int(judge.ask("create", name, version, digest, "secret", quorums, flags))


@pytest.mark.parametrize(
    ("version", "digest", "quorums"),
    [
        ("v2", "CRC32", "3 3 2"),
        ("v2", "CRC32C", "3 2 2"),
        ("v2", "MAC", "3 3 2"),
        ("v3", "CRC32C", "3 3 2"),
        ("v3", "MAC", "3 2 2"),
        ("v3", "DUMMY", "3 3 2"),
    ],
)
def test_both_clients_read_a_ledger_written_by_bookkeepers_client(
    judge: Judge, bookkeeper: BookKeeper, version: str, digest: str, quorums: str
) -> None:
    name, ledger_id = create(judge, version, digest, quorums)
    assert judge.ask("add", name, 3, 100) == "2"
    assert judge.ask("pipeline", name, 100, 100) == "102"
    assert judge.ask("add", name, 1, 1 << 20) == "103"
    judge.ask("close", name)
    expected = [payload(i, 100) for i in range(103)] + [payload(103, 1 << 20)]
    assert judge.ask("open", "r", version, digest, "secret", ledger_id) == f"103 {sum(map(len, expected))}"
    assert judge.ask("read", "r", 0, 103) == told(expected)
    if version == "v2":
        # BookKeeper's client reads in batches with version 2 only.
        assert judge.ask("readbatch", "r", 0, 20) == told(expected[:20])
    reader = bookkeeper.open_ledger(ledger_id, b"secret")
    assert reader.metadata.digest_type is DIGESTS[digest]
    assert [entry.payload for entry in reader.read(0, 103)] == expected


@pytest.mark.parametrize(("version", "digest"), [("v2", "CRC32C"), ("v2", "DUMMY"), ("v3", "CRC32"), ("v3", "MAC")])
def test_bookkeepers_client_reads_a_ledger_written_by_our_client(
    judge: Judge, bookkeeper: BookKeeper, version: str, digest: str
) -> None:
    ledger = bookkeeper.create_ledger(
        ensemble_size=3, write_quorum=2, ack_quorum=2, digest_type=DIGESTS[digest], password=b"secret"
    )
    expected = [payload(i, 300) for i in range(50)]
    for one in expected[:5]:
        ledger.append(one)
    ledger.append_batch(expected[5:])
    ledger.close()
    assert judge.ask("open", "r", version, digest, "secret", ledger.ledger_id) == f"49 {50 * 300}"
    assert judge.ask("read", "r", 0, 49) == told(expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_client_recovers_a_ledger_left_open_by_the_other(
    judge: Judge, bookkeeper: BookKeeper, version: str
) -> None:
    name, ledger_id = create(judge, version)
    judge.ask("pipeline", name, 20, 50)
    reader = bookkeeper.open_ledger(ledger_id, b"secret")
    assert [entry.payload for entry in reader.read(0, 19)] == [payload(i, 50) for i in range(20)]
    with pytest.raises(RuntimeError, match="BKLedgerFencedException"):
        judge.ask("add", name, 1, 50)
    ledger = bookkeeper.create_ledger(digest_type=DigestType.BOOKKEEPER_CRC32C, password=b"secret")
    ledger.append_batch([payload(i, 50) for i in range(20)])
    assert judge.ask("open", "r", version, "CRC32C", "secret", ledger.ledger_id) == f"19 {20 * 50}"
    assert judge.ask("state", "r") == "CLOSED 19"
    with pytest.raises(errors.LedgerFencedError):
        ledger.append(b"late")


def test_wrong_password_does_not_fence_the_ledger(judge: Judge, bookkeeper: BookKeeper) -> None:
    name, ledger_id = create(judge)
    with pytest.raises(RuntimeError, match="BKUnauthorizedAccessException"):
        judge.ask("open", "r", "v3", "CRC32C", "wrong", ledger_id)
    with pytest.raises(errors.UnauthorizedAccessError):
        bookkeeper.open_ledger(ledger_id, b"wrong")
    assert judge.ask("add", name, 1, 10) == "0"


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_bookkeepers_client_refuses_ledger_features_it_does_not_support(
    judge: Judge, bookkeeper: BookKeeper, version: str
) -> None:
    """A ledger with a digest of Bookspark, volatile durability and guaranteed write quorum. It is neither fenced nor changed."""
    with bookkeeper.create_ledger(
        password=b"secret", ledger_type=LedgerType.VD_JOURNAL, replication=Replication.GUARANTEED
    ) as ledger:
        ledger.append(b"0")
        before = bookkeeper.get_ledger_metadata(ledger.ledger_id)
        for what in ("open", "follow"):
            with pytest.raises(RuntimeError, match=r"BK(UnauthorizedAccess|DigestMatch)Exception"):
                judge.ask(what, "r", version, "CRC32C", "secret", ledger.ledger_id)
        assert bookkeeper.get_ledger_metadata(ledger.ledger_id) == before
        ledger.append(b"1")


def test_accepted_loss_closes_a_ledger_of_a_bookkeeper_cluster(
    judge: Judge, bookkeeper: BookKeeper, cluster: LocalCluster
) -> None:
    """An operator of Bookspark accepts the loss. Once that was refused, because the record had no field for it."""
    ledger = bookkeeper.create_ledger(1, 1, 1, digest_type=DigestType.BOOKKEEPER_CRC32C, password=b"secret")
    ledger.append(b"0")
    (gone,) = bookkeeper.get_ledger_metadata(ledger.ledger_id).last_fragment.ensemble
    holder = next(bookie for bookie in cluster.bookies if bookie.bookie_id == gone)
    holder.stop()
    try:
        await_that(lambda: gone not in bookkeeper.metadata.bookies(), what="the bookie is gone")
        with bookkeeper.open_ledger(ledger.ledger_id, b"secret", accept_loss_as="ann", lost_bookies=[gone]):
            pass
        metadata = bookkeeper.get_ledger_metadata(ledger.ledger_id)
        assert metadata.closed and metadata.accepted_loss is not None and metadata.accepted_loss.by == "ann"
        judge.ask("open", "closed", "v3", "CRC32C", "secret", ledger.ledger_id)
        assert "CLOSED" in judge.ask("state", "closed")
    finally:
        holder.start()


def test_readers_tail_a_ledger_of_the_other_clients_writer(judge: Judge, bookkeeper: BookKeeper) -> None:
    name, ledger_id = create(judge)
    judge.ask("add", name, 2, 10)
    judge.ask("follow", "f", "v3", "CRC32C", "secret", ledger_id)
    assert judge.ask("poll", "f", 0, 5000) == "1 0" or judge.ask("lac", "f") in ("0", "1")
    # The explicit LAC arrives without another entry.
    assert judge.ask("poll", "f", 1, 120_000) == "1 1"
    # The first bookie with the LAC answers a poll. A client asks a quorum for a LAC, and two other bookies may not know it
    # yet.
    await_that(lambda: judge.ask("explicitlac", "f") == "1", what="BookKeeper's client finds the explicit LAC")
    assert judge.ask("unconfirmed", "f", 0, 1) == told([payload(0, 10), payload(1, 10)])
    reader = bookkeeper.open_ledger_no_recovery(ledger_id, b"secret")
    await_that(lambda: reader.read_last_add_confirmed() == 1, what="our client finds the explicit LAC")
    judge.ask("add", name, 2, 10)
    confirmed, entry = reader.read_last_add_confirmed_and_entry(2, 120)
    assert confirmed >= 2 and entry is not None and entry.payload == payload(2, 10)
    ledger = bookkeeper.create_ledger(digest_type=DigestType.BOOKKEEPER_CRC32C, password=b"secret")
    ledger.append(payload(0, 10))
    judge.ask("follow", "f", "v3", "CRC32C", "secret", ledger.ledger_id)
    ledger.append(payload(1, 10))
    assert judge.ask("poll", "f", 0, 120_000) in ("0 0", "1 0")
    ledger.close()


def test_deferred_sync_entries_are_confirmed_only_after_force(judge: Judge, bookkeeper: BookKeeper) -> None:
    name, ledger_id = create(judge, flags="deferred")
    judge.ask("pipeline", name, 50, 10)
    assert judge.ask("lac", name) == "-1"
    assert judge.ask("force", name) == "49"
    judge.ask("close", name)
    assert len(list(bookkeeper.open_ledger(ledger_id, b"secret").read(0, 49))) == 50


def test_entries_with_given_ids_are_acknowledged_and_read(judge: Judge, bookkeeper: BookKeeper) -> None:
    name, ledger_id = create(judge, flags="advanced")
    for entry_id in range(3):
        assert judge.ask("addas", name, entry_id, 10) == str(entry_id)
    judge.ask("close", name)
    assert len(list(bookkeeper.open_ledger(ledger_id, b"secret").read(0, 2))) == 3


def test_deleted_ledger_is_gone_for_both_clients(judge: Judge, bookkeeper: BookKeeper) -> None:
    for delete in (lambda one: judge.ask("delete", "v3", one), bookkeeper.delete_ledger):
        name, ledger_id = create(judge)
        judge.ask("close", name)
        delete(ledger_id)
        with pytest.raises(RuntimeError, match="NoSuchLedger"):
            judge.ask("open", "r", "v3", "CRC32C", "secret", ledger_id)
        with pytest.raises(errors.NoSuchLedgerError):
            bookkeeper.open_ledger(ledger_id, b"secret")


def test_ledger_ids_of_both_clients_are_unique_and_increasing(judge: Judge, bookkeeper: BookKeeper) -> None:
    given = []
    for _ in range(5):
        given.append(create(judge)[1])
        given.append(bookkeeper.create_ledger(digest_type=DigestType.BOOKKEEPER_DUMMY).ledger_id)
    assert given == sorted(set(given))
    assert bookkeeper.metadata.highest_ledger_id() == given[-1]


def test_bookkeepers_client_lists_the_bookies(judge: Judge, cluster: LocalCluster) -> None:
    assert judge.ask("bookies", "v3") == str(len(cluster.bookies))


def test_each_bookie_lists_the_entries_it_holds(judge: Judge, bookkeeper: BookKeeper, cluster: LocalCluster) -> None:
    name, ledger_id = create(judge, quorums="3 2 2")
    judge.ask("pipeline", name, 30, 50)
    judge.ask("close", name)
    ensemble = bookkeeper.get_ledger_metadata(ledger_id).last_fragment.ensemble
    for position, bookie_id in enumerate(ensemble):
        held = [(entry - position) % 3 in (0, 2) for entry in range(30)]
        expected = "".join("01"[one] for one in held)
        assert judge.ask("held", "v3", ledger_id, bookie_id, 30) == f"{expected} {sum(held)}"


def test_bookkeepers_client_reads_and_writes_with_tls_only(tmp_path: Path, chroot: str) -> None:
    """The client has a certificate, which the bookies require. Without TLS they serve it nothing."""
    authority = Authority(tmp_path / "ca")
    folder = tmp_path / "client"
    folder.mkdir()
    both = Path(authority.certificate("client")).read_text()
    key, _, certificate = both.partition("-----BEGIN CERTIFICATE-----")
    (folder / "ca.pem").write_text(Path(authority.file).read_text())
    (folder / "client.key").write_text(key)
    (folder / "client.crt").write_text(f"-----BEGIN CERTIFICATE-----{certificate}")
    asked = {"tls_certificate": authority.certificate("bookie"), "tls_client_ca": str(authority.file)}
    own = authority.certificate("our-client")
    begin_cluster(chroot, LedgerManager.BOOKKEEPER)
    with LocalCluster(3, zookeeper=chroot, bookkeeper_port=-1, **asked) as cluster:
        with judging(uri(cluster), tmp_path / "stderr", folder) as judge:
            name, ledger_id = create(judge, "v3")
            judge.ask("pipeline", name, 100, 1000)
            judge.ask("close", name)
            expected = [payload(i, 1000) for i in range(100)]
            assert judge.ask("open", "r", "v3", "CRC32C", "secret", ledger_id) == f"99 {100_000}"
            assert judge.ask("read", "r", 0, 99) == told(expected)
        ours = cluster.bookkeeper(tls_ca=str(authority.file), tls_certificate=own)
        with ours.open_ledger(ledger_id, b"secret") as reader:
            assert [entry.payload for entry in reader.read(0, 99)] == expected
        with judging(uri(cluster), tmp_path / "stderr-without") as judge:
            assert judge.ask("open", "r", "v3", "CRC32C", "secret", ledger_id) == f"99 {100_000}"
            with pytest.raises(RuntimeError, match="BKUnauthorizedAccessException"):
                judge.ask("read", "r", 0, 99)


@pytest.mark.parametrize("version", VERSIONS)
def test_bookkeepers_writer_continues_after_a_bookie_dies(
    judge: Judge, bookkeeper: BookKeeper, cluster: LocalCluster, version: str
) -> None:
    name, ledger_id = create(judge, version, quorums="3 3 3")
    judge.ask("pipeline", name, 10, 50)
    named = bookkeeper.get_ledger_metadata(ledger_id).last_fragment.ensemble
    victim = next(bookie for bookie in cluster.bookies if bookie.bookie_id == named[0])
    victim.kill()
    try:
        # One add detects that the bookie is dead. Many at once were once seen not to end (docs/compatibility.md).
        assert judge.ask("pipeline", name, 1, 50) == "10"
        assert judge.ask("pipeline", name, 49, 50) == "59"
        judge.ask("close", name)
        assert len(bookkeeper.get_ledger_metadata(ledger_id).fragments) == 2
        expected = [payload(i, 50) for i in range(60)]
        assert [entry.payload for entry in bookkeeper.open_ledger(ledger_id, b"secret").read(0, 59)] == expected
        assert judge.ask("open", "r", version, "CRC32C", "secret", ledger_id) == f"59 {60 * 50}"
        assert judge.ask("read", "r", 0, 59) == told(expected)
    finally:
        victim.start()


@pytest.mark.parametrize("version", VERSIONS)
def test_bookkeepers_recovery_after_ensemble_change_loses_the_length_but_no_entry(
    judge: Judge, bookkeeper: BookKeeper, cluster: LocalCluster, version: str
) -> None:
    """Its recovery takes the LAC from the last fragment's first entry, but the length from the bookies' LAC, which is missing
    here. The random rounds below discovered it."""
    ledger = bookkeeper.create_ledger(digest_type=DigestType.BOOKKEEPER_CRC32C, password=b"secret")
    named = bookkeeper.get_ledger_metadata(ledger.ledger_id).last_fragment.ensemble
    victim = next(bookie for bookie in cluster.bookies if bookie.bookie_id == named[0])
    expected = [payload(i, 10) for i in range(47)]
    victim.suspend()
    try:
        ledger.append_batch(expected)
    finally:
        victim.kill()
    try:
        await_that(
            lambda: ends_at_an_ensemble_change(bookkeeper, ledger.ledger_id, 47), what="the dead bookie is replaced"
        )
        assert judge.ask("open", "r", version, "CRC32C", "secret", ledger.ledger_id) == "46 0"
        assert judge.ask("read", "r", 0, 46) == told(expected)
        assert [entry.payload for entry in bookkeeper.open_ledger(ledger.ledger_id, b"secret").read(0, 46)] == expected
    finally:
        victim.start()


def test_both_clients_write_recover_and_read_in_turns_while_bookies_die(
    judge: Judge, bookkeeper: BookKeeper, cluster: LocalCluster
) -> None:
    """Every acknowledged entry is read by both clients, independent of its writer and of the client that closed the ledger.
    ``scripts/peers rounds`` plays more of these."""
    rounds = Rounds(judge, bookkeeper, cluster)
    for number in range(8):
        one = drawn(ROUNDS_SEED, number)
        try:
            rounds.play(one)
        except Exception as error:
            raise AssertionError(str(one)) from error
