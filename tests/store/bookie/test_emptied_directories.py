"""Directories that lost all their files, and crashes while the loss is noted."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from bookspark.errors import BookieError, InvalidCookieError
from bookspark.protocol.bookie.bookie_boot import phase_one
from bookspark.protocol.ledger.ledger_metadata import Fragment
from bookspark.servers.daemon import bookie_process
from bookspark.servers.daemon.directories import holds_data, is_hollow
from bookspark.servers.daemon.identity import Identity, mark_lost
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.disk.unclean_marker import Lost, UncleanMarker
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import LOSSES
from tests.store.bookie.kit import KEY, config
from tests.store.bookie.stepped import Stepped, without_threads
from tests.store.metadata.kit import ledger


def boot(settings, store) -> Storage:
    with ExitStack() as stack:
        identity = Identity(settings, store, {})
        storage = bookie_process._open_storage(settings, store, identity, stack, lambda phase: None)
        stack.pop_all()
    return storage


def test_directory_with_only_its_cookie_is_lost(tmp_path):
    settings, store = config(tmp_path / "a", tmp_path / "b"), MemoryStore()
    for name in "ab":
        (tmp_path / name).mkdir()
    assert store.new_ledger_id() == 0
    storage = boot(settings, store)
    assert (storage.lossy_boots.mark.boot, storage.lossy_boots.mark.highest_ledger_id) == (0, 0), "its first boot"
    storage.close()
    for path in (tmp_path / "b").iterdir():
        if path.name != "COOKIE":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert is_hollow(str(tmp_path / "b"))
    # A start that is cut short: the directory then has more than its cookie.
    Identity(settings, store, {})
    Storage(settings).open()
    assert not is_hollow(str(tmp_path / "b"))
    storage = boot(settings, store)
    assert storage.lossy_boots.mark.boot == 1
    storage.close()
    storage = boot(settings, store)
    assert storage.lossy_boots.mark.boot == 1, "it is lossy once"
    storage.close()


def test_first_mark_counts_ids_chosen_by_users(tmp_path):
    settings, store = config(tmp_path), MemoryStore()
    store.note_given_id(70)
    storage = boot(settings, store)
    assert storage.lossy_boots.mark.highest_ledger_id == 70
    storage.close()


@pytest.mark.parametrize("loss", LOSSES)
def test_crash_while_marking_a_loss_leaves_the_mark_or_nothing(loss, tmp_path):
    found = set()

    def look(operation) -> None:
        after = disk.crashed(loss)
        marker = UncleanMarker(after, "/disk")
        marker.look()
        found.add(marker.lost)
        left = tmp_path / str(len(found))
        left.mkdir(exist_ok=True)
        for path in after.files():
            (left / path.rsplit("/", 1)[1]).write_bytes(b"")
        assert marker.stands or not holds_data(str(left)), "what is half-made is no data"

    disk = MemoryFileSystem("/disk")
    UncleanMarker(FaultyFileSystem(disk, before=look), "/disk").note_loss(Lost.FENCES)
    look(None)
    assert found == {Lost.NOTHING, Lost.FENCES}


def test_boot_interrupted_before_the_cookie_starts_again_from_the_beginning(tmp_path, monkeypatch):
    settings, store = config(tmp_path), MemoryStore()
    monkeypatch.setattr(Identity, "stamp", lambda identity: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        boot(settings, store)
    assert (tmp_path / "control.log").exists() and not holds_data(str(tmp_path))
    monkeypatch.undo()
    storage = boot(settings, store)
    assert storage.lossy_boots.mark.boot == 0
    storage.close()
    assert (tmp_path / "COOKIE").exists()


def test_emptied_directory_makes_fences_unsure_even_after_a_crash_in_phase_one(tmp_path):
    kept, lost = tmp_path / "kept", tmp_path / "lost"
    settings = config(kept, lost)
    storage = Storage(settings).open()
    statuses: list[int] = []
    storage.start(lambda function, *arguments: function(*arguments))
    storage.write_last_add_confirmed(4, KEY, 0, statuses.append)
    storage.close()
    assert statuses == [Status.OK]
    shutil.rmtree(lost)
    lost.mkdir()
    mark_lost([str(lost)])
    for _ in range(2):
        storage = Storage(settings, RealFileSystem()).open()
        assert storage.lossy_boots.fences_lost and storage.holdings.ledger(4).fence_unsure


def test_lost_fences_keep_ledgers_packed(tmp_path):
    """Ten million ledgers with unsure fences cost no more than before, in this process and in the next."""
    disk, settings, count = MemoryFileSystem("/disk"), config(Path("/disk/a"), Path("/disk/b")), 300
    with without_threads():
        run = Stepped(settings, disk)
        for ledger_id in range(count):
            run.add(ledger_id, 0)
        run.fence(0)
        run.commit()
        run.storage.close()
        storage = Storage(settings, disk).open()
        boots, ledgers = storage.lossy_boots, storage.holdings.ledgers
        ledgers.rest_all()
        boots.note_lossy_boot(phase_one("b1", [], count, boots.mark), fences_lost=True)
        assert ledgers.in_use_count == 0 and all(isinstance(kept, bytes) for kept in ledgers.packed.values())
        storage.end_phase_one()
        storage.close()
        run.open()
        ledgers = run.storage.holdings.ledgers
        ledgers.rest_all()
        assert all(isinstance(kept, bytes) for kept in ledgers.packed.values())
        assert [ledger.ledger_id for ledger in ledgers.looks() if not ledger.fence_unsure] == [0]
        assert ledgers.look(0).fenced and not ledgers.look(1).fenced
        known = ledgers.get(1)
        known.fence_is_sure()
        ledgers.rest_all()
        assert not ledgers.look(1).fence_unsure, "what the metadata said is kept while the process lives"


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("call", ["listdir", "stat"])
def test_directory_that_can_t_be_listed_for_a_while_is_not_lost(tmp_path, monkeypatch, call, number):
    """The boot ended with the bare error, although other directories were left."""
    settings, store = config(tmp_path / "a", tmp_path / "b"), MemoryStore()
    for name in "ab":
        (tmp_path / name).mkdir()
    boot(settings, store).close()
    (bookie_id,) = store.list_cookies()
    ledger_id = store.new_ledger_id()
    store.create_ledger(ledger(ledger_id, fragments=(Fragment(0, (bookie_id, "bookie-2", "bookie-3")),)))
    called = getattr(os, call)

    def fails(path=".", *arguments, **options):
        if str(path).startswith((f"{tmp_path}/b/logs", f"{tmp_path}/b/control")) or str(path) == f"{tmp_path}/b":
            raise OSError(number, os.strerror(number), path)
        return called(path, *arguments, **options)

    before = (tmp_path / "b/control.log").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, call, fails)
        storage = boot(settings, store)
        assert storage.lossy_boots.mark.boot == 1 and storage.lossy_boots.limbo_count == 1
        assert storage.directories == [f"{tmp_path}/a"]
        storage.close()
    assert (tmp_path / "b/control.log").read_bytes() == before
    for _ in range(2):
        storage = boot(settings, store)
        assert storage.directories == [f"{tmp_path}/a", f"{tmp_path}/b"]
        assert storage.lossy_boots.limbo_count == 0 and storage.lossy_boots.healed_boot == storage.lossy_boots.mark.boot
        storage.close()


def test_only_directory_that_can_t_be_listed_keeps_the_bookie_down(tmp_path, monkeypatch):
    settings, store = config(tmp_path / "a"), MemoryStore()
    (tmp_path / "a").mkdir()
    boot(settings, store).close()

    def fails(path="."):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", fails)
        with pytest.raises(BookieError, match="can't be read: Input/output error; check its disk"):
            boot(settings, store)
    storage = boot(settings, store)
    assert storage.lossy_boots.mark.boot == 0
    storage.close()


@pytest.fixture
def unreadable(monkeypatch):
    """The cookies that their disk can't read."""
    paths, read_bytes = set(), Path.read_bytes

    def read(path):
        if path in paths:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    return paths


