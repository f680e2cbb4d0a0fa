"""A bookie collects copies that the metadata does not name, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.errors import MetadataStoreError, MetadataVersionError
from bookspark.protocol.bookie.bookie_ledger import NO_SUCH_LEDGER
from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.store.bookie.steps import run_steps
from bookspark.store.metadata.lost_records import give_up_lost_records, note_lost_records, read_lost_records
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Flag, Status
from tests.store.bookie.kit import Pumped, config, crash_image, held_ledgers
from tests.store.metadata.kit import ledger

ME = "bookie-3"
MOVED = {"state": LedgerState.CLOSED, "last_entry_id": 9, "length": 100}
ELSEWHERE = (Fragment(0, ("bookie-1", "bookie-2", "bookie-4")),)


class Others:
    """The other bookies: each holds entries 0 to 9 of every ledger, except the silent ones. ``before`` runs at each question."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.before = lambda: None

    def __call__(self, asked):
        self.before()
        return {(bookie, ledger_id): [(0, 9)] for bookie, ledger_id in asked if bookie not in self.silent}


@pytest.fixture
def storage(tmp_path):
    """Ledgers 5, 6 and 7 in a sealed log, of ten entries each, in two batches."""
    pumped = Pumped(config(tmp_path / "live"))
    for ledger_id in (5, 6, 7):
        pumped.add(ledger_id, 0, 4)
        pumped.add(ledger_id, 5, 9)
    pumped.seal()
    yield pumped
    pumped.storage.close()


@pytest.fixture
def others():
    return Others()


@pytest.fixture
def store():
    """5 is here, 6 was moved to bookie-4, of 7 the first half."""
    made = MemoryStore()
    made.create_ledger(ledger(5, **MOVED))
    made.create_ledger(ledger(6, **MOVED, fragments=ELSEWHERE))
    made.create_ledger(ledger(7, **MOVED, fragments=(*ELSEWHERE, Fragment(5, ("bookie-1", "bookie-2", ME)))))
    return made


def collect(storage, store, others, wait=None):
    steps = storage.storage.garbage_collection.collect_copies(store, ME, others)
    return run_steps(steps, wait or storage.pump)


def held(storage):
    return {ledger_id: storage.ids(ledger_id) for ledger_id in sorted(held_ledgers(storage.storage))}


ALL, TAIL = list(range(10)), list(range(5, 10))


def test_copies_that_the_records_do_not_name_are_collected_and_their_space_comes_back(storage, store, others):
    assert collect(storage, store, others) == 2
    assert held(storage) == {5: ALL, 7: TAIL}
    assert storage.read(6, 0, 9) == ([], NO_SUCH_LEDGER)
    assert storage.reclaim(threshold=0.8) > 0
    assert held(storage) == {5: ALL, 7: TAIL}
    assert collect(storage, store, others) == 0


@pytest.mark.parametrize("after", [lambda storage: storage.reclaim(threshold=0.8), Pumped.checkpoint])
def test_collected_copies_stay_gone_after_a_crash(storage, store, others, tmp_path, after):
    store.delete_ledger(6)
    storage.checkpoint()
    collect(storage, store, others)
    after(storage)
    again = Pumped(config(crash_image(tmp_path / "live", tmp_path / "image")))
    assert held(again) == {5: ALL, 6: ALL, 7: TAIL} and not again.storage.lacking(10)
    again.storage.close()


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_copies_of_a_ledger_that_is_not_closed_are_kept(storage, others, state):
    store = MemoryStore()
    for ledger_id in (5, 6, 7):
        store.create_ledger(ledger(ledger_id, state=state, fragments=ELSEWHERE))
    assert collect(storage, store, others) == 0
    assert held(storage) == dict.fromkeys((5, 6, 7), ALL)


def test_copies_are_kept_while_a_named_bookie_does_not_say_that_it_has_its_own(storage, store, others):
    """They may be the last copies."""
    others.silent = {"bookie-4"}
    assert collect(storage, store, others) == 0
    assert held(storage) == dict.fromkeys((5, 6, 7), ALL)
    others.silent = set()
    assert collect(storage, store, others) == 2


def test_copies_are_kept_while_a_repair_of_the_ledger_is_due(storage, store, others):
    """It may be copying here."""
    store.underreplication.mark([Mark(6, {"bookie-1": Reason.LOST})])
    assert collect(storage, store, others) == 1
    assert held(storage) == {5: ALL, 6: ALL, 7: TAIL}


def test_copies_are_kept_if_the_record_changes_before_they_are_collected(storage, store, others):
    """The change may name them."""

    def name_this_bookie():
        found = store.read_ledger(6)
        store.write_ledger(found.value.re_replicated(0, {"bookie-4": ME}), found.version)

    others.before = name_this_bookie
    assert collect(storage, store, others) == 1
    assert held(storage) == {5: ALL, 6: ALL, 7: TAIL}


def test_collection_ends_a_change_that_read_the_record_before(storage, store, others):
    """A move had copied here, and would have named copies that were collected meanwhile."""
    found = store.read_ledger(6)
    collect(storage, store, others)
    with pytest.raises(MetadataVersionError):
        store.write_ledger(found.value.re_replicated(0, {"bookie-4": ME}), found.version)
    assert store.read_ledger(6).value == found.value


@pytest.mark.parametrize("ledger_id", [6, 7])
def test_copies_are_kept_if_one_is_added_again_meanwhile(storage, store, others, ledger_id):
    """A repair that read the record after this bookie has its copies acknowledged as there already."""
    statuses = []
    others.before = lambda: statuses.append(storage.add(ledger_id, 0, 4, flags=Flag.RECOVERY))
    assert collect(storage, store, others) == 2
    assert statuses == [Status.OK] and storage.ids(ledger_id) == ALL


def test_a_ledger_with_a_copy_added_after_its_rows_went_is_not_forgotten(storage, store, others):
    """The collection waits for its note on the disk."""
    statuses = []

    def add_and_wait():
        if statuses:
            storage.pump()
        else:
            statuses.append(storage.add(6, 0, 4, flags=Flag.RECOVERY))

    collect(storage, store, others, add_and_wait)
    assert statuses == [Status.OK] and storage.ids(6) == list(range(5))


def test_nothing_is_collected_while_the_metadata_does_not_answer(storage, store, others):
    class Silent(MemoryStore):
        def read_ledgers(self, ledger_ids, unreadable):
            raise MetadataStoreError("ZooKeeper does not answer")

    assert collect(storage, Silent(), others) == 0
    assert held(storage) == dict.fromkeys((5, 6, 7), ALL)


def test_nothing_is_collected_while_records_are_lost(storage, store, others):
    """An older copy of the metadata was put back: what it does not name may be needed to bring entries back."""
    note_lost_records(store, LostRecords(100, 200))
    assert collect(storage, store, others) == 0
    give_up_lost_records(store, read_lost_records(store))
    assert collect(storage, store, others) == 2


def test_a_deleted_ledger_is_no_unnamed_copy(storage, store, others):
    store.delete_ledger(6)
    assert collect(storage, store, others) == 1
    assert storage.ids(6) == ALL


def test_a_batch_that_is_named_in_part_is_kept(storage, store, others):
    found = store.read_ledger(7)
    parts = (*ELSEWHERE, Fragment(7, ("bookie-1", "bookie-2", ME)))
    store.write_ledger(replace(found.value, fragments=parts), found.version)
    collect(storage, store, others)
    assert storage.ids(7) == TAIL
