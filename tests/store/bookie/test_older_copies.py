"""A directory replaced by an older copy of itself: the copy lacks later entries, and nothing in it says so."""

from __future__ import annotations

import shutil

import pytest

from bookspark.protocol.bookie.reach import NOTHING_NOTED
from bookspark.protocol.ledger.responses import Negative, Unknown
from bookspark.servers.daemon.bookie_process import fence_what_may_be_lost, why_lossy
from bookspark.store.bookie.disk.index import log_of
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Status
from tests.store.bookie.kit import Pumped, config
from tests.store.metadata.kit import ledger

LEDGER = 0


class Bookie:
    """A bookie whose directories a test replaces by copies. ``noted``: the reach of each directory at the last stop."""

    def __init__(self, folder, disks):
        self.folder, self.names = folder, [f"disk{number}" for number in range(disks)]
        self.settings = config(*(folder / name for name in self.names))
        self.metadata, self.noted = MemoryStore(), NOTHING_NOTED
        self.metadata.create_ledger(ledger(self.metadata.new_ledger_id()))
        self.open()

    def open(self):
        self.pumped = Pumped.__new__(Pumped)
        noted = self.noted

        class Noting(Storage):
            def open(self):
                return super().open(noted)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.store.bookie.kit.Storage", Noting)
            self.pumped.__init__(self.settings, before_start=self.booted)
        self.storage = self.pumped.storage

    def booted(self, storage):
        self.why = why_lossy(storage.lossy_boots, ())
        if self.why:
            fence_what_may_be_lost(storage, self.metadata, "bookie-1", (), lambda text: None)
            storage.end_phase_one()

    def close(self):
        self.storage.close()
        self.noted = {directory.path: directory.reach() for directory in self.storage.live}

    def copy(self, name, to):
        shutil.copytree(self.folder / name, self.folder / to)

    def put_back(self, name, copy, away="away"):
        (self.folder / name).rename(self.folder / away)
        (self.folder / copy).rename(self.folder / name)


@pytest.fixture(params=[1, 2])
def bookie(request, tmp_path):
    made = Bookie(tmp_path, request.param)
    yield made
    made.storage.close()


def add(bookie, first, last):
    assert bookie.pumped.add(LEDGER, first, last) is Status.OK


def written_behind_a_copy(bookie):
    """Copy disk0 after entries 0 to 9, then add entries up to 49."""
    add(bookie, 0, 9)
    bookie.close()
    bookie.copy("disk0", "copy")
    bookie.open()
    assert not bookie.why
    for first in range(10, 50, 10):
        add(bookie, first, first + 9)
    bookie.close()


def test_entries_written_after_the_copy_are_unknown(bookie):
    written_behind_a_copy(bookie)
    bookie.put_back("disk0", "copy")
    bookie.open()
    assert "disk0 is an older copy of itself" in bookie.why and "disk1" not in bookie.why
    for entry_id in (15, 35, 99):
        entries, refusal = bookie.pumped.read(LEDGER, entry_id, entry_id)
        assert entries or isinstance(refusal, Unknown)
    # The copy has no record of this ledger, which may be closed by now.
    assert isinstance(bookie.storage.holdings.absent(LEDGER + 1), Unknown)


def test_fence_written_after_the_copy_is_unsure(bookie):
    add(bookie, 0, 0)
    bookie.close()
    for name in bookie.names:
        bookie.copy(name, f"copy of {name}")
    bookie.open()
    assert bookie.pumped.fence(LEDGER) is Status.OK
    bookie.close()
    # Phase one of the lossy boot reads the metadata; without this ledger nothing there shows the fence.
    bookie.metadata.delete_ledger(LEDGER)
    for name in bookie.names:
        bookie.put_back(name, f"copy of {name}", f"away {name}")
    bookie.open()
    assert bookie.pumped.add(LEDGER, 1) is Status.LIMBO


def test_original_directory_counts_as_older_when_it_replaces_its_copy_again(bookie):
    """The original has more entries than the copy, but lacks entries added while the copy was in its place."""
    written_behind_a_copy(bookie)
    gone_before = max(log_of(reach.location) for reach in bookie.noted.values())
    bookie.put_back("disk0", "copy")
    bookie.open()
    assert bookie.storage.holdings.next_log > gone_before
    bookie.close()
    bookie.copy("disk0", "what came later")
    bookie.put_back("disk0", "away", "later")
    bookie.open()
    assert "disk0 is an older copy of itself" in bookie.why


def test_directory_of_a_clean_stop_is_not_older(bookie):
    add(bookie, 0, 9)
    for _ in range(2):
        bookie.close()
        bookie.open()
        assert not bookie.why
    assert isinstance(bookie.pumped.read(LEDGER, 10, 10)[1], Negative)
