"""Power cuts: what happens to each change of a file system that was not synced. ``memory_files`` applies them.

Law: each change has a fate of its own, whatever happens to the others. POSIX promises no order of the changes between two syncs.

Source: "All File Systems Are Not Created Equal" (OSDI 2014), whose persistence properties these losses take away one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """What a crash does to a change that was not synced."""

    KEPT = "kept"
    LOST = "lost"
    ZEROED = "zeroed"
    """The file has its length, with zeros where the data should be. A change of a name can't be zeroed: it is kept."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was not synced: a sector of a write, a truncation, or a name's creation, rename or unlink."""

    path: str
    """The path of the file; for a name, the path of its directory."""
    kind: str
    """``write``, ``truncate`` or ``name``."""
    index: int
    """The place of this change among the unsynced changes of the same file or directory, from 0."""
    count: int
    """How many unsynced changes that file or directory has."""


Loss = Callable[[Change], Fate]
"""A power cut: it decides the fate of each change that was not synced."""


def nothing_kept(change: Change) -> Fate:
    """Every unsynced change is lost."""
    return Fate.LOST


def everything_kept(change: Change) -> Fate:
    """Every change is kept, as if only the process had been killed."""
    return Fate.KEPT


def names_kept(change: Change) -> Fate:
    """Changes of names are kept, the files' contents are lost."""
    return Fate.KEPT if change.kind == "name" else Fate.LOST


def contents_kept(change: Change) -> Fate:
    """The files' contents are kept, changes of names are lost."""
    return Fate.LOST if change.kind == "name" else Fate.KEPT


def lengths_kept(change: Change) -> Fate:
    """Changes of names are kept, and files have their lengths, with zeros where the data should be."""
    return Fate.ZEROED


def last_kept(change: Change) -> Fate:
    """Out of order: of each file and directory only the newest change is kept."""
    return Fate.KEPT if change.index == change.count - 1 else Fate.LOST


def last_lost(change: Change) -> Fate:
    """Torn: of each file and directory only the newest change is lost."""
    return Fate.LOST if change.index == change.count - 1 else Fate.KEPT


def every_other_kept(change: Change) -> Fate:
    """Torn in many places: every second change is lost."""
    return Fate.LOST if change.index % 2 else Fate.KEPT


def drawn(seed: int) -> Loss:
    """A power cut that draws a fate for each change, the same for the same seed."""
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
"""All power cuts that draw nothing."""
