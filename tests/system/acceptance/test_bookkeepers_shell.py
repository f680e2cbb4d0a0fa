"""BookKeeper's shell 4.17.3 against a cluster of ours with BookKeeper's metadata layout.

docs/compatibility.md has the table of its commands and their effects here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bookspark import BookKeeper, DigestType, LedgerType, Replication, errors
from bookspark.local import LocalBookie, LocalCluster
from bookspark.logs.log import create_log
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster
from tests.awaiting import await_that
from tests.servers.bookkeeper.shell import Shell, shell_of

pytestmark = pytest.mark.timeout(1800)
COUNT = 20
PASSWORD = b"secret"


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    """The last test removes this cluster."""
    place = new_chroot()
    begin_cluster(place, LedgerManager.BOOKKEEPER)
    with LocalCluster(4, zookeeper=place, bookkeeper_port=-1) as made:
        yield made


@pytest.fixture(scope="module")
def shell(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    uri = f"zk+hierarchical://{cluster.zookeeper.removeprefix('zk://')}/ledgers"
    with shell_of(uri, tmp_path_factory.mktemp("shell")) as made:
        yield made


def root(cluster: LocalCluster) -> str:
    """The path of BookKeeper's metadata."""
    return f"/{cluster.zookeeper.partition('/')[2]}/ledgers"


@pytest.fixture(scope="module")
def bookkeeper(cluster: LocalCluster) -> BookKeeper:
    return cluster.bookkeeper()


def payloads(count: int = COUNT) -> list[bytes]:
    return [f"payload {number}".encode() for number in range(count)]


def written(bookkeeper: BookKeeper, close: bool = True) -> LedgerWriter:
    """A ledger with entries. The shell reads its password from its metadata."""
    ledger = bookkeeper.create_ledger(digest_type=DigestType.BOOKKEEPER_CRC32C, password=PASSWORD)
    ledger.append_batch(payloads())
    if close:
        ledger.close()
    else:
        # A reader without recovery gets confirmed entries, and the idle writer soon sends its LAC.
        with bookkeeper.open_ledger_no_recovery(ledger.ledger_id, PASSWORD) as reader:
            await_that(lambda: reader.read_last_add_confirmed() == COUNT - 1, what="its last entry is confirmed")
    return ledger


def ensemble(bookkeeper: BookKeeper, ledger: LedgerWriter) -> tuple[str, ...]:
    return bookkeeper.get_ledger_metadata(ledger.ledger_id).last_fragment.ensemble


def all_read(bookkeeper: BookKeeper, ledger: LedgerWriter) -> bool:
    with bookkeeper.open_ledger(ledger.ledger_id, PASSWORD) as reader:
        return [entry.payload for entry in reader.read(0, COUNT - 1)] == payloads()


def held(shell: Shell, ledger: LedgerWriter, bookie_id: str) -> int:
    """The number of entries on this bookie alone. The shell omits the last entry of a range that it reads from one bookie."""
    said = shell.run("readledger", "-ledgerid", ledger.ledger_id, "-lastentryid", COUNT, "-bookie", bookie_id)
    return sum(f"Lid={ledger.ledger_id}, Eid=" in line for line in said.lines)


def test_shell_lists_ledgers(shell: Shell, bookkeeper: BookKeeper) -> None:
    closed, open_one = written(bookkeeper), written(bookkeeper, close=False)
    listed = shell.run("listledgers")
    assert listed.status == 0
    ids = [int(line.rpartition(" ")[2]) for line in listed.lines if line.startswith("ledgerID: ")]
    assert sorted(ids) == bookkeeper.list_ledgers()
    in_hex = shell.run("-ledgeridformat", "hex", "listledgers")
    assert in_hex.says(f"ledgerID: {open_one.ledger_id:x}"), in_hex
    described = shell.run("listledgers", "-m")
    assert described.says("state=CLOSED, length=") and described.says("state=OPEN, digestType=CRC32C"), described
    holder = ensemble(bookkeeper, closed)[0]
    of_one = shell.run("listledgers", "-bookieid", holder)
    assert of_one.says(f"ledgerID: {closed.ledger_id}"), of_one
    assert of_one.says(f"ledgerID: {open_one.ledger_id}") == (holder in ensemble(bookkeeper, open_one))
    bookkeeper.delete_ledger(open_one.ledger_id)


