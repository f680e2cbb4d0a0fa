"""Random histories of a bookie's storage on disks that fail, fill up and lie, with many more seeds than the gate runs.

A round is one story; the kinds of trouble take turns, and each process runs its own stories. Each kind of failure is
printed once, with its seed and its shortest story. A story must leave nothing behind: a process that grows ends the soak.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import resource
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor

from tests.soak._command import main
from tests.store.bookie.histories import failure_of, stepped
from tests.store.bookie.stories import TROUBLES, drawn_story, shortened

_STORIES_A_TASK = 500
_STORIES_A_LINE = 5_000
_TASKS_A_PROCESS = 40
# A process has 40 MiB after its first story, and the same after its last.
_PROCESS_MIB_MAX = 300


def run(rounds: int, first: int = 0, processes: int = 0) -> Mapping[str, int]:
    """Run the stories ``first`` to ``first + rounds - 1``: number N is seed N // 5 of trouble N mod 5. ``processes``: 0 is
    one for each core."""
    counts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    end = first + rounds
    tasks = [range(start, min(start + _STORIES_A_TASK, end)) for start in range(first, end, _STORIES_A_TASK)]
    processes = processes or os.cpu_count() or 1
    fresh = multiprocessing.get_context("spawn")
    at_once = processes * _TASKS_A_PROCESS
    for start in range(0, len(tasks), at_once):
        # Replace the processes now and then: a pool of Python 3.11 can't replace a process that ends by itself.
        with ProcessPoolExecutor(processes, fresh) as pool:
            for stories, steps, failed in pool.map(_told, tasks[start : start + at_once]):
                for failure, (trouble, seed) in failed:
                    failures[failure] += 1
                    if failures[failure] == 1:
                        print(f"{trouble} {seed}: {failure}\n  {_shortest(trouble, seed, failure)}", flush=True)
                counts["steps"] += steps
                counts["stories"] += stories
                if counts["stories"] % _STORIES_A_LINE == 0:
                    print(f"{counts['stories']:,} stories, {failures.total()} break the law", flush=True)
    for failure, count in failures.most_common():
        print(f"{count} x {failure}", flush=True)
    assert not failures, f"{failures.total()} of {rounds} stories break the law"
    return counts


def _told(numbers: range) -> tuple[int, int, list[tuple[str, tuple[str, int]]]]:
    """The number of stories and of their steps, and the stories that break the law."""
    logging.disable(logging.CRITICAL)
    _collect_seldom()
    steps = 0
    failed = []
    with stepped():
        for number in numbers:
            seed, kind = divmod(number, len(TROUBLES))
            story = drawn_story(TROUBLES[kind], seed)
            steps += len(story.steps)
            if failure := failure_of(story):
                failed.append((failure, (TROUBLES[kind], seed)))
    used_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    if used_mib > _PROCESS_MIB_MAX:
        raise MemoryError(
            f"a process had {used_mib} MiB at the end of stories {numbers.start} to {numbers.stop - 1}, at most "
            f"{_PROCESS_MIB_MAX} are expected: something keeps what stories that ended have made"
        )
    return len(numbers), steps, failed


def _collect_seldom() -> None:
    """Exclude the imported modules from garbage collection, and collect less often: a story makes some thousands of
    objects."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


def _shortest(trouble: str, seed: int, failure: str) -> object:
    logging.disable(logging.CRITICAL)
    with stepped():
        return shortened(drawn_story(trouble, seed), lambda other: failure_of(other) == failure)


if __name__ == "__main__":
    main(__doc__, run, 100_000)
