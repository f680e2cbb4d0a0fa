"""Repeated kills of a sink's query in varied ways, each followed by a check that the log has no row twice.

Law: while blows fall, the log never holds a row twice; when the last query has processed its whole input, the log
holds each row once. A dead driver is restarted with its Spark checkpoint; a live driver goes on and is hit again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from bookspark import BookKeeper
from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry, commits
from bookspark.logs.rows.splits import positioned
from bookspark.protocol.logs.log_record import NoSuchLogError
from tests.awaiting import time_passes
from tests.processes import Output, processes_about
from tests.spark.faulty_sink import AFTER_COMMIT, BEFORE_COMMIT, BLOWS, FAILING_TASK, NEVER_COPIED, SLOW_TASK

ROOT = Path(__file__).resolve().parents[2]
LOG = "killed"
STEP_SECONDS = 600.0
ROWS_PER_FILE = 300
_EXECUTOR = "CoarseGrainedExecutorBackend"


class QueryKills:
    """A log, and a query into it over all of its lives. ``master`` is Spark's; a ``SLOW_TASK`` needs a master with
    two hosts."""

    def __init__(
        self, cluster: LocalCluster, folder: Path, master: str = "local-cluster[1,2,640]", seed: int = 0
    ) -> None:
        self._cluster, self._folder, self._master = cluster, folder, master
        self._random = Random(seed)
        self._files = 0
        self._driver: subprocess.Popen[str] | None = None
        self._drivers: list[subprocess.Popen[str]] = []
        self.counts: Counter[str] = Counter()
        self.blows: dict[str, Callable[[], None]] = {
            "driver": self._kill_driver,
            "executor": self._kill_executor,
            "bookie": self._kill_bookie,
            BEFORE_COMMIT: lambda: self._deal(BEFORE_COMMIT),
            AFTER_COMMIT: lambda: self._deal(AFTER_COMMIT),
            FAILING_TASK: lambda: self._deal(FAILING_TASK),
            SLOW_TASK: lambda: self._deal(SLOW_TASK),
        }
        for name in ("input", "blows"):
            (folder / name).mkdir()

    def run(self, blows: Sequence[str], finish: Callable[[], None] | None = None) -> Mapping[str, int]:
        """Deal these blows in order, then let the query finish. The first blow falls on its first micro-batch.
        ``finish`` runs the query to its end when no driver lives; None: start one more driver."""
        try:
            for number, blow in enumerate(blows):
                self._hit(blow, at_once=number == 0)
                self._start_bookies()
                self._check(whole=False)
                print(
                    f"{number + 1} of {len(blows)}: {blow}; {self.counts['rows checked']} rows, each once", flush=True
                )
            (finish or self._finish)()
            self._check(whole=True)
        finally:
            for driver in self._drivers:
                _kill_group(driver)
        return self.counts

    def drawn(self, count: int) -> list[str]:
        """Draw this number of blows. Each kind falls once before any kind falls again."""
        drawn: list[str] = [AFTER_COMMIT]
        while len(drawn) < count:
            drawn += self._random.sample(list(self.blows), len(self.blows))
        return drawn[:count]

    # -- inside

    def _hit(self, blow: str, at_once: bool) -> None:
        self._add_file()
        if at_once:
            # The blow is ready before the first micro-batch.
            self.blows[blow]()
            self._ensure_driver()
        else:
            self._ensure_driver()
            self._await_batch()
            self._add_file()
            # The blow falls at a random moment of a micro-batch.
            time_passes(self._random.random())
            self.blows[blow]()
        deadly = blow in ("driver", BEFORE_COMMIT, AFTER_COMMIT)
        assert self._driver is not None
        if deadly:
            # The driver's executors live on for a while, and write.
            self._driver.wait(STEP_SECONDS)
            self._driver = None
            self.counts["driver starts"] += 1
        else:
            self._await_taken(blow)
        self.counts[blow] += 1

    def _add_file(self) -> None:
        first = self._files * ROWS_PER_FILE
        path = self._folder / "input" / f"{self._files:05}.txt"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(f"{row}\n" for row in range(first, first + ROWS_PER_FILE)))
        # Spark takes the oldest file first.
        os.utime(hidden, (self._files, self._files))
        hidden.rename(path)
        self._files += 1

    def _ensure_driver(self) -> None:
        if self._driver is not None and self._driver.poll() is None:
            return
        assert self._driver is None, "the query ended by itself:\n" + "".join(self._output.lines[-40:])
        environment = os.environ | {
            BLOWS: str(self._folder / "blows"),
            "PYTHONPATH": str(ROOT),
        }
        arguments = [str(self._folder), self._cluster.zookeeper, LOG, self._master]
        self._driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.killed_query", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._drivers.append(self._driver)
        assert self._driver.stdout is not None
        self._output = Output(self._driver.stdout)
        self._jvm = int(self._output.wait_for(r"^jvm (\d+)", STEP_SECONDS)[1])

    def _await_batch(self) -> None:
        """Wait until one more micro-batch is done."""
        self._add_file()
        self._output.wait_for(r"^batch \d+", STEP_SECONDS)

    def _await_taken(self, blow: str) -> None:
        """Wait until a blow from inside was dealt and its micro-batch is done; blows from outside are dealt at once."""
        for _ in range(1000):
            if not (self._folder / "blows" / blow).exists():
                break
            self._await_batch()
        else:
            raise AssertionError(f"{blow} was never dealt")
        self._await_batch()
        assert not (self._folder / "blows" / NEVER_COPIED).exists(), "a slow task got no speculative copy"

    def _deal(self, blow: str) -> None:
        (self._folder / "blows" / blow).touch()

    def _kill_driver(self) -> None:
        os.kill(self._jvm, signal.SIGKILL)

    def _kill_executor(self) -> None:
        executors = [pid for pid, command in processes_about(self._folder).items() if _EXECUTOR in command]
        # Just after a kill there may be no executor.
        if executors:
            os.kill(self._random.choice(executors), signal.SIGKILL)
            self.counts["executors killed"] += 1

    def _kill_bookie(self) -> None:
        self._random.choice(self._cluster.bookies).kill()

    def _start_bookies(self) -> None:
        for bookie in self._cluster.bookies:
            bookie.start()

    def _finish(self) -> None:
        self._ensure_driver()
        (self._folder / "finish").touch()
        assert self._driver is not None
        status = self._driver.wait(STEP_SECONDS)
        assert status == 0, "the last query failed:\n" + "".join(self._output.lines[-40:])

    def _check(self, whole: bool) -> None:
        with self._cluster.bookkeeper() as bookkeeper:
            times = Counter(_rows(bookkeeper))
        doubled = [row for row, count in times.items() if count > 1]
        assert not doubled, f"{len(doubled)} rows are in the log more than once, among them {doubled[:5]}"
        self.counts["rows checked"] = len(times)
        if whole:
            missing = set(range(self._files * ROWS_PER_FILE)) - times.keys()
            assert not missing, f"{len(missing)} rows are not in the log, among them {sorted(missing)[:5]}"


def _rows(bookkeeper: BookKeeper) -> list[int]:
    """All rows that the log holds now."""
    try:
        LogRegistry(bookkeeper.metadata).get(LOG)
    except NoSuchLogError:
        return []
    rows: list[int] = []
    for placed in commits(bookkeeper, LOG, b""):
        for piece, _ in positioned(placed.commit.ranges):
            with bookkeeper.open_ledger_no_recovery(piece.ledger_id) as ledger:
                ledger.confirm(piece.last_entry_id)
                rows += [int(entry.payload) for entry in ledger.read(piece.first_entry_id, piece.last_entry_id)]
    return rows


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a driver and its remaining executors."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STEP_SECONDS)
    assert process.stdout is not None
    process.stdout.close()
