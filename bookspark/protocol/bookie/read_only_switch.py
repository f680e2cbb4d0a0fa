"""The operator's switch to read-only, independent of free space.

Law: the switch keeps its last setting over any restart. The control logs of several directories are replayed in any order, so
settings are numbered, and the highest number counts.

Source: BookKeeper's ``forceReadOnlyBookie`` and ``persistBookieStatusEnabled``.
"""

from __future__ import annotations

from typing import NamedTuple


class ReadOnlySwitched(NamedTuple):
    number: int
    read_only: bool


NEVER_SWITCHED = ReadOnlySwitched(0, False)


def switched(last_number: int, read_only: bool) -> ReadOnlySwitched:
    """The next setting. ``last_number``: the highest number used, whether its record is durable or not."""
    return ReadOnlySwitched(last_number + 1, read_only)
