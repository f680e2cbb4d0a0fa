"""The index's structures in memory compared with plain dicts and sets, after each of many changes."""

from __future__ import annotations

from array import array
from itertools import pairwise
from random import Random
from unittest.mock import patch

import pytest
from sortedcontainers import SortedList

from bookspark.store.bookie.disk import checkpoint, packed_dict
from bookspark.store.bookie.disk.checkpoint import Block, BlockBuilder, decode_block, gathered, overlaid
from bookspark.store.bookie.disk.index import ChangingRows, Index, LedgerRows, Row, location, log_of
from bookspark.store.bookie.disk.packed_dict import PackedDict, ascending, since

SEEDS = range(12)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(packed_dict, "_A_STEP", 2)


def test_sorted_ids_are_listed_from_a_start_on():
    ids = SortedList([3, 5, 9])
    assert [since(ids, start) for start in (None, 3, 4, 10)] == [[3, 5, 9], [3, 5, 9], [5, 9], []]
    assert since(ids, 4, 1) == [5]
    assert list(ascending(SortedList())) == []


def test_sorted_ids_may_change_during_iteration():
    ids = SortedList(range(0, 40, 2))
    walk, seen = ascending(ids), []
    for one in walk:
        seen.append(one)
        ids.discard(one)
        ids.add(one - 1)
        if one == 20:
            ids.discard(38)
    assert seen == list(range(0, 38, 2))


class Thing:
    def __init__(self, value: int) -> None:
        self.value = value


@pytest.mark.parametrize("seed", SEEDS)
def test_packed_dict_behaves_as_a_dict(seed):
    """An object from ``get`` may be changed until it may be packed; objects with odd values can't be packed."""
    draw, twin = Random(seed), dict[int, int]()
    begun: list[int] = []

    things: PackedDict[Thing] = PackedDict(
        lambda thing: None if thing.value % 2 else b"%d" % thing.value,
        lambda _, content: Thing(int(content)),
        lambda thing: (begun.append(thing.value), thing)[1],
    )
    for _ in range(400):
        key, value = draw.randrange(12), draw.randrange(100)
        match draw.randrange(10):
            case 0:
                things[key] = Thing(value)
                twin[key] = value
            case 1 if key not in twin:
                things.put_packed(key, b"%d" % value if value % 2 == 0 else Thing(value))
                twin[key] = value
            case 2:
                assert things.pop(key) is (twin.pop(key, None) is not None)
            case 3 if (thing := things.get(key)) is not None:
                thing.value = twin[key] = value
            case 4:
                things.rest(key)
            case 5:
                left = things.rest_some(draw.randrange(3))
                assert left is bool(things._resting)
            case 6:
                resting = len(things._resting)
                assert len(list(things.turn())) == resting // 2
            case 7 if draw.random() < 0.2:
                things.rest_all()
                assert things.in_use_count == 0
            case 8 if key not in twin:
                with pytest.raises(KeyError):
                    things[key]
        assert (key in things) is (key in twin) and len(things) == len(twin)
        for one in range(12):
            looked, in_use = things.look(one), things.in_use(one)
            assert (None if looked is None else looked.value) == twin.get(one)
            assert in_use is None or in_use is looked
            form = things.packed_form(one)
            if one not in twin:
                assert form is None
            elif twin[one] % 2:
                assert isinstance(form, Thing) and form.value == twin[one]
            else:
                assert form == b"%d" % twin[one]
        assert sorted(thing.value for thing in things.looks()) == sorted(twin.values())
        assert list(ascending(things.ids)) == sorted(twin)
        used = [thing.value for one in twin if (thing := things.in_use(one)) is not None]
        assert things.in_use_count == len(used)
        kept = [kept.value for kept in things.packed.values() if isinstance(kept, Thing)]
        assert sorted(thing.value for thing in things.objects()) == sorted(used + kept)
    things.rest_all()
    key, before = next(iter(twin)), len(begun)
    things.get(key)
    things.get(key)
    assert len(begun) == before + 1, "an object that is in use is begun once"


def rows_of(rows: LedgerRows) -> list[Row]:
    return [rows.row(i) for i in range(len(rows))]


def ids_of(rows: LedgerRows) -> dict[int, tuple[int, int]]:
    return {one: (row.where, row.size) for row in rows_of(rows) for one in range(row.first, row.last + 1)}


