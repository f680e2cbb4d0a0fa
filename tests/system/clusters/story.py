"""Faults of a cluster of three bookies on two hosts, and the state that must follow each step.

Law: after each step tasks hold the same bookies, bookies that were not killed have the same process, and at the end the log and
the reader have each row exactly once. Each step prints its action and the time until tasks held all bookies again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bookspark.spark.bookies.service_records import SERVICES, read_wanted
from tests.awaiting import await_that, time_passes
from tests.system.clusters.cluster import ROOT, Cluster
from tests.system.clusters.load import LOG


@contextmanager
def kept_if_it_fails(prefix: str) -> Iterator[Path]:
    """A new folder whose name begins with ``prefix``. It is deleted on success."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    except BaseException:
        print(f"logs and data: {folder}", flush=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


class Load:
    """The query and the reader, each an application of its own."""

    module = "tests.system.clusters.load"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.folder = cluster.folder / "load"
        self.folder.mkdir()
        environment = {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._processes = []
        for what in ("write", "read"):
            command = [sys.executable, "-m", self.module, what, str(self.folder), cluster.zookeeper]
            self._processes.append(cluster.machine.run_on_gateway(command, self.folder / f"{what}.log", environment))
            # The log exists only after the query has created it.
            await_that(lambda what=what: self.steps(what) > 0, 600, lambda: f"the first rows; {self.tail()}")

    def steps(self, what: str) -> int:
        """The number of batches that it has reported."""
        log = self.folder / f"{what}.log"
        return log.read_text(errors="replace").count(f"{what}: rows") if log.exists() else 0

    def await_progress(self, seconds: float = 600.0) -> float:
        """Wait until the query and the reader make progress, counted from now."""
        began = time.monotonic()
        before = {what: self.steps(what) for what in ("write", "read")}
        await_that(
            lambda: all(self.steps(what) > count + 1 for what, count in before.items()),
            seconds,
            lambda: f"the query and the reader to get on; {self.tail()}",
        )
        return time.monotonic() - began

    def trouble(self) -> list[str]:
        """Lines of failures and resumptions; for consecutive failures the first line, with their number."""
        text = "".join((self.folder / f"{what}.log").read_text(errors="replace") for what in ("write", "read"))
        lines = [line for line in text.splitlines() if ": failed:" in line or ": resumed" in line]
        outages = [list(group) for _, group in groupby(lines, lambda line: line.partition(": failed:")[0])]
        return [f"{first} (and {len(more)} more)" if more else first for first, *more in outages]

    def stop(self) -> None:
        """End both, the query first, and let the reader read the rest."""
        writer, reader = self._processes
        _terminate(writer)
        self._await_reader_at_end()
        _terminate(reader)

    def _await_reader_at_end(self) -> None:
        log, command = self.folder / "log", [sys.executable, "-m", *self.stored_command()]
        read = self._cluster.machine.run_on_gateway(command, log, {"PYTHONPATH": str(ROOT)})
        assert read.wait(120) == 0, log.read_text()[-500:]
        self.stored = [int(line) for line in log.read_text().split()]
        wanted = len(self.stored)
        await_that(lambda: len(self.got()) >= wanted, 120, lambda: f"the reader: {len(self.got())} of {wanted}")

    def got(self) -> list[int]:
        """Rows that the reader got."""
        batches = [path for path in (self.folder / "rows").glob("[0-9]*") if path.suffix == ""]
        return [int(line) for path in batches for line in path.read_text().split()]

    def stored_command(self) -> list[str]:
        """The command that prints all stored rows."""
        return ["bookspark", "log", "read", "--zookeeper", self._cluster.zookeeper, LOG]

    def written(self) -> int:
        """The number of rows that Spark reports as written."""
        lines = (self.folder / "write.log").read_text(errors="replace").splitlines()
        return int(next(line for line in reversed(lines) if line.startswith("write: rows")).split()[-1])

    def check(self) -> str:
        """Check each row exactly once, in the log and at the reader."""
        written = self.written()
        for what, rows in (("log", self.stored), ("reader", self.got())):
            doubled = [row for row, times in Counter(rows).items() if times > 1]
            lost = sorted(set(range(max([written, *(row + 1 for row in rows)]))) - set(rows))
            assert not doubled, f"{what}: {len(doubled)} rows doubled: {doubled[:10]}"
            assert not lost, f"{what}: {len(lost)} rows lost: {lost[:10]}"
        return f"{len(self.stored)} rows, each once, in the log and at the reader; {written} were told to be written"

    def tail(self) -> str:
        return " | ".join(self.trouble()[-3:])


class PlainLoad(Load):
    """Two clients without Spark: the rest of a story does not wait for their JVMs."""

    module = "tests.system.clusters.plain_load"

    def stored_command(self) -> list[str]:
        return [self.module, "stored", str(self.folder), self._cluster.zookeeper]


def _terminate(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@dataclass(frozen=True)
class Plot:
    """A story as chosen by a command line."""

    load: type[Load]
    gone_seconds: float
    """Time for which a host is lost."""
    steps: tuple[str, ...]


STEPS = (
    "kill_an_executor",
    "kill_all_executors_of_a_host",
    "kill_the_driver",
    "end_the_driver",
    "lose_a_hosts_daemon",
    "lose_a_host",
    "restart_with_one_host",
    "restart_in_another_order_with_a_third_host",
)
"""In this order. Each is a method of ``Story``."""
GONE_SECONDS = 180.0


def plot(arguments: Sequence[str], usage: str, *modes: str) -> Plot:
    """``[MODE] [plain] [SECONDS] [STEP…]``, in any order; without STEP all of them. Raises SystemExit with ``usage`` for any
    other word: a mistyped step would go unnoticed."""
    if unknown := [word for word in arguments if word not in ("plain", *modes, *STEPS) and not word.isdecimal()]:
        print(f"{usage}\nSTEP: {' '.join(STEPS)}\nnot expected: {' '.join(unknown)}", file=sys.stderr)
        raise SystemExit(2)
    return Plot(
        PlainLoad if "plain" in arguments else Load,
        next((float(word) for word in arguments if word.isdecimal()), GONE_SECONDS),
        tuple(step for step in STEPS if step in arguments) or STEPS,
    )


class Story:
    """Steps over a cluster."""

    def __init__(self, cluster: Cluster, plot: Plot) -> None:
        self.cluster = cluster
        self._plot = plot
        self.gone_seconds = plot.gone_seconds
        self.lines: list[str] = []

    def tell(self) -> None:
        """Submit the job, run all steps, and end."""
        self.begin()
        for step in self._plot.steps:
            getattr(self, step)()
        self.end()

    def begin(self) -> None:
        """Submit the job for the first time, and start the load."""
        began = time.monotonic()
        self.cluster.submit()
        await_that(lambda: len(self.cluster.bookies()) == 3, 600, lambda: f"three bookies; {self.cluster.tail()}")
        self.ids = set(self.cluster.bookies())
        self.say(f"first start: {self.where()} after {time.monotonic() - began:.0f} s")
        self.load = self._plot.load(self.cluster)

    def say(self, line: str) -> None:
        self.lines.append(line)
        print(time.strftime("%H:%M:%S"), line, flush=True)

    def where(self) -> str:
        return ", ".join(f"{name} on {host}" for name, host in sorted(self.home_hosts().items()))

    def home_hosts(self) -> dict[str, str]:
        """The host of each bookie."""
        return {home.bookie_id: home.host for home in read_wanted(self.cluster.store, self.cluster.roots).known}

    def host(self, place: int) -> str:
        """A host with bookies that is not the driver's, whose loss would end the job. Places 0 and 1 are two hosts, if there
        are two."""
        lived = set(self.home_hosts().values()) - {self.cluster.driver_host()}
        hosts = [host for host in self.cluster.hosts if host in lived]
        return hosts[place % len(hosts)]

    @contextmanager
    def step(self, what: str, killed: set[str] | None = None, seconds: float = 600.0) -> Iterator[None]:
        """Run a fault in the block, and check the cluster. ``killed``: the bookies that the fault kills."""
        there = self.cluster.await_looked_after(self.ids, seconds)
        before = {name: (bookie.pid, bookie.home) for name, (_, bookie) in there.items()}
        state = self.cluster.run(), min(task.attempt for task in self.cluster.tasks())
        self._told_before = self.cluster.driver_log, len(self.cluster.told())
        began = time.monotonic()
        yield
        run = self.cluster.run()
        there = self.cluster.await_looked_after(self.ids, seconds, since=state[1] if run == state[0] else -1)
        took = time.monotonic() - began
        after = {name: (bookie.pid, bookie.home) for name, (_, bookie) in there.items()}
        for name in self.ids - (killed or set()):
            assert after[name] == before[name], f"{name} was stopped: {before[name]}, now {after[name]}"
        assert self.cluster.known() == self.ids, "new bookies were made"
        progress = self.load.await_progress()
        self.say(f"{what}: all looked after {took:.1f} s after its begin, the load got on {progress:.1f} s later")

    def await_told(self, words: str, seconds: float = 90.0) -> None:
        """Wait until the job logs ``words`` in this step."""

        def told() -> list[str]:
            driver, count = self._told_before
            return self.cluster.told()[count if driver == self.cluster.driver_log else 0 :]

        await_that(lambda: any(words in line for line in told()), seconds, lambda: f"{words!r}; {told()}")

    # -- the steps
    def kill_an_executor(self) -> None:
        with self.step("SIGKILL of an executor"):
            self.cluster.machine.end(self.cluster.executors(self.host(0))[:1])

    def kill_all_executors_of_a_host(self) -> None:
        with self.step("SIGKILL of all executors of a host"):
            self.cluster.machine.end(self.cluster.executors(self.host(1)))

    def kill_the_driver(self) -> None:
        with self.step("SIGKILL of the driver, and the job submitted again"):
            run = self.cluster.run()
            self.cluster.kill_driver()
            self.cluster.submit()
            await_that(lambda: self.cluster.run() != run, 300, lambda: f"the next run; {self.cluster.tail()}")

    def end_the_driver(self) -> None:
        with self.step("SIGTERM of the driver, and the job submitted again"):
            run = self.cluster.run()
            self.cluster.end_driver()
            if self.cluster.driver_has_last_words:
                self.await_told("left to serve on", 5)
            self.cluster.submit()
            await_that(lambda: self.cluster.run() != run, 300, lambda: f"the next run; {self.cluster.tail()}")

    def lose_a_hosts_daemon(self) -> None:
        """The worker or NodeManager and its executors, not the bookies."""
        host = self.host(0)
        lost = sorted(name for name, place in self.home_hosts().items() if place == host)
        with self.step(f"worker of a host killed with its executors, back after {self.gone_seconds:.0f} s"):
            self.cluster.kill_daemon(host)
            self.await_told(f"{lost[0]} lives on {host}, where there is no executor")
            time_passes(self.gone_seconds)
            self.cluster.start_host(host)

    def lose_a_host(self) -> None:
        """The power of a host, with its bookies."""
        host = self.host(1)
        lost = {name for name, place in self.home_hosts().items() if place == host}
        with self.step(f"host without power, back after {self.gone_seconds:.0f} s", killed=lost):
            self.cluster.machine.cut_power(host)
            self.await_told(f"{sorted(lost)[0]} lives on {host}, where there is no executor", 120)
            time_passes(self.gone_seconds)
            self.cluster.start_host(host)

    def restart_with_one_host(self) -> None:
        """A job is submitted while the other host has no daemon; its bookies are named, and serve meanwhile."""
        host = self.host(1)
        there = {name for name, place in self.home_hosts().items() if place != host}
        missing = sorted(self.ids - there)
        with self.step("restart with one host only, the other one back later"):
            self.cluster.kill_driver()
            self.cluster.kill_daemon(host)
            run = self.cluster.run()
            self.cluster.submit("--wait-for-missing", "5")
            began = time.monotonic()
            self.cluster.await_looked_after(there, 180, run=run)
            took = time.monotonic() - began
            self.await_told(f"{missing[0]} lives on {host}, where there is no executor")
            self.say(
                f"restart with one host only: {len(there)} looked after in {took:.1f} s, told: {self.cluster.tail()}"
            )
            self.cluster.start_host(host)

    def restart_in_another_order_with_a_third_host(self) -> None:
        with self.step("restart with the hosts in another order, and a third one"):
            self.cluster.kill_driver()
            for host in self.cluster.hosts[:2]:
                self.cluster.kill_daemon(host)
            for host in reversed(self.cluster.hosts):
                self.cluster.start_host(host)
                time_passes(8)
            run = self.cluster.run()
            self.cluster.submit(executors=3)
            await_that(lambda: self.cluster.run() != run, 300, lambda: f"the next run; {self.cluster.tail()}")

    def end(self) -> None:
        """No row was lost or doubled, and a command stops everything cleanly."""
        self.load.stop()
        self.say(self.load.check())
        for line in self.load.trouble():
            self.say(line)
        began = time.monotonic()
        self.cluster.stop_bookies()
        assert self.cluster.driver is not None
        assert self.cluster.driver.wait(120) == 0, self.cluster.tail()
        # An application master keeps running after spark-submit has ended.
        await_that(lambda: not self.cluster.alive(), 60, lambda: f"bookies are left: {self.cluster.alive()}")
        await_that(lambda: not self.cluster.store.list_records(SERVICES), 60, "the end of the service's record")
        self.say(f"bookspark stop-bookies: all ended in {time.monotonic() - began:.1f} s")