def test_cookie_in_a_bad_sector_is_that_of_the_other_directories(tmp_path, unreadable):
    """The directory was given up as a whole, and copied back from other bookies."""
    settings, store = config(tmp_path / "a", tmp_path / "b"), MemoryStore()
    for name in "ab":
        (tmp_path / name).mkdir()
    boot(settings, store).close()
    unreadable.add(tmp_path / "b" / "COOKIE")
    identity = Identity(settings, store, {})
    assert identity.unreadable == {} and identity.lost == ()
    kept = {Path(one.path).parent.name: one for one in identity.kept_cookies(settings.directories)}
    assert kept["a"].is_good() and not kept["b"].is_good()
    kept["b"].renew()
    unreadable.clear()
    assert kept["b"].is_good()


@pytest.mark.parametrize("emptied", [False, True], ids=["only directory", "unmounted"])
def test_cookie_in_a_bad_sector_is_named_if_nothing_stands_for_it(tmp_path, unreadable, emptied):
    settings, store = config(tmp_path / "a", *[tmp_path / "b"] * emptied), MemoryStore()
    for directory in settings.directories:
        Path(directory).mkdir()
    boot(settings, store).close()
    path = Path(settings.directories[-1], "COOKIE")
    unreadable.add(path)
    if emptied:
        shutil.rmtree(path.parent / "logs")
        for name in path.parent.iterdir():
            if name != path:
                name.unlink()
        why = str(Identity(settings, store, {}).unreadable[str(path.parent)])
    else:
        with pytest.raises(BookieError) as refused:
            Identity(settings, store, {})
        why = str(refused.value)
    assert why.startswith(f"{path} can't be read: Input/output error") and "bookspark cookie fix --bookie" in why


@pytest.mark.parametrize("permitted", [False, True], ids=["not permitted", "permitted"])
def test_bookie_does_not_start_from_an_emptied_directory_beside_one_that_cannot_be_read(tmp_path, permitted):
    """The other directory counted as emptied, too: it was marked as lost, and its cookie no longer fitted."""
    settings, store = config(tmp_path / "a", tmp_path / "b"), MemoryStore()
    for name in "ab":
        (tmp_path / name).mkdir()
    boot(settings, store).close()
    (bookie_id,) = store.list_cookies()
    recorded, kept = store.read_cookie(bookie_id), sorted((tmp_path / "a").iterdir())
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "b").mkdir()
    named = replace(settings, bookie_id=bookie_id, stamp_missing_cookies=permitted)
    unusable = {str(tmp_path / "a"): BookieError("its disk does not answer")}
    with pytest.raises(InvalidCookieError, match=f"^{tmp_path}/a can't be read, .* All of its entries may be there"):
        Identity(named, store, unusable)
    assert store.read_cookie(bookie_id) == recorded
    assert sorted((tmp_path / "a").iterdir()) == kept
