"""The barrier job that keeps bookies. It is submitted again whenever it fails.

Law: Spark kills all tasks of a barrier stage when it loses one of them, and never runs such a stage again. So the job is
submitted again until its tasks were ordered to end, another run took the service over, or Spark has ended. Each attempt first
reads the known bookies from the metadata store; new bookies are made only while ``making`` is set. An attempt has a task on each
executor, and a task for each bookie if there is room (``placement.tasks_wanted``).

A thread watches for missing bookies, and reports each loss and return once. If an executor comes to a host without a task, the
job is submitted again; ``Coverage`` also asks for executors. While the metadata store is away, an attempt keeps every home on its
hosts. It is submitted again when the store is back, and when its slots are lost, which would leave the bookies without keepers.

The next attempt follows at once after a long attempt, else after a growing pause. After ``FAILURES_MAX`` consecutive failures the
job is given up if certainly no bookie of this run exists.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from pyspark import InheritableThread

from bookspark.errors import BookKeeperError
from bookspark.spark.bookies.bookie_task import TaskSpec, look_after_bookies
from bookspark.spark.bookies.placement import (
    Missing,
    Wanted,
    out_of_reach,
    surplus_executor,
    tasks_wanted,
    wasted_executors,
    worth_another_attempt,
)
from bookspark.spark.bookies.service_records import (
    TaskReport,
    ask_service_to_stop,
    drop_claim,
    read_service,
    read_tasks,
    read_wanted,
)
from bookspark.spark.bookies.slots import executors_of, slots_of
from bookspark.store.metadata.store import MetadataStore

log = logging.getLogger(__name__)


# -- Executors for the hosts of missing bookies


PAUSES_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0, 60.0, 120.0, 300.0, 600.0)
"""Pauses before the first request for executors, the second, and so on."""


class Coverage:
    """Gets executors to the hosts of missing bookies: ``placement`` decides, this class asks Spark. ``context``: the
    SparkContext.

    Law: an executor with a task is ended only as the last resort. YARN and Kubernetes are asked for an additional executor, with
    the host as a hint. An executor on another host is sent back, and the request is repeated after growing pauses. A standalone
    master gives no more cores than requested, so an executor on a host with several is replaced: the master prefers the worker
    with the most free cores. The replacement costs an attempt of the job, and no bookie.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._standalone = str(context.master).startswith("spark:")
        self._can_ask = not str(context.master).startswith("local")
        self._asked = 0
        self._due: float | None = None
        self._usual = 0
        """Number of executors without additional requests; 0: unknown."""
        self._asked_for_more = False

    def complete(self, executors: Mapping[str, str]) -> None:
        self.send_back(executors)
        self._asked, self._due = 0, None
        if not self._asked_for_more:
            self._usual = max(self._usual, len(executors))

    def send_back(self, executors: Mapping[str, str]) -> None:
        """Give back a surplus executor, once the bookies' host has an executor. Its end ends an attempt: call this just before
        the next submission."""
        if self._asked_for_more and len(executors) <= self._usual:
            self._asked_for_more = False
        elif self._asked_for_more:
            surplus = surplus_executor(executors)
            if surplus is not None:
                log.info("sending executor %s back: its host has another one, and so have those that had none", surplus)
                self._context._jsc.sc().killExecutor(surplus)

    def ask(self, executors: Mapping[str, str], with_task: Collection[str], missing: Sequence[Missing]) -> None:
        """Ask for executors on the hosts of missing bookies. Returns at once; call it about every second."""
        hosts = sorted({bookie.host for bookie in missing if bookie.host})
        if not self._can_ask or not hosts:
            return
        now = time.monotonic()
        if self._due is None:
            self._due = now + PAUSES_SECONDS[min(self._asked, len(PAUSES_SECONDS) - 1)]
        if now < self._due:
            return
        self._asked, self._due = self._asked + 1, None
        if self._standalone:
            if (surplus := surplus_executor(executors)) is not None:
                log.warning("replacing executor %s: its host has another one, and bookies are missing", surplus)
                self._context._jsc.sc().killAndReplaceExecutor(surplus)
            return
        configured = self._context.getConf().get("spark.executor.instances", "")
        self._usual = self._usual or (configured.isdecimal() and int(configured)) or len(executors)
        for executor in wasted_executors(executors, with_task, self._usual):
            log.info("sending executor %s back: it came to a host that has one", executor)
            self._context._jsc.sc().killExecutor(executor)
        self._ask_for_one_more(hosts)

    def _ask_for_one_more(self, hosts: Sequence[str]) -> None:
        cores = int(self._context.getConf().get("spark.executor.cores", "1"))
        jvm = self._context._jvm
        hint = jvm.java.util.HashMap()
        for host in hosts:
            hint.put(host, cores)
        log.info("asking for one executor more, on %s", " or ".join(hosts))
        self._asked_for_more = True
        hosts_of_tasks = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(hint)
        self._context._jsc.sc().requestTotalExecutors(self._usual + 1, cores * len(hosts), hosts_of_tasks)


