"""The judge: a plugin of pytest that runs, for each mutant, a short simulation and the tests that reach it.

Law: each mutant lives in a process of its own, which is forked after all tests have been collected, with limits of processor time
and of time. First everything is run once without a mutant, and who reaches which line is noted (``reaching``): a test that never
comes to the mutant's lines can't find it, and is left out. The quickest come first, and the first that fails ends it. Nothing is
drawn anew, so the same mutants are found by the same.

A test that stands is not ended before its own deadline, at which it fails in any run of the tests. Any failure finds the mutant
only if the same test passes without it, afterwards on the same machine: mutants share clusters, and one may spoil the test of
another one. What was ended sooner, or for the processor time that it took, is undecided.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants.changing import Known, Part, change
from tests.mutants.forking import Watch, Work, each_in_a_process
from tests.mutants.reaching import Reached, Run, known_runs, traced

SIMULATION = "simulate"
"""Stands among the names of tests."""
_CLUSTERS = frozenset(("bookspark_zookeeper", "zookeeper", "new_chroot", "chroot", "local_cluster", "faulty_cluster"))
"""Fixtures that start processes, where no mutant is. They are for parts of which enough runs in the tests' own process."""
_LIMIT_SECONDS = 5
"""A mutant may take three times as long as the right code, and this."""
_ALL_SECONDS = 1800
_QUICK_SECONDS = 0.1
_STANDS_SECONDS = 10
"""A test of a mutant stands when it takes four times as long as without, and this."""


class Judge:
    """``choose``: of all mutants, those to judge. ``told``: is called with each verdict. ``seconds``: how long the tests of one
    mutant may take together; the slowest are left out. ``deadline``: a test ends after so many seconds if its own deadline is
    later. ``schedules``: how many the simulation has. ``reached_at``: a file with
    the runs without a mutant that are known already; others are added."""

    def __init__(
        self,
        choose: Callable[[], Sequence[Known]],
        told: Callable[[dict[str, Any]], None],
        *,
        seconds: float,
        deadline: float,
        schedules: int,
        processes: int,
        part: Part,
        reached_at: Path | None = None,
    ) -> None:
        self._choose = choose
        self._told = told
        self._seconds = seconds
        self._deadline = deadline
        self._schedules = schedules
        self._processes = processes
        self._part = part
        self._reached_at = reached_at
        self._items: dict[str, pytest.Item] = {}

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
        for item in session.items:
            if self._part.in_clusters or not _needs_cluster(item):
                self._items[item.nodeid] = item
        if not any(map(_needs_cluster, self._items.values())):
            self._judge_all()
            return True
        with _shared_cluster():
            self._judge_all()
        return True

    def _judge_all(self) -> None:
        reached = Reached(self._runs(), last=lambda test: test in self._items and _needs_cluster(self._items[test]))
        mutants = self._choose()
        gc.freeze()
        works = (self._work(mutant, reached) for mutant in mutants)
        finds: dict[str, list[dict[str, Any]]] = {}
        for mutant, verdict in each_in_a_process(works, self._processes):
            verdict = {"mutant": mutant.name, "operator": mutant.operator, **(verdict or self._ended())}
            self._told(verdict)
            if test := verdict.get("deadline") or verdict["tests"]:
                finds.setdefault(test, []).append(verdict)
        for test, failed in each_in_a_process(map(self._without, filter(self._items.get, finds)), self._processes):
            passed = failed == {"why": ""}
            for verdict in finds[test]:
                if passed and verdict.get("deadline"):
                    self._told({**verdict, "killed": True, "tests": f"deadline: {test}", "undecided": ""})
                elif not passed and not verdict["simulation"] and not verdict.get("deadline"):
                    self._told({**verdict, "killed": False, "tests": "", "undecided": f"fails without it too: {test}"})

    def _ended(self) -> dict[str, Any]:
        """The verdict of a mutant that took too much processor time. The protocol computes, and waits for nobody: a slow machine
        does not make it take more."""
        verdict = {"simulation": None, "tests": None}
        if self._part.is_simulated:
            return {**verdict, "killed": True, "tests": "processor time", "undecided": ""}
        return {**verdict, "killed": False, "undecided": "processor time"}

    # -- without a mutant

    def _runs(self) -> list[Run]:
        """Everything once, a module after the other."""
        names = [SIMULATION] * self._part.is_simulated + list(self._items)
        known = {run.test: run for run in known_runs(self._reached_at)}
        modules: dict[str, list[str]] = {}
        for name in names:
            if name not in known:
                modules.setdefault(name.partition("::")[0], []).append(name)
        works = (Work(module, partial(self._traced_in_turn, tests), _ALL_SECONDS) for module, tests in modules.items())
        for module, runs in each_in_a_process(works, self._processes):
            if runs is None:
                print(f"{module} did not end without a mutant: it is left out", file=sys.stderr)
                runs = [Run(test, 0.0, "did not end", []) for test in modules[module]]
            for run in (Run(*run, [tuple(place) for place in reached]) for *run, reached in runs):
                known[run.test] = run
                if self._reached_at is not None:
                    with self._reached_at.open("a") as out:
                        out.write(run.line())
        for name in names:
            if failed := known[name].failed:
                if self._part.is_simulated:
                    raise RuntimeError(f"without a mutant, this fails: {name}: {failed}")
                print(f"without a mutant, this fails, and is left out: {name}: {failed[-200:]}", file=sys.stderr)
        return [known[name] for name in names if not known[name].failed]

    def _traced_in_turn(self, tests: Sequence[str], watch: Watch) -> list[Run]:
        return list(map(self._traced, tests, [*tests[1:], ""], [*tests[1:], tests[0] if tests[1:] else ""]))

    def _traced(self, name: str, following: str, beside: str) -> Run:
        """With the clock of processors for what computes, and with everybody's for what waits. A test that computes takes several
        times as long while its lines are noted, so one that was not quick runs once more for its seconds. ``beside``: another
        test of the module, which keeps what they share."""
        clock = time.process_time if self._part.is_simulated else time.monotonic
        if name == SIMULATION:
            return traced(self._part, name, lambda: self._run(name, following), clock)
        run = traced(self._part, name, lambda: self._run(name, beside), clock)
        if run.seconds < _QUICK_SECONDS:
            return run
        began = clock()
        failed = self._run(name, following)
        return run._replace(seconds=min(run.seconds, round(clock() - began, 3)), failed=run.failed or failed)

    # -- with one

    def _work(self, mutant: Known, reached: Reached) -> Work:
        """The judgement of one mutant, by as many of those who reach it as there is time for."""
        judges: list[Run] = []
        seconds = 0.0
        for run in reached.by(mutant):
            if run.test == SIMULATION or seconds + run.seconds <= self._seconds:
                seconds += run.seconds
                judges.append(run)
        return Work(mutant, lambda watch: self._judge(mutant, judges, watch), 3 * seconds + _LIMIT_SECONDS)

    def _judge(self, mutant: Known, judges: Sequence[Run], watch: Watch) -> dict[str, Any]:
        began = time.process_time()
        change(mutant)
        simulation = None
        if any(run.test == SIMULATION for run in judges):
            simulation = self._simulate()
        simulated = time.process_time()
        tests = [run for run in judges if run.test != SIMULATION]

        def verdict(failed: str | None) -> dict[str, Any]:
            return {
                "killed": bool(simulation or failed),
                "simulation": simulation,
                "simulation_seconds": round(simulated - began, 2),
                "tests": failed,
                "tests_seconds": round(time.process_time() - simulated, 2),
                "judges": len(tests),
            }

        for run, following in zip(tests, [*(run.test for run in tests[1:]), ""], strict=False):
            own = _deadline(self._items[run.test])
            ended = {"undecided": f"stood: {run.test}", "deadline": run.test if own <= self._deadline else ""}
            watch(_stands_seconds(run), min(own, self._deadline), {**verdict(""), **ended})
            if self._run(run.test, following):
                return verdict(run.test)
        return verdict("" if tests else None)

    def _without(self, test: str) -> Work:
        """Once more without a mutant, and with a quarter of its time."""
        own = _deadline(self._items[test]) / 4

        def work(watch: Watch) -> dict[str, str]:
            watch(own, own, {"why": "it stands without the mutant too"})
            return {"why": self._run(test, "")}

        return Work(test, work, own)

    def _run(self, name: str, following: str) -> str:
        """Why it failed; empty if it did not. What it shares with the following test, if there is one, is left to that."""
        if name == SIMULATION:
            return self._simulate()
        reports = runtestprotocol(self._items[name], log=False, nextitem=self._items.get(following))
        return next((str(report.longrepr)[-500:] for report in reports if report.failed), "")

    def _simulate(self) -> str:
        """The violation, or the error of a machine, that random schedules of all modes end in."""
        from bookspark.simulation.search.random_schedules import RandomSchedules
        from bookspark.simulation.search.uncollected import uncollected

        schedules = RandomSchedules({})
        try:
            with uncollected():
                for number in range(self._schedules):
                    # A block of neighbours has the same options: steps of 7 see many options, and some of them more often.
                    violation = schedules.schedule(7 * number)[2]
                    if violation is not None:
                        return violation.invariant
        except Exception as error:
            return type(error).__name__
        return ""


