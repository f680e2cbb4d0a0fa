"""Chaos with many clients, whose every decision is recorded and then replayed by the pure code.

The number of rounds is that of minutes. The record is in a temporary folder, which is kept if a difference or violation is
found.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from random import SystemRandom

from bookspark.lab.replay.run import Replay
from bookspark.store.decisions.recorder import end_recording
from bookspark.testing.chaos import Chaos
from tests.soak._command import main


def run(rounds: int, seed: int, seconds: int) -> Mapping[str, object]:
    folder = Path(tempfile.mkdtemp(prefix="bookspark-decisions-"))
    seed = seed or SystemRandom().randrange(1 << 31)
    chaos = Chaos(seconds or rounds * 60, seed, writers=8, recoverers=3, readers=4, record=str(folder)).run()
    end_recording()
    size, began = sum(path.stat().st_size for path in folder.iterdir()), time.monotonic()
    replay = Replay(folder)
    result = replay.run()
    for found in (*chaos.violations, *result.differences, *result.broken):
        print(found, flush=True)
    if result.first_failing is not None:
        page = folder / "story.html"
        page.write_text(replay.page(result.first_failing), encoding="utf-8")
        print(f"the story: {page}", flush=True)
    if result.differences or result.broken or chaos.violations:
        sys.exit(1)
    shutil.rmtree(folder)
    return {
        "seed": seed,
        "seconds": chaos.seconds,
        "faults": sum(chaos.injected.values()),
        "processes": len(result.counts),
        "machines": sum(one.machines for one in result.counts),
        "decisions": result.decisions,
        "not_replayed": result.lost,
        "bytes": size,
        "ledgers": result.ledgers,
        "replayed_in_seconds": round(time.monotonic() - began, 1),
        "violations": 0,
    }


if __name__ == "__main__":
    main(__doc__, run, 60)