def test_shell_prints_dumps_and_restores_ledger_metadata(shell: Shell, bookkeeper: BookKeeper, tmp_path: Path) -> None:
    ledger = written(bookkeeper)
    printed = shell.run("ledgermetadata", "-ledgerid", ledger.ledger_id)
    length = sum(map(len, payloads()))
    assert printed.status == 0
    assert printed.says(f"ackQuorumSize=2, state=CLOSED, length={length}, lastEntryId={COUNT - 1}, digestType=CRC32C")
    assert printed.says(f"ensembles={{0=[{', '.join(ensemble(bookkeeper, ledger))}]}}"), printed
    before, dump = bookkeeper.get_ledger_metadata(ledger.ledger_id), tmp_path / "dump"
    assert shell.run("ledgermetadata", "-ledgerid", ledger.ledger_id, "-dumptofile", dump).status == 0
    assert shell.run("deleteledger", "-ledgerid", ledger.ledger_id, "-force").status == 0
    restored = shell.run("ledgermetadata", "-ledgerid", ledger.ledger_id, "-restorefromfile", dump)
    assert restored.status == 0, restored
    after = bookkeeper.get_ledger_metadata(ledger.ledger_id)
    assert (after.state, after.last_entry_id, after.length, after.fragments) == (
        before.state, before.last_entry_id, before.length, before.fragments
    )  # fmt: skip
    assert all_read(bookkeeper, ledger)
    missing = shell.run("ledgermetadata", "-ledgerid", 1_000_000)
    assert missing.status != 0 and missing.says("No such ledger exists on Metadata Server"), missing


def test_shell_lists_and_deletes_a_bookspark_ledger_but_shows_no_entries(
    shell: Shell, bookkeeper: BookKeeper, cluster: LocalCluster
) -> None:
    with bookkeeper.create_ledger(
        password=PASSWORD, ledger_type=LedgerType.VD_JOURNAL, replication=Replication.GUARANTEED
    ) as ledger:
        ledger.append(b"with a digest of Bookspark's")
    assert shell.run("listledgers").says(f"ledgerID: {ledger.ledger_id}")
    described = shell.run("ledgermetadata", "-ledgerid", ledger.ledger_id)
    assert described.status == 0 and described.says("lastEntryId=0"), described
    assert shell.run("listledgers", "-m").status == 0
    holder = ensemble(bookkeeper, ledger)[0]
    assert shell.run("listledgers", "-bookieid", holder).says(f"ledgerID: {ledger.ledger_id}")
    assert shell.run("recover", "-query", "-force", holder).says(f"ledger {ledger.ledger_id} : CLOSED")
    read = shell.run("readledger", "-ledgerid", ledger.ledger_id, "-msg")
    assert not read.says("with a digest of Bookspark's"), read
    with bookkeeper.open_ledger(ledger.ledger_id, PASSWORD) as reader:
        assert [entry.payload for entry in reader.read(0, 0)] == [b"with a digest of Bookspark's"]
    assert shell.run("deleteledger", "-ledgerid", ledger.ledger_id, "-force").status == 0
    with pytest.raises(errors.NoSuchLedgerError):
        bookkeeper.open_ledger(ledger.ledger_id, PASSWORD)


def test_shell_reads_entries_and_fences_only_with_force_recovery(shell: Shell, bookkeeper: BookKeeper) -> None:
    ledger = written(bookkeeper, close=False)
    first = shell.run("readledger", "-ledgerid", ledger.ledger_id, "-firstentryid", 0, "-lastentryid", 4, "-msg")
    assert first.status == 0
    assert [line for line in first.lines if line.startswith("payload ")] == [one.decode() for one in payloads(5)]
    holder = ensemble(bookkeeper, ledger)[1]
    # Two of three bookies acknowledge.
    await_that(lambda: held(shell, ledger, holder) == COUNT, what="the copy of one bookie")
    assert ledger.append(b"the writer goes on") == COUNT
    recovered = shell.run("readledger", "-ledgerid", ledger.ledger_id, "-force-recovery")
    assert recovered.status == 0 and recovered.says(f"Eid={COUNT}, "), recovered
    assert bookkeeper.get_ledger_metadata(ledger.ledger_id).last_entry_id == COUNT
    with pytest.raises(errors.LedgerFencedError):
        ledger.append(b"too late")


