"""Garbage collection of deleted ledgers on a bookie."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.protocol.bookie.bookie_ledger import NO_SUCH_LEDGER
from bookspark.protocol.bookie.garbage_collection import NOTHING_COLLECTED, Complete, Incomplete
from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.protocol.ledger.ledger_metadata import LEDGER_ID_MAX
from bookspark.protocol.ledger.responses import Negative, Positive, Unknown
from bookspark.servers.daemon.bookie_process import keep_lost_records
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.space.garbage_collection import list_ledgers, read_records
from bookspark.store.metadata.lost_records import give_up_lost_records, note_lost_records
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.awaiting import await_that
from tests.store.bookie.kit import KEY, OTHER_KEY, Client, Pumped, add_frame, config, crash_image, held_ledgers, serving
from tests.store.metadata.kit import ledger


class Metadata(MemoryStore):
    """``failing``: the calls that can't reach the store. Ids up to ``given_out`` were given out."""

    def __init__(self, *ledger_ids: int) -> None:
        super().__init__()
        self.failing: set[str] = set()
        self.given_out = 100
        for ledger_id in ledger_ids:
            self.create_ledger(ledger(ledger_id))

    def last_ledger_id(self) -> int:
        if "last" in self.failing:
            raise MetadataStoreError("ZooKeeper does not answer")
        return self.given_out

    def list_ledgers(self) -> list[int]:
        if "list" in self.failing:
            raise MetadataStoreError("ZooKeeper does not answer")
        return super().list_ledgers()

    def read_ledger(self, ledger_id: int):
        if "read" in self.failing:
            raise MetadataStoreError("ZooKeeper does not answer")
        return super().read_ledger(ledger_id)


@pytest.fixture
def storage(tmp_path):
    """A storage with ledgers 5, 6 and 7 in a sealed log."""
    pumped = Pumped(config(tmp_path / "live"))
    for ledger_id in (5, 6, 7):
        pumped.add(ledger_id, 0, 9)
    pumped.seal()
    yield pumped
    pumped.storage.close()


def log_names(path):
    return sorted(name.name for name in (path / "logs").iterdir())


def test_collection_forgets_deleted_ledgers_and_keeps_others(storage):
    assert storage.collect(Metadata(5, 7)) == 1
    assert storage.read(6, 0, 9) == ([], NO_SUCH_LEDGER)
    assert storage.storage.holdings.ledger(6) is None
    assert storage.ids(5) == storage.ids(7) == list(range(10))
    assert storage.storage.status().ledgers == 2
    assert list(storage.storage.holdings.ranges(0, 0, 0, only=False)[0].ledger_ids) == [5, 7]


def test_reclaiming_frees_the_space_of_collected_ledgers(storage, tmp_path):
    storage.collect(Metadata(5))
    given_back = storage.reclaim(entry_logs=False, threshold=0.2)
    assert given_back == 0, "a third of it lives"
    assert storage.reclaim(entry_logs=False, threshold=0.5) > 0
    assert log_names(tmp_path / "live") == ["00000002.arrow"]
    storage.collect(Metadata())
    assert storage.reclaim(entry_logs=False) > 0
    assert log_names(tmp_path / "live") == []
    assert storage.storage.status().log_bytes == 0
    assert storage.add(9, 0) is Status.OK


def test_reclaiming_leaves_the_open_log_alone(storage, tmp_path):
    storage.add(8, 0)
    storage.collect(Metadata())
    storage.reclaim()
    assert log_names(tmp_path / "live") == ["00000002.arrows", "00000002.synced"]


# -- BookKeeper #870: listings that fail or are incomplete


def test_870_nothing_is_collected_when_the_listing_failed(storage):
    metadata = Metadata()
    metadata.failing = {"list"}
    assert storage.collect(metadata) == 0
    assert storage.ids(6) == list(range(10))


