"""A log with all kinds of writers and readers at once, while they and the cluster suffer one fault after another.

Law: after any kills, at the end every acknowledged row is in the log once, each lane is in the order of its writer's appends,
every row was written by a writer, and each reader's account matches the log (``accounts``). At most one bookie is faulty at a
time.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from bookspark.local import LocalCluster
from bookspark.logs import create_log
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.ports import free_port
from tests.processes import processes_about
from tests.system.many_writers.accounts import check_all
from tests.system.many_writers.processes import ROOT, Program, Programs

LOG, TAIL = "many", "tail"
SHARERS = ("share-0", "share-1")
"""Readers of one group, which share the lanes."""
COMMANDS = (
    ("log", "collect", LOG),
    ("log", "end", LOG),
    ("log", "alter", LOG, "--retention-hours", "1000"),
    ("log", "alter", LOG, "--retention-hours", "0"),
    ("log", "describe", LOG),
    ("log", "readers", LOG),
    ("ledger", "recover"),
)
"""Commands of operators. Those to recover get an open ledger."""
COMMAND_SECONDS = 300.0
ROWS_PER_FILE = 100
FILES_AHEAD = 4
FINISH_SECONDS = 1500.0
"""For a busy machine: a Spark driver may take minutes to start."""
_EXECUTOR = "CoarseGrainedExecutorBackend"


class Size(NamedTuple):
    """The numbers of processes and faults."""

    producers: tuple[str, ...]
    drivers: Mapping[str, tuple[str, ...]]
    """For each driver its master and its jobs."""
    kills: tuple[str, ...]
    """Each kind of kill happens once in random order, then again."""
    pause_seconds: float
    """Maximum pause between two kills."""
    sharers: tuple[str, ...] = ()


FULL = Size(
    ("numbers-0", "numbers-1", "places-0", "places-1"),
    {
        "driver-a": ("local-cluster[1,1,640]", "q-0", "q-1"),
        "driver-b": ("local[6]", "q-2", "q-3", "batches", "copy"),
    },
    (
        *("producer", "producer", "take-over", "take-over", "tail", "executor"),
        *("bookie", "bookie suspended", "ZooKeeper", "driver-a", "driver-b"),
        *("sharer", "sharer", *["operators"] * 6),
    ),
    5.0,
    SHARERS,
)
SHORT = Size(
    ("numbers-0", "places-0"),
    {"driver-b": ("local[2]", "q-0", "batches", "copy")},
    (
        "driver-b",
        "producer",
        "take-over",
        "tail",
        "bookie",
        "bookie suspended",
        "producer",
        "take-over",
        "ZooKeeper",
        "operators",
    ),
    1.0,
)


def _nothing() -> None:
    pass


class ManyWriters:
    """A run in ``folder``, which is empty."""

    def __init__(self, folder: Path, size: Size, seed: int = 0) -> None:
        self._folder, self._size, self._random = folder, size, random.Random(seed)
        self._files: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._zookeeper = EmbeddedZooKeeper(folder / "zookeeper", port=free_port())
        self._kills: dict[str, Callable[[], bool]] = {
            "producer": lambda: self._kill(self._random.choice(size.producers)),
            "take-over": self._take_over,
            "tail": lambda: self._kill(TAIL),
            "sharer": lambda: self._kill(self._random.choice(size.sharers)),
            "operators": self._operate,
            "executor": self._kill_executor,
            "bookie": self._kill_bookie,
            "bookie suspended": self._suspend_bookie,
            "ZooKeeper": self._kill_zookeeper,
        } | {name: lambda name=name: self._kill_driver(name) for name in size.drivers}

    def run(self, seconds: float) -> Mapping[str, int]:
        """Inject faults for ``seconds`` and check; returns counts. Raises AssertionError."""
        self._began = time.monotonic()
        for job in self._queries():
            (self._folder / "input" / job).mkdir(parents=True)
        with (
            self._zookeeper as zookeeper,
            LocalCluster(bookies=5, zookeeper=zookeeper.connection_string, directory=self._folder) as self._cluster,
        ):
            with self._cluster.bookkeeper() as bookkeeper:
                create_log(bookkeeper, LOG)
            self._programs = Programs(
                [self._program(name) for name in (*self._size.producers, *self._readers(), *self._size.drivers)]
            )
            try:
                self._start()
                self._break(seconds)
                self._finish()
                self._tell("all is checked")
                with self._cluster.bookkeeper() as bookkeeper:
                    self.counts.update(
                        check_all(
                            bookkeeper, self._folder, LOG, self._size.producers, self._rows_fed(), self._size.sharers
                        )
                    )
            finally:
                for program in self._programs.all:
                    program.end()
        for program in self._programs.all:
            self.counts[f"lives of {program.name}"] = program.lives
            self.counts[f"ended by itself: {program.name}"] = program.endings["by an error or taken over"]
            for what, often in Counter([*program.told("ended"), *program.told("again")]).items():
                self.counts[f"{program.name} began again: {what[:200]}"] = often
        return self.counts

    # -- inside

    def _tell(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s: {what}", flush=True)

    def _program(self, name: str) -> Program:
        place = [str(self._folder), self._cluster.zookeeper, LOG]
        if name in self._size.drivers:
            master, *jobs = self._size.drivers[name]
            return Program(self._folder, name, "querying", [*place, name, master], jobs)
        return Program(self._folder, name, "tailing" if name in self._readers() else "producing", [*place, name])

    def _readers(self) -> list[str]:
        return [TAIL, *self._size.sharers]

    def _named(self, name: str) -> Program:
        return next(one for one in self._programs.all if one.name == name)

    def _queries(self) -> list[str]:
        return [job for _, *jobs in self._size.drivers.values() for job in jobs if job.startswith("q-")]

    def _rows_fed(self) -> dict[str, int]:
        return {job: self._files[job] * ROWS_PER_FILE for job in self._queries()}

    def _start(self) -> None:
        """Spark first, which takes longest."""
        for name in self._size.drivers:
            self._named(name).start()
        self._programs.await_all(
            lambda program: program.is_ready or program.name not in self._size.drivers, FINISH_SECONDS, self._feed
        )
        for program in self._programs.all:
            if not program.lives:
                program.start()
        self._tell("all are at work")

    def _break(self, seconds: float) -> None:
        """Inject faults for ``seconds``, and until each kind has happened, which takes longer on a busy machine."""
        until, kinds = time.monotonic() + seconds, list[str]()
        while True:
            if not kinds:
                kinds = self._random.sample(self._size.kills, len(self._size.kills))
            kind = kinds.pop()
            if self._kills[kind]():
                self.counts[f"kills: {kind}"] += 1
                self._tell(kind)
            self._pass(self._random.random() * self._size.pause_seconds)
            if not kinds and time.monotonic() > until:
                return

    def _finish(self) -> None:
        self._tell("the last rows are written")
        (self._folder / "finish").touch()

        def has_written(program: Program) -> bool:
            reads = program.name in self._readers() or (self._folder / f"{program.name}.written").exists()
            return reads or program.finished

        self._programs.await_all(has_written, FINISH_SECONDS, _nothing)
        self._tell("the last rows are read")
        (self._folder / "all-is-written").touch()
        self._programs.await_all(lambda program: program.finished, FINISH_SECONDS, _nothing)

    def _pass(self, seconds: float) -> None:
        self._programs.pass_time(seconds, self._feed)

    def _feed(self) -> None:
        """Give each query a few files more than it has taken in; it takes one in a micro-batch."""
        for job in self._queries():
            commits = self._folder / "checkpoints" / job / "commits"
            done = max((int(path.name) + 1 for path in commits.glob("[0-9]*")), default=0)
            while self._files[job] < done + FILES_AHEAD:
                first = self._files[job] * ROWS_PER_FILE
                path = self._folder / "input" / job / f"{self._files[job]:06}.txt"
                hidden = path.with_name(f".{path.name}")
                hidden.write_text("".join(f"{job} {row}\n" for row in range(first, first + ROWS_PER_FILE)))
                # Spark takes the oldest file first.
                os.utime(hidden, (self._files[job], self._files[job]))
                hidden.rename(path)
                self._files[job] += 1

    def _kill(self, name: str) -> bool:
        self._named(name).kill()
        return True

    def _take_over(self) -> bool:
        """Another life begins while this one lives."""
        self._named(self._random.choice(self._size.producers)).start()
        return True

    def _operate(self) -> bool:
        """One or two operators' commands at once; some are killed."""
        with self._cluster.bookkeeper() as bookkeeper:
            open_ledgers = [one for one in bookkeeper.list_ledgers() if not bookkeeper.get_ledger_metadata(one).closed]
        begun = []
        for number in range(self._random.randint(1, 2)):
            command = self._random.choice(COMMANDS)
            if command[-1] == "recover":
                command = (*command, str(self._random.choice(open_ledgers))) if open_ledgers else COMMANDS[0]
            printed = self._folder / f"operator-{sum(self.counts.values())}-{number}.out"
            with printed.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "bookspark", *command],
                    env=os.environ | {"PYTHONPATH": str(ROOT), "BOOKSPARK_ZOOKEEPER": self._cluster.zookeeper},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            begun.append((command, process, printed))
        for command, process, printed in begun:
            what = " ".join(command[:2])
            if self._random.random() < 0.3:
                self._pass(self._random.random() * 3)
                process.kill()
                process.wait()
                self.counts[f"killed: {what}"] += 1
                continue
            until = time.monotonic() + COMMAND_SECONDS
            while process.poll() is None:
                assert time.monotonic() < until, f"{command} does not end: {printed.read_text()}"
                self._pass(0.1)
            # The ledger may have been deleted meanwhile.
            assert not process.returncode or what == "ledger recover", f"{command}: {printed.read_text()}"
            self.counts[f"{what}: exit status {process.returncode}"] += 1
        return True

    def _kill_driver(self, name: str) -> bool:
        program = self._named(name)
        if not program.is_ready:
            return False
        program.kill()
        return True

    def _kill_executor(self) -> bool:
        executors = [pid for pid, command in processes_about(self._folder).items() if _EXECUTOR in command]
        if executors:
            os.kill(self._random.choice(executors), signal.SIGKILL)
        return bool(executors)

    def _kill_bookie(self) -> bool:
        bookie = self._random.choice(self._cluster.bookies)
        bookie.kill()
        self._pass(self._random.random() * 3)
        bookie.start()
        return True

    def _suspend_bookie(self) -> bool:
        bookie = self._random.choice(self._cluster.bookies)
        bookie.suspend()
        self._pass(self._random.random() * 6)
        bookie.resume()
        return True

    def _kill_zookeeper(self) -> bool:
        pid = self._zookeeper.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self._pass(self._random.random() * 2)
        self._zookeeper.start()
        return True
