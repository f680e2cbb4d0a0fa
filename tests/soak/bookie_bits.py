"""Flips every single bit of a small bookie's files, one at a time: answers must be right or I/O errors, and scrub must
find each flip.

Also while the bookie serves, followed by a clean stop or a power cut. Then every bit of its sealed, rewritten and current
logs is flipped, before a boot and while it serves; a ledger is deleted, the logs are rewritten, and the bookie is
restarted, twice. No wrong bytes, and no Negative for an acknowledged entry.

A line with the counts so far follows each part: one bit of each byte in one kind of bookie. ``--first`` and ``--rounds``
choose the bits, so that they can be spread over several runs.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product

from tests.soak._command import main
from tests.store.bookie.flips import Flips
from tests.store.bookie.rewritten_flips import RewrittenFlips
from tests.store.bookie.stepped import without_threads


def run(rounds: int, first: int = 0) -> Mapping[str, int]:
    """Flip ``rounds`` of the eight bits of each byte, from bit ``first`` on. Each core of the machine works on a part."""
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        parts = []
        for bit in range(first, min(first + rounds, 8)):
            parts += [pool.submit(_flipped, bit, *kind) for kind in product((True, False), repeat=2)]
            parts += [pool.submit(_served, bit, *kind) for kind in product((True, False), repeat=2)]
            parts.append(pool.submit(_rewritten_later, bit))
        for number, part in enumerate(as_completed(parts), 1):
            counts += part.result()
            print(f"{number} of {len(parts)} parts: {dict(counts)}", flush=True)
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


def _served(bit: int, power_cut: bool, rewritten: bool) -> Counter[str]:
    logging.disable(logging.CRITICAL)
    counts: Counter[str] = Counter()
    with without_threads():
        flips = Flips(clean=False, rewritten=rewritten)
        for path, offset in flips.places():
            outcome = flips.judge_served(path, offset, bit, power_cut=power_cut)
            counts[f"{outcome} while it serves"] += 1
            counts["flips while it serves"] += 1
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