def test_870_nothing_is_collected_when_the_listing_was_partial(storage):
    """The listing omits existing ledgers: each record is read on its own before its ledger is collected."""
    metadata = Metadata(5, 6, 7)
    metadata.list_ledgers = lambda: [5]
    assert storage.collect(metadata) == 0
    metadata.failing = {"read"}
    assert storage.collect(metadata) == 0
    assert storage.ids(6) == storage.ids(7) == list(range(10))


def test_ledger_created_after_the_listing_is_kept(storage):
    metadata = Metadata(5, 6, 7)
    listed = metadata.list_ledgers()

    def list_and_let_one_be_made():
        metadata.create_ledger(ledger(8))
        storage.submit(add_frame(8, 0))
        return listed

    metadata.list_ledgers = list_and_let_one_be_made
    assert storage.collect(metadata) == 0
    assert storage.ids(8) == [0]


def test_metadata_lookups_answer_positive_negative_or_unknown():
    metadata = Metadata(5)
    assert list_ledgers(metadata) == Complete(frozenset({5}))
    answers = read_records(metadata, [5, 6])
    assert (type(answers[5]), type(answers[6])) == (Positive, Negative)
    metadata.failing = {"list", "read"}
    assert isinstance(list_ledgers(metadata), Incomplete)
    times = iter((0, 20, 20, 40, 40, 60))
    answers = read_records(metadata, [5, 6, 7], lambda: next(times))
    assert list(answers) == [5, 6] and isinstance(answers[5], Unknown), (
        "a store that does not answer is not asked for ever"
    )


# -- ledgers that can't be judged


class Unreadable(Metadata):
    """The records of ``unreadable`` can't be decoded."""

    unreadable: tuple[int, ...] = ()

    def read_ledger(self, ledger_id: int):
        if ledger_id in self.unreadable:
            raise ValueError("not JSON")
        return super().read_ledger(ledger_id)


def test_collection_skips_an_unreadable_ledger_and_says_why(storage):
    """The first unreadable record ended each collection, for all ledgers behind it."""
    metadata = Unreadable(7)
    metadata.unreadable = (5,)
    assert storage.collect(metadata) == 1
    assert held_ledgers(storage.storage) == {5, 7}
    assert storage.storage.garbage_collection.kept.endswith("that they were deleted: ledger 5: not JSON")
    metadata.unreadable = ()
    assert storage.collect(metadata) == 1
    assert storage.storage.garbage_collection.kept == ""


def test_ledger_with_an_id_never_given_out_is_kept_and_never_noted(storage):
    """After one FENCE of ledger 9,999,999,999, every later ledger had to ask the metadata at its first append."""
    metadata = Metadata(5, 7)
    metadata.given_out = 8
    assert storage.fence(LEDGER_ID_MAX) is Status.OK
    assert storage.add(9, 0) is Status.OK
    assert storage.collect(metadata) == 1
    assert storage.storage.holdings.control.collected.highest_ledger_id == 6
    assert held_ledgers(storage.storage) == {5, 7, 9, LEDGER_ID_MAX}
    assert "ledger 9 was never given out; ledger 9999999999 was" in storage.storage.garbage_collection.kept
    metadata.given_out = 9
    assert storage.collect(metadata) == 1
    assert storage.storage.holdings.control.collected.highest_ledger_id == 9


def test_deleted_ledger_with_a_user_chosen_id_is_collected(storage):
    """Its id is above every id given out, and no listing has a higher one, so the ledger was kept for ever."""
    metadata = Metadata(5, 6, 7)
    metadata.given_out = 8
    metadata.note_given_id(1000)
    assert storage.add(1000, 0) is Status.OK
    assert storage.add(1001, 0) is Status.OK
    assert storage.collect(metadata) == 1
    assert held_ledgers(storage.storage) == {5, 6, 7, 1001}


