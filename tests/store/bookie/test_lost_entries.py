"""Answers of a bookie about lost entries: they are not held, and never denied."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.protocol.bookie.bookie_ledger import ENTRY_LOST, NO_SUCH_ENTRY, EntriesLost
from bookspark.store.bookie.offline.inspection import rebuild_index
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.header import Flag, Status
from tests.store.bookie.kit import Pumped, config, crash_image, run_checkpoint


def held(storage: Storage, ledger_id: int) -> list[tuple[int, int]]:
    ranges, _, _ = storage.holdings.ranges(ledger_id, 0, 0, only=True)
    return list(zip(ranges.first_entry_ids, ranges.last_entry_ids, strict=True))


def where_of(storage: Storage, ledger_id: int, entry_id: int) -> int:
    rows = storage.holdings.index.get(ledger_id)
    assert rows is not None
    (row,) = rows.covering(entry_id, entry_id)
    return row.where


@pytest.fixture
def filled(tmp_path: Path) -> Pumped:
    """Entries 0 to 11 of ledger 5 in batches of three, and entry 0 of ledger 8."""
    storage = Pumped(config(tmp_path / "a", tmp_path / "b"))
    for first in range(0, 12, 3):
        assert storage.add(5, first, first + 2) == Status.OK
    assert storage.add(8, 0) == Status.OK
    return storage


def told(storage: Pumped) -> None:
    """The answers while the batch of 3 to 5 is lost."""
    assert held(storage.storage, 5) == [(0, 2), (6, 8), (9, 11)]
    for first in (3, 5):
        assert storage.read(5, first, first) == ([], ENTRY_LOST)
    for first, last, sparse in ((0, 11, True), (0, 3, False), (2, 4, True)):
        entries, refusal = storage.read(5, first, last, sparse=sparse)
        assert [entry.entry_id for entry in entries] == list(range(first, 3)) and refusal == ENTRY_LOST
    assert [entry.entry_id for entry in storage.read(5, 6, 20, sparse=True)[0]] == list(range(6, 12))
    assert storage.read(5, 12, 12)[1] == NO_SUCH_ENTRY, "elsewhere absence is known"


@pytest.mark.parametrize("between", ["crash without a checkpoint", "rebuilt index"])
def test_lost_entries_are_back_after_a_boot_that_reads_their_bytes_well(
    filled: Pumped, tmp_path: Path, between: str
) -> None:
    if between == "rebuilt index":
        run_checkpoint(filled.storage)
    filled.storage.holdings.lose(5, [where_of(filled.storage, 5, 4)])
    told(filled)
    filled.run(filled.storage.settle)
    if between == "rebuilt index":
        filled.storage.close()
        rebuild_index(filled.file_system, [str(tmp_path / "a"), str(tmp_path / "b")])
    for name in "ab":
        crash_image(tmp_path / name, tmp_path / "image" / name)
    for _ in range(2):
        again = Pumped(config(tmp_path / "image/a", tmp_path / "image/b"))
        assert [entry.entry_id for entry in again.read(5, 0, 20, sparse=True)[0]] == list(range(12))
        assert again.storage.status().lacking_ledgers == 0
        again.storage.close()


@pytest.mark.parametrize("between", ["crash", "checkpoint and crash", "stop"])
def test_lost_entries_stay_lost_in_every_later_boot(filled: Pumped, tmp_path: Path, between: str) -> None:
    run_checkpoint(filled.storage)
    lost = filled.storage.holdings.lose(5, [where_of(filled.storage, 5, 4)])
    assert [record[:3] for record in lost] == [(5, 3, 5)] and filled.storage.holdings.lose(5, [lost[0].where]) == []
    told(filled)
    filled.run(filled.storage.settle)
    if between == "checkpoint and crash":
        run_checkpoint(filled.storage)
    if between == "stop":
        filled.storage.close()
    for name in "ab":
        crash_image(tmp_path / name, tmp_path / "image" / name)
    again = Pumped(config(tmp_path / "image/a", tmp_path / "image/b"))
    told(again)
    assert again.add(5, 3, 5, flags=Flag.RECOVERY) == Status.OK
    assert [entry.entry_id for entry in again.read(5, 0, 20, sparse=True)[0]] == list(range(12))
    run_checkpoint(again.storage)
    assert again.storage.holdings.ledger(5).lost == (), "all is back"
    again.storage.close()
    last = Storage(config(tmp_path / "image/a", tmp_path / "image/b")).open()
    assert where_of(last, 5, 4) != lost[0].where, "the lost copy stays lost"
    assert held(last, 5) == [(0, 2), (3, 5), (6, 8), (9, 11)]


def test_checkpoint_keeps_lost_entries_until_their_loss_is_noted(filled: Pumped, tmp_path: Path) -> None:
    run_checkpoint(filled.storage)
    before = (tmp_path / "a/checkpoint").read_bytes()
    holdings = filled.storage.holdings
    for ledger_id in holdings.index.ledger_ids():
        assert holdings.lose(ledger_id, [row.where for row in holdings.index.get(ledger_id).covering(0, 100)])
    run_checkpoint(filled.storage)
    assert (tmp_path / "a/checkpoint").read_bytes() == before
    filled.run(filled.storage.settle)
    filled.wait(filled.storage.holdings.losses_durable.is_set)
    run_checkpoint(filled.storage)
    assert (tmp_path / "a/checkpoint").read_bytes() != before
    filled.storage.close()
    again = Pumped(config(tmp_path / "a", tmp_path / "b"))
    assert held(again.storage, 5) == [] and again.read(5, 11, 11)[1] == ENTRY_LOST
    assert again.read(5, 12, 12)[1] == NO_SUCH_ENTRY


def test_losses_detected_before_the_start_are_noted_too(filled: Pumped, tmp_path: Path) -> None:
    where = where_of(filled.storage, 5, 4)
    filled.storage.close()
    settings = config(tmp_path / "a", tmp_path / "b")
    Pumped(settings, before_start=lambda storage: storage.holdings.lose(5, [where])).storage.close()
    told(Pumped(settings))


def test_forgotten_ledger_drops_its_recorded_losses(filled: Pumped) -> None:
    state = filled.storage.holdings.control
    filled.storage.holdings.lose(5, [where_of(filled.storage, 5, 4)])
    filled.storage.holdings.forget(5)
    assert state.lost_copies == {}
    assert not [record for part in state.records() for record in part if isinstance(record, EntriesLost)]


@pytest.mark.parametrize("rewritten", [False, True])
def test_log_that_is_missing_at_a_start_and_back_at_the_next_brings_its_entries_back(
    tmp_path: Path, rewritten: bool
) -> None:
    """The next start removed it, or the next pass did, because no row pointed into it."""
    storage = Pumped(config(tmp_path / "a"))
    for first in range(0, 12, 3):
        assert storage.add(5, first, first + 2) == Status.OK
    storage.seal()
    if rewritten:
        storage.reclaim()
    storage.add(8, 0)
    storage.storage.close()
    (log,) = (tmp_path / "a/logs").glob("*2.arrow" if rewritten else "*1.arrows")
    log.rename(tmp_path / log.name)
    again = Pumped(config(tmp_path / "a"))
    assert held(again.storage, 5) == [] and again.read(5, 3, 3) == ([], ENTRY_LOST)
    again.storage.close()
    (tmp_path / log.name).rename(log)
    again = Pumped(config(tmp_path / "a"))
    again.seal()
    again.reclaim()
    assert log.exists(), "its bytes may be the last copy"
    scrubbing = again.storage.scrubbing
    assert scrubbing.suspected, "the scrub reads it first"
    for number, to_read in again.steps(scrubbing.take_suspected()).items():
        for looked in scrubbing.look(number, to_read):
            again.steps(scrubbing.looked(number, looked))
    for _ in range(2):
        assert [entry.entry_id for entry in again.read(5, 0, 20, sparse=True)[0]] == list(range(12))
        run_checkpoint(again.storage)
        again.storage.close()
        again = Pumped(config(tmp_path / "a"))
    assert again.storage.status().lacking_ledgers == 0
    again.storage.close()
