"""Distribution of lanes over the readers of a group."""

from __future__ import annotations

from collections import Counter

import pytest

from bookspark.protocol.logs.lanes import moves


@pytest.mark.parametrize("lanes", range(8))
@pytest.mark.parametrize("count", range(1, 6))
def test_readers_of_a_group_share_lanes_evenly(lanes: int, count: int) -> None:
    members, holders = [f"{n}" for n in range(count)], dict[int, str]()
    for _ in range(3):
        for name in reversed(members):
            found = moves(range(lanes), members, name, holders, ())
            assert not set(found.leave) & set(found.take)
            holders = {lane: holder for lane, holder in holders.items() if lane not in found.leave}
            holders |= dict.fromkeys(found.take, name)
    shares = Counter(holders.values())
    assert sum(shares.values()) == lanes and all(shares[name] - lanes // count in (0, 1) for name in members)


def test_lanes_with_unsaved_rows_stay_with_their_reader() -> None:
    holders = {1: "a", 2: "a", 3: "a", 4: "a"}
    assert moves([1, 2, 3, 4], ["a", "b"], "a", holders, [2, 3, 4]) == ([1], [])
    assert moves([1, 2, 3, 4], ["a", "b"], "a", holders, []) == ([3, 4], [])
    assert moves([1, 2, 3, 4], ["a", "b"], "b", holders, []) == ([], [])
    assert moves([2, 3, 4], ["a", "b"], "a", holders, [2, 3, 4]) == ([1], []), "it has ended, and all of it was read"
    assert moves([2, 3, 4], ["a", "b"], "a", holders, [1, 2, 3, 4]) == ([], [])
    assert moves([1, 2, 3], ["a"], "a", {2: "b"}, []) == ([], [1, 3]), "another one has lane 2"
    assert moves([4, 3, 2, 1], ["a", "b"], "b", {4: "a"}, []) == ([], [1, 2])
