"""What the copies of a control log tell together, when some of them are damaged.

Law: a fence that was answered stands in at least one directory that was in use then. A copy that its disk left behind (the disk
was full, or failed) is whole, as far as one can see from it, and lacks what came later. So a whole copy takes the place of a
damaged one only if it goes at least as far as that one went. Writes are numbered, each has its number in every copy, and a copy
is complete up to the number before the first that is missing.

If the damaged copies may have gone farther than every whole one, records are lost, and nobody can tell of which ledgers: the
boot is lossy, and every ledger that is known may have had a fence (``bookie_boot``). Without any whole copy the bookie stays
down.

A directory that can't be read is left out, and its copy is behind when it comes back. If it is used without the others first,
both go on from the same number with writes of their own. So a boot without some directories leaves ``NUMBERS_LEFT_OUT`` numbers
out and notes in each copy which ones it is without. A copy stands for none that it was used without. Copies of directories that
were used each without the other hold all that was written, together, but their lossy boots have the same numbers, and what one
of them calls healed the other may have lost: the boot that finds them is lossy. A directory without room may be left behind as
far as one that can't be read (``left_behind``), and is noted as such."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

NUMBERS_LEFT_OUT = 1 << 32
"""More writes than a bookie makes while a directory is out of use."""


class ControlCopy(NamedTuple):
    """One directory's control log. ``whole``: it is there, and nothing in it is damaged. ``complete_to``: it has every write up
    to this number. ``reaches``: the highest write that may have gone to it; None if that can't be told. ``without``: the numbers
    of directories that the bookie was last used without (of a damaged copy: none). ``directory``: the number of its own."""

    whole: bool
    complete_to: int
    reaches: int | None
    without: frozenset[int] = frozenset()
    directory: int = 0


class CopiesTell(Enum):
    ALL = auto()
    """Everything that was ever written."""
    TOO_LITTLE = auto()
    """Records may be lost."""
    NOTHING = auto()
    """No copy is whole."""


def judge_copies(copies: Iterable[ControlCopy]) -> CopiesTell:
    """Do the copies have everything together that was written to any of them?"""
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
    """Has the whole ``copy`` all that the damaged one had?"""
    if damaged.reaches is None or damaged.directory in copy.without:
        return False
    return damaged.reaches <= copy.complete_to


def left_behind(copies: Iterable[ControlCopy], written_to: int) -> frozenset[int]:
    """Of directories that have no room for what the others tell, by number: those that would go on, if they were used alone, from
    numbers that the others have used. The bookie is used without them."""
    return frozenset(copy.directory for copy in copies if copy.complete_to + NUMBERS_LEFT_OUT <= written_to)


def used_apart(copies: Iterable[ControlCopy]) -> frozenset[int]:
    """The directories that were used each without another one of them, by number."""
    found = list(copies)
    pairs = [(copy, other) for copy in found for other in found]
    return frozenset(
        copy.directory for copy, other in pairs if other.directory in copy.without and copy.directory in other.without
    )