@pytest.mark.parametrize("quorums", ["3 3 2", "4 2 2"])
def test_shell_simpletest_succeeds_and_leaves_no_ledger(shell: Shell, bookkeeper: BookKeeper, quorums: str) -> None:
    before = bookkeeper.list_ledgers()
    sizes = zip(("-ensemble", "-writeQuorum", "-ackQuorum"), quorums.split(), strict=True)
    said = shell.run("simpletest", *(word for size in sizes for word in size), "-numEntries", 200)
    assert said.status == 0 and said.says("200 entries written to ledger"), said
    assert bookkeeper.list_ledgers() == before


def switch(bookkeeper: BookKeeper, bookie_id: str, read_only: bool) -> None:
    """Switch a bookie, and wait until it is registered so."""
    bookkeeper.switch_read_only(bookie_id, read_only)
    await_that(
        lambda: bookkeeper.metadata.bookies()[bookie_id].read_only is read_only, what=f"{bookie_id} registers anew"
    )


def test_shell_lists_bookies_by_writability(shell: Shell, bookkeeper: BookKeeper, cluster: LocalCluster) -> None:
    ids = [bookie.bookie_id for bookie in cluster.bookies]

    def listed(*words: str) -> list[str]:
        said = shell.run("listbookies", *words)
        assert said.status == 0
        return sorted(line.partition(",")[0].removeprefix("BookieID:") for line in said.lines if "BookieID:" in line)

    assert listed("-rw") == listed("-a") == sorted(ids)
    assert listed("-ro") == []
    switch(bookkeeper, ids[0], True)
    try:
        assert listed("-ro") == ids[:1]
        assert listed("-rw") == sorted(ids[1:])
        assert listed("-a") == sorted(ids)
    finally:
        switch(bookkeeper, ids[0], False)


def test_shell_describes_the_cluster_and_its_bookies(
    shell: Shell, bookkeeper: BookKeeper, cluster: LocalCluster
) -> None:
    one = cluster.bookies[0].bookie_id
    assert shell.run("whatisinstanceid").says(f"InstanceId: {bookkeeper.metadata.instance_id}")
    info = shell.run("bookieinfo")
    assert info.status == 0 and sum("Free: " in line for line in info.lines) == len(cluster.bookies), info
    described = shell.run("endpointinfo", "-bookieid", one)
    assert described.says("Protocol: bookie-rpc") and described.says("Address: 127.0.0.1 : "), described
    counted = shell.run("clusterinfo")
    assert counted.says('"totalBookiesCount" : 4') and counted.says('"writableBookiesCount" : 4'), counted
    sane = shell.run("bookiesanity", "-timeout", 60, bookieId=one)
    assert sane.status == 0 and sane.says("Bookie sanity test succeeded"), sane


def test_shell_deletes_a_ledger_after_confirmation(shell: Shell, bookkeeper: BookKeeper) -> None:
    ledger = written(bookkeeper)
    shell.run("deleteledger", "-ledgerid", ledger.ledger_id, answer="N\n")
    assert all_read(bookkeeper, ledger)
    assert shell.run("deleteledger", "-ledgerid", ledger.ledger_id, answer="Y\n").status == 0
    with pytest.raises(errors.NoSuchLedgerError):
        bookkeeper.open_ledger(ledger.ledger_id, PASSWORD)


def test_shell_and_bookspark_share_the_autorecovery_switch(shell: Shell, bookkeeper: BookKeeper) -> None:
    tasks = bookkeeper.metadata.underreplication
    assert shell.run("listunderreplicated").says("Under replicated ledger count: 0")
    assert shell.run("queryautorecoverystatus").says("No Ledger is being recovered")
    assert shell.run("autorecovery", "-disable").status == 0
    assert not tasks.enabled()
    assert shell.run("autorecovery", "-enable").status == 0
    assert tasks.enabled()
    tasks.disable()
    assert shell.run("autorecovery", "-disable").says("already disabled")
    tasks.enable()


