"""Troubles of real clusters: ``bookspark why`` names each, and the command that it names repairs it."""

from __future__ import annotations

import json
import os
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bookspark import errors
from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry
from bookspark.operations.why import gathering
from bookspark.operations.why import troubles as module_of_troubles
from bookspark.operations.why.facts import Answer, Severity
from bookspark.operations.why.gathering import DEADLINES, Gathering, gather
from bookspark.operations.why.questions import question_of
from bookspark.operations.why.telling import answer
from bookspark.operations.why.troubles import health_of
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.store.client import BookKeeper
from tests.authority import Authority, private
from tests.awaiting import PATIENT, await_that
from tests.clocks import wrong_clock
from tests.operations.cli.conftest import Run, bookspark, impatient  # noqa: F401
from tests.operations.why.kit import check_command
from tests.secret_files import write_secrets
from tests.system.cluster.copies import await_copies, replication_factors
from tests.system.cluster.test_space import append_until_refused

pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=4, autorecovery=True, zookeeper=new_chroot()) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Iterator[BookKeeper]:
    with cluster.bookkeeper(**DEADLINES) as bookkeeper:
        yield bookkeeper


@pytest.fixture(autouse=True)
def this_machine_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine ZooKeeper is slow and this process's clock may be wrong; both would be reported beside the tested
    trouble."""
    for module in (gathering, module_of_troubles):
        monkeypatch.setattr(module, "SLOW_ZOOKEEPER_SECONDS", 3600.0)
    monkeypatch.setattr(module_of_troubles, "CLOCK_OFF_MS", 10**12)


@pytest.fixture(autouse=True)
def all_is_well_again(this_machine_is_no_trouble: None, request: pytest.FixtureRequest) -> Iterator[None]:
    shared = "cluster" in request.fixturenames
    running, bookkeeper = [request.getfixturevalue(name) for name in ("cluster", "client")] if shared else (None, None)
    yield
    if shared:
        for bookie in running.bookies:
            bookie.start()
        await_that(lambda: troubles(bookkeeper) == {}, what=lambda: health_of(gather(bookkeeper)))


def troubles(bookkeeper: BookKeeper) -> dict[str, Answer]:
    found = health_of(gather(bookkeeper)).troubles
    for one in found:
        check_command(one)
    return {one.kind: one for one in found}


def ask(bookkeeper: BookKeeper, words: str) -> Answer:
    found = answer(bookkeeper, question_of(words.split()))
    check_command(found)
    return found


@contextmanager
def one_ledger(bookkeeper: BookKeeper) -> Iterator[int]:
    """A closed ledger on three bookies, deleted afterwards."""
    with bookkeeper.create_ledger() as ledger:
        ledger.append(b"x")
    await_copies(bookkeeper, ledger.ledger_id)
    yield ledger.ledger_id
    bookkeeper.delete_ledger(ledger.ledger_id)


@pytest.fixture
def command(cluster: LocalCluster, bookspark: Run, monkeypatch: pytest.MonkeyPatch) -> Run:  # noqa: F811
    monkeypatch.setenv("BOOKSPARK_ZOOKEEPER", cluster.zookeeper)
    return bookspark


def switch_read_only(client: BookKeeper, name: str, read_only: bool) -> None:
    """Switch a bookie's mode and wait until its registration shows it."""
    client.switch_read_only(name, read_only)
    await_that(lambda: client.metadata.bookies()[name].read_only is read_only)


@pytest.mark.parametrize(("years", "said"), [(40, "ahead of that of ZooKeeper"), (-40, "behind that of ZooKeeper")])
def test_wrong_clock_of_the_host_that_looks_is_named(cluster: LocalCluster, years: int, said: str) -> None:
    """It learns the time from the bookies."""
    with wrong_clock(365 * years), cluster.bookkeeper(**DEADLINES) as there:
        found = await_that(lambda: troubles(there).get("clock"))
    assert found.subject == "this host" and said in found.verdict and "NTP" in found.mend


def test_busy_cluster_raises_no_alarm(cluster: LocalCluster, client: BookKeeper) -> None:
    ends = threading.Event()
    written = []

    def write() -> None:
        with cluster.bookkeeper() as bookkeeper:
            while not ends.is_set():
                with bookkeeper.create_ledger() as ledger:
                    for _ in range(5):
                        ledger.append_batch([os.urandom(1000) for _ in range(100)])
                bookkeeper.delete_ledger(ledger.ledger_id)
                written.append(ledger.ledger_id)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for one in writers:
        one.start()
    try:
        gathering = Gathering(client)
        await_that(lambda: health_of(gathering.look()).troubles != () or len(written) >= 6)
        assert health_of(gathering.look()).troubles == ()
    finally:
        ends.set()
        for one in writers:
            one.join()


