"""Settings of Python's interpreter for a bookie's process.

The garbage collector runs seldom and never scans permanent objects: a walk of a million ledgers takes a second of the loop, and a
thousand adds under way need no repeated scans. Cycles are freed later: some megabytes.

A thread waits at most a millisecond for the interpreter, not five. A commit thread needs it three times for each group, so
consecutive steps of background work on the loop kept an add waiting for 16 ms (docs/decisions/profile.md).
"""

from __future__ import annotations

import gc
import sys

_GARBAGE_OBJECTS = 50_000
"""Objects made and not freed before the collector runs. A group of a thousand adds has some thousand."""
_WAITS_SECONDS = 0.001


def suit_a_bookie() -> None:
    """Apply the settings once the storage is open. Existing cycles are never freed."""
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS, *gc.get_threshold()[1:])
    sys.setswitchinterval(_WAITS_SECONDS)
