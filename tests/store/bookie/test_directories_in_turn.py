"""Directories that are unreadable in turn, so each has a history unknown to the other until both are readable."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import pytest

from bookspark.protocol.bookie.bookie_boot import LossyBootNoted
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.protocol.ledger.responses import Negative, Unknown
from bookspark.servers.daemon.bookie_process import fence_what_may_be_lost, why_lossy
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from tests.store.bookie.kit import KEY, config
from tests.store.bookie.stepped import AtOnce, Promises, Stepped, without_threads
from tests.store.metadata.kit import ledger

A, B = "/a", "/b"
ME = "bookie-1"


class Bookie(Stepped):
    """A bookie with two directories, some of them unreadable."""

    def __init__(self) -> None:
        self.away: tuple[str, ...] = ()
        self.metadata = MemoryStore()
        self.disk = MemoryFileSystem(A, B)
        super().__init__(config(Path(A), Path(B)), FaultyFileSystem(self.disk), Promises())

    def open(self) -> None:
        self.storage = Storage(self._settings, self.files, without=self.away).open()
        if why_lossy(self.storage.lossy_boots, ()):
            fence_what_may_be_lost(self.storage, self.metadata, ME, (), lambda text: None)
            self.storage.end_phase_one()
        else:
            self.storage.lossy_boots.end_absence()
        self.storage.start(lambda function, *arguments: function(*arguments))

    def boot(self, *away: str) -> None:
        """A clean stop, and a start without these directories."""
        self.storage.close()
        self.away = away
        self.open()

    def heal(self) -> None:
        """The other bookies have supplied all missing entries."""
        boots = self.storage.lossy_boots
        for ledger_id, boot in boots.limbo(0, 99):
            boots.clear_limbo(ledger_id, boot, lambda status: None)
        boots.note_healed(boots.mark.boot, lambda status: None)
        self.commit()

    def lose_logs(self, directory: str) -> None:
        logs = f"{directory}/logs"
        for name in self.files.list(logs):
            self.files.unlink(f"{logs}/{name}")


@pytest.fixture
def bookie():
    with without_threads(), patch("bookspark.servers.daemon.bookie_process.ThreadPoolExecutor", AtOnce):
        yield Bookie()


def boots_that_b_has_no_room_for(bookie):
    """Three lossy boots without B are healed. Then B is readable but has no room for A's records, so it does not note them."""
    for _ in range(3):
        bookie.boot(B)
        bookie.heal()
    bookie.files.add("create /b/control* 1.. no-space")
    bookie.boot()
    assert bookie.storage.lossy_boots.mark.boot == 3 and bookie.storage.holdings.directories[1].control_behind
    bookie.storage.close()
    bookie.files.clear()
    bookie.away = (A,)
    bookie.open()
    assert bookie.storage.lossy_boots.mark.boot == 1


def what_b_lost_is_unknown(bookie):
    """B alone takes entries and loses them, before A is readable again."""
    ledger_id = bookie.metadata.new_ledger_id()
    adding = bookie.add(ledger_id, 0, 9)
    bookie.commit()
    bookie.seal()
    assert adding == [0]
    bookie.lose_logs(B)
    bookie.boot(A)
    assert bookie.storage.lossy_boots.mark.boot == 2
    bookie.boot()
    boots = bookie.storage.lossy_boots
    assert isinstance(bookie.read(ledger_id, 0, 9)[1], Unknown)
    assert boots.healed_boot < boots.mark.boot and boots.mark.highest_ledger_id > ledger_id


def test_directory_loss_is_not_healed_by_higher_numbers_of_the_other(bookie):
    """Both directories counted from 1, and the highest number of a healed boot held for all: acknowledged entries were denied,
    and ledgers that may have had a fence were taken for younger than the loss."""
    boots_that_b_has_no_room_for(bookie)
    what_b_lost_is_unknown(bookie)
    bookie.heal()
    bookie.boot()
    boots = bookie.storage.lossy_boots
    assert boots.healed_boot == boots.mark.boot


def test_directory_loss_is_not_healed_after_older_metadata_reuses_ids(bookie):
    """The boot whose mark had the higher id was taken for the later one. After older metadata is restored, a later boot takes a
    lower id, so its loss counted as already healed: acknowledged entries could be denied."""
    for _ in range(10):
        bookie.metadata.new_ledger_id()
    bookie.storage.close()
    bookie.files.open(f"{A}/unclean", create=True).close()
    bookie.files.add("create /b/control* 1.. no-space")
    bookie.files.add("write /b/control.log 1.. no-space")
    bookie.open()
    bookie.heal()
    assert bookie.storage.lossy_boots.mark == LossyBootNoted(1, 10) and bookie.storage.lossy_boots.healed_boot == 1
    assert bookie.storage.holdings.directories[1].control_behind
    bookie.storage.close()
    bookie.files.clear()
    bookie.metadata._world.ledger_ids = 2
    bookie.away = (A,)
    bookie.open()
    assert bookie.storage.lossy_boots.mark == LossyBootNoted(1, 2, absent=1)
    what_b_lost_is_unknown(bookie)


def test_ledger_stays_in_limbo_until_the_directory_with_the_loss_is_healed(bookie):
    """The other directory had ended a limbo with a higher number."""
    ledger_id = bookie.metadata.new_ledger_id()
    bookie.metadata.create_ledger(ledger(ledger_id, master_key=KEY))
    boots_that_b_has_no_room_for(bookie)
    for _ in range(2):
        bookie.boot()
        assert [limbo for limbo, _ in bookie.storage.lossy_boots.limbo(0, 99)] == [ledger_id]
    bookie.heal()
    bookie.boot()
    assert not bookie.storage.lossy_boots.limbo_count


