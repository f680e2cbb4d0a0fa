"""Disk marks: the adds that a directory takes at each mark of its disk's use.

Law: a full directory has not failed: it serves its entries, and becomes writable again by itself. It turns full at one mark
and writable only below a lower mark, so that it does not flap. It takes recovery and repair writes up to a higher mark,
because ledgers need repair when space is short. Inodes count as bytes do: without one, no log can be begun. A disk that
refused a write for lack of space counts as full until the next measurement::

              warn            low water          full            recovery
    ───────────┴─────────────────┴─────────────────┴─────────────────┴─────► used
    writable                  ◄── back ── full: recovery only ───────┤ nothing

Source: BookKeeper's ``LedgerDirsMonitor`` and ``DiskChecker``; its ``minUsableSizeForHighPriorityWrites`` for recovery.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Takes(IntEnum):
    """Adds that a directory takes; a higher value includes the lower values."""

    NOTHING = 0
    RECOVERY = 1
    ALL = 2


class Thresholds(NamedTuple):
    """Used parts of a disk, 0 to 1, at which the directory changes."""

    warn: float
    low_water_mark: float
    full: float
    recovery: float


def takes(before: Takes, used: float, thresholds: Thresholds) -> Takes:
    """Adds that a directory takes from now on. ``used``: used part of its disk, 0 to 1."""
    if used >= thresholds.recovery:
        return Takes.NOTHING
    if used >= thresholds.full or (before is not Takes.ALL and used >= thresholds.low_water_mark):
        return Takes.RECOVERY
    return Takes.ALL


def used_part(used_bytes: int, free_bytes: int, total_bytes: int, quota_bytes: int) -> float:
    """Used part of a directory's space, 0 to 1: of its disk (``free_bytes`` of ``total_bytes``) or of its ``quota_bytes`` (0:
    none; ``used_bytes`` are its own), whichever is more."""
    of_disk = 1 - free_bytes / total_bytes if total_bytes else 0.0
    of_quota = used_bytes / quota_bytes if quota_bytes else 0.0
    return max(of_disk, of_quota)


_INODES = 2560
"""A disk with this number of free inodes lacks none: a bookie makes few files. So at the mark of 0.95 it has 128 left."""


def used_part_of_inodes(free: int, total: int) -> float:
    """Used part of a disk's inodes, 0 to 1, as if it had at most some thousand. ``total``: 0 without a limit."""
    counted = min(total, _INODES)
    return 1 - min(free, counted) / counted if counted else 0.0
