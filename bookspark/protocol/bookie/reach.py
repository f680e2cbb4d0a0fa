"""The reach of each bookie directory, noted outside of it: reveals an older copy put back in its place.

Law: a directory never goes less far than it once went durably. A directory that does was replaced by an earlier copy, or its disk
went back in time. Later writes are lost without a trace in the directory: entries would be denied, and fences forgotten. So the
boot is lossy, and every fence unsure (``bookie_boot``). A note may be behind, so a copy of the last minute may pass for the
directory itself. It is never ahead: only synced data counts.

Source: docs/decisions/without-the-journal.md. BookKeeper accepts any directory with the right cookie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Reach(NamedTuple):
    """``writes``: the number of the directory's last write of control records. ``location``: the end of its synced entries, as
    log number and position (``bookie.disk.index.location``)."""

    writes: int
    location: int


NOWHERE = Reach(0, 0)
NOTHING_NOTED: Mapping[str, Reach] = {}


def went_back(found: Reach, noted: Reach) -> bool:
    """Does a directory go less far than its note?"""
    return found.writes < noted.writes or found.location < noted.location
