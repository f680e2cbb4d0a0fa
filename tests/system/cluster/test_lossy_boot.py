"""BP-46 with real processes: bookies without a journal that lose unsynced data or whole disks.

Each scenario also runs without its protection (``unprotected_daemon``), and must then fail.
"""

from __future__ import annotations

import contextlib
import shutil
import time

import pytest

from bookspark import errors
from bookspark.local import LocalCluster
from bookspark.servers.daemon import launch
from bookspark.store.wire.header import Flag, Header, Kind, Status
from tests.awaiting import SECONDS_MAX, await_that
from tests.store.bookie.kit import Client
from tests.system.cluster.copies import held_by
from tests.system.cluster.unprotected_daemon import REACH, WITHOUT

NEVER = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40}
"""With these options a power cut loses all data that no request synced."""


@pytest.fixture(scope="module")
def cluster(new_chroot):
    options = {"journal_write_data": False, "stamp_missing_cookies": True, "heal_lossy_boots": False}
    with LocalCluster(bookies=4, **options, **NEVER, zookeeper=new_chroot()) as running:
        yield running


@pytest.fixture(autouse=True)
def everyone_is_back(cluster):
    yield
    for bookie in cluster.bookies:
        if bookie.pid is not None:
            bookie.resume()
        bookie.start()


@pytest.fixture
def clients(cluster):
    """Makes clients with the given options. An idle writer would send its LAC, and with that record a bookie syncs the data
    that a power cut should take."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(cluster.bookkeeper(explicit_lac_interval_seconds=3600.0, **options))


@pytest.fixture
def start(monkeypatch):
    """Starts a bookie, without a protection if it is named."""

    def started(bookie, without=""):
        with monkeypatch.context() as patch:
            if without:
                patch.setattr(launch, "DAEMON", "tests.system.cluster.unprotected_daemon")
                patch.setenv(WITHOUT, without)
            bookie.start()

    return started


def ensemble_of(cluster, ledger):
    by_id = {bookie.bookie_id: bookie for bookie in cluster.bookies}
    return [by_id[bookie_id] for bookie_id in ledger.metadata.fragments[-1].ensemble]


def asked(bookie, header):
    """The status of the bookie's response."""
    host, port = bookie.address.rsplit(":", 1)
    client = Client((host, int(port)))
    try:
        return Status(client.call(header).header.status)
    finally:
        client.close()


def lose_power(bookie, start, without=""):
    bookie.kill()
    bookie.lose_unsynced()
    start(bookie, without)


def replace_disk(bookie, start, without=""):
    identity = bookie.bookie_id
    bookie.kill()
    bookie.wipe()
    start(bookie, without)
    assert bookie.bookie_id == identity


@contextlib.contextmanager
def put_back(cluster, start, folder, without=""):
    """Copies all directories now. At the end the bookie that the test names gets its older copy back."""
    copies = {bookie: folder / str(number) for number, bookie in enumerate(cluster.bookies)}
    for bookie, copy in copies.items():
        bookie.stop()
        shutil.copytree(bookie.directories[0], copy)
        bookie.start()
    chosen = []
    yield chosen.append
    for bookie in chosen:
        bookie.stop()
        shutil.rmtree(bookie.directories[0])
        shutil.copytree(copies[bookie], bookie.directories[0])
        start(bookie, without)


# -- scenario 2: recovery truncates


def acknowledged_by_two(cluster, clients):
    """E0 is acknowledged by B1 and B3; B2 never received it, and the writer is gone."""
    writer = clients()
    ledger = writer.create_ledger(3, 3, 2)
    b1, b2, b3 = ensemble_of(cluster, ledger)
    others = [bookie for bookie in cluster.bookies if bookie not in (b1, b2, b3)]
    for bookie in (b2, *others):
        bookie.stop()
    ledger.append(b"E0")
    writer.close()
    for bookie in (b2, *others):
        bookie.start()
    return ledger.ledger_id, b1, b2, b3


def test_scenario_2_recovery_does_not_truncate_an_entry_lost_in_a_power_cut(cluster, clients, start):
    ledger_id, b1, _, b3 = acknowledged_by_two(cluster, clients)
    lose_power(b1, start)
    assert asked(b1, Header(Kind.READ, 0, ledger_id, 0, 0)) is Status.LIMBO
    assert asked(b1, Header(Kind.READ_LAC, 0, ledger_id)) is Status.LIMBO
    b3.suspend()
    with pytest.raises(errors.LedgerRecoveryError):
        clients(recovery_timeout_seconds=8.0).open_ledger(ledger_id)
    b3.resume()
    client = clients()
    await_that(lambda: b3.bookie_id in client.metadata.bookies())  # its session may have expired while it was suspended
    reader = client.open_ledger(ledger_id)
    assert [entry.payload for entry in reader.read()] == [b"E0"]


def test_scenario_2_recovery_truncates_without_limbo(cluster, clients, start):
    ledger_id, b1, _, b3 = acknowledged_by_two(cluster, clients)
    lose_power(b1, start, without="limbo")
    b3.suspend()
    reader = clients().open_ledger(ledger_id)
    assert reader.last_add_confirmed == -1, "an acknowledged entry is gone"


