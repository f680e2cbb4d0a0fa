"""Copies of a control log: are they complete together when some are damaged?

Law: an answered fence stands in at least one directory that was in use then. A copy left behind by a full or failed disk looks
whole and lacks later writes, so a whole copy replaces a damaged one only if it goes at least as far. Writes are numbered, with
the same number in every copy, and a copy is complete up to the number before the first missing one. If damaged copies may have
gone farther than every whole one, the boot is lossy, and every known ledger may have had a fence (``bookie_boot``). Without any
whole copy the bookie stays down, until an operator accepts the loss: such a boot is lossy too.

An absent directory (unreadable, or full: ``left_behind``) is behind when it comes back. Used alone meanwhile, it would count on
from the same number with other writes. So a boot without it skips ``NUMBERS_LEFT_OUT`` numbers and notes its absence in each
copy, and a copy never replaces that of a directory absent at its use. Copies used each without the other are complete together,
but their lossy boots share numbers, and losses healed in one may stand in the other: the boot that sees them is lossy."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

NUMBERS_LEFT_OUT = 1 << 32
"""More writes than a bookie makes while a directory is out of use."""


class ControlCopy(NamedTuple):
    """One directory's control log. ``whole``: it exists and is undamaged. ``complete_to``: it has every write up to this number.
    ``reaches``: the highest write that may have gone to it; None if unknown. ``without``: directories absent at its last use
    (empty if damaged), by number. ``directory``: its own number."""

    whole: bool
    complete_to: int
    reaches: int | None
    without: frozenset[int] = frozenset()
    directory: int = 0


class CopiesTell(Enum):
    ALL = auto()
    TOO_LITTLE = auto()
    """Records may be lost."""
    NOTHING = auto()
    """No copy is whole."""


def judge_copies(copies: Iterable[ControlCopy]) -> CopiesTell:
    """Do the copies together have every write to any of them?"""
    found = list(copies)
    damaged = [copy for copy in found if not copy.whole]
    if not damaged:
        return CopiesTell.ALL
    if len(damaged) == len(found):
        return CopiesTell.NOTHING
    whole = [copy for copy in found if copy.whole]
    stood_for = [any(_stands_for(copy, other) for copy in whole) for other in damaged]
    return CopiesTell.ALL if all(stood_for) else CopiesTell.TOO_LITTLE


def _stands_for(copy: ControlCopy, damaged: ControlCopy) -> bool:
    """Has the whole ``copy`` every write of the damaged one?"""
    if damaged.reaches is None or damaged.directory in copy.without:
        return False
    return damaged.reaches <= copy.complete_to


def left_behind(copies: Iterable[ControlCopy], written_to: int) -> frozenset[int]:
    """Full directories that the bookie runs without: used alone, they would count on from numbers already used by the others."""
    return frozenset(copy.directory for copy in copies if copy.complete_to + NUMBERS_LEFT_OUT <= written_to)


def used_apart(copies: Iterable[ControlCopy]) -> frozenset[int]:
    """Numbers of directories used each without another one of them."""
    found = list(copies)
    pairs = [(copy, other) for copy in found for other in found]
    return frozenset(
        copy.directory for copy, other in pairs if other.directory in copy.without and copy.directory in other.without
    )
