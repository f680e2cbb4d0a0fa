"""How many stories, drawn by seed, a test plays: some in each run of the tests, and as many as ``scripts/soak log-stories``
says."""

from __future__ import annotations

import os

STORIES = "BOOKSPARK_STORIES"


def seeds(usual: int) -> range:
    return range(int(os.environ.get(STORIES, usual)))
