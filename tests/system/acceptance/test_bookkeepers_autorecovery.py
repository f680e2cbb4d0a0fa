"""Auditor and replication workers of BookKeeper (4.17.3) and ours in one cluster. Only one implementation is active at a
time; each repairs ledgers that the other marked. docs/compatibility.md has the table."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookspark import BookKeeper, DigestType
from bookspark.errors import BookieError, MetadataStoreError
from bookspark.local import LocalBookie, LocalCluster
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.store.autorecovery.auditor import Auditor
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.metadata.autorecovery.auditors import CheckReport
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster
from tests.awaiting import await_that
from tests.servers.bookkeeper.judge import Judge, class_path, judging
from tests.servers.bookkeeper.rounds import payload

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]

_LEDGERS, _ENTRIES = 6, 20


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    """The last test removes this cluster."""
    place = new_chroot()
    begin_cluster(place, LedgerManager.BOOKKEEPER)
    with LocalCluster(4, zookeeper=place, bookkeeper_port=-1) as made:
        yield made


def uri(cluster: LocalCluster) -> str:
    """The metadata service URI in BookKeeper's form."""
    return f"zk+hierarchical://{cluster.zookeeper.removeprefix('zk://')}/ledgers"


@pytest.fixture(scope="module")
def theirs(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with judging(uri(cluster), tmp_path_factory.mktemp("judge") / "theirs", program="Recovery") as made:
        yield made


@contextlib.contextmanager
def their_autorecovery(cluster: LocalCluster, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """BookKeeper's own main class, as a process."""
    settings = folder / "autorecovery.conf"
    settings.write_text(
        f"metadataServiceUri={uri(cluster)}\nbookieId=theirs-1\nallowLoopback=true\nlostBookieRecoveryDelay=0\n"
        "openLedgerRereplicationGracePeriod=1000\nrwRereplicateBackoffMs=200\n"
    )
    main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", class_path(), main, "-c", str(settings)]
    with (folder / "autorecovery.out").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)


def written(bookkeeper: BookKeeper) -> list[int]:
    """Closed ledgers with three copies each."""
    ids = []
    for _ in range(_LEDGERS):
        with bookkeeper.create_ledger(digest_type=DigestType.BOOKKEEPER_CRC32C, password=b"secret") as ledger:
            ledger.append_batch([payload(entry_id, 100) for entry_id in range(_ENTRIES)])
        ids.append(ledger.ledger_id)
    return ids


def one_dies(cluster: LocalCluster, bookkeeper: BookKeeper, ledgers: list[int]) -> tuple[LocalBookie, list[int]]:
    """Kill a bookie; returns it and the ledgers that name it."""
    victim = cluster.bookies[0]
    named = [one for one in ledgers if victim.bookie_id in bookies_of(bookkeeper, one)]
    assert named
    victim.kill()
    return victim, named


def bookies_of(bookkeeper: BookKeeper, ledger_id: int) -> set[str]:
    fragments = bookkeeper.get_ledger_metadata(ledger_id).fragments
    return {bookie for fragment in fragments for bookie in fragment.ensemble}


def repaired(bookkeeper: BookKeeper, victim: LocalBookie, ledgers: list[int]) -> bool:
    """True if no ledger names the dead bookie and no task is left."""
    named = any(victim.bookie_id in bookies_of(bookkeeper, ledger_id) for ledger_id in ledgers)
    return not named and not bookkeeper.metadata.underreplication.list_tasks()


def all_there(bookkeeper: BookKeeper, ledgers: list[int]) -> bool:
    """True if every entry is read from each bookie that the ledger names."""
    for ledger_id in ledgers:
        with bookkeeper.open_ledger(ledger_id, b"secret") as reader:
            found = [entry.payload for entry in reader.read(0, _ENTRIES - 1)]
            if found != [payload(entry_id, 100) for entry_id in range(_ENTRIES)]:
                return False
        for bookie in bookies_of(bookkeeper, ledger_id):
            held = bookkeeper.list_ranges(bookie, ledger_id).to_pylist()
            if sum(one["last_entry_id"] - one["first_entry_id"] + 1 for one in held) < _ENTRIES:
                return False
    return True


def test_bookkeeper_workers_repair_ledgers_marked_by_our_auditor(
    cluster: LocalCluster, theirs: Judge, tmp_path: Path
) -> None:
    bookkeeper = cluster.bookkeeper()
    ledgers = written(bookkeeper)
    tasks = bookkeeper.metadata.underreplication
    auditor = Auditor(cluster.bookkeeper(), AutorecoveryConfig(lost_bookie_delay_seconds=0, poll_seconds=0.5), "ours:1")
    auditor.start()
    await_that(lambda: auditor_of(theirs) == "ours:1", what="BookKeeper knows our auditor")
    victim, named = one_dies(cluster, bookkeeper, ledgers)
    await_that(lambda: tasks.list_tasks() == named, what="our auditor marks")
    assert theirs.ask("tasks") == " ".join(sorted(f"{ledger_id}:{victim.bookie_id}" for ledger_id in named))
    # BookKeeper respects the lock of our worker.
    held = tasks.take(named[0], "ours:2")
    assert held is not None and theirs.ask("holder", named[0]) == "ours:2"
    with their_autorecovery(cluster, tmp_path):
        others = named[1:]
        await_that(lambda: tasks.list_tasks() == named[:1], what="its workers repair all but the one that we hold")
        assert all(victim.bookie_id not in bookies_of(bookkeeper, one) for one in others)
        assert theirs.ask("who") == "ours:1", "its auditor waits for ours"
        tasks.release(held)
        await_that(lambda: repaired(bookkeeper, victim, named), what="its workers repair the rest")
        assert all_there(bookkeeper, named)
        assert auditor.stop()
        await_that(lambda: auditor_of(theirs) == "theirs-1", what="its auditor follows ours")
    as_before(bookkeeper, victim, ledgers)


def as_before(bookkeeper: BookKeeper, victim: LocalBookie, ledgers: list[int]) -> None:
    """Restore the cluster for the next test."""
    for ledger_id in ledgers:
        bookkeeper.delete_ledger(ledger_id)
    victim.start()
    await_that(lambda: bookkeeper.metadata.auditors.auditor() is None, what="nobody has the office")


def auditor_of(theirs: Judge) -> str:
    """The auditor that BookKeeper reports. The call fails if a vote vanishes between its list of votes and its reads of them."""
    try:
        return theirs.ask("who")
    except RuntimeError as error:
        if "NoNode" not in str(error):
            raise
        return ""


def test_our_workers_repair_ledgers_marked_by_bookkeepers_auditor(cluster: LocalCluster, theirs: Judge) -> None:
    bookkeeper = cluster.bookkeeper()
    ledgers = written(bookkeeper)
    theirs.ask("auditor", "host-9:3181")
    await_that(lambda: bookkeeper.metadata.auditors.auditor() == "host-9:3181", what="we know its auditor")
    victim, named = one_dies(cluster, bookkeeper, ledgers)
    await_that(lambda: bookkeeper.metadata.underreplication.list_tasks() == named, what="its auditor marks")
    with pytest.raises(BookieError, match="host-9:3181"):
        cluster.add_autorecovery()
    theirs.ask("resign")
    ours = cluster.add_autorecovery(lost_bookie_delay_seconds=3600, poll_seconds=0.5)
    await_that(lambda: repaired(bookkeeper, victim, named), what="our worker repairs what its auditor marked")
    assert all_there(bookkeeper, named)
    # If two auditors start, the earlier vote wins.
    theirs.ask("auditor", "host-9:3181")
    await_that(lambda: bookkeeper.metadata.auditors.foreign() == ["host-9:3181"], what="its auditor has voted")
    assert theirs.ask("who") == ours.name
    ours.kill()
    await_that(lambda: auditor_of(theirs) == "host-9:3181", what="its auditor follows ours")
    theirs.ask("resign")
    as_before(bookkeeper, victim, ledgers)


def test_marks_and_switches_of_both_implementations_are_shared(cluster: LocalCluster, theirs: Judge) -> None:
    bookkeeper = cluster.bookkeeper()
    [ledger_id, *_] = written(bookkeeper)
    tasks, auditors = bookkeeper.metadata.underreplication, bookkeeper.metadata.auditors
    one, two, *_ = sorted(bookies_of(bookkeeper, ledger_id))
    tasks.mark([Mark(ledger_id, {one: Reason.LACKS}, "of ours")])
    taken = tasks.take(ledger_id, "ours:1")
    assert taken is not None and taken.task.bookies == {one: Reason.LACKS}
    theirs.ask("mark", ledger_id, two)
    assert not tasks.done(taken), "what was marked during a repair stays"
    task = tasks.task(ledger_id)
    assert task is not None and set(task.bookies) == {one, two}
    tasks.mark([Mark(ledger_id, {one: Reason.LACKS}, "of ours")])
    assert theirs.ask("tasks") == f"{ledger_id}:{one},{two}"
    tasks.disable()
    assert theirs.ask("enabled") == "false"
    theirs.ask("enable")
    assert tasks.enabled()
    theirs.ask("disable")
    assert not tasks.enabled()
    tasks.enable()
    auditors.set_delay(41.5)
    assert theirs.ask("delay") == "42" and theirs.ask("delay", 7) == "7" and auditors.delay_seconds() == 7
    auditors.note_check(CheckReport(1_700_000_000_000, 1.0, 10, 0))
    assert theirs.ask("checked") == "1700000000000"
    bookie = cluster.bookies[0]
    shown = theirs.ask("cookie", bookie.bookie_id)
    assert f'bookieHost: "{bookie.bookie_id}"' in shown and bookkeeper.metadata.instance_id in shown


def test_bookkeepers_format_removes_the_cluster(cluster: LocalCluster, theirs: Judge) -> None:
    bookkeeper = cluster.bookkeeper()
    ledger = bookkeeper.create_ledger(digest_type=DigestType.BOOKKEEPER_CRC32C, password=b"secret")
    ledger.append(b"one")
    assert theirs.ask("format") == "true"
    with pytest.raises(MetadataStoreError):
        ledger.close()
    with BookKeeper(cluster.zookeeper) as another:
        assert another.metadata.instance_id != bookkeeper.metadata.instance_id
        assert another.list_ledgers() == [] and another.metadata.list_cookies() == []