def test_shell_commands_that_would_destroy_a_running_cluster_ask_or_refuse(
    shell: Shell, bookkeeper: BookKeeper, cluster: LocalCluster
) -> None:
    ledger, one, other = written(bookkeeper), cluster.bookies[0].bookie_id, cluster.bookies[1].bookie_id
    path = root(cluster)
    instance = bookkeeper.metadata.instance_id
    for words, why in (
        (("initnewcluster",), "already exists"),
        (("nukeexistingcluster", "-zkledgersrootpath", path, "-instanceid", "another"), "is not matching"),
        (("nukeexistingcluster", "-zkledgersrootpath", path, "-instanceid", instance), "Bookies are still up"),
        (("nukeexistingcluster", "-zkledgersrootpath", path, "-force"), "Bookies are still up"),
        (("metaformat", "-nonInteractive"), ""),
        (("cookie_delete", one), ""),
        (("decommissionbookie", "-bookieid", one), "is not shutdown yet"),
        (("updateBookieInLedger", "-srcBookie", one, "-destBookie", other), "can't be active"),
    ):
        said = shell.run(*words)
        assert said.status != 0, said
        assert not why or said.says(why), said
    shell.run("metaformat", answer="N\n")
    shell.run("recover", one, answer="N\n")
    assert bookkeeper.metadata.instance_id == instance
    assert all_read(bookkeeper, ledger)
    assert sorted(bookkeeper.metadata.list_cookies()) == sorted(bookie.bookie_id for bookie in cluster.bookies)


def test_shell_recover_restores_the_copies_of_a_dead_bookie(
    shell: Shell, bookkeeper: BookKeeper, cluster: LocalCluster
) -> None:
    closed, open_one = written(bookkeeper), written(bookkeeper, close=False)
    gone = min(set(ensemble(bookkeeper, closed)) & set(ensemble(bookkeeper, open_one)))
    dead = next(bookie for bookie in cluster.bookies if bookie.bookie_id == gone)
    dead.kill()
    try:
        await_that(lambda: not registered(bookkeeper, dead), what="the dead bookie's session ends")
        named = shell.run("recover", "-query", "-force", gone)
        assert named.says(f"ledger {closed.ledger_id} : CLOSED") and named.says(f"ledger {open_one.ledger_id} : OPEN")
        told = shell.run("recover", "-force", gone)
        assert told.status == 0 and told.says("completed with rc: OK"), told
        for ledger in (closed, open_one):
            metadata = bookkeeper.get_ledger_metadata(ledger.ledger_id)
            assert all(gone not in fragment.ensemble for fragment in metadata.fragments)
            for holder in metadata.last_fragment.ensemble:
                assert held(shell, ledger, holder) == COUNT, holder
            assert all_read(bookkeeper, ledger)
    finally:
        dead.start()


def registered(bookkeeper: BookKeeper, bookie: LocalBookie) -> bool:
    return bookie.bookie_id in bookkeeper.metadata.bookies()


def test_clients_and_bookies_of_a_cluster_removed_by_the_shell_fail(
    shell: Shell, bookkeeper: BookKeeper, cluster: LocalCluster
) -> None:
    """Runs last. Old clients change nothing in the cluster that is created in its place, and its bookies do not join that
    one."""
    ledger = written(bookkeeper, close=False)
    create_log(bookkeeper, "orders")
    instance = bookkeeper.metadata.instance_id
    for bookie in cluster.bookies:
        bookie.stop()
    removed = shell.run("nukeexistingcluster", "-zkledgersrootpath", root(cluster), "-instanceid", instance)
    assert removed.status == 0, removed
    with pytest.raises(errors.NoSuchClusterError):
        BookKeeper(cluster.zookeeper).list_ledgers()
    with pytest.raises(errors.MetadataStoreError, match="has records"):
        begin_cluster(cluster.zookeeper, LedgerManager.BOOKKEEPER)
    forget_records(cluster.zookeeper)
    assert begin_cluster(cluster.zookeeper, LedgerManager.BOOKKEEPER) != instance
    with pytest.raises(errors.BookKeeperError):
        ledger.close()
    with pytest.raises(errors.BookKeeperError):
        bookkeeper.create_ledger(digest_type=DigestType.BOOKKEEPER_CRC32C)
    with pytest.raises(errors.BookieError, match="cluster"):
        cluster.bookies[0].start()


def forget_records(place: str) -> None:
    """Follow the error's advice: deleteall of its path, and of ``bookspark`` in it."""
    servers, _, chroot = place.removeprefix("zk://").partition("/")
    client = KazooClient(servers)
    client.start()
    try:
        client.delete(f"/{chroot}/bookspark", recursive=True)
    finally:
        client.stop()
        client.close()
