"""The judge: a plugin of pytest that runs, for each mutant, a short simulation and the tests that reach it.

Law: each mutant lives in a process of its own, which is forked after all tests have been collected, with limits of processor time
and of time. First everything is run once without a mutant, and each line of the protocol notes who reaches it: a test that never
comes to the mutant's lines can't find it, and is left out. The quickest come first, and the first that fails ends it. Nothing is
drawn anew, so the same mutants are found by the same.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.changing import PROTOCOL, Known, change

_SIMULATION = -1
"""The number of the simulation, among the numbers of tests."""
_CLUSTERS = frozenset(("bookspark_zookeeper", "zookeeper", "new_chroot", "chroot", "local_cluster", "faulty_cluster"))
"""Fixtures that start processes. Tests with these are another harness's."""
_LIMIT_SECONDS = 5
"""A mutant that takes three times as long as the right code, and this, does not end: that is found."""
_ALL_SECONDS = 1800
_WAITS_SECONDS = 600
"""How long a mutant may wait, if it does nothing."""
_MEMORY_MAX = 8 << 30
_NEVER_ENDED = {"killed": True, "simulation": None, "tests": "time limit"}

_Line = tuple[str, int]


class Reached(NamedTuple):
    """Who reaches each line, and how long each takes: tests by their number, and the simulation as ``_SIMULATION``."""

    by_line: Mapping[_Line, set[int]]
    seconds: Mapping[int, float]

    def by(self, mutant: Known) -> list[int]:
        """Those who reach the mutant, the quickest first."""
        wanted = range(mutant.first, mutant.last + 1)
        found: set[int] = set()
        for (path, line), who in self.by_line.items():
            if path == mutant.path and (not mutant.first or line in wanted):
                found |= who
        return sorted(found, key=lambda one: (self.seconds[one], one))