def test_scenario_2_recovery_does_not_truncate_after_restoring_an_older_directory(cluster, clients, start, tmp_path):
    """The bookie took the older copy for complete, and denied later entries."""
    with put_back(cluster, start, tmp_path) as older:
        ledger_id, b1, _, b3 = acknowledged_by_two(cluster, clients)
        older(b1)
    assert asked(b1, Header(Kind.READ, 0, ledger_id, 0, 0)) is Status.LIMBO
    b3.suspend()
    with pytest.raises(errors.LedgerRecoveryError):
        clients(recovery_timeout_seconds=8.0).open_ledger(ledger_id)


def test_scenario_2_recovery_truncates_if_an_older_directory_goes_undetected(cluster, clients, start, tmp_path):
    with put_back(cluster, start, tmp_path, without=REACH) as older:
        ledger_id, b1, _, b3 = acknowledged_by_two(cluster, clients)
        older(b1)
    b3.suspend()
    assert clients().open_ledger(ledger_id).last_add_confirmed == -1, "an acknowledged entry is gone"


# -- scenario 1: writes after the close


def fenced_but_for_one(cluster, clients, *, closed):
    """The writer wrote E0 and is idle; B1 and B2 are fenced while B3 is stopped; the ledger is closed or not."""
    writer = clients()
    ledger = writer.create_ledger(3, 3, 2)
    b1, b2, b3 = ensemble_of(cluster, ledger)
    ledger.append(b"E0")
    for bookie in (
        b1,
        b2,
        b3,
    ):  # otherwise the last bookie, fenced, would refuse E0, and be replaced or stop the writer
        await_that(lambda bookie_id=bookie.bookie_id: held_by(writer, bookie_id, ledger.ledger_id) == {0})
    b3.stop()
    if closed:
        assert clients().open_ledger(ledger.ledger_id).last_add_confirmed == 0
    else:
        for bookie in (b1, b2):
            fence = Header(
                Kind.READ_LAC, 0, ledger.ledger_id, flags=int(Flag.FENCE), master_key=ledger.metadata.master_key
            )
            assert asked(bookie, fence) is Status.OK
    return ledger, b2, b3


@pytest.mark.parametrize("closed", [False, True])
def test_scenario_1_writer_is_refused_after_a_bookie_lost_its_fence(cluster, clients, start, closed):
    ledger, b2, b3 = fenced_but_for_one(cluster, clients, closed=closed)
    replace_disk(b2, start)
    b3.start()
    with pytest.raises(errors.LedgerFencedError):
        ledger.append(b"E1")


@pytest.mark.parametrize(("closed", "without"), [(False, "fencing"), (True, "mark")])
def test_scenario_1_writer_appends_after_a_lost_fence_without_the_protection(cluster, clients, start, closed, without):
    ledger, b2, b3 = fenced_but_for_one(cluster, clients, closed=closed)
    replace_disk(b2, start, without)
    b3.start()
    ensemble_of(cluster, ledger)[
        0
    ].suspend()  # its refusal might arrive first, and the writer would stop before asking B2
    ledger.append(b"E1")
    assert ledger.last_add_confirmed == 1, "an entry is confirmed behind the end"


def test_scenario_1_writer_is_refused_after_restoring_a_directory_without_the_fence(cluster, clients, start, tmp_path):
    with put_back(cluster, start, tmp_path) as older:
        ledger, b2, b3 = fenced_but_for_one(cluster, clients, closed=False)
        older(b2)
    b3.start()
    with pytest.raises(errors.LedgerFencedError):
        ledger.append(b"E1")


# -- operations that stay possible


def test_bookie_on_an_empty_disk_takes_new_ledgers_and_ensemble_changes(cluster, clients, start):
    writer = clients()
    old = writer.create_ledger(3, 3, 2)
    old.append(b"before")
    members = ensemble_of(cluster, old)
    [spare] = [bookie for bookie in cluster.bookies if bookie not in members]
    replace_disk(spare, start)
    new = writer.create_ledger(4, 4, 4)
    assert new.append(b"new") == 0
    members[0].kill()
    deadline = time.monotonic() + SECONDS_MAX
    while spare.bookie_id not in old.metadata.last_fragment.ensemble and time.monotonic() < deadline:
        old.append(b"after")  # two bookies are enough for an ack, so the first ack may come before the loss is noticed
    assert spare.bookie_id in old.metadata.last_fragment.ensemble
    old.append_batch([b"last"] * 10)  # the metadata names the bookie, so its fence state is certain again
    old.close()


def test_clean_stop_causes_no_lossy_boot(cluster, clients):
    ledger = clients().create_ledger(4, 4, 4)
    ledger.append(b"0")
    for bookie in cluster.bookies:
        bookie.stop()
        bookie.lose_unsynced()
        bookie.start()
    assert ledger.append(b"1") == 1
    ledger.close()
