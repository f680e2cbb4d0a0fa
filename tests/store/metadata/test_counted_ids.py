"""Number of ledger ids drawn by BookKeeper's clients, from the version of a ZooKeeper node."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bookspark.store.metadata.zookeeper.nodes import Nodes


@pytest.mark.parametrize(("made", "there"), [(0, 0), (5, 0), (5, 2), ((1 << 30) + 7, 1), ((1 << 31) - 1, 0)])
def test_drawn_ids_are_counted_even_if_the_nodes_version_overflows(made: int, there: int) -> None:
    told = 2 * made - there
    stat = SimpleNamespace(cversion=(told + (1 << 31)) % (1 << 32) - (1 << 31), numChildren=there)
    connection = SimpleNamespace(client=None, read=lambda what, path, send: (b"", stat))
    assert Nodes(connection).counted_below("counting", "/ledgers/idgen") == made  # type: ignore[arg-type]