def test_returning_directory_is_healed_again_after_the_others_were_healed(bookie):
    """It had an unhealed lossy boot when it went away. A lossy boot of the others was healed, and no record shows that it came
    later."""
    bookie.storage.close()
    bookie.files.open(f"{B}/unclean", create=True).close()
    bookie.open()
    assert bookie.storage.lossy_boots.mark == LossyBootNoted(1, 0)
    bookie.boot(B)
    bookie.heal()
    mark = bookie.storage.lossy_boots.mark
    assert mark == LossyBootNoted(2, 1)
    bookie.boot()
    boots = bookie.storage.lossy_boots
    assert boots.mark.boot > boots.healed_boot == mark.boot
    bookie.heal()
    bookie.boot()
    assert boots.mark == bookie.storage.lossy_boots.mark and bookie.storage.lossy_boots.healed_boot == boots.mark.boot


def test_lossy_boot_number_is_not_reused_after_damage_to_the_mark(bookie):
    """B has no room for A's records, and A's control log loses the mark but not the end of the limbo. The boot counted from 1
    again, so that end also held for this boot's own loss: an acknowledged entry was denied. Found by ``boots``."""
    ledger_id = bookie.metadata.new_ledger_id()
    bookie.metadata.create_ledger(ledger(ledger_id, master_key=KEY))
    adding = bookie.add(ledger_id, 0, 9)
    bookie.commit()
    bookie.seal()
    bookie.boot(B)
    bookie.heal()
    closed = ledger(ledger_id, master_key=KEY, state=LedgerState.CLOSED, last_entry_id=9, length=10)
    bookie.metadata.write_ledger(closed, bookie.metadata.read_ledger(ledger_id).version)
    bookie.files.add("create /b/control* 1.. no-space")
    bookie.boot()
    bookie.storage.close()
    bookie.files.clear()
    content = bookie.disk.files()[f"{A}/control.log"]
    for found in re.finditer(b"lossy boot", content):
        bookie.disk.flip(f"{A}/control.log", found.start(), 0)
    for directory in (A, B):
        bookie.lose_logs(directory)
    bookie.away = ()
    bookie.open()
    assert adding == [0] and bookie.storage.lossy_boots.mark.boot == 2
    assert isinstance(bookie.read(ledger_id, 0, 9)[1], Unknown)


def test_damaged_control_log_is_not_replaced_by_a_copy_with_higher_numbers(bookie):
    """A had been used without B. B came back without room for A's records and was used alone, from its own number, so its
    writes had numbers that A had, too. When B's control log was damaged, A's was taken for an equal copy, and a fence was
    forgotten. Found by ``boots``."""
    boots_that_b_has_no_room_for(bookie)
    ledger_id = bookie.metadata.new_ledger_id()
    bookie.metadata.create_ledger(
        ledger(ledger_id, master_key=KEY, state=LedgerState.CLOSED, last_entry_id=-1, length=0)
    )
    bookie.fence(ledger_id)
    bookie.commit()
    assert ledger_id in bookie.promises.fenced
    bookie.storage.close()
    content = bookie.disk.files()[f"{B}/control.log"]
    bookie.disk.flip(f"{B}/control.log", content.rindex(b"fence"), 0)
    bookie.away = ()
    bookie.open()
    known = bookie.storage.holdings.control.known(ledger_id)
    assert known.fenced or known.fence_unsure


@pytest.mark.parametrize("meanwhile", ["nothing", "another boot without it"])
def test_lossy_boot_is_over_when_the_directories_that_it_lacked_are_back(bookie, meanwhile):
    """Ledgers with an ack quorum of 1, all of whose entries were there again, stayed in limbo for ever."""
    ledger_id = bookie.metadata.new_ledger_id()
    bookie.metadata.create_ledger(ledger(ledger_id, master_key=KEY))
    adding = [bookie.add(ledger_id, first, first + 4) for first in (0, 5)]
    bookie.commit()
    assert adding == [[0], [0]]
    bookie.boot(B)
    if meanwhile == "another boot without it":
        bookie.boot(B)
    boots = bookie.storage.lossy_boots
    assert boots.limbo_count == 1 and isinstance(bookie.read(ledger_id, 99, 99)[1], Unknown)
    for _ in range(2):
        bookie.boot()
        boots = bookie.storage.lossy_boots
        assert boots.limbo_count == 0 and boots.healed_boot == boots.mark.boot
        assert [entry.entry_id for entry in bookie.read(ledger_id, 0, 9)[0]] == list(range(10))
        assert isinstance(bookie.read(ledger_id, 10, 10)[1], Negative)
        assert bookie.storage.holdings.ledger(ledger_id).fenced, "a fence holds for ever"


@pytest.mark.parametrize("loss", ["before", "meanwhile", "at the return"])
def test_lossy_boot_with_any_other_loss_is_not_over_by_a_return(bookie, loss):
    ledger_id = bookie.metadata.new_ledger_id()
    bookie.metadata.create_ledger(ledger(ledger_id, master_key=KEY))
    bookie.add(ledger_id, 0, 9)
    bookie.commit()
    bookie.seal()
    if loss == "before":
        bookie.storage.close()
        bookie.files.open(f"{A}/unclean", create=True).close()
        bookie.open()
    bookie.boot(B)
    if loss == "meanwhile":
        bookie.storage.close()
        bookie.files.open(f"{A}/unclean", create=True).close()
        bookie.open()
    if loss == "at the return":
        bookie.storage.close()
        bookie.lose_logs(A)
        bookie.lose_logs(B)
        bookie.away = ()
        bookie.open()
    else:
        bookie.boot()
    boots = bookie.storage.lossy_boots
    assert boots.limbo_count == 1 and boots.healed_boot < boots.mark.boot
    assert isinstance(bookie.read(ledger_id, 10, 10)[1], Unknown)
