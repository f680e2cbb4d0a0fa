"""Every single bit of a small bookie's files flipped, one at a time: right answers or I/O errors, and scrub finds each.

Then every bit of its logs, sealed, rewritten and written to last, before a boot and while it serves: a ledger is deleted, the
logs are rewritten, the bookie is started again, twice. No wrong bytes, and no Negative for what was acked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product

from tests.bookie.flips import Flips
from tests.bookie.rewritten_flips import RewrittenFlips
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
        rewritten_flips = RewrittenFlips()
        for (path, offset), bit in product(rewritten_flips.places(), range(min(rounds, 8))):
            for serving in (False, True):
                outcome = rewritten_flips.judge(path, offset, bit, serving=serving)
                counts[f"{outcome} after rewriting"] += 1
                counts["flips before rewriting"] += 1
    return counts


if __name__ == "__main__":
    main(__doc__, run, 8)
