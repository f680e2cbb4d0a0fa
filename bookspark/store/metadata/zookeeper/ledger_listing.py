"""Which ledgers there are, as the nodes of ZooKeeper tell it: all at once, or in spans of ids.

Law: a listing of a span is whole or raises, as one of all is. Counts are a moment's, and are for planning only. A span is the ids
of one node of the hierarchy, so who goes from span to span holds the names of one node at a time: 10⁷ ledgers are a thousand
spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bookspark.store.metadata.records.ledger_spans import IDS_PER_SPAN, LedgerSpan, spans_of
from bookspark.store.metadata.zookeeper.layout import Layout, LedgerManager, four_digits, ledger_ids, two_digits
from bookspark.store.metadata.zookeeper.nodes import Nodes

_WHAT = "listing the ledgers"


class LedgerListing:
    """The listings of a store. ``still_there(what)``: raises if the cluster has gone, so that nothing found means nothing."""

    def __init__(self, nodes: Nodes, layout: Layout, still_there: Callable[[str], None]) -> None:
        self._nodes, self._layout, self._still_there = nodes, layout, still_there

    def all(self) -> list[int]:
        """As ``MetadataStore.list_ledgers``."""
        if self._layout.manager is LedgerManager.FLAT:
            return self._flat()
        prefixes = self._prefixes()
        leaves = self._nodes.children_of_each(_WHAT, [self._path(prefix) for prefix in prefixes])
        self._still_there(_WHAT)
        return sorted(i for prefix, names in zip(prefixes, leaves, strict=True) for i in ledger_ids(names, prefix))

    def spans(self) -> list[LedgerSpan]:
        """As ``MetadataStore.ledger_spans``."""
        if self._layout.manager is LedgerManager.FLAT:
            return spans_of(self._flat())
        prefixes = sorted(self._prefixes())
        counts = self._nodes.counts_of_each(_WHAT, [self._path(prefix) for prefix in prefixes])
        self._still_there(_WHAT)
        return [
            LedgerSpan(int(prefix) * IDS_PER_SPAN, count)
            for prefix, count in zip(prefixes, counts, strict=True)
            if count
        ]

    def between(self, first: int, last: int) -> Iterator[int]:
        """As ``MetadataStore.list_ledgers_between``."""
        if self._layout.manager is LedgerManager.FLAT:
            yield from (ledger_id for ledger_id in self._flat() if first <= ledger_id <= last)
            return
        low, high = (f"{ledger_id // IDS_PER_SPAN:06}" for ledger_id in (first, last))
        for prefix in sorted(prefix for prefix in self._prefixes(low[:2], high[:2]) if low <= prefix <= high):
            (names,) = self._nodes.children_of_each(_WHAT, [self._path(prefix)])
            if not names:
                self._still_there(_WHAT)
            yield from (one for one in sorted(ledger_ids(names, prefix)) if first <= one <= last)
        self._still_there(_WHAT)

    def _flat(self) -> list[int]:
        found = sorted(ledger_ids(self._nodes.children(_WHAT, self._layout.ledgers)))
        self._still_there(_WHAT)
        return found

    def _prefixes(self, low: str = "00", high: str = "99") -> list[str]:
        """The first six digits of each node that has ledgers, or had some."""
        top = self._nodes.children(_WHAT, self._layout.ledgers)
        firsts = [name for name in top if two_digits(name) and low <= name <= high]
        below = self._nodes.children_of_each(_WHAT, [f"{self._layout.ledgers}/{first}" for first in firsts])
        return [
            first + second
            for first, seconds in zip(firsts, below, strict=True)
            for second in seconds
            if four_digits(second)
        ]

    def _path(self, prefix: str) -> str:
        return f"{self._layout.ledgers}/{prefix[:2]}/{prefix[2:]}"