def test_ledger_with_a_lost_record_is_kept_until_given_up(storage):
    """An older copy of ZooKeeper's data lacks the record. As soon as it had given out as many ids as before, the bookies
    deleted ledgers that no user had deleted."""
    metadata = Metadata(5, 7)
    metadata.given_out = 100
    lost = LostRecords(6, 1006)
    note_lost_records(metadata, lost)
    assert storage.collect(metadata) == 0
    assert held_ledgers(storage.storage) == {5, 6, 7}
    assert storage.storage.garbage_collection.kept.endswith("the record of ledger 6 is lost")
    give_up_lost_records(metadata, (lost,))
    assert storage.collect(metadata) == 1
    assert held_ledgers(storage.storage) == {5, 7}


@pytest.mark.parametrize("given", [1_700_000_000, LEDGER_ID_MAX - 7])
def test_lost_records_far_above_the_id_counter_use_up_no_ids(storage, given):
    """With ids chosen by users, an older copy of the metadata made the counter skip all ids up to theirs: a bookie's start took
    hours, and no id was left."""
    metadata = MemoryStore()
    metadata.note_given_id(given)
    assert storage.fence(given + 5) is Status.OK
    lost = keep_lost_records(storage.storage, metadata)
    assert lost is not None
    assert (lost.first, given + 5 in range(lost.first, lost.last + 1)) == (given + 1, True)
    assert metadata.last_ledger_id() == -1
    assert metadata.highest_ledger_id() == lost.last
    assert keep_lost_records(storage.storage, metadata) is None


def test_nothing_is_collected_while_the_list_of_lost_records_is_unreadable(storage):
    metadata = Metadata(5, 7)
    metadata.write_record("lost_records", "ledgers", b"not JSON", None)
    assert storage.collect(metadata) == 0
    assert held_ledgers(storage.storage) == {5, 6, 7}


def test_data_of_an_impossible_ledger_id_is_collected_without_a_note(storage):
    """Earlier bookies accepted such ids; one such id ended garbage collection for good."""
    for ledger_id in (-5, LEDGER_ID_MAX + 1, 1 << 62):
        assert storage.fence(ledger_id) is Status.OK
    assert storage.collect(Metadata(5, 6, 7)) == 0
    assert held_ledgers(storage.storage) == {5, 6, 7}
    assert storage.storage.holdings.control.collected == NOTHING_COLLECTED


def test_nothing_is_collected_when_the_last_given_id_is_unknown(storage):
    metadata = Metadata()
    metadata.failing = {"last"}
    assert storage.collect(metadata) == 0
    assert held_ledgers(storage.storage) == {5, 6, 7}


class MadeMeanwhile(Metadata):
    """Just after a read of ``made`` finds no record, its record is created and ``then`` is called."""

    def __init__(self, made: int, then: Callable[[], object], *ledger_ids: int) -> None:
        super().__init__(*ledger_ids)
        self._made, self._then = made, then

    def read_ledger(self, ledger_id: int):
        try:
            return super().read_ledger(ledger_id)
        finally:
            if ledger_id == self._made:
                self.create_ledger(ledger(self._made))
                self._then()


@pytest.mark.parametrize(
    "request_of_6",
    [
        lambda storage: storage.submit(add_frame(6, 10)),
        lambda storage: storage.submit(add_frame(6, 0, 9)),
        lambda storage: storage.submit(add_frame(6, 0, flags=Flag.RECOVERY)),
        lambda storage: storage.storage.fence(6, KEY, lambda status: None),
        lambda storage: storage.storage.write_last_add_confirmed(6, KEY, 9, lambda status: None),
    ],
    ids=["add", "the same add again", "recovery's add", "fence", "explicit LAC"],
)
def test_ledger_created_while_collection_reads_its_record_is_kept(storage, request_of_6):
    """A client had sent an add to a given-out id before its record was created. Collection read no record; then the record was
    created, and the ledger's writer appended. The bookie forgot all of it."""
    metadata = MadeMeanwhile(6, lambda: request_of_6(storage), 7)
    assert storage.collect(metadata) == 1, "ledger 5 was deleted"
    assert held_ledgers(storage.storage) == {6, 7}
    assert storage.ids(6)[:10] == list(range(10))
    assert storage.collect(Metadata(7)) == 1, "another look judges it"


