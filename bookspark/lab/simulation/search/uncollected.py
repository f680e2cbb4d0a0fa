"""Searches without Python's collector of cyclic garbage.

Law: reference counts free the garbage of a search, except for a few objects of each world. The collector would scan all
states and steps in vain, for up to a third of the processor time of an exhaustive search. After the search it works as
before.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the collector within the block, and restore its state after it."""
    rested = not gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not rested:
            gc.enable()
