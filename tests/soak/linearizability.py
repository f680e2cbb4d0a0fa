"""Chaos whose history is judged by Porcupine and by our own checker (``tests.histories.porcupine``). Rounds are minutes.

Needs Go, and the module github.com/anishathalye/porcupine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from random import SystemRandom

from bookspark.testing.chaos import Chaos
from bookspark.testing.history import Event
from tests.histories.porcupine.judge import built, judge, of_ledgers
from tests.soak._command import main

_SECONDS_MAX = 600.0


def run(rounds: int, seed: int, seconds: int) -> Mapping[str, object]:
    program = built()
    if program is None:
        sys.exit("needs Go, and the module github.com/anishathalye/porcupine")
    seed = seed or SystemRandom().randrange(1 << 31)
    events: list[Event] = []
    result = Chaos(seconds or rounds * 60, seed, watcher=events.append).run()
    if result.violations:
        print("\n".join([*result.violations, *result.excerpt]), flush=True)
        sys.exit(1)
    began = time.monotonic()
    verdict = judge(program, of_ledgers(events), _SECONDS_MAX)
    if verdict.illegal or verdict.unknown:
        print(f"seed {seed}: Porcupine says {verdict}", flush=True)
        sys.exit(1)
    return {
        "seed": seed,
        "ledgers": verdict.objects,
        "operations": verdict.operations,
        "judged_in_seconds": round(time.monotonic() - began, 1),
        "faults": sum(result.injected.values()),
        "violations": 0,
    }


if __name__ == "__main__":
    main(__doc__, run, 10)