def test_down_bookie_is_named_with_the_ledgers_below_their_quorums(
    cluster: LocalCluster, client: BookKeeper, command: Run
) -> None:
    with one_ledger(client) as ledger_id:
        ensemble = client.get_ledger_metadata(ledger_id).bookies()
        down, other, _ = [one for name in ensemble for one in cluster.bookies if one.bookie_id == name]
        (spare,) = [one for one in cluster.bookies if one.bookie_id not in ensemble]
        assert ask(client, f"under-replicated {ledger_id}").kind == ""
        down.stop()
        found = troubles(client)
        assert set(found) == {"bookie-down"} and found["bookie-down"].subject == down.bookie_id
        assert down.directories[0] in found["bookie-down"].command
        told = ask(client, f"under-replicated {ledger_id}")
        assert told.kind == "under-replicated" and f"{down.bookie_id} is down" in told.causes[0]
        assert ask(client, f"can't I stop {other.bookie_id}").kind == "last-copies"
        assert ask(client, f"is {down.bookie_id} read-only").kind == "bookie-down"
        outcome = command("why", "--json")
        document = json.loads(outcome.out)
        assert outcome.status == 1 and [one["kind"] for one in document["troubles"]] == ["bookie-down"]
        # Once a second bookie is down, autorecovery stops waiting and would copy to the spare bookie at once.
        spare.stop()
        other.stop()
        found = troubles(client)
        assert next(iter(found)) == "below-ack-quorum", (found, client.get_ledger_metadata(ledger_id))
        assert found["below-ack-quorum"].severity is Severity.DANGER
        down.start()
        other.start()
    outcome = command("why")
    assert outcome.status in (0, 1) and cluster.zookeeper in outcome.text


def test_bookie_read_only_by_order_is_named_and_made_writable_by_the_command(
    cluster: LocalCluster, client: BookKeeper, command: Run
) -> None:
    name = cluster.bookies[0].bookie_id
    assert command("why", "is", name, "read-only").status == 0
    switch_read_only(client, name, True)
    found = troubles(client)
    assert set(found) == {"read-only-by-order"}
    outcome = command("why", "is", name, "read-only")
    assert outcome.status == 1 and f"$ bookspark bookie read-only {name} off" in outcome.text
    assert command(*shlex.split(found["read-only-by-order"].command)[1:]).status == 0
    assert troubles(client) == {}


def test_disabled_autorecovery_is_named_and_enabled_by_the_command(client: BookKeeper, command: Run) -> None:
    client.metadata.underreplication.disable()
    found = troubles(client)
    assert set(found) == {"autorecovery-disabled"}
    assert command(*shlex.split(found["autorecovery-disabled"].command)[1:]).status == 0
    assert command("why").status == 0


def test_suspended_bookie_is_named_as_silent(cluster: LocalCluster, client: BookKeeper) -> None:
    bookie = cluster.bookies[1]
    bookie.suspend()
    try:
        assert set(troubles(client)) == {"bookie-silent"}
    finally:
        bookie.resume()


