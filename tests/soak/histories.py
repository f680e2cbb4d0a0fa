"""Random histories of a bookie's storage on disks that fail, fill up and lie, with many more seeds than the gate tries.

A round is one story; the kinds of trouble take turns. Each kind of failure is told once, with its seed and its shortest story."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from tests.bookie.histories import failure_of, stepped
from tests.bookie.stories import TROUBLES, drawn_story, shortened
from tests.soak._command import main


def run(rounds: int, first: int = 0, troubles: tuple[str, ...] = TROUBLES) -> Mapping[str, int]:
    logging.disable(logging.CRITICAL)
    counts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    with stepped():
        for number in range(rounds):
            trouble, seed = troubles[number % len(troubles)], first + number // len(troubles)
            story = drawn_story(trouble, seed)
            counts["stories"] += 1
            counts["steps"] += len(story.steps)
            failure = failure_of(story)
            if failure:
                failures[failure] += 1
                if failures[failure] == 1:
                    short = shortened(story, lambda other, failure=failure: failure_of(other) == failure)
                    print(f"{trouble} {seed}: {failure}\n  {short}", flush=True)
    for failure, count in failures.most_common():
        print(f"{count} x {failure}", flush=True)
    assert not failures, f"{failures.total()} of {rounds} stories break the law"
    return counts


if __name__ == "__main__":
    main(__doc__, run, 100_000)
