"""The number of stories, drawn by seed, that a test plays: some in each test run, and as many as ``scripts/soak
log-stories`` asks for."""

from __future__ import annotations

import os

STORIES = "BOOKSPARK_STORIES"


def seeds(usual: int) -> range:
    return range(int(os.environ.get(STORIES, usual)))
