"""A page of the past reads only the files that may hold its rows, and shows the same as a read of all files."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow
import pytest
from deltalake.fs import fs_handler

from bookspark.errors import ReadError
from bookspark.operations.console.past import deltas as tables
from bookspark.operations.console.past import ledgers
from bookspark.operations.console.past.deltas import Deltas
from tests.operations.console import snapshots

BOOKIES = [f"10.0.0.{number}:3181" for number in range(4)]
EMPTY = ("bookies", "limbo", "accepted_losses", "log_commits", "logs", "underreplication")


def _ledgers(ids):
    every = {
        "metadata_version": 1,
        "state": "CLOSED",
        "ensemble_size": 3,
        "write_quorum": 3,
        "ack_quorum": 2,
        "digest_type": "CRC32C",
        "ledger_type": "PD_JOURNAL",
        "replication": "best_effort",
        "length": 1000,
        "last_add_confirmed": 9,
        "last_entry_id": 9,
        "fragments": 1,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "custom_metadata": "{}",
    }
    names = snapshots.schema_of("ledgers").names
    return snapshots.batch("ledgers", [tuple({**every, "ledger_id": one}.get(name) for name in names) for one in ids])


def _fragments(ids):
    return snapshots.batch("fragments", [(one, 1, 0, 0, 9, BOOKIES[:3]) for one in ids])


def _ranges(name, ids):
    names = snapshots.schema_of("index_ranges").names
    every = {"bookie_id": name, "first_entry_id": 0, "last_entry_id": 9, "entry_log": 1, "position": 0, "bytes": 1}
    return snapshots.batch(
        "index_ranges", [tuple({**every, "ledger_id": one}.get(column) for column in names) for one in ids]
    )


def _take(path, parts):
    """Write a snapshot whose tables have a file for each part, a list of ledger ids."""
    bookies = snapshots.schema_of("bookies").names
    row = dict.fromkeys(bookies)
    up = [{**row, "bookie_id": name, "state": "writable"} for name in BOOKIES]
    tables = {
        **dict.fromkeys(EMPTY, ()),
        "bookies": [snapshots.batch("bookies", [tuple(one.values()) for one in up])],
        "ledgers": [_ledgers(part) for part in parts],
        "fragments": [_fragments(part) for part in parts],
        "index_ranges": [_ranges(name, part) for name in BOOKIES[:3] for part in parts],
    }
    snapshots.write_many(path, tables)
    deltas = Deltas(str(path))
    return deltas, deltas.snapshots()[-1]


@pytest.fixture
def opened(monkeypatch):
    """The data files that were opened, with repetition."""
    found = []
    real = fs_handler.DeltaStorageHandler.open_input_file

    def noted(handler, path):
        if path.endswith(".parquet"):
            found.append(path)
        return real(handler, path)

    monkeypatch.setattr(fs_handler.DeltaStorageHandler, "open_input_file", noted)
    return found


@pytest.fixture
def given(monkeypatch):
    """The number of files given to Arrow by each read: Arrow parses each file's statistics even if it does not open it."""
    found = []
    real = tables.Files._of
    monkeypatch.setattr(tables.Files, "_of", lambda self, these: found.append(len(these)) or real(self, these))
    return found


def test_page_opens_only_the_files_with_its_rows(tmp_path, opened, given):
    parts = [list(range(at, at + 100)) for at in range(0, 4000, 100)]
    deltas, snapshot = _take(tmp_path, parts)
    found = ledgers.list_at(deltas, snapshot, 1080)
    assert [row["ledger_id"] for row in found.rows] == list(range(1080, 1130))
    assert (found.at, found.ledgers, found.earlier, found.later, found.last) == (1080, 4000, 1030, 1130, 3950)
    # The file of the first row, the file after it, and the last file.
    assert len(set(opened)) == 3
    del opened[:]
    deltas.ledgers(snapshot)
    ledgers.look_at(deltas, snapshot, 2222)
    # One file of ledgers, one of fragments, one of each bookie's index; the tables of bookies and limbo.
    assert len(set(opened)) <= 1 + 1 + 3 + 2
    del opened[:]
    ledgers.list_at(deltas, snapshot, 1080)
    assert opened and len(set(opened)) <= 2, "ids of files that were read stay"
    assert max(given) <= 3, "three bookies have the ledger, each in one file"


