"""Python's interpreter in the process of a bookie.

Its garbage collector looks seldom, and never at what stays. It need not walk a million ledgers each time, which takes a second of
the loop. Nor need it look at a thousand adds under way again and again. What is in cycles is freed later: some megabytes.

A thread waits at most a millisecond for the interpreter, not five. A commit thread needs it three times for each group, so steps
of background work on the loop, one after the other, kept an add waiting for 16 ms (docs/decisions/profile.md).
"""

from __future__ import annotations

import gc
import sys

_GARBAGE_OBJECTS = 50_000
"""The collector looks once so many more objects were made than freed. A group of a thousand adds has some thousand."""
_WAITS_SECONDS = 0.001


def suit_a_bookie() -> None:
    """For a process that has opened its storage. What is in a cycle at this moment is never freed."""
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS, *gc.get_threshold()[1:])
    sys.setswitchinterval(_WAITS_SECONDS)
