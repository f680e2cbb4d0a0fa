"""The list of a ledger's entries at a bookie, in BookKeeper's format."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookspark.protocol.ledger.entry_ranges import with_ranges
from bookspark.servers.bookkeeper.door import list_of_entries
from bookspark.servers.bookkeeper.messages import Operation
from bookspark.store.bookie.holdings.reads import Fetched, Stop
from tests.awaiting import await_that
from tests.servers.bookkeeper.kit import KEY, body, open_door, request
from tests.store.bookie.kit import config


def groups_of(told: bytes) -> dict[int, tuple[int, int, int, int]]:
    """Groups by their first entry id, as BookKeeper's reader keeps them."""
    version, count = struct.unpack_from(">ii", told)
    assert version == 0 and len(told) == 64 + 24 * count
    found = [struct.unpack_from(">qqii", told, 64 + 24 * i) for i in range(count)]
    assert found == sorted(found)
    return {one[0]: one for one in found}


def is_available(groups: dict[int, tuple[int, int, int, int]], entry_id: int) -> bool:
    """Same answer as ``AvailabilityOfEntriesOfLedger.isEntryAvailable``."""
    start = max((first for first in groups if first <= entry_id), default=None)
    if start is None:
        return False
    first, last, length, period = groups[start]
    if entry_id > last + length:
        return False
    return (entry_id - first) < length if period == 0 else (entry_id - first) % period < length


@given(st.sets(st.integers(0, 120)))
@example({entry for entry in range(120) if entry % 5 in (1, 2, 3)})
@example({0, 2, 4, 7, 10, 13, 14})
def test_exactly_the_held_entries_are_available(held: set[int]) -> None:
    groups = groups_of(list_of_entries(with_ranges((), ((one, one) for one in held))))
    assert {one for one in range(-2, 130) if is_available(groups, one)} == held


def test_a_striped_ledger_takes_one_group() -> None:
    assert groups_of(list_of_entries((i, i + 2) for i in range(7, 50_000, 5))) == {7: (7, 49_997, 3, 5)}


def test_runs_and_gaps_beyond_the_range_of_a_group_take_several_groups() -> None:
    long = 1 << 32
    groups = groups_of(list_of_entries([(3, 3 + long), (1 << 40, 1 << 40), (1 << 41, (1 << 41) + 1)]))
    for held, missing in ((3, 2), (3 + (1 << 31), 4 + long), (3 + long, (1 << 40) - 1), ((1 << 41) + 1, (1 << 41) + 2)):
        assert is_available(groups, held) and not is_available(groups, missing)


EOK, ENOLEDGER, EIO = 0, 402, 501


def asked(txn: int, ledger_id: int) -> bytes:
    return request(Operation.GET_LIST_OF_ENTRIES, txn, "entries", ledgerId=ledger_id)


def add(txn: int, ledger_id: int, entry_id: int) -> bytes:
    made = body(ledger_id, entry_id, b"payload")
    return request(
        Operation.ADD_ENTRY, txn, "add", ledgerId=ledger_id, entryId=entry_id, masterKey=KEY, body=made, flag=1
    )


def test_bookie_lists_its_entries_of_a_ledger(tmp_path) -> None:
    held = (0, 1, 2, 5, 6, 9)
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        caller.send(*(add(entry, 7, entry) for entry in held))
        assert set(caller.statuses(len(held)).values()) == {EOK}
        caller.send(asked(100, 7))
        answer = caller.answer()
        assert (answer.header.txnId, answer.status, answer.entries.ledgerId) == (100, EOK, 7)
        groups = groups_of(answer.entries.availability)
        assert [one for one in range(12) if is_available(groups, one)] == list(held)
        caller.send(asked(1, 8))
        assert caller.answer().status == ENOLEDGER


def test_few_lists_of_a_peer_are_made_at_once(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Callable[[list[tuple[int, int]]], None]] = []
    with open_door(config(tmp_path)) as (server, call, _):
        caller, other = call(), call()
        other.send(add(0, 7, 0))
        assert other.answer().status == EOK
        monkeypatch.setattr(server.storage, "held_ranges", lambda ledger_id, told: begun.append(told))
        caller.send(*(asked(number, 7) for number in range(100)))
        await_that(lambda: begun)
        other.send(add(1, 7, 1))
        assert other.answer().status == EOK and len(begun) < 20
        for number in range(100):
            await_that(lambda: begun)
            server._porch._loop.call_soon_threadsafe(begun.pop(0), [(0, number)])
            answer = caller.answer()
            assert (answer.header.txnId, answer.status) == (number, EOK)


def test_unreadable_entry_is_not_in_the_list(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_door(config(tmp_path)) as (server, call, _):
        caller = call()
        for entry in range(3):
            caller.send(add(entry, 7, entry))
            assert caller.answer().status == EOK
        monkeypatch.setattr(server.storage.files, "fetch", lambda *_, **options: Fetched([], Stop.DAMAGED))
        caller.send(request(Operation.READ_ENTRY, 9, "read", ledgerId=7, entryId=1))
        assert caller.answer().status == EIO
        caller.send(asked(10, 7))
        groups = groups_of(caller.answer().entries.availability)
        assert [one for one in range(5) if is_available(groups, one)] == [0, 2]
