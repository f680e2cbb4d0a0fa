"""What the copies of a control log tell together, when some of them are damaged.

Law: a fence that was answered stands in at least one directory that was in use then. A copy that its disk left behind (the disk
was full, or failed) is whole, as far as one can see from it, and lacks what came later. So a whole copy takes the place of a
damaged one only if it goes at least as far as that one went. Writes are numbered, each has its number in every copy, and a copy
is complete up to the number before the first that is missing.

If the damaged copies may have gone farther than every whole one, records are lost, and nobody can tell of which ledgers: the
boot is lossy, and every ledger that is known may have had a fence (``bookie_boot``). Without any whole copy the bookie stays
down."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple


class ControlCopy(NamedTuple):
    """One directory's control log. ``whole``: it is there, and nothing in it is damaged. ``complete_to``: it has every write up
    to this number. ``reaches``: the highest write that may have gone to it; None if that can't be told."""

    whole: bool
    complete_to: int
    reaches: int | None


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
    complete_to = max(copy.complete_to for copy in found if copy.whole)
    reached = [copy.reaches is not None and copy.reaches <= complete_to for copy in damaged]
    return CopiesTell.ALL if all(reached) else CopiesTell.TOO_LITTLE