@pytest.mark.parametrize("seed", SEEDS)
def test_ledger_rows_behave_as_a_dict_by_entry_id(seed):
    """The first copy counts. ``clean`` is the number of leading rows unchanged since the checkpoint."""
    draw, rows, twin = Random(seed), ChangingRows.empty(), dict[int, tuple[int, int]]()
    assert rows.last_entry_id == -1
    for number in range(120):
        checkpoint, rows.clean, rows.lost_some = rows_of(rows), len(rows), False
        first = draw.randrange(40)
        last, where, size = first + draw.randrange(6), location(1 + number % 3, 100 * number), draw.randrange(1, 100)
        match draw.randrange(8):
            case 0 | 1 | 2:
                rows.insert(first, last, where, size)
                for one in range(first, last + 1):
                    twin.setdefault(one, (where, size))
            case 3:
                firsts = sorted(draw.sample(range(60), 3)) if draw.random() < 0.7 else [9, 5, 7]
                lasts = [one + draw.randrange(3) for one in firsts]
                wheres = [where + n for n in range(3)]
                rows.extend(firsts, lasts, wheres, [size] * 3)
                for begin, end, at in zip(firsts, lasts, wheres, strict=True):
                    for one in range(begin, end + 1):
                        twin.setdefault(one, (at, size))
            case 4 if twin:
                where = draw.choice(list(twin.values()))[0]
                rows.drop(first, last + 20, where)
                # Whole rows are dropped: those that begin in the range, or reach into it.
                begin = max((row.first for row in checkpoint if row.first <= first), default=first)
                for row in checkpoint:
                    if row.where == where and begin <= row.first <= last + 20:
                        for one in range(row.first, row.last + 1):
                            del twin[one]
            case 5:
                low = location(1 + draw.randrange(3), draw.randrange(12_000))
                high = low + draw.randrange(2000)
                removed = rows.remove(low, high)
                assert removed == [row for row in checkpoint if low < row.where + row.size and row.where <= high]
                for row in removed:
                    for one in range(row.first, row.last + 1):
                        del twin[one]
            case 6:
                numbers = sorted(draw.sample(range(len(rows)), min(len(rows), draw.randrange(4))))
                ranges = list(rows.ids_of(numbers))
                gone = [one for n in numbers for one in range(checkpoint[n].first, checkpoint[n].last + 1)]
                assert [one for begin, end in ranges for one in range(begin, end + 1)] == gone
                assert all(end + 1 < begin for (_, end), (begin, _) in pairwise(ranges))
                assert rows.remove_numbered(numbers) == [checkpoint[n] for n in numbers]
                for one in gone:
                    del twin[one]
            case 7 if twin:
                logs = frozenset(draw.sample(range(1, 4), 2))
                moved = [
                    Row(n, n + draw.randrange(2), location(9, 7 * number + n // 4), 5)
                    for n in range(draw.randrange(3), 45, 3)
                ]
                rows.move(logs, moved)
                for run in moved:
                    for one in range(run.first, run.last + 1):
                        if one in twin and log_of(twin[one][0]) in logs:
                            twin[one] = run.where, run.size
        assert ids_of(rows) == twin
        after = rows_of(rows)
        assert after == sorted(after) and all(one.first <= one.last for one in after)
        assert rows.last_entry_id == max(twin, default=-1)
        assert after[: rows.clean] == checkpoint[: rows.clean]
        assert rows.lost_some or after[: len(checkpoint)] == checkpoint or set(checkpoint) <= set(after)
        assert rows.is_clean is (rows.clean == len(rows) and not rows.lost_some)
        assert list(rows.covering(first, last)) == [row for row in after if row.first <= last and row.last >= first]
        where = draw.choice(after).where if after else 0
        assert rows.numbers_at(where) == [n for n, row in enumerate(after) if row.where == where]
        near = draw.randrange(40)
        assert rows.numbers_at(where, near, 5) == [
            n for n, row in enumerate(after) if row.where == where and abs(row.first - near) <= 5
        ]
        gone_at = {1: draw.randrange(9000), 2: 0}
        assert rows.numbers_in(gone_at) == [
            n
            for n, row in enumerate(after)
            if (row.where & 0xFFFFFFFF) + row.size > gone_at.get(log_of(row.where), 1 << 40)
        ]
        assert rows_of(ChangingRows.of_bytes(rows.to_bytes())) == after
        assert rows_of(rows.part(1, 3)) == after[1:3]


def test_move_joins_adjacent_rows_of_the_same_batch():
    rows = ChangingRows.empty()
    for first in (0, 2, 4):
        rows.append(first, first + 1, location(1, first), 8)
    there = location(5, 0)
    rows.move(frozenset([1]), [Row(0, 1, there, 9), Row(2, 3, there, 9), Row(4, 4, there + 8, 9)])
    assert rows_of(rows) == [Row(0, 3, there, 9), Row(4, 4, there + 8, 9), Row(5, 5, location(1, 4), 8)]


def block_of(ledgers: dict[int, tuple[int, int, int, list[Row]]]) -> list[Block]:
    """Blocks of a single ledger or of several."""
    builder, blocks = BlockBuilder(), []
    for ledger_id, (confirmed, replicated, base, rows) in sorted(ledgers.items()):
        columns = ChangingRows.empty()
        for row in rows:
            columns.append(*row)
        builder.add((ledger_id, confirmed, replicated, base, len(rows)), columns.to_bytes())
        if builder.is_full:
            blocks.append(builder.take())
    return [*blocks, builder.take()] if len(builder) else blocks


def ledgers_of(blocks: list[Block]) -> dict[int, tuple[int, int, int, list[Row]]]:
    found: dict[int, tuple[int, int, int, list[Row]]] = {}
    before = -1
    for block in blocks:
        again = decode_block(len(block.ids), memoryview(b"".join(bytes(piece) for piece in block.encode()[1:])))
        assert (*again[:5], bytes(again.rows)) == (*block[:5], bytes(block.rows)) and block.size == sum(
            map(len, block.encode())
        )
        assert block.logs() == {log_of(where) for rows in _rows(block) for where in rows.where}
        for number, rows in enumerate(_rows(block)):
            assert block.ids[number] > before
            before = block.ids[number]
            found[before] = block.confirmed[number], block.replicated[number], block.since[number], rows_of(rows)
    return found


def _rows(block: Block) -> list[ChangingRows]:
    starts = block.starts
    return [ChangingRows.of_bytes(block.rows[starts[n] : starts[n + 1]]) for n in range(len(block.ids))]


@pytest.mark.parametrize("ledgers_max", [1, 3, 8, 1000])
@pytest.mark.parametrize("seed", SEEDS)
def test_newer_blocks_override_older_blocks(seed, ledgers_max):
    draw = Random(seed)

    def drawn(log: int) -> dict[int, tuple[int, int, int, list[Row]]]:
        made: dict[int, tuple[int, int, int, list[Row]]] = {}
        low = draw.choice([0, 0, 20])
        for ledger_id in draw.sample(range(low, low + 25), draw.randrange(1, 12)):
            base = draw.choice([0, 0, 3, 6])
            firsts = sorted(draw.sample(range(base, base + 9), draw.randrange(5)))
            rows = [Row(first, first, location(log + first % 2, first), 8) for first in firsts]
            made[ledger_id] = draw.randrange(9), draw.randrange(9), base, rows
        return made

    older, newer = drawn(1), drawn(5)
    for ledger_id, (confirmed, replicated, _, rows) in older.items():
        if draw.random() < 0.5:
            older[ledger_id] = confirmed, replicated, 0, rows
    expected = dict(older)
    for ledger_id, (confirmed, replicated, base, rows) in newer.items():
        if base and ledger_id in older:
            before = older[ledger_id]
            kept = [row for row in before[3] if row.first < base]
            expected[ledger_id] = (
                max(confirmed, before[0]),
                max(replicated, before[1]),
                min(base, before[2]),
                kept + rows,
            )
        else:
            expected[ledger_id] = confirmed, replicated, base, rows
    with patch.object(checkpoint, "_LEDGERS_MAX", ledgers_max):
        over = list(overlaid(block_of(older), block_of(newer)))
        assert ledgers_of(over) == expected
        together = list(gathered(over, complete=False))
        assert ledgers_of(together) == expected
        assert len(together) <= max(1, 2 * len(expected) // max(1, ledgers_max // 2) + 1)
        with_rows = {ledger_id: found for ledger_id, found in expected.items() if found[3]}
        assert ledgers_of(list(gathered(over, complete=True))) == with_rows


@pytest.mark.parametrize("seed", SEEDS)
def test_checkpointed_changes_together_equal_the_index(seed):
    """The changes taken by checkpoints, laid over each other, always equal the index at the last checkpoint."""
    draw, index, number = Random(seed), Index(), 0
    taken: dict[int, list[Row]] = {}
    late: set[int] = set()
    with patch("bookspark.store.bookie.disk.index._PACKED_ROWS_MAX", 3):
        for _ in range(60):
            for _ in range(draw.randrange(5)):
                ledger_id, number = draw.randrange(9), number + 1
                match draw.randrange(6):
                    case 0 | 1 | 2:
                        first = draw.randrange(12)
                        index.of(ledger_id).insert(first, first + draw.randrange(3), location(1, 8 * number), 8)
                    case 3 if (rows := index.changing(ledger_id)) is not None and len(rows):
                        rows.drop(0, 99, rows.where[draw.randrange(len(rows))])
                    case 4 if draw.random() < 0.3:
                        index.forget(ledger_id)
                    case 5 if index.get(ledger_id) is None:
                        index.of(ledger_id).insert(5, 6, location(2, 8 * number), 8)
            whole = draw.random() < 0.2
            ids, forgotten = index.begin_checkpoint(whole=whole)
            if whole:
                taken.clear()
            for ledger_id in ids:
                change = index.take_change(ledger_id, anew=whole or ledger_id in forgotten)
                if (
                    change is not None
                    and not whole
                    and ledger_id not in forgotten
                    and len(change.rows)
                    and draw.random() < 0.2
                ):
                    # This checkpoint leaves out the last of these rows.
                    index.take_again(ledger_id, change.clean + len(change.rows) - 1)
                    change = change._replace(rows=change.rows.part(0, len(change.rows) - 1))
                    late.add(ledger_id)
                else:
                    late.discard(ledger_id)
                if change is not None:
                    kept = [row for row in taken.get(ledger_id, []) if change.since and row.first < change.since]
                    assert len(kept) == change.clean
                    taken[ledger_id] = kept + rows_of(change.rows)
                index.rest(ledger_id)
            list(index.end_checkpoint())
            there = {
                ledger_id: rows_of(rows)
                for ledger_id in range(9)
                if (rows := index.get(ledger_id)) is not None and len(rows)
            }
            assert {ledger_id: rows for ledger_id, rows in taken.items() if rows and ledger_id not in late} == {
                ledger_id: rows for ledger_id, rows in there.items() if ledger_id not in late
            }
            assert all(taken.get(ledger_id, []) == there[ledger_id][:-1] for ledger_id in late if ledger_id in there)
            assert [ledger_id for ledger_id in range(9) if index.holds_any(ledger_id)] == sorted(there)
            assert set(there) <= set(index.ids()) and index.ledger_ids() == list(index.ids())
            assert index.ledger_ids(3, 2) == [one for one in index.ids() if one >= 3][:2] and len(index) == len(
                index.ledger_ids()
            )
    for number in range(4):
        ids, _ = index.begin_checkpoint(whole=False)
        changes = []
        for ledger_id in ids:
            changes.append(index.take_change(ledger_id, anew=False))
            index.rest(ledger_id)
        list(index.end_checkpoint())
        assert number == 0 or not any(changes)


def test_checkpoint_rows_fill_only_the_gaps_between_existing_rows():
    index = Index()
    index.of(5).insert(2, 3, location(1, 0), 8)
    other = LedgerRows(
        array("q", [0, 3]), array("q", [location(2, 0), location(2, 8)]), array("q", [2 << 32 | 8, 2 << 32 | 8])
    )
    for ledger_id in (5, 6):
        index.put(ledger_id, memoryview(other.to_bytes()))
    assert rows_of(index.get(5)) == [
        Row(0, 1, location(2, 0), 8),
        Row(2, 3, location(1, 0), 8),
        Row(4, 4, location(2, 8), 8),
    ]
    assert rows_of(index.get(6)) == rows_of(other) and isinstance(index._rows.packed[6], bytes)
    many = ChangingRows.empty()
    for first in range(65):
        many.append(first, first, location(1, first), 8)
    for count, packed in ((64, True), (65, False)):
        index.put(100 + count, memoryview(many.part(0, count).to_bytes()))
        assert isinstance(index._rows.packed[100 + count], bytes) is packed
