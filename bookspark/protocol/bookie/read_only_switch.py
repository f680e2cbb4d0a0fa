"""The switch to read-only, independent of free space.

Law: the switch keeps its last setting over any restart. The control logs of several directories are replayed in any order, so
settings are numbered, and the highest number counts.

A change of the cluster gives each order to a bookie a higher number than the one before (``operations.changes.change_record``).
The highest order is part of the setting's record, and a lower one is refused: a process that stood still, while another went on
with the change or gave it up, switches nothing when it wakes. An operator's own switch has no order, and is always obeyed.

Source: BookKeeper's ``forceReadOnlyBookie`` and ``persistBookieStatusEnabled``; the fencing of a ledger.
"""

from __future__ import annotations

from typing import NamedTuple

NO_ORDER = 0
"""The order of a switch by an operator."""


class ReadOnlySwitched(NamedTuple):
    number: int
    read_only: bool
    order: int = NO_ORDER
    """Highest order of a change so far."""
    by_change: bool = False
    """Is the bookie read-only by a change's order?"""


NEVER_SWITCHED = ReadOnlySwitched(0, False)


def switched(last: ReadOnlySwitched, read_only: bool, order: int = NO_ORDER) -> ReadOnlySwitched | None:
    """The next setting; None if a higher order came before. ``last``: the last setting, whether its record is durable or not."""
    if order != NO_ORDER and order < last.order:
        return None
    return ReadOnlySwitched(last.number + 1, read_only, max(order, last.order), read_only and order != NO_ORDER)
