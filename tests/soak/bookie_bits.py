"""Every single bit of a small bookie's files flipped, one at a time: right answers or I/O errors, and scrub finds each.

Then every bit of its logs, sealed, rewritten and written to last, before a boot and while it serves: a ledger is deleted, the
logs are rewritten, the bookie is started again, twice. No wrong bytes, and no Negative for what was acked.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from tests.bookie.flips import Flips
from tests.bookie.rewritten_flips import RewrittenFlips
from tests.bookie.stepped import without_threads
from tests.soak._command import main


def run(rounds: int) -> Mapping[str, int]:
    """So many of the eight bits of each byte. Each core of the machine takes a bit and a kind of bookie at a time."""
    counts: Counter[str] = Counter()
    bits = range(min(rounds, 8))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for counted in pool.map(_rewritten_later, bits):
            counts += counted
        for counted in pool.map(_flipped, *zip(*product(bits, (True, False), (True, False)), strict=True)):
            counts += counted
            print(dict(counts), flush=True)
    return counts


def _flipped(bit: int, clean: bool, rewritten: bool) -> Counter[str]:
    logging.disable(logging.CRITICAL)
    counts: Counter[str] = Counter()
    with without_threads():
        flips = Flips(clean=clean, rewritten=rewritten)
        for path, offset in flips.places():
            counts[flips.judge(path, offset, bit)] += 1
            counts["flips"] += 1
    return counts


def _rewritten_later(bit: int) -> Counter[str]:
    logging.disable(logging.CRITICAL)
    counts: Counter[str] = Counter()
    with without_threads():
        flips = RewrittenFlips()
        for (path, offset), serving in product(flips.places(), (False, True)):
            outcome = flips.judge(path, offset, bit, serving=serving)
            counts[f"{outcome} after rewriting"] += 1
            counts["flips before rewriting"] += 1
    return counts


if __name__ == "__main__":
    main(__doc__, run, 8)
