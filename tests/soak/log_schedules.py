"""Random schedules of all that works on a log (``tests/logs/schedules``): queries, batch writes, producers, readers, truncations,
collections and lanes that are ended, over a cluster in memory whose answers get lost, while processes die; and of logs that are
deleted and made anew, whose rows expire, that are offloaded, that groups of readers read, or whose queries have copies of
checkpoints and follow one another. The number of rounds is that of schedules, 2,000 if none is given; ``--first`` is the first
one's seed, ``--kind`` says which kind; all of them in turn, if none is given."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping

from tests.logs.schedules.run import Kind, run
from tests.soak._command import main


def schedules(rounds: int, first: int = 0, kind: str = "") -> Mapping[str, object]:
    """Raises AssertionError with the steps of the first schedule that breaks a law."""
    # Errors and truncated rows are what a schedule is about.
    logging.disable(logging.CRITICAL)
    sums: Counter[str] = Counter()
    told, begun = time.monotonic(), time.process_time()
    kinds = [Kind(kind)] if kind else list(Kind)
    for seed in range(first, first + rounds):
        sums.update(run(seed, kinds[seed % len(kinds)]))
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(f"{seed - first + 1} schedules: {dict(sums)}", flush=True)
    return {"schedules": rounds, **sums, "processor_seconds": round(time.process_time() - begun, 1)}


if __name__ == "__main__":
    main(__doc__ or "", schedules, 2000)