def test_open_ledger_without_a_writer_is_named_and_closed_by_the_command(
    cluster: LocalCluster, client: BookKeeper, command: Run
) -> None:
    ledger = client.create_ledger()
    ledger.append(b"x")
    await_that(lambda: replication_factors(client, ledger.metadata, 1) == [3], what="its third copy")
    name = ledger.metadata.last_fragment.ensemble[0]
    found = ask(client, f"not closed {ledger.ledger_id}")
    assert found.kind == "nobody-writes" and "no entry came" in found.causes[0]
    assert ask(client, f"can't I stop {name}").kind == "being-written"
    ends = threading.Event()

    def write() -> None:
        while not ends.wait(0.05):
            ledger.append(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert ask(client, f"not closed {ledger.ledger_id}").kind == ""
    finally:
        ends.set()
        writer.join()
    assert command(*shlex.split(found.command)[1:]).status == 0
    assert "is closed at entry" in ask(client, f"not closed {ledger.ledger_id}").verdict
    with pytest.raises(errors.LedgerFencedError):
        ledger.append(b"x")
    client.delete_ledger(ledger.ledger_id)
    assert ask(client, f"can't I stop {name}").kind == ""


def test_uncollected_deleted_ledgers_are_named_and_collected_by_the_command(
    cluster: LocalCluster, client: BookKeeper, command: Run
) -> None:
    with client.create_ledger(4, 4, 4) as ledger:
        ledger.append_batch([os.urandom(10_000) for _ in range(100)])
    name = cluster.bookies[2].bookie_id
    assert client.bookie_status(name).ledgers
    client.delete_ledger(ledger.ledger_id)
    found = ask(client, f"is disk of {name} not freed")
    assert found.kind == "not-collected" and any("deleted and not collected" in one for one in found.causes)
    assert command(*shlex.split(found.command)[1:]).status == 0
    assert not any("deleted and not collected" in one for one in ask(client, f"not freed {name}").causes)


def test_log_with_too_few_writable_bookies_is_named_as_blocked(client: BookKeeper, cluster: LocalCluster) -> None:
    LogRegistry(client.metadata).create("orders", LogOptions(), b"")
    assert ask(client, "is orders behind").kind == ""
    for bookie in cluster.bookies[:2]:
        switch_read_only(client, bookie.bookie_id, True)
    found = ask(client, "is orders behind")
    assert found.kind == "log-blocked" and "needs 3 bookies" in found.verdict
    for bookie in cluster.bookies[:2]:
        switch_read_only(client, bookie.bookie_id, False)


def test_questions_about_unknown_bookies_ledgers_and_logs_are_refused(command: Run) -> None:
    assert "there is no bookie nobody" in command("why", "is", "nobody", "read-only").err
    assert command("why", "not", "closed", "999999").status == 2
    assert command("why", "is", "no-such-log", "behind").status == 2
    assert "is no question" in command("why", "what").err


def test_recovery_blocked_by_down_bookies_is_named_with_its_causes(new_chroot: Callable[[], str]) -> None:
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as cluster, cluster.bookkeeper(**DEADLINES) as bookkeeper:
        ledger = bookkeeper.create_ledger()
        ledger.append(b"x")
        for bookie in cluster.bookies[:2]:
            bookie.kill()
        with cluster.bookkeeper(recovery_timeout_seconds=2.0) as other, pytest.raises(errors.LedgerRecoveryError):
            other.open_ledger(ledger.ledger_id)
        await_that(lambda: len(gather(bookkeeper).cluster.down()) == 2)
        found = troubles(bookkeeper)
        assert {"below-ack-quorum", "bookie-down", "no-auditor", "recovery-stands"} == set(found)
        told = ask(bookkeeper, f"not closed {ledger.ledger_id}")
        assert told.kind == "recovery-blocked" and sum("is down" in one for one in told.causes) == 2


def test_full_disk_is_named(new_chroot: Callable[[], str]) -> None:
    limits = {"entry_log_bytes_max": 256 << 10, "directory_bytes_max": 4 << 20, "disk_check_interval_seconds": 0.1}
    with LocalCluster(bookies=1, zookeeper=new_chroot(), **limits) as cluster:
        bookkeeper = cluster.bookkeeper(**DEADLINES)
        ledger = bookkeeper.create_ledger(1, 1, 1)
        with pytest.raises(errors.NotEnoughBookiesError):
            append_until_refused(ledger)
        name = cluster.bookies[0].bookie_id
        await_that(lambda: {"disk-full", "nothing-writable", "no-auditor"} == set(troubles(bookkeeper)))
        assert ask(bookkeeper, f"is {name} read-only").kind == "disk-full"


def test_limbo_after_a_lossy_boot_is_named(new_chroot: Callable[[], str]) -> None:
    never = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40, "heal_lossy_boots": False}
    with LocalCluster(3, zookeeper=new_chroot(), journal_write_data=False, **never) as cluster:
        # An idle writer would send its LAC, and with that record the bookie would sync the entries that the power cut must
        # take.
        bookkeeper = cluster.bookkeeper(**DEADLINES, explicit_lac_interval_seconds=3600.0)
        # Ack quorum 3: a bookie that still waits for the entry has nothing to lose.
        ledger = bookkeeper.create_ledger(3, 3, 3)
        ledger.append(b"x")
        bookie = cluster.bookies[0]
        bookie.kill()
        bookie.lose_unsynced()
        bookie.start()
        found = troubles(bookkeeper)
        assert found["limbo"].subject == bookie.bookie_id and "1 ledger in limbo" in found["limbo"].causes[0]


