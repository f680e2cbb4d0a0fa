"""Random schedules of all clients of a log (``tests/histories/log_schedules``).

Queries, batch writes, producers, readers, truncations, collections and ends of lanes run on a cluster in memory that loses
answers, while processes die. Logs are deleted and created again, expire and are offloaded; reader groups read them;
queries have copies of checkpoints and follow one another. ROUNDS: schedules, 2,000 by default; ``--first``: the first
seed; ``--kind``: one kind, else all of them in turn.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping

from tests.histories.log_schedules.run import Kind, run
from tests.soak._command import main


def schedules(rounds: int, first: int = 0, kind: str = "") -> Mapping[str, object]:
    """Raises AssertionError with the steps of the first schedule that breaks a law."""
    # Schedules provoke errors and truncated rows, so their log messages are expected.
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