# -- BookKeeper #4462: collected ledgers that come back


def test_4462_collected_fenced_ledger_is_not_created_again(storage, tmp_path):
    storage.fence(6)
    assert storage.collect(Metadata(5, 7)) == 1
    assert storage.add(6, 10) is not Status.OK
    assert storage.ids(6) == []
    crash_image(tmp_path / "live", tmp_path / "dead")
    again = Pumped(config(tmp_path / "dead"))
    assert again.add(6, 10) is not Status.OK, "nor after a crash"
    assert again.add(8, 0) is Status.OK, "a new ledger pays nothing"
    again.storage.close()


def test_4462_collection_is_noted_before_the_ledger_is_forgotten(tmp_path):
    files = FaultyFileSystem(RealFileSystem())
    storage = Pumped(config(tmp_path), files)
    storage.add(6, 0)
    storage.fence(6)
    files.add("write */control.log 1.. no-space")
    assert storage.collect(Metadata()) == 0
    assert storage.add(6, 1) is Status.FENCED
    files.clear()
    for directory, used in storage.storage.disks.measure():
        storage.steps(storage.storage.disks.look(directory, used))
    storage.run(storage.storage.settle)
    assert storage.collect(Metadata()) == 1
    assert storage.add(6, 1) is not Status.OK
    storage.storage.close()


# -- crashes


def test_records_noted_during_a_control_log_rewrite_are_kept(tmp_path):
    storage = Pumped(config(tmp_path / "live"))
    pending = [storage.submit(add_frame(ledger_id, 0)) for ledger_id in range(2500)]
    storage.wait(lambda: all(pending))
    steps = storage.storage.garbage_collection.forget(range(2000, 2500))
    for _ in range(4):  # two for the ledgers, one for records of no ledger, one for the first thousand
        assert next(steps) is None
    assert storage.fence(0) is Status.OK
    assert storage.add(2500, 0) is Status.OK
    storage.steps(steps)
    storage.run(storage.storage.settle)
    crash_image(tmp_path / "live", tmp_path / "dead")
    storage.storage.close()
    again = Pumped(config(tmp_path / "dead"))
    assert again.add(0, 1) is Status.FENCED
    assert again.add(2500, 1, master_key=OTHER_KEY) is Status.UNAUTHORIZED
    again.storage.close()


def test_collected_ledgers_stay_forgotten_after_a_crash(storage, tmp_path):
    storage.collect(Metadata(5))
    storage.reclaim()
    crash_image(tmp_path / "live", tmp_path / "dead")
    again = Pumped(config(tmp_path / "dead"))
    assert held_ledgers(again.storage) == {5}
    assert again.ids(5) == list(range(10))
    again.storage.close()


def test_ledgers_restored_by_a_crash_are_collected_again(storage, tmp_path):
    storage.checkpoint()
    storage.collect(Metadata(5))
    crash_image(tmp_path / "live", tmp_path / "dead")
    again = Pumped(config(tmp_path / "dead"))
    assert again.ids(6) == list(range(10))
    assert again.collect(Metadata(5)) == 2
    assert again.ids(6) == []
    again.storage.close()


# -- in a server


def test_server_collects_and_rewrites_by_itself(tmp_path):
    metadata = Metadata(5, 6)
    options = {"entry_log_bytes_max": 2000, "gc_wait_time_seconds": 0.02, "minor_compaction_interval_seconds": 0.02}
    with serving(config(tmp_path, **options), metadata=metadata) as (_, address):
        client = Client(address)
        for i in range(20):
            client.add(5, i, payload=b"x" * 500)
        metadata.delete_ledger(5)
        client.add(6, 0)
        await_that(lambda: client.status().ledgers == 1 and len(log_names(tmp_path)) <= 2)
        found, end = client.read(5, 0, 9)
        assert (found, end.status) == ([], Status.NO_SUCH_LEDGER)
        assert client.read(6, 0, 0)[1].status == Status.OK
        client.close()