def test_files_with_overlapping_ids_are_merged_in_order(tmp_path):
    deltas, snapshot = _take(tmp_path, [[1, 5, 9], [2, 6], [7]])
    assert list(deltas.ledgers(snapshot)) == [1, 2, 5, 6, 7, 9]
    assert deltas.ledgers(snapshot).before(6) == 3
    assert [row["ledger_id"] for row in ledgers.list_at(deltas, snapshot, 5).rows] == [5, 6, 7, 9]
    deltas, snapshot = _take(tmp_path / "equal", [[1, 5], [5, 9]])
    assert list(deltas.ledgers(snapshot)) == [1, 5, 5, 9]


def test_kept_footers_of_chosen_files_are_bounded(tmp_path):
    deltas, snapshot = _take(tmp_path, [[one] for one in range(3 * tables._FOOTERS_KEPT)])
    for ledger_id in range(3 * tables._FOOTERS_KEPT):
        ledgers.look_at(deltas, snapshot, ledger_id)
    for table in ("ledgers", "fragments", "index_ranges"):
        assert 0 < len(deltas.files(snapshot, table)._chosen) <= tables._FOOTERS_KEPT
    assert len(deltas._parts) <= 3 * tables._FOOTERS_KEPT


def test_kept_ids_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("bookspark.operations.console.past.deltas._PART_IDS_KEPT", 25)
    deltas, snapshot = _take(tmp_path, [list(range(at, at + 10)) for at in range(0, 200, 10)])
    every = deltas.ledgers(snapshot)
    assert list(every) == list(range(200)) and every[-1] == 199
    assert sum(map(len, deltas._parts.values())) <= 25


def test_list_does_not_read_the_ids_of_all_ledgers(tmp_path, monkeypatch):
    deltas, snapshot = _take(tmp_path, [[1, 2], [3, 4]])
    monkeypatch.setattr(Deltas, "every_id", lambda *_: pytest.fail("all ids were read"))
    assert ledgers.list_at(deltas, snapshot, 2).ledgers == 4


def _plainly(deltas, snapshot, first):
    """The expected list, by a read of all rows."""
    every = sorted(deltas.read(snapshot, "ledgers", ["ledger_id"])["ledger_id"].to_pylist())
    at = sum(one < first for one in every)
    return every, at, every[at : at + ledgers.ON_A_PAGE]


def _parts_at_random(chance):
    """Ids distributed over files, in order or mixed."""
    ids = chance.sample(range(3000), chance.randrange(0, 600))
    if chance.random() < 0.6:
        ids.sort()
    cuts = sorted(chance.sample(range(len(ids) + 1), min(len(ids), chance.randrange(0, 8))))
    found = [ids[low:high] for low, high in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    chance.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_pages_show_the_same_as_a_read_of_all_rows(tmp_path, monkeypatch, seed):
    chance = random.Random(seed)
    real = snapshots._file
    untold = chance.choice((0.0, 0.0, 0.5, 1.0))

    def some_untold(place, rows):
        action = real(place, rows)
        return replace(action, stats="{}") if chance.random() < untold else action

    monkeypatch.setattr(snapshots, "_file", some_untold)
    deltas, snapshot = _take(tmp_path, _parts_at_random(chance))
    for _ in range(15):
        first = chance.randrange(0, 3100)
        every, at, shown = _plainly(deltas, snapshot, first)
        found = ledgers.list_at(deltas, snapshot, first)
        assert [row["ledger_id"] for row in found.rows] == shown
        assert (found.at, found.ledgers) == (at, len(every))
        size = ledgers.ON_A_PAGE
        assert found.earlier == (every[max(0, at - size)] if at else None)
        more = at + size < len(every)
        assert found.later == (every[at + size] if more else None)
        assert found.last == (every[len(every) - size] if more else None)
        assert (first in deltas.ledgers(snapshot)) is (first in every)
        if first in every:
            seen = ledgers.look_at(deltas, snapshot, first).seen
            assert seen.held == {name: [(0, 9)] for name in BOOKIES[:3]}
        else:
            with pytest.raises(ReadError, match="there was no ledger"):
                ledgers.look_at(deltas, snapshot, first)


def test_rows_of_chosen_ledgers_are_also_filtered_by_a_condition(tmp_path):
    from pyarrow.dataset import field

    deltas, snapshot = _take(tmp_path, [list(range(10)), list(range(10, 20))])
    found = deltas.read(snapshot, "ledgers", ["ledger_id"], field("ledger_id") != 11, ids=(9, 12))
    assert sorted(found["ledger_id"].to_pylist()) == [9, 10, 12]
    assert isinstance(deltas.every_id(snapshot), pyarrow.Array)
