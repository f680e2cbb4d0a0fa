"""How far each directory of a bookie goes, as noted apart from it: what finds an older copy of a directory that was put back.

Law: a directory never goes less far than it once went durably. One that does is not what the bookie left: a copy of an earlier
time was put in its place, or the disk went back in time. What came since is lost, and nothing in the directory tells of it:
entries would be denied, and fences forgotten. So the boot is lossy, and every fence unsure (``bookie_boot``).

A note may be behind, so a copy of the last minute may pass for the directory itself. It is never ahead: what is synced counts.

Source: docs/decisions/without-the-journal.md. BookKeeper takes whatever lies in a directory that has the right cookie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Reach(NamedTuple):
    """``writes``: the number of the last write of control records in the directory. ``location``: of the end of what is synced of
    its entries, as log number and position (``bookie.disk.index.location``)."""

    writes: int
    location: int


NOWHERE = Reach(0, 0)
NOTHING_NOTED: Mapping[str, Reach] = {}


def went_back(found: Reach, noted: Reach) -> bool:
    """Does a directory go less far than was noted of it?"""
    return found.writes < noted.writes or found.location < noted.location
