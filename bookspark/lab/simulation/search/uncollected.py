"""Searches run without Python's collector of cyclic garbage.

Law: what a search leaves behind is freed by counting references, but for a few objects for each world. So the collector finds
nothing while a search runs, and it looked through all states and steps of the world again and again: up to a third of the
processor time of an exhaustive search. After the search it works as before.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """The collector rests meanwhile, unless it rested before."""
    rested = not gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not rested:
            gc.enable()
