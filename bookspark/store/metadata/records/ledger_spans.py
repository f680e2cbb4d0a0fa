"""Spans of ledger ids: counts of ledgers by range, without their ids. Pure.

Law: a span is IDS_PER_SPAN ids, in ZooKeeper the names below one node. Its count is a snapshot, for planning only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

IDS_PER_SPAN = 10_000


class LedgerSpan(NamedTuple):
    """Ledgers whose ids differ in their last four digits only."""

    first: int
    """The first id of the span, a multiple of IDS_PER_SPAN."""
    ledgers: int
    """Approximate."""


def spans_of(ledger_ids: Iterable[int]) -> list[LedgerSpan]:
    counts = Counter(ledger_id - ledger_id % IDS_PER_SPAN for ledger_id in ledger_ids)
    return [LedgerSpan(first, count) for first, count in sorted(counts.items())]


def ranges_of(spans: Iterable[LedgerSpan], ledgers_each: int) -> list[tuple[int, int]]:
    """Ranges of ids (first, last) that together cover all ledgers of ``spans``, with about ``ledgers_each`` or more in each. A
    larger span is cut evenly, as if its ledgers were spread over its ids."""
    found: list[tuple[int, int]] = []
    first, count = 0, 0
    for span in spans:
        if not count:
            first = span.first
        count += span.ledgers
        if count < ledgers_each:
            last = span.first + IDS_PER_SPAN - 1
            continue
        # Only a range of a single span can exceed ``ledgers_each`` much.
        parts = max(1, count // ledgers_each) if first == span.first else 1
        ends = [span.first + IDS_PER_SPAN * part // parts - 1 for part in range(1, parts + 1)]
        found += zip([first, *(end + 1 for end in ends[:-1])], ends, strict=True)
        count = 0
    if count:
        found.append((first, last))
    return found
