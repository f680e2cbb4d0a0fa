"""How full a disk may be: what a directory takes at which mark.

Law: a full directory has not failed: it serves what it holds, and becomes writable again by itself. It turns full at one mark and
writable again only below a lower one, so that it does not change back and forth. It takes what recovery and repair write up to a
higher mark, because ledgers have to be repaired when space is short. A disk that refused a write for lack of space is full,
whatever its figures say, until they are looked at the next time::

              warn            low water          full            recovery
    ───────────┴─────────────────┴─────────────────┴─────────────────┴─────► used
    writable                  ◄── back ── full: recovery only ───────┤ nothing

Source: BookKeeper's ``LedgerDirsMonitor`` and ``DiskChecker``; its ``minUsableSizeForHighPriorityWrites`` for recovery.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Takes(IntEnum):
    """What a directory takes; the higher, the more."""

    NOTHING = 0
    RECOVERY = 1
    ALL = 2


class Thresholds(NamedTuple):
    """The parts of a disk, 0 to 1, at which something changes when they are used."""

    warn: float
    low_water_mark: float
    full: float
    recovery: float


def takes(before: Takes, used: float, thresholds: Thresholds) -> Takes:
    """What a directory takes from now on. ``used``: the part of its disk that is used, 0 to 1."""
    if used >= thresholds.recovery:
        return Takes.NOTHING
    if used >= thresholds.full or (before is not Takes.ALL and used >= thresholds.low_water_mark):
        return Takes.RECOVERY
    return Takes.ALL


def used_part(used_bytes: int, free_bytes: int, total_bytes: int, quota_bytes: int) -> float:
    """The part of a directory's space that is used, 0 to 1: of its disk (``free_bytes`` of ``total_bytes`` are free), or of its
    ``quota_bytes`` (0: none; ``used_bytes`` are its own), whichever is more."""
    of_disk = 1 - free_bytes / total_bytes if total_bytes else 0.0
    of_quota = used_bytes / quota_bytes if quota_bytes else 0.0
    return max(of_disk, of_quota)
