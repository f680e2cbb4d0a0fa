"""The storage of a bookie that lost data: limbo, fences that may be lost, missing directories."""

from __future__ import annotations

import shutil
import threading
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookspark.errors import BookieError, MetadataStoreError, StorageError
from bookspark.protocol.bookie.bookie_boot import LossyBootNoted, phase_one
from bookspark.protocol.bookie.bookie_ledger import (
    IN_LIMBO,
    LOST_AT_BOOT,
    NO_SUCH_ENTRY,
    NO_SUCH_LEDGER,
    STORAGE_DAMAGED,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import FENCED, Positive
from bookspark.servers.daemon import bookie_process
from bookspark.servers.daemon.bookie_process import fence_check, fence_what_may_be_lost, why_lossy
from bookspark.servers.daemon.identity import mark_lost
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Flag, Header, Kind, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.protocol.ledgers import metadata
from tests.store.bookie.kit import (
    KEY,
    SECONDS_MAX,
    Client,
    Pumped,
    add_frame,
    config,
    crash_image,
    run_checkpoint,
    serving,
)

ME = "b1"


def open_ledger(ledger_id: int) -> LedgerMetadata:
    return replace(metadata(master_key=KEY), ledger_id=ledger_id)


def after_lossy_boot(directory: Path, *ledger_ids: int, mark: int = 20, **options) -> Pumped:
    """A storage with these ledgers fenced and in limbo."""

    def boot(storage):
        storage.lossy_boots.note_lossy_boot(phase_one(ME, map(open_ledger, ledger_ids), mark, storage.lossy_boots.mark))

    return Pumped(config(directory), before_start=boot, **options)


def test_limbo_turns_absence_into_unknown_and_reads_go_on(tmp_path):
    storage = Pumped(config(tmp_path))
    storage.add(5, 0, 4)
    storage.storage.close()
    again = after_lossy_boot(tmp_path, 5, 6)
    assert [entry.entry_id for entry in again.read(5, 0, 9)[0]] == [0, 1, 2, 3, 4]
    assert again.read(5, 5, 5)[1] == again.read(6, 0, 0)[1] == IN_LIMBO
    assert again.read(5, 0, 9, sparse=True)[1] == IN_LIMBO
    assert again.read(7, 0, 0)[1] == LOST_AT_BOOT, "it may have been closed, and held here"
    assert again.read(21, 0, 0)[1] == NO_SUCH_LEDGER, "it was made after the lossy boot"
    assert again.add(5, 5) is again.add(6, 0) is Status.FENCED
    assert again.add(5, 5, flags=int(Flag.RECOVERY)) is Status.OK
    again.storage.close()


def test_limbo_and_mark_survive_later_boots_until_their_own_repair(tmp_path):
    storage = after_lossy_boot(tmp_path, 5)
    storage.storage.close()
    for _ in range(2):
        again = Pumped(config(tmp_path))
        assert again.storage.lossy_boots.mark == LossyBootNoted(1, 20)
        assert again.read(5, 0, 0)[1] == IN_LIMBO
        again.storage.close()
    second = after_lossy_boot(tmp_path, 5)
    assert second.storage.lossy_boots.mark.boot == 2
    assert second.run(second.storage.lossy_boots.clear_limbo, 5, 1) is Status.OK
    assert second.read(5, 0, 0)[1] == IN_LIMBO, "the first boot's repair says nothing of the second loss"
    assert second.run(second.storage.lossy_boots.clear_limbo, 5, 2) is Status.OK
    assert second.read(5, 0, 0)[1] == NO_SUCH_ENTRY
    assert second.add(5, 0) is Status.FENCED, "the fence stays"
    second.storage.close()
    assert Pumped(config(tmp_path)).read(5, 0, 0)[1] == NO_SUCH_ENTRY


def test_directory_added_during_the_healing_leaves_it_where_it_was(tmp_path):
    """The new directory knows of no lossy boot, which counted as another history: the healing began anew."""
    pumped = after_lossy_boot(tmp_path / "one", 7, 8)
    assert pumped.run(pumped.storage.lossy_boots.clear_limbo, 7, 1) is Status.OK
    pumped.storage.close()
    for _ in range(2):
        grown = Pumped(config(tmp_path / "one", tmp_path / "two"))
        boots = grown.storage.lossy_boots
        assert (boots.mark, boots.healed_boot) == (LossyBootNoted(1, 20), 0)
        assert boots.limbo(0, 9) == [(8, 1)]
        assert grown.read(7, 0, 0) == ([], NO_SUCH_ENTRY) and grown.read(8, 0, 0) == ([], IN_LIMBO)
        grown.storage.close()


def test_a_rewritten_control_log_keeps_the_mark(tmp_path):
    storage = after_lossy_boot(tmp_path / "a", 5)
    storage.storage.close()
    (tmp_path / "b").mkdir()
    again = Pumped(config(tmp_path / "a", tmp_path / "b"))  # a new directory gets the union
    again.storage.close()
    shutil.rmtree(tmp_path / "a")
    other = Pumped(config(tmp_path / "b"))
    assert other.storage.lossy_boots.mark == LossyBootNoted(1, 20)
    assert other.read(5, 0, 0)[1] == IN_LIMBO


def test_server_answers_limbo_for_ledgers_in_limbo(tmp_path):
    storage = after_lossy_boot(tmp_path, 5)
    storage.storage.close()
    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        for header in (
            Header(Kind.READ_LAC, 0, 5, master_key=KEY),
            Header(Kind.READ_LAC, 0, 5, first_entry_id=3, limit=20, master_key=KEY),
        ):
            assert client.call(header).header.status == Status.LIMBO
        assert client.call(Header(Kind.READ_LAC, 0, 6)).header.status == Status.LOST
        assert client.call(Header(Kind.READ_LAC, 0, 21)).header.status == Status.NO_SUCH_LEDGER
        assert client.read(5, 0, 0)[1].status == Status.LIMBO
        client.close()


# -- fences that may be lost


class Checks:
    """The metadata's answers, given once ``go_on`` is set."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.go_on = threading.Event()
        self.asked = 0

    def __call__(self, ledger_id):
        self.asked += 1
        assert self.go_on.wait(SECONDS_MAX)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_adds_below_the_mark_wait_for_a_single_metadata_read(tmp_path):
    check = Checks(Positive())
    storage = after_lossy_boot(tmp_path, check_fence=check)
    statuses = [storage.submit(add_frame(7, entry_id)) for entry_id in range(5)]
    assert storage.add(21, 0) is Status.OK, "above the mark nothing is asked"
    assert not any(statuses)
    check.go_on.set()
    storage.wait(lambda: all(statuses))
    assert statuses == [[Status.OK]] * 5 and check.asked == 1
    assert storage.ids(7) == list(range(5))
    assert storage.add(7, 5) is Status.OK and check.asked == 1
    storage.storage.close()
    again = Pumped(config(tmp_path), check_fence=Checks())
    assert again.add(7, 6) is Status.OK, "it has local state now"


@pytest.mark.parametrize(
    ("answer", "status"), [(FENCED, Status.FENCED), (MetadataStoreError("no answer"), Status.LIMBO)]
)
def test_add_below_the_mark_is_refused_without_permission_of_the_metadata(tmp_path, answer, status):
    checks = Checks(answer, Positive())
    checks.go_on.set()
    storage = after_lossy_boot(tmp_path, check_fence=checks)
    assert storage.add(7, 0) is status
    assert storage.storage.holdings.ledger(7) is None, "a refused add leaves no trace"
    assert storage.add(7, 0) is Status.OK, "it is asked again each time"
    storage.storage.close()


def test_fence_during_the_metadata_read_refuses_the_add(tmp_path):
    check = Checks(Positive())
    storage = after_lossy_boot(tmp_path, check_fence=check)
    statuses = storage.submit(add_frame(7, 0))
    assert storage.fence(7) is Status.OK
    check.go_on.set()
    storage.wait(lambda: bool(statuses))
    assert statuses == [Status.FENCED]
    storage.storage.close()


def test_copy_from_repair_leaves_the_fence_unsure(tmp_path):
    check = Checks(FENCED)
    check.go_on.set()
    storage = after_lossy_boot(tmp_path, check_fence=check)
    assert storage.add(7, 0, flags=int(Flag.RECOVERY)) is Status.OK
    storage.storage.close()
    again = Pumped(config(tmp_path), check_fence=check)
    assert again.add(7, 1) is Status.FENCED


def test_adds_waiting_at_a_bookie_stop_are_refused(tmp_path):
    check = Checks(Positive())
    storage = after_lossy_boot(tmp_path, check_fence=check)
    statuses = storage.submit(add_frame(7, 0))
    storage.storage.close()
    assert statuses == [Status.LIMBO]
    check.go_on.set()


# -- phase one


class Unreadable(MemoryStore):
    """The record of ledger 2 can't be read."""

    def read_ledger(self, ledger_id):
        if ledger_id == 2:
            raise MetadataStoreError("reading ledger 2: no answer within 10 s")
        return super().read_ledger(ledger_id)


def test_phase_one_fences_open_ledgers_that_name_the_bookie(tmp_path):
    store = MemoryStore()
    for ledger_id in range(5):
        assert store.new_ledger_id() == ledger_id
        store.create_ledger(open_ledger(ledger_id))
    store.delete_ledger(4)
    closed = store.read_ledger(1)
    store.write_ledger(closed.value.close_at(-1, 0), closed.version)
    storage = Pumped(
        config(tmp_path),
        before_start=lambda opened: fence_what_may_be_lost(opened, store, ME, (), lambda text: None),
    )
    assert storage.storage.lossy_boots.mark == LossyBootNoted(1, 5)
    assert [storage.read(ledger_id, 0, 0)[1] for ledger_id in range(5)] == [
        IN_LIMBO,
        LOST_AT_BOOT,
        IN_LIMBO,
        IN_LIMBO,
        LOST_AT_BOOT,
    ], "a closed ledger may have lost entries too, until everything is healed"
    assert storage.run(storage.storage.lossy_boots.note_healed, 1) is Status.OK
    assert storage.read(1, 0, 0)[1] == NO_SUCH_LEDGER
    check = fence_check(store, ME)
    assert check(0) == Positive()
    assert check(1) == check(4) == FENCED
    storage.storage.close()


@pytest.mark.parametrize("noted", [True, False])
def test_lossy_boot_mark_counts_ids_chosen_by_users(tmp_path, noted):
    """The fence of a closed ledger with such an id was lost with its disk, and the old writer's late add was accepted."""
    store = MemoryStore()
    store.create_ledger(open_ledger(70).close_at(-1, 0))
    if noted:
        store.note_given_id(70)
        store.delete_ledger(70)
    storage = Pumped(
        config(tmp_path),
        before_start=lambda opened: fence_what_may_be_lost(opened, store, ME, (), lambda text: None),
        check_fence=fence_check(store, ME),
    )
    assert storage.storage.lossy_boots.mark == LossyBootNoted(1, 70)
    assert storage.add(70, 0) is Status.FENCED
    storage.storage.close()


@pytest.mark.parametrize("emptied", [True, False])
def test_fence_recorded_only_in_the_lost_directory_is_unsure(tmp_path, emptied):
    """A directory that was out of use for a while, or had no room for the record, knew the ledger but not its fence. As the
    only directory left, it accepted the old writer's adds."""
    files = FaultyFileSystem(RealFileSystem())
    kept, lost = tmp_path / "kept", tmp_path / "lost"
    storage = Pumped(config(kept, lost), files)
    assert [storage.add(ledger_id, 0) for ledger_id in (4, 6)] == [Status.OK, Status.OK]
    files.add(f"write {kept}/* 1.. io-error")
    assert storage.fence(4) is Status.OK
    storage.storage.close()
    if emptied:
        shutil.rmtree(lost)
    store = MemoryStore()
    for ledger_id in (4, 6):
        store.create_ledger(open_ledger(ledger_id))
    closed = store.read_ledger(4)
    store.write_ledger(closed.value.close_at(0, 16), closed.version)
    elsewhere = store.read_ledger(6)
    moved = elsewhere.value.with_ensemble(1, ("b4", "b2", "b3"))
    version = store.write_ledger(moved, elsewhere.version)
    again = Pumped(
        config(kept, lost),
        before_start=lambda opened: fence_what_may_be_lost(
            opened, store, ME, [str(lost)] if emptied else (), lambda text: None
        ),
        without=() if emptied else [str(lost)],
        check_fence=fence_check(store, ME),
    )
    assert again.add(4, 1) is Status.FENCED
    store.write_ledger(moved.with_ensemble(1, (ME, "b2", "b3")), version)
    assert again.add(6, 1) is Status.OK, "its metadata says that it has no fence to lose"
    again.storage.close()


def test_bookie_process_makes_fences_unsure_after_emptied_directories(tmp_path):
    kept, lost = tmp_path / "kept", tmp_path / "lost"
    storage = Pumped(config(kept, lost))
    assert storage.add(4, 0) is Status.OK
    storage.storage.close()
    shutil.rmtree(lost)
    lost.mkdir()
    mark_lost([str(lost)])
    stamped = []
    identity = SimpleNamespace(
        cookie=SimpleNamespace(bookie_id=ME),
        lost=(str(lost),),
        unreadable={},
        stamp=lambda: stamped.append(True),
        kept_cookies=lambda directories: [],
    )
    with ExitStack() as stack:
        opened = bookie_process._open_storage(config(kept, lost), MemoryStore(), identity, stack, lambda phase: None)
        assert [(ledger.ledger_id, ledger.fence_unsure) for ledger in opened.holdings.ledgers.looks()] == [(4, True)]
    assert stamped == [True]


def test_phase_one_notes_nothing_if_a_record_is_unreadable(tmp_path):
    store = Unreadable()
    for ledger_id in range(3):
        store.create_ledger(open_ledger(ledger_id))
    storage = Storage(config(tmp_path)).open()
    with pytest.raises(BookieError, match=r"lossy \(/burned was emptied\).*ledger 2: no answer.*start it again"):
        fence_what_may_be_lost(storage, store, ME, ["/burned"], lambda text: None)
    assert storage.lossy_boots.mark.boot == 0, "nothing was noted, so the next start tries it all again"
    storage.close()


def test_lossy_boot_reasons_name_each_directory():
    assert why_lossy(SimpleNamespace(unclean=[], unreadable=[], unread=[], losses=[]), ()) == ""
    boots = SimpleNamespace(unclean=["/a", "/b"], unreadable=["/c"], unread=["/d/logs/1"], losses=[])
    assert why_lossy(boots, ("/b",)) == (
        "/b was emptied; /c can't be read; /d/logs/1 can't be read; entries that /a had acknowledged may be lost"
    )


# -- unreadable directories


def two_directories(tmp_path):
    storage = Pumped(config(tmp_path / "a", tmp_path / "b"))
    for ledger_id in (4, 5):
        assert storage.add(ledger_id, 0, 4) is Status.OK
    storage.fence(4)
    storage.storage.close()
    return tmp_path / "a", tmp_path / "b"


@pytest.mark.parametrize("broken", [0, 1])
def test_unreadable_directory_takes_only_itself_out_of_use(tmp_path, broken):
    directories = two_directories(tmp_path)
    shutil.move(directories[broken], tmp_path / "aside")
    directories[broken].write_text("no directory any more")
    again = Pumped(config(*directories))
    assert again.storage.lossy_boots.unreadable == [str(directories[broken])]
    lost, kept = (4, 5) if broken == 0 else (5, 4)
    assert again.read(lost, 0, 0) == ([], STORAGE_DAMAGED), "never absent"
    assert again.ids(kept) == [0, 1, 2, 3, 4]
    assert again.add(4, 5) is Status.FENCED, "the control log stands in every directory"
    assert again.add(7, 0) is Status.OK
    again.storage.close()
    # The disk comes back: its old entries are not mixed up with entries added meanwhile.
    directories[broken].unlink()
    shutil.move(tmp_path / "aside", directories[broken])
    both = Pumped(config(*directories))
    assert both.storage.lossy_boots.unreadable == []
    assert both.ids(4) == both.ids(5) == [0, 1, 2, 3, 4] and both.ids(7) == [0]
    both.storage.close()


def test_directory_failing_after_its_scan_leaves_no_index_rows(tmp_path):
    """Rows enter the index while a log is read, and its disk may fail after that."""
    storage = Pumped(config(tmp_path / "a", tmp_path / "b"))
    for ledger_id in (4, 5):
        assert storage.add(ledger_id, 0, 4) is Status.OK
    run_checkpoint(storage.storage)
    for ledger_id in (4, 5):
        assert storage.add(ledger_id, 5, 9) is Status.OK
    for name in "ab":
        crash_image(tmp_path / name, tmp_path / "killed" / name)
    files = FaultyFileSystem(RealFileSystem())
    files.add(f"sync {tmp_path}/killed/b/logs/*.synced 1 io-error")
    again = Pumped(config(tmp_path / "killed/a", tmp_path / "killed/b"), files)
    assert again.storage.lossy_boots.unreadable == [str(tmp_path / "killed/b")]
    lost, kept = (4, 5) if again.ids(4) == [] else (5, 4)
    assert again.storage.holdings.index.get(lost) is None or not len(again.storage.holdings.index.get(lost))
    assert again.read(lost, 0, 0) == again.read(lost, 9, 9) == ([], STORAGE_DAMAGED)
    assert again.ids(kept) == list(range(10))


def test_bookie_without_a_readable_directory_stays_down(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(StorageError, match=r"can't be read.*check the disk"):
        Pumped(config(tmp_path / "a"))


def test_directory_failing_in_phase_one_is_out_of_use(tmp_path):
    """It went on taking adds without control records; when it failed again, an add was never answered."""
    files = FaultyFileSystem(RealFileSystem())
    first, second = tmp_path / "first", tmp_path / "second"
    Pumped(config(first, second)).storage.close()

    def boot(storage):
        files.add("write */second/* 1.. io-error")
        storage.lossy_boots.note_lossy_boot(phase_one(ME, [open_ledger(5)], 20, storage.lossy_boots.mark))

    storage = Pumped(config(first, second), files, boot)
    assert [storage.add(ledger_id, 0) for ledger_id in (30, 31)] == [Status.OK, Status.OK]
    assert not list(second.glob("logs/*.arrows"))
    storage.storage.close()
