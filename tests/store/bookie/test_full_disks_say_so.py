"""Reasons and remedies that a full disk reports, collections on request, and the operator's read-only switch."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Flag, Header, Kind, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import nothing_kept
from tests.awaiting import await_that
from tests.store.bookie.kit import Client, Pumped, config, serving
from tests.store.bookie.stepped import Stepped, without_threads
from tests.store.metadata.kit import ledger

RECOVERY = int(Flag.RECOVERY)


def reasons(storage):
    return storage.storage.status().reasons


def test_full_directory_reports_the_reason_and_remedies(tmp_path):
    storage = Pumped(config(tmp_path))
    assert reasons(storage) == []
    (directory,) = storage.storage.live
    storage.steps(storage.storage.disks.look(directory, 0.96))
    (why,) = reasons(storage)
    for words in (
        f"{tmp_path} is full, 96.0 % is used",
        "recovery",
        "free some space",
        "add a directory",
        "collect ID",
    ):
        assert words in why
    storage.steps(storage.storage.disks.look(directory, 0.5))
    assert reasons(storage) == []
    storage.storage.close()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no-space", ("no room", "free some space")),
        ("too-many-files", ("open files", "ulimit -n")),
        ("read-only", ("can't be written", "mount it for writing")),
    ],
)
def test_write_without_room_is_reported_as_the_reason(fault, words):
    files = FaultyFileSystem(MemoryFileSystem("/disk"), f"create */logs/*.arrows 1 {fault}")
    storage = Pumped(config("/disk"), files)
    assert storage.add(5, 0) is Status.READ_ONLY
    (why,) = reasons(storage)
    assert why.startswith("/disk") and all(word in why for word in words)
    storage.storage.close()


@pytest.mark.parametrize("clean", [True, False])
def test_read_only_switch_survives_a_restart(clean):
    disk = MemoryFileSystem("/a", "/b")
    settings = config(Path("/a"), Path("/b"))
    with without_threads():
        run = Stepped(settings, disk)
        told: list[bool] = []
        run.storage.disks.read_only_changed = told.append
        for number, on in enumerate((True, False, True), 1):
            answers: list[int] = []
            run.storage.switch_read_only(on, answers.append)
            assert not answers and len(told) == number - 1, "it counts once it is durable"
            run.commit()
            assert answers == [Status.OK] and told[-1] is on
        if clean:
            run.restart()
        else:
            run = Stepped(settings, disk.crashed(nothing_kept))
        assert run.storage.status().read_only and "read-only ID off" in run.storage.status().reasons[0]
        assert not run.storage.disks.full, "nothing has to be collected for it"
        refused, taken = run.add(5, 0), run.add(5, 1, flags=RECOVERY)
        run.commit()
        assert (refused, taken) == ([Status.READ_ONLY], [Status.OK])
        run.storage.switch_read_only(False, lambda status: None)
        run.commit()
        assert not run.storage.status().read_only


def test_order_of_a_change_below_an_earlier_one_is_refused_also_after_a_restart():
    disk = MemoryFileSystem("/disk")
    answers: list[int] = []

    def switch(run, read_only, order):
        run.storage.switch_read_only(read_only, answers.append, order)
        run.commit()
        return answers[-1]

    with without_threads():
        run = Stepped(config(Path("/disk")), disk)
        assert switch(run, True, 5) == Status.OK
        assert "a change of the cluster made the bookie read-only" in run.storage.status().reasons[0]
        assert switch(run, False, 8) == Status.OK
        run.restart()
        assert switch(run, True, 7) == Status.FENCED and not run.storage.status().read_only
        assert run.storage.status().switch.order == 8
        assert switch(run, True, 0) == Status.OK and not run.storage.status().switch.by_change, (
            "an operator's own switch"
        )


def test_read_only_switch_without_a_durable_record_has_no_effect():
    files = FaultyFileSystem(MemoryFileSystem("/disk"))
    with without_threads():
        run = Stepped(config(Path("/disk")), files)
        files.add("write */control.log 1.. io-error")
        answers: list[int] = []
        run.storage.switch_read_only(True, answers.append)
        run.commit()
        assert answers == [Status.IO_ERROR] and not run.storage.disks.switch.read_only


def test_requested_collection_starts_at_once_and_reports_the_freed_bytes(tmp_path):
    store = MemoryStore()
    store.create_ledger(ledger(6))
    settings = config(tmp_path, entry_log_bytes_max=4000)
    with serving(settings, RealFileSystem(), metadata=store) as (_, address):
        client = Client(address)
        for entry_id in range(8):
            assert client.add(5, entry_id, payload=b"x" * 3000).status == Status.OK
        assert client.add(6, 0).status == Status.OK
        assert client.status().collection is None
        for number in (1, 2):
            assert client.call(Header(Kind.COLLECT, 0)).header.value == number

            def over(number=number):
                found = client.status().collection
                return found is not None and found.number >= number

            await_that(over)
            if number == 1:
                found = client.status().collection
                assert found.ledgers == 1 and found.bytes_freed > 20_000 and not found.problem
        assert len(client.read(6, 0, 0)[0]) == 1
        switched = client.call(Header(Kind.SWITCH_READ_ONLY, 0, value=1, limit=7))
        assert switched.header.status == Status.OK and client.status().read_only
        assert client.status().read_only_by_change and client.status().change_order == 7
        client.close()


# -- no free inode


def without_inodes(*ledger_ids):
    """A bookie on a disk with free bytes and no free inode, with sealed logs."""
    files = MemoryFileSystem("/disk", capacity_bytes=1 << 30)
    files.capacity_inodes = 1000
    storage = Pumped(config("/disk"), files)
    for ledger_id in ledger_ids:
        storage.add(ledger_id, 0, 9)
        storage.seal()
    while True:
        try:
            files.open(f"/disk/other-{files.inodes('/disk')[0]}", create=True).close()
        except OSError:
            return files, storage


def test_disk_without_a_free_inode_is_reported_as_such():
    """ "No space left on device" with gigabytes free: the remedy was to free space."""
    _, storage = without_inodes(5)
    assert storage.add(6, 0) is Status.READ_ONLY
    (why,) = reasons(storage)
    assert "no free inode left" in why and "df -i" in why and "free some space" not in why
    storage.storage.close()


def test_directory_turns_full_before_its_last_inode_and_writable_with_new_ones():
    files, storage = without_inodes(5)
    measured = storage.storage.disks.measure()
    for directory, used in measured:
        storage.steps(storage.storage.disks.look(directory, used))
    (why,) = reasons(storage)
    assert "100.0 % of its inodes is used" in why and "df -i" in why
    files.capacity_inodes *= 3
    for directory, used in storage.storage.disks.measure():
        storage.steps(storage.storage.disks.look(directory, used))
    assert reasons(storage) == [] and storage.add(6, 0) is Status.OK
    storage.storage.close()


def test_collection_gives_inodes_back_on_a_disk_without_a_free_one():
    """The checkpoint before the removal of a log needs two files."""
    files, storage = without_inodes(5, 6, 7)
    store = MemoryStore()
    store.note_given_id(7)
    store.create_ledger(ledger(6))
    assert storage.collect(store) == 2
    assert storage.reclaim(entry_logs=False) > 0
    assert storage.ids(6) == list(range(10)) and files.inodes("/disk")[0] > 0
    storage.storage.close()
    again = Pumped(config("/disk"), files)
    assert again.ids(6) == list(range(10)) and again.ids(5) == []
    again.storage.close()


def test_rewriting_gives_inodes_back_on_a_disk_without_a_free_one():
    """Each log held a ledger that lives, so none could go, and their common rewritten log needed an inode."""
    files, storage = without_inodes(5, 6, 7, 8)
    assert storage.reclaim() != 0 and storage.storage.reclaiming.failures == 0
    assert files.inodes("/disk")[0] > 0
    storage.storage.close()
    again = Pumped(config("/disk"), files)
    assert all(again.ids(ledger_id) == list(range(10)) for ledger_id in (5, 6, 7, 8))
    again.storage.close()


def test_bookie_starts_and_serves_reads_without_a_free_inode():
    files, storage = without_inodes(5)
    storage.storage.close()
    files.capacity_inodes = 0
    after = files.crashed(nothing_kept)
    after.capacity_inodes = 1
    again = Pumped(config("/disk"), after)
    assert again.ids(5) == list(range(10)) and again.add(6, 0) is Status.READ_ONLY
    again.storage.close()