# -- The job


FAILURES_MAX = 3
"""Consecutive failures of the job, or of a bookie, after which waiting ends."""
_LOOK_SECONDS = 0.2
_LASTED_SECONDS = 30.0
"""An attempt that lasted at least this long is followed at once."""
_COVERAGE_SECONDS = 1.0
_CANCEL_SECONDS = 15.0
_LOOK_AGAIN_SECONDS = 10.0
_SHORT_SECONDS = 10.0
"""An attempt short of slots for this long is submitted again with fewer tasks."""
_RESUBMIT_SECONDS = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Pauses after the first consecutive failure, the second, and so on."""

_OUR_ERROR = re.compile(r"^bookspark(?:\.\w+)+: (.+)$", re.MULTILINE)
_SPARKS_ERROR = re.compile(r"Spark\w*Exception: (.+)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: [\w.$]*?(\w+(?:Exception|Error): .+)$", re.MULTILINE)


@dataclass(frozen=True)
class JobSize:
    bookies: int
    one_task_for: TaskFor
    leave_free: bool
    """Whether a slot of each executor stays free for other jobs."""


class TaskFor(Enum):
    """Purpose of each task of the job, and of the core that it takes."""

    BOOKIE = "bookie"
    HOST = "host"
    """Each executor: its task keeps all bookies of the host."""


class BarrierJob:
    """The job of a run of a bookie service. ``spec``: orders for the tasks of the first attempt; ``store``: the cluster's
    metadata store; ``tell`` is called with a line when a bookie is missing or back."""

    def __init__(
        self, context: Any, spec: TaskSpec, store: MetadataStore, size: JobSize, tell: Callable[[str], None]
    ) -> None:
        self.spec = spec
        self.making = False
        self.failure = ""
        """Reason why submission stopped; empty while it goes on."""
        self.told_to_stop = False
        """Whether the tasks have ended by a command."""
        self.stopping = threading.Event()
        self._context, self._store, self._size, self._tell = context, store, size, tell
        self._tasks = 0
        self._cut_short = -1
        """The last attempt that was ended only to submit the job again."""
        self._told: dict[str, str] = {}
        self._thread = InheritableThread(target=self.keep_submitted, name="bookie service", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Order the tasks to stop their bookies, and wait. After ``timeout`` seconds, cancel the job."""
        self.stopping.set()
        # If this fails, the service asks each bookie itself.
        with suppress(BookKeeperError):
            ask_service_to_stop(self._store, self.spec.service, self.spec.run)
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("the bookies' tasks did not end within %g s; cancelling them", timeout)
            self._cancel()
            self._thread.join(_CANCEL_SECONDS)

    def let_go(self) -> None:
        """End the job and leave the bookies alone: they serve until their lease ends, and another run adopts them."""
        self.stopping.set()
        self._cancel()
        self._thread.join(_CANCEL_SECONDS)

    def owns_service(self) -> bool:
        """Whether no other run has taken the service over. Raises MetadataStoreError."""
        record = read_service(self._store, self.spec.service)
        return record is None or record.run == self.spec.run

    def reports(self) -> list[TaskReport]:
        """The last report of each partition, from any attempt. Raises MetadataStoreError."""
        return read_tasks(self._store, self.spec.service, self.spec.run)

    def present_reports(self) -> list[TaskReport]:
        """The present attempt's reports. Raises MetadataStoreError."""
        return [task for task in self.reports() if task.attempt == self.spec.attempt]

    def missing(self) -> tuple[Missing, ...] | None:
        """The existing bookies without a keeper; None until every task of the attempt has reported. Raises MetadataStoreError."""
        reports = self.present_reports()
        if self._tasks == 0 or len(reports) < self._tasks:
            return None
        covered = {bookie.bookie_id for task in reports for bookie in task.bookies}
        return out_of_reach(self.spec.wanted, covered, {task.host for task in reports})

    def keep_submitted(self) -> None:
        """The job's thread: submits attempt after attempt."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                self._submit()
                self._note_end()
                return
            except Exception as error:
                problem = root_cause(error)
            self._tasks = 0
            if not self._spark_lives():
                self.failure = "the Spark application has ended"
                return
            failures = 1 if time.monotonic() - began > _LASTED_SECONDS else failures + 1
            if failures >= FAILURES_MAX and self._has_no_bookies():
                self.failure = f"the bookies' barrier job fails: {problem}"
                return
            if self.stopping.is_set():
                return
            if self._cut_short == self.spec.attempt:
                failures = 0
            else:
                log.warning("the bookies' barrier job ended (%s); submitting it again", problem)
                self.stopping.wait(_RESUBMIT_SECONDS[min(failures, len(_RESUBMIT_SECONDS)) - 1])
            if not self._await_room():
                self.failure = "the Spark application has ended"
                return
            # Keep the claims that this run has begun itself.
            wanted = replace(self.spec.wanted, forget_begun=False)
            self.spec = replace(self.spec, attempt=self.spec.attempt + 1, wanted=wanted)

    def _note_end(self) -> None:
        if self.stopping.is_set():
            return
        # If the store is away now, it was reachable when the tasks got their order to end.
        with suppress(BookKeeperError):
            if self.owns_service():
                self.told_to_stop = True
                return
        self.failure = "another run of the same bookie service took over"

    def keep_covered(self) -> None:
        """Start a thread that watches for bookies without a keeper."""
        InheritableThread(target=self._watch_coverage, name="bookie service coverage", daemon=True).start()

    def _watch_coverage(self) -> None:
        looked_at: frozenset[str] = frozenset()
        coverage = Coverage(self._context)
        room_at, look_again = time.monotonic(), 0.0
        while not self.stopping.wait(_COVERAGE_SECONDS) and not self.failure:
            # Other threads report an absence of ZooKeeper or Spark.
            with suppress(Exception):
                attempt = self.spec.attempt
                if slots_of(self._context).total >= self._tasks:
                    room_at = time.monotonic()
                elif attempt != self._cut_short and time.monotonic() - room_at > _SHORT_SECONDS:
                    # Spark launches all tasks of a barrier stage or none, and waits for slots without end.
                    self._again(attempt, "the slots that it waits for were lost")
                missing = self.missing()
                if missing is None or attempt == self._cut_short:
                    continue
                if not self.spec.wanted.certain and time.monotonic() > look_again:
                    look_again = time.monotonic() + _LOOK_AGAIN_SECONDS
                    if self._look().certain:
                        self._again(attempt, "the metadata store tells again which bookies there are")
                        continue
                reports = self.present_reports()
                self._tell_changes((*missing, *_retired(reports)))
                executors = executors_of(self._context)
                with_task = {task.executor_id for task in reports}
                if not missing:
                    coverage.complete(executors)
                elif new := worth_another_attempt(executors, with_task, missing, looked_at):
                    looked_at |= new
                    coverage.send_back(executors)
                    self._again(attempt, f"executors {', '.join(sorted(new))} came later, on hosts without a task")
                else:
                    coverage.ask(executors, with_task, missing)

    def _tell_changes(self, missing: tuple[Missing, ...]) -> None:
        now = {bookie.name: bookie.why for bookie in missing}
        for name, why in now.items():
            if self._told.get(name) != why:
                self._tell(f"{name} {why}")
        for name in self._told.keys() - now.keys():
            self._tell(f"{name} is looked after again")
        self._told = now

    def _again(self, attempt: int, why: str) -> None:
        """End ``attempt`` for another submission. If it has just ended by itself, the next attempt serves as well."""
        log.info("submitting the bookies' barrier job again: %s", why)
        self._cut_short = attempt
        self._cancel()

    def _submit(self) -> None:
        """Run an attempt. Returns when its tasks were ordered to end; raises when it failed."""
        wanted = self._look()
        homes = max(len(wanted.known) + len(wanted.claims), wanted.bookies)
        slots = slots_of(self._context)
        room = max(slots.room(self._size.leave_free), 1)
        tasks = tasks_wanted(homes, slots.executors, room, self._size.one_task_for is TaskFor.BOOKIE)
        self._tasks = 0
        self.spec = replace(self.spec, wanted=wanted)
        self._tasks = tasks
        self._context.setJobGroup(self.spec.run, f"bookies, attempt {self.spec.attempt}", interruptOnCancel=True)
        rows = self._context.parallelize(range(tasks), tasks)
        rows.barrier().mapPartitions(partial(look_after_bookies, self.spec)).collect()

    def _look(self) -> Wanted:
        """The metadata store's knowledge. While the store is away: the earlier knowledge, and no new bookies."""
        try:
            wanted = read_wanted(self._store, self.spec.roots)
            numbers = {home.number for home in wanted.known}
            for claim in wanted.claims:
                if claim.number in numbers:
                    drop_claim(self._store, self.spec.roots, claim.number)
        except BookKeeperError as error:
            log.warning("the metadata store does not tell which bookies there are: %s", error)
            return replace(self.spec.wanted, claims=(), bookies=0, certain=False)
        left = tuple(claim for claim in wanted.claims if claim.number not in numbers)
        bookies = self._size.bookies if self.making else 0
        return replace(wanted, claims=left, bookies=bookies, forget_begun=self.spec.wanted.forget_begun)

    def _await_room(self) -> bool:
        """Wait until a task fits; False if Spark has ended or the job is to end."""
        while self._spark_lives() and not self.stopping.is_set():
            # Spark may end during the call.
            with suppress(Exception):
                if slots_of(self._context).room(self._size.leave_free) > 0:
                    return True
            time.sleep(_LOOK_SECONDS)
        return False

    def _has_no_bookies(self) -> bool:
        """Whether certainly no bookie of this run exists; uncertain while ZooKeeper is away."""
        try:
            return not any(bookie.bookie_id for task in self.reports() for bookie in task.bookies)
        except BookKeeperError:
            return False

    def _cancel(self) -> None:
        # Spark may have ended.
        with suppress(Exception):
            self._context.cancelJobGroup(self.spec.run)

    def _spark_lives(self) -> bool:
        try:
            return self._context._jsc is not None and not self._context._jsc.sc().isStopped()
        except Exception:
            # The JVM has ended.
            return False


def _retired(reports: list[TaskReport]) -> tuple[Missing, ...]:
    why = "was decommissioned, so nobody looks after it; its directories may be removed from"
    return tuple({name: Missing(name, f"{why} {task.host}") for task in reports for name in task.retired}.values())


def root_cause(error: Exception) -> str:
    """The most useful line of a Spark error: that of Bookspark's error in a task; else Spark's own message, down to the deepest
    cause with new words, in one line."""
    text = str(error)
    if ours := _OUR_ERROR.findall(text):
        return str(ours[-1])
    said: list[str] = []
    for line in _SPARKS_ERROR.findall(text) + _CAUSE.findall(text):
        if not any(line in other for other in said):
            said = [other for other in said if other not in line] + [line]
    return ": ".join(said[:2]) or next(iter(text.strip().splitlines()), type(error).__name__)