def _stands_seconds(run: Run) -> float:
    return 4 * run.seconds + _STANDS_SECONDS


def _deadline(item: pytest.Item) -> float:
    """The test's own, in seconds: pytest-timeout fails it then."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0] if mark else item.config.getini("timeout"))


def _needs_cluster(item: pytest.Item) -> bool:
    return not _CLUSTERS.isdisjoint(getattr(item, "fixturenames", ()))


@contextmanager
def lent(cluster: Any) -> Iterator[Any]:
    """A cluster that goes on, for one module: the clients that it made there end with the module, as they would with a cluster of
    its own. If they did not, their threads would fail the module's last test, and any mutant with it."""
    before, cluster._stack = cluster._stack, ExitStack()
    try:
        with cluster._stack:
            yield cluster
    finally:
        cluster._stack = before


@contextmanager
def _shared_cluster() -> Iterator[None]:
    """One ZooKeeper and one cluster of three bookies for all mutants. A forked process can neither end nor break them."""
    # Not before pytest has seen its plugins.
    from bookspark.local import LocalCluster
    from bookspark.metadata.zookeeper.embedded import EmbeddedZooKeeper
    from bookspark.testing import plugin
    from tests.cluster import conftest

    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedZooKeeper(Path(directory)) as server,
        LocalCluster(bookies=3, zookeeper=f"{server.connection_string}/mutants") as cluster,
    ):

        def shared(*, zookeeper: str, bookies: int = 3, **options: Any) -> Any:
            own = options or bookies != 3
            return LocalCluster(bookies=bookies, zookeeper=zookeeper, **options) if own else lent(cluster)

        for module in (plugin, conftest):
            module.LocalCluster = shared  # type: ignore[assignment,attr-defined]
        plugin.EmbeddedZooKeeper = lambda directory: nullcontext(server)  # type: ignore[assignment,misc]
        yield
