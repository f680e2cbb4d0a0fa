"""Power cuts: what becomes of each change to a file system that was not synced (``memory_files``).

Law: each change has a fate of its own, whatever happens to the others; POSIX promises no order between two syncs.

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
    """The file has the length, and zeros where the data should be. A name is lost or kept: this is kept."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was not synced: a sector of a write, a truncation, or a name's creation, rename or unlink."""

    path: str
    """The file's; the directory's for a name."""
    kind: str
    """``write``, ``truncate`` or ``name``."""
    index: int
    """Its number among the changes of that file or directory that are not synced, from 0."""
    count: int
    """How many there are."""


Loss = Callable[[Change], Fate]
"""A power cut: decides on every change that was not synced."""


def nothing_kept(change: Change) -> Fate:
    """What is not synced is gone."""
    return Fate.LOST


def everything_kept(change: Change) -> Fate:
    """The process was killed, and the machine lives on."""
    return Fate.KEPT


def names_kept(change: Change) -> Fate:
    """Directories were written back, the files' contents were not."""
    return Fate.KEPT if change.kind == "name" else Fate.LOST


def contents_kept(change: Change) -> Fate:
    """Contents were written back, directories were not."""
    return Fate.LOST if change.kind == "name" else Fate.KEPT


def lengths_kept(change: Change) -> Fate:
    """As ``names_kept``, and files have their lengths: zeros where the data should be."""
    return Fate.ZEROED


def last_kept(change: Change) -> Fate:
    """Out of order: of each file and directory only the newest change arrived."""
    return Fate.KEPT if change.index == change.count - 1 else Fate.LOST


def last_lost(change: Change) -> Fate:
    """Torn: of each file and directory everything arrived but the newest change."""
    return Fate.LOST if change.index == change.count - 1 else Fate.KEPT


def every_other_kept(change: Change) -> Fate:
    """Torn in many places."""
    return Fate.LOST if change.index % 2 else Fate.KEPT


def drawn(seed: int) -> Loss:
    """Each change has a fate of its own, the same for the same seed."""
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
