"""Python's garbage collector in the process of a bookie: it looks seldom, and never at what stays.

It need not walk a million ledgers each time, which takes a second of the loop. Nor need it look at a thousand adds under way
again and again. What is in cycles is freed later: some megabytes."""

from __future__ import annotations

import gc

_GARBAGE_OBJECTS = 50_000
"""The collector looks once so many more objects were made than freed. A group of a thousand adds has some thousand."""


def collect_seldom() -> None:
    """For a process that has opened its storage. What is in a cycle at this moment is never freed."""
    gc.freeze()
    gc.set_threshold(_GARBAGE_OBJECTS, *gc.get_threshold()[1:])