def test_wrong_secret_is_named(new_chroot: Callable[[], str], tmp_path: Path) -> None:
    right, wrong = (write_secrets(tmp_path / name) for name in ("right", "wrong"))
    with LocalCluster(1, zookeeper=new_chroot(), shared_secret_file=right) as cluster:
        for options in ({}, {"shared_secret_file": wrong}):
            with cluster.bookkeeper(**DEADLINES, **options) as bookkeeper:
                assert "wrong-secret" in troubles(bookkeeper)
        with cluster.bookkeeper(**DEADLINES, shared_secret_file=right) as bookkeeper:
            assert set(troubles(bookkeeper)) == {"no-auditor"}
    with (
        LocalCluster(1, zookeeper=new_chroot()) as plain,
        plain.bookkeeper(**DEADLINES, shared_secret_file=right) as bookkeeper,
    ):
        assert "proves no secret" in troubles(bookkeeper)["wrong-secret"].causes[0]


def test_tls_on_only_one_side_is_named(new_chroot: Callable[[], str], cluster: LocalCluster, tmp_path: Path) -> None:
    """Once, such bookies were reported as hanging, with the advice to kill them."""
    authority = Authority(tmp_path / "authority")
    chroot, tls_ca = new_chroot(), str(authority.file)
    with LocalCluster(1, zookeeper=chroot, tls_certificate=authority.certificate("bookie")) as closed:
        with closed.bookkeeper(**DEADLINES) as bookkeeper:
            assert set(troubles(bookkeeper)) == {"wrong-tls", "no-auditor"}
        with closed.bookkeeper(**DEADLINES, tls_ca=tls_ca) as bookkeeper:
            assert set(troubles(bookkeeper)) == {"no-auditor"}
    with cluster.bookkeeper(**DEADLINES, tls_ca=tls_ca) as bookkeeper:
        assert set(troubles(bookkeeper)) == {"wrong-tls"}


def test_certificate_that_has_ended_is_named_with_its_day_and_its_remedy(
    new_chroot: Callable[[], str], tmp_path: Path
) -> None:
    """Once the advice was to name the CA, which was right."""
    authority = Authority(tmp_path / "authority")
    ended, other = Authority(tmp_path / "ended", days=-1), Authority(tmp_path / "other")
    certificate, ca = tmp_path / "bookie.pem", str(authority.file)
    private(certificate, Path(authority.certificate("bookie", days=-1)).read_text())
    with LocalCluster(1, zookeeper=new_chroot(), tls_certificate=str(certificate), tls_client_ca=ca) as cluster:
        own = {"tls_ca": ca, "tls_certificate": authority.certificate("client")}

        def named(**options: str) -> Answer:
            with cluster.bookkeeper(**PATIENT, **own | options) as bookkeeper:
                found = troubles(bookkeeper)
            assert set(found) - {"no-auditor"} == {"certificate-ended"}, found
            return found["certificate-ended"]

        bookies = named()
        assert bookies.subject == f"bookie {cluster.bookies[0].bookie_id}"
        assert "it ended 1 day ago" in bookies.causes[0] and "tls_certificate" in bookies.mend
        assert "name the CA" not in bookies.mend
        # Renewed without a restart.
        certificate.write_text(Path(authority.certificate("renewed")).read_text())
        ours = named(tls_certificate=authority.certificate("old client", days=-1))
        assert ours.subject.startswith("tls_certificate ") and "it ended 1 day ago" in ours.causes[0]
        assert "it ended 1 day ago" in named(tls_ca=str(ended.file)).causes[0]
        with cluster.bookkeeper(**PATIENT, **own) as bookkeeper:
            assert set(troubles(bookkeeper)) == {"no-auditor"}
            left = bookkeeper.bookie_status(cluster.bookies[0].bookie_id).certificate_ends
            assert set(left) == {"tls_certificate", "tls_client_ca"}
            certificate.write_text(Path(authority.certificate("short", days=13)).read_text())
            assert set(troubles(bookkeeper)) == {"no-auditor", "certificate-ends"}
        with cluster.bookkeeper(**DEADLINES, **own | {"tls_ca": str(other.file)}) as bookkeeper:
            assert set(troubles(bookkeeper)) == {"no-auditor", "wrong-tls"}


@pytest.mark.usefixtures("impatient")
def test_unreachable_zookeeper_is_named(bookspark: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setitem(DEADLINES, "metadata_timeout_seconds", 1.0)
    outcome = bookspark("why", "--zookeeper", "127.0.0.1:1", "--json")
    assert outcome.status == 1
    assert [one["kind"] for one in json.loads(outcome.out)["troubles"]] == ["zookeeper"]
    assert bookspark("why", "not", "closed", "1", "--zookeeper", "127.0.0.1:1").status == 2
