"""``Nodes`` over a simulated connection to ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookspark.store.metadata.zookeeper.connection import Connection
from bookspark.store.metadata.zookeeper.nodes import Nodes


@pytest.mark.parametrize(("nodes", "names", "groups_max"), [(100, 10_000, 60), (2000, 3, 12), (5, 0, 2)])
def test_listing_of_very_many_names_is_split_into_groups(nodes: int, names: int, groups_max: int) -> None:
    """A million ledgers were listed in a single group, whose deadline passed before the names were read."""
    groups: list[int] = []

    def gather(what: str, send: Callable[[], list[Any]]) -> list[Any]:
        outcomes = send()
        groups.append(sum(map(len, outcomes)))
        return outcomes

    client = SimpleNamespace(get_children_async=lambda path: [f"{path}-{n}" for n in range(names)])
    found = Nodes(cast(Connection, SimpleNamespace(gather=gather, client=client))).children_of_each(
        "listing", [f"/{n}" for n in range(nodes)]
    )
    assert [len(one) for one in found] == [names] * nodes and found[-1][-1:] == [f"/{nodes - 1}-{names - 1}"][:names]
    assert max(groups) <= 4 * 10_000 and len(groups) <= groups_max
