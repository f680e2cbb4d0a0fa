"""Who reaches which line of a part, without a mutant: the tests that can find a wrong one.

Law: a line is named by its function and its distance from the function's head, so what was measured is good until that function
changes. It can be kept in a file: one line of JSON for each test. All threads of this process count, and no other process.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tests.mutants.changing import ROOT, Known, Part, place_of

_OFTEN = 300
"""So often a test enters a function before the lines of it that were not seen count as reached."""

Place = tuple[str, str, int]
"""Path below the root, function, lines from the function's head."""


class Run(NamedTuple):
    """A test, or the simulation, without a mutant. ``failed``: why; empty if it did not."""

    test: str
    seconds: float
    failed: str
    reached: list[Place]

    def line(self) -> str:
        functions: dict[str, dict[str, list[int]]] = {}
        for path, function, line in self.reached:
            functions.setdefault(path, {}).setdefault(function, []).append(line)
        return json.dumps([self.test, self.seconds, self.failed, functions]) + "\n"


def known_runs(file: Path | None) -> Iterator[Run]:
    if file is None or not file.exists():
        return
    for test, seconds, failed, functions in map(json.loads, file.read_text().splitlines()):
        reached = [
            (path, function, line)
            for path, lines_of in functions.items()
            for function, lines in lines_of.items()
            for line in lines
        ]
        yield Run(test, seconds, failed, reached)


class Reached:
    """The runs by what they reach. ``last``: those that come after the others, a module after the other."""

    def __init__(self, runs: Iterable[Run], last: Callable[[str], bool]) -> None:
        runs = sorted(runs, key=lambda run: (run.seconds, run.test))
        quickest: dict[str, float] = {}
        for run in runs:
            quickest.setdefault(_module(run), run.seconds)
        self._turns = {
            run.test: (True, quickest[_module(run)], _module(run), run.seconds)
            if last(run.test)
            else (False, run.seconds, run.test, 0.0)
            for run in runs
        }
        self._by_place: dict[Place, list[Run]] = {}
        self._by_path: dict[str, list[Run]] = {}
        for run in runs:
            for place in run.reached:
                self._by_place.setdefault(place, []).append(run)
            paths = {path for path, _, _ in run.reached}
            for path in paths | {str(Path(path).parent) for path in paths}:
                self._by_path.setdefault(path, []).append(run)

    def by(self, mutant: Known) -> list[Run]:
        """Those who reach the mutant, the quickest first."""
        path = str(Path(mutant.path).relative_to(ROOT))
        if not mutant.first:
            # A table may stand in a module without a function: then all judge it that reach its shelf.
            return self._in_turn(self._by_path.get(path) or self._by_path.get(str(Path(path).parent), []))
        function, first = place_of(mutant.path, mutant.first)
        found = {
            run.test: run
            for line in range(first, first + mutant.last - mutant.first + 1)
            for run in self._by_place.get((path, function, line), ())
        }
        return self._in_turn(found.values())

    def _in_turn(self, runs: Iterable[Run]) -> list[Run]:
        return sorted(runs, key=lambda run: self._turns[run.test])


def _module(run: Run) -> str:
    return run.test.partition("::")[0]


class _Tracer:
    """Notes the lines of one folder for whoever runs now. A thread that an earlier test started, as the server of a module's
    fixture is, counts for the present one: a thread keeps its trace function, so there is one for all tests."""

    def __init__(self) -> None:
        self.begin("\0")

    def begin(self, folder: str) -> None:
        """Forget what was noted, and note the lines below ``folder``."""
        self._folder = folder
        self._left: dict[CodeType, set[int]] = {}
        self._entered: Counter[CodeType] = Counter()
        self.seen: set[tuple[str, int]] = set()

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        """The trace function. A function of which all lines were seen is not looked at again. Neither is one that was entered
        often: all its lines count as reached then, and a test that does much is not slowed down much."""
        code = frame.f_code
        if not code.co_filename.startswith(self._folder):
            return None
        left = self._left.get(code)
        if left is None:
            left = {line for _, _, line in code.co_lines() if line is not None} - {code.co_firstlineno}
            self._left[code] = left
        if not left:
            return None
        self._entered[code] += 1
        if self._entered[code] > _OFTEN:
            self.seen.update((code.co_filename, line) for line in left)
            left.clear()
            return None
        return self._line

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename.startswith(self._folder):
            self._left.setdefault(frame.f_code, set()).discard(frame.f_lineno)
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


_tracer = _Tracer()


def traced(part: Part, test: str, run: Callable[[], str], clock: Callable[[], float]) -> Run:
    """Run it and note the lines."""
    _tracer.begin(str(part.folder))
    began = clock()
    threading.settrace(_tracer.enter)
    sys.settrace(_tracer.enter)
    try:
        failed = run()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        seen = sorted(_tracer.seen)
        _tracer.begin("\0")
    seconds = clock() - began
    reached = [(str(Path(path).relative_to(ROOT)), *place_of(path, at)) for path, at in seen]
    return Run(test, round(seconds, 3), failed, reached)
