"""How full a disk may be: what a directory takes at which mark.

Law: a full directory is not a failed one: it serves what it holds, and comes back by itself. It turns full at one mark and
writable again only below a lower one, so that it does not change to and fro; what recovery and repair write is taken up to a
higher mark, because refusing it would keep ledgers from being repaired when it is most needed. A disk that refused a write for
lack of space is full whatever its figures say, until they are looked at the next time::

              warn            low water          full            recovery
    ───────────┴─────────────────┴─────────────────┴─────────────────┴─────► used
    writable                  ◄── back ── full: recovery only ───────┤ nothing

Source: BookKeeper's ``LedgerDirsMonitor`` and ``DiskChecker``; its ``minUsableSizeForHighPriorityWrites`` for recovery.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Takes(IntEnum):
    """What a directory takes, the more the higher."""

    NOTHING = 0
    RECOVERY = 1
    ALL = 2


class Thresholds(NamedTuple):
    """Parts of a disk that are used, 0 to 1."""

    warn: float
    low_water_mark: float
    full: float
    recovery: float


def takes(before: Takes, used: float, thresholds: Thresholds) -> Takes:
    """What a directory takes from now on. ``used``: the part of its disk that is."""
    if used >= thresholds.recovery:
        return Takes.NOTHING
    if used >= thresholds.full or (before is not Takes.ALL and used >= thresholds.low_water_mark):
        return Takes.RECOVERY
    return Takes.ALL


def used_part(used_bytes: int, free_bytes: int, total_bytes: int, quota_bytes: int) -> float:
    """How much of a directory's space is used: of its disk (``free_bytes`` of ``total_bytes``), or of ``quota_bytes`` (0: none)
    by the ``used_bytes`` that are its own, whichever is more."""
    of_disk = 1 - free_bytes / total_bytes if total_bytes else 0.0
    of_quota = used_bytes / quota_bytes if quota_bytes else 0.0
    return max(of_disk, of_quota)
