"""Which lanes of a log each of the readers of a group has, if they share them.

Law: a lane has one reader at a time. Each reader has the same number of lanes, or one more: those that joined first do. A reader
that has more than that leaves lanes of which it has saved all that it read, so a lane changes hands without a row's coming twice;
the others have to wait for that. A lane that has ended, and of which all was read and saved, is left.

Source: Kafka's consumer groups; here each reader decides for itself, from what all of them see.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Moves(NamedTuple):
    """The lanes that a reader leaves, and those that it takes, ascending."""

    leave: list[int]
    take: list[int]


def moves(
    lanes: Collection[int], members: Sequence[str], name: str, holders: Mapping[int, str], unsaved: Collection[int]
) -> Moves:
    """What member ``name`` is to do. ``lanes``: those that have rows, or may have more. ``members``: all of them, those that
    joined first come first. ``holders``: who has which lane. ``unsaved``: lanes of which it has not saved all that it read."""
    each, over = divmod(len(lanes), len(members))
    share = each + (members.index(name) < over)
    mine = sorted(lane for lane, holder in holders.items() if holder == name)
    needed = [lane for lane in mine if lane in lanes]
    leave = [lane for lane in mine if lane not in lanes and lane not in unsaved]
    leave += [lane for lane in reversed(needed) if lane not in unsaved][: max(0, len(needed) - share)]
    free = [lane for lane in sorted(lanes) if lane not in holders]
    return Moves(sorted(leave), free[: max(0, share - len(needed))])
