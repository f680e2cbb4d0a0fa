"""Every single bit of a small bookie's files flipped, one at a time: right answers or I/O errors, and scrub finds each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product

from tests.bookie.flips import Flips
from tests.bookie.stepped import without_threads
from tests.soak._command import main


def run(rounds: int) -> Mapping[str, int]:
    """So many of the eight bits of each byte."""
    counts: Counter[str] = Counter()
    with without_threads():
        for clean, rewritten in product((True, False), repeat=2):
            flips = Flips(clean=clean, rewritten=rewritten)
            for (path, offset), bit in product(flips.places(), range(min(rounds, 8))):
                counts[flips.judge(path, offset, bit)] += 1
                counts["flips"] += 1
    return counts


if __name__ == "__main__":
    main(__doc__, run, 8)
