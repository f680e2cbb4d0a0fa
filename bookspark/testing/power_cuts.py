"""Power cuts: the fate of each unsynced change of a file system. ``memory_files`` applies them.

Law: each change has its own fate, independent of the others. POSIX promises no order of the changes between two syncs.

Source: "All File Systems Are Not Created Equal" (OSDI 2014); each loss takes away one of its persistence properties.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """Fate of an unsynced change in a crash."""

    KEPT = "kept"
    LOST = "lost"
    ZEROED = "zeroed"
    """The file keeps its length, with zeros in place of the data. A change of a name can't be zeroed: it is kept."""


@dataclass(frozen=True, slots=True)
class Change:
    """An unsynced change: a sector of a write, a truncation, or a name's creation, rename or unlink."""

    path: str
    """For a name, the path of its directory."""
    kind: str
    """``write``, ``truncate`` or ``name``."""
    index: int
    """Position among the unsynced changes of the same file or directory, from 0."""
    count: int
    """Unsynced changes of that file or directory."""


Loss = Callable[[Change], Fate]
"""A power cut: a function from each unsynced change to its fate."""


def nothing_kept(change: Change) -> Fate:
    """Every unsynced change is lost."""
    return Fate.LOST


def everything_kept(change: Change) -> Fate:
    """Every change is kept, as after a kill of the process alone."""
    return Fate.KEPT


def names_kept(change: Change) -> Fate:
    """File contents are lost."""
    return Fate.KEPT if change.kind == "name" else Fate.LOST


def contents_kept(change: Change) -> Fate:
    """Changes of names are lost."""
    return Fate.LOST if change.kind == "name" else Fate.KEPT


def lengths_kept(change: Change) -> Fate:
    """File contents become zeros of the same length."""
    return Fate.ZEROED


def last_kept(change: Change) -> Fate:
    """Out of order: only the newest change of each file and directory is kept."""
    return Fate.KEPT if change.index == change.count - 1 else Fate.LOST


def last_lost(change: Change) -> Fate:
    """Torn: only the newest change of each file and directory is lost."""
    return Fate.LOST if change.index == change.count - 1 else Fate.KEPT


def every_other_kept(change: Change) -> Fate:
    """Torn in many places: every second change is lost."""
    return Fate.LOST if change.index % 2 else Fate.KEPT


def drawn(seed: int) -> Loss:
    """A random fate for each change, the same for the same seed."""
    source = random.Random(seed)
    fates = list(Fate)
    return lambda change: source.choice(fates)


LOSSES: tuple[Loss, ...] = (
    nothing_kept,
    everything_kept,
    names_kept,
    contents_kept,
    lengths_kept,
    last_kept,
    last_lost,
    every_other_kept,
)
"""All power cuts without randomness."""