class Judge:
    """``choose``: of all mutants, those to judge. ``told``: is called with each verdict. ``seconds``: how long the tests of one
    mutant may take together; the slowest are left out. ``schedules``: how many the simulation has."""

    def __init__(
        self,
        choose: Callable[[], Sequence[Known]],
        told: Callable[[dict[str, Any]], None],
        *,
        seconds: float,
        schedules: int,
        processes: int,
    ) -> None:
        self._choose = choose
        self._told = told
        self._seconds = seconds
        self._schedules = schedules
        self._processes = processes
        self._items: list[pytest.Item] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        # Not before pytest has seen its plugins.
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutants", deadline=None, database=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors while tests were collected")
        self._items = [item for item in session.items if _CLUSTERS.isdisjoint(getattr(item, "fixturenames", ()))]
        reached = self._reached()
        mutants = self._choose()
        gc.freeze()
        works = (self._work(mutant, reached) for mutant in mutants)
        for mutant, verdict in _each_in_a_process(works, self._processes):
            self._told({"mutant": mutant.name, "operator": mutant.operator, **(verdict or _NEVER_ENDED)})
        return True

    # -- without a mutant

    def _reached(self) -> Reached:
        """Everything once, over the processes."""
        everything = [_SIMULATION, *range(len(self._items))]
        shares = [everything[at :: self._processes] for at in range(self._processes)]
        by_line: dict[_Line, set[int]] = {}
        seconds: dict[int, float] = {}
        works = (_Work(at, lambda share=share: self._trace(share), _ALL_SECONDS) for at, share in enumerate(shares))
        for _, found in _each_in_a_process(works, self._processes):
            if found is None:
                raise RuntimeError("the tests without a mutant did not end")
            for who, (took, failed, lines) in found.items():
                if failed:
                    raise RuntimeError(f"without a mutant, this fails: {self._name(int(who))}: {failed}")
                seconds[int(who)] = took
                for path, line in lines:
                    by_line.setdefault((path, line), set()).add(int(who))
        return Reached(by_line, seconds)

    def _trace(self, share: Iterable[int]) -> dict[int, Any]:
        return {who: self._traced(who) for who in share}

    def _traced(self, who: int) -> tuple[float, str, list[_Line]]:
        """The seconds that it took, why it failed, and the lines that it reached."""
        lines: set[_Line] = set()
        folder = str(PROTOCOL)

        def enter(frame: FrameType, event: str, argument: object) -> Any:
            return line if frame.f_code.co_filename.startswith(folder) else None

        def line(frame: FrameType, event: str, argument: object) -> Any:
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            return line

        began = time.process_time()
        sys.settrace(enter)
        try:
            failed = self._run(who)
        finally:
            sys.settrace(None)
        return time.process_time() - began, failed, sorted(lines)

    # -- with one

    def _work(self, mutant: Known, reached: Reached) -> _Work:
        """The judgement of one mutant, by as many of those who reach it as there is time for."""
        judges, seconds = [], 0.0
        for who in reached.by(mutant):
            if who == _SIMULATION or seconds + reached.seconds[who] <= self._seconds:
                seconds += reached.seconds[who]
                judges.append(who)
        return _Work(mutant, lambda: self._judge(mutant, judges), 3 * seconds + _LIMIT_SECONDS)

    def _judge(self, mutant: Known, judges: Sequence[int]) -> dict[str, Any]:
        began = time.process_time()
        change(mutant)
        simulation = self._simulate() if _SIMULATION in judges else None
        simulated = time.process_time()
        tests = [who for who in judges if who != _SIMULATION]
        failed = next((self._name(who) for who in tests if self._run(who)), "") if tests else None
        return {
            "killed": bool(simulation or failed),
            "simulation": simulation,
            "simulation_seconds": round(simulated - began, 2),
            "tests": failed,
            "tests_seconds": round(time.process_time() - simulated, 2),
        }

    def _name(self, who: int) -> str:
        return "simulate" if who == _SIMULATION else self._items[who].nodeid

    def _run(self, who: int) -> str:
        """Why it failed; empty if it did not."""
        if who == _SIMULATION:
            return self._simulate()
        reports = runtestprotocol(self._items[who], log=False, nextitem=None)
        return next((str(report.longrepr)[-500:] for report in reports if report.failed), "")

    def _simulate(self) -> str:
        """The violation, or the error of a machine, that random schedules of all modes end in."""
        from bookspark.simulation.search.random_schedules import RandomSchedules

        schedules = RandomSchedules({})
        try:
            for number in range(self._schedules):
                # A block of neighbours has the same options: steps of 7 see many options, and some of them more often.
                violation = schedules.schedule(7 * number)[2]
                if violation is not None:
                    return violation.invariant
        except Exception as error:
            return type(error).__name__
        return ""


# -- processes


class _Work(NamedTuple):
    """``limit_seconds``: the processor time that it may take."""

    key: Any
    do: Callable[[], Any]
    limit_seconds: float


def _each_in_a_process(works: Iterable[_Work], processes: int) -> Iterator[tuple[Any, Any]]:
    """Do each work in a forked process. Yields its key with what it returned, or None if it was ended at its limit."""
    running: dict[int, tuple[Any, Any]] = {}
    waiting = iter(works)
    try:
        while True:
            while len(running) < processes and (work := next(waiting, None)) is not None:
                answer = tempfile.TemporaryFile("w+")  # noqa: SIM115  it is closed when the process has ended
                running[_forked(work, answer)] = work.key, answer
            if not running:
                return
            ended, _ = os.wait()
            key, answer = running.pop(ended)
            with answer:
                answer.seek(0)
                said = json.loads(answer.read() or "null")
            if isinstance(said, str):
                raise RuntimeError(f"{key}: {said}")
            yield key, said
    finally:
        for process in running:
            os.kill(process, signal.SIGKILL)


def _forked(work: _Work, answer: Any) -> int:
    process = os.fork()
    if process:
        return process
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        limit = int(work.limit_seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10 * limit + _WAITS_SECONDS)
        try:
            said = work.do()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        json.dump(said, answer)
        answer.flush()
    finally:
        os._exit(0)
