"""A barrier task that keeps bookies: it adopts the running, starts the others, and restarts the dead.

Law: a bookie is never tied to the task. However the task ends, it only drops the leases; a task of the next attempt adopts the
bookies. A bookie that fails to start disturbs no other: its last words are reported, and it is tried again after growing pauses.
Each bookie has its own thread here, so a slow boot delays no other.

Tasks agree on the keeper of each home by exchanging their views (``allGather``); see ``placement``. A new home's number is
claimed in the metadata store before its directories are made. A known bookie is started under its id, so a bookie with an emptied
disk reports that instead of beginning anew. The service's record orders the tasks to stop. A task lets go of its bookies if its
run no longer owns the service. Source: docs/decisions/bookies-outlive-tasks.md.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import psutil

from bookspark.errors import BookieError, BookKeeperError, MetadataStoreError
from bookspark.servers.daemon.launch import STOP_SECONDS, Bookie, adopt_or_start, last_words
from bookspark.servers.daemon.lease_client import LeaseRefusedError
from bookspark.servers.daemon.lease_server import SERVING, STOPPING, Status
from bookspark.spark.bookies.homes import home_directories, look
from bookspark.spark.bookies.placement import Seen, Share, Wanted, divide, retired
from bookspark.spark.bookies.service_records import (
    SERVICES,
    BookieReport,
    TaskReport,
    claim_number,
    drop_claim,
    read_service,
    write_task,
)
from bookspark.store.bookie.bookie_config import BookieConfig, bookie_config, with_metrics
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.support.addresses import split_address
from bookspark.support.threads import BackOff

SERVED_WELL_SECONDS = 30.0
"""After this time of service a bookie's failures are counted from 0 again."""
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 30.0
_OLD_TASK_SECONDS = 30.0
"""Time that Spark may take to kill the task of the previous attempt (spark.python.task.killTimeout is 2 s)."""
_LOOK_SECONDS = 2.0
"""Interval of reads of the service's record, if no watch fires."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskSpec:
    """The driver's orders for all tasks of an attempt."""

    service: str
    run: str
    attempt: int
    """Earlier submissions by this run."""
    wanted: Wanted
    instance_id: str
    """The cluster's identity, as in cookies."""
    roots: tuple[str, ...]
    """Parents of homes on each host, one for each disk."""
    zookeeper: str
    options: dict[str, Any]
    listen_on_executor_host: bool
    """Whether bookies listen on their host's address instead of loopback."""


def look_after_bookies(spec: TaskSpec, _rows: Iterable[Any]) -> Iterator[int]:
    """The body of a barrier task. Runs until the service stops, then yields the number of its bookies."""
    # Imported late, so that the rest of the module is testable without Spark.
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    assert context is not None
    host, partition = socket.gethostname(), context.partitionId()
    me = Seen(partition, host, look(spec.roots, spec.instance_id))
    answers = context.allGather(msgspec.json.encode(me).decode())
    share = divide([msgspec.json.decode(answer, type=Seen) for answer in answers], spec.wanted)[partition]
    executor = _executor()
    address = None
    if spec.listen_on_executor_host:
        address = executor.hostname or split_address(context.getTaskInfos()[partition].address)[0]
    report = TaskReport(
        spec.run, spec.attempt, partition, host, executor.id, executor.pid, retired=retired(me, spec.wanted)
    )
    if share.to_claim or share.to_forget:
        with closing(ZooKeeperStore(spec.zookeeper)) as store:
            claim(store, spec.roots, share, host)
    yield TaskKeeper(spec, report, share, address).run()


def claim(store: MetadataStore, roots: Sequence[str], share: Share, host: str) -> None:
    """Claim the numbers of the share's new homes, and drop the claims that it gives up. Raises MetadataStoreError, and
    BookieError if a number was taken meanwhile: the next attempt sees that."""
    for number in share.to_forget:
        drop_claim(store, roots, number)
    for number in share.to_claim:
        if not claim_number(store, roots, number, host):
            raise BookieError(f"bookie-{number} is not made here: its number was taken meanwhile")


class TaskKeeper:
    """The bookies that a task keeps. ``share``: their homes; ``host``: the name or address to listen on, None for the default."""

    def __init__(self, spec: TaskSpec, report: TaskReport, share: Share, host: str | None) -> None:
        self._spec = spec
        self._report = report
        self._news = threading.Event()
        listen = {} if host is None or "host" in spec.options else {"host": host}
        # For the placement one_per_executor. An adopted bookie keeps the label of the executor that started it.
        labels = {"executor": report.executor_id, **spec.options.get("labels", {})}
        holder = f"task {report.partition} of attempt {spec.attempt}, run {spec.run}"
        self._keepers = [
            BookieKeeper(
                bookie_config(
                    directories=home_directories(spec.roots, home),
                    zookeeper=spec.zookeeper,
                    **with_metrics(
                        {"bookie_id": share.bookie_ids.get(home, ""), **spec.options, **listen, "labels": labels}
                    ),
                ),
                holder,
                self._news.set,
                spec.instance_id,
            )
            for home in share.homes
        ]
        claimed = {*share.to_claim, *(claim.number for claim in spec.wanted.claims if claim.host == report.host)}
        self._claimed = {
            home: keeper for home, keeper in zip(share.homes, self._keepers, strict=True) if home in claimed
        }
        """Claimed homes by number. A claim is dropped when its bookie serves, and so has a cookie."""

    def run(self) -> int:
        """Keep the bookies until the service is to stop, then stop them. If another run owns the service, let go of them.

        Returns their number.
        """
        for keeper in self._keepers:
            keeper.start()
        with ExitStack() as stack:
            store = self._connect(stack)
            stop = self._until_told(store)
            for keeper in self._keepers:
                keeper.end(stop_bookie=stop)
            deadline = time.monotonic() + STOP_SECONDS + 10.0
            for keeper in self._keepers:
                keeper.join(max(0.0, deadline - time.monotonic()))
            try:
                write_task(store, self._spec.service, self._current())
            except MetadataStoreError as error:
                log.warning("the last report was not written: %s", error)
        return len(self._keepers)

    def _connect(self, stack: ExitStack) -> ZooKeeperStore:
        """Connect to the metadata store, with retries until it answers. The bookies have keepers meanwhile."""
        while True:
            try:
                store = ZooKeeperStore(self._spec.zookeeper)
            except MetadataStoreError as error:
                log.warning("the service's records can't be reached; looking after the bookies all the same: %s", error)
                time.sleep(_LOOK_SECONDS)
            else:
                stack.callback(store.close)
                return store

    def _until_told(self, store: ZooKeeperStore) -> bool:
        """Report changes. Returns True to stop the bookies, False to let go of them."""
        told: TaskReport | None = None
        # Set while no watch is registered.
        fired = threading.Event()
        fired.set()

        def changed() -> None:
            fired.set()
            self._news.set()

        while True:
            self._news.clear()
            try:
                if fired.is_set():
                    fired.clear()
                    store.watch_record(SERVICES, self._spec.service, changed)
                record = read_service(store, self._spec.service)
                if record is not None and record.run != self._spec.run:
                    log.warning("another run took over %s: letting go of its bookies", self._spec.service)
                    return False
                if record is None or record.stop:
                    return True
                current = self._current()
                if current != told:
                    write_task(store, self._spec.service, current)
                    told = current
                self._give_up_claims(store)
            except MetadataStoreError as error:
                fired.set()
                log.warning("the service's records can't be reached; looking after the bookies all the same: %s", error)
            self._news.wait(_LOOK_SECONDS)

    def _give_up_claims(self, store: MetadataStore) -> None:
        for number in [number for number, keeper in self._claimed.items() if keeper.report.phase == SERVING]:
            drop_claim(store, self._spec.roots, number)
            del self._claimed[number]

    def _current(self) -> TaskReport:
        return msgspec.structs.replace(self._report, bookies=tuple(keeper.report for keeper in self._keepers))


class BookieKeeper:
    def __init__(self, config: BookieConfig, holder: str, changed: Callable[[], None], instance_id: str) -> None:
        """``holder``: the task's name for the lease; ``changed`` is called when ``report`` changes; ``instance_id``: the
        cluster's."""
        self._config, self._instance_id = config, instance_id
        self._holder = holder
        self._served = False
        self._pauses = BackOff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
        self._changed = changed
        self._stop_bookie = True
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"keeper of {config.directories[0]}", daemon=True)
        self.report = BookieReport(home=config.directories[0], phase="starting", bookie_id=config.bookie_id)

    def start(self) -> None:
        self._thread.start()

    def end(self, stop_bookie: bool) -> None:
        """Begin to stop the bookie cleanly, or only to let go of it; ``join`` waits for the end."""
        self._stop_bookie = stop_bookie
        self._ended.set()
        os.write(self._wake, b".")

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def _keep(self) -> None:
        while not self._ended.is_set():
            served_since = time.monotonic()
            try:
                self._serve_until_it_ends()
                problem = last_words(self._config.directories)
            except BookKeeperError as error:
                problem = str(error)
            except Exception as error:
                # A keeper's error must not leave the bookie alone.
                log.exception("keeper of %s", self._config.directories[0])
                problem = f"{type(error).__name__}: {error}"
            if self._ended.is_set():
                break
            served_well = self._served and time.monotonic() - served_since > SERVED_WELL_SECONDS
            failures = 1 if served_well else self.report.failures + 1
            if served_well:
                self._pauses.reset()
            log.warning("bookie in %s, failure %d: %s", self._config.directories[0], failures, problem)
            self._change(phase="restarting", pid=0, failures=failures, problem=problem)
            self._ended.wait(self._pauses.next())
        self._change(phase="ended", pid=0)

    def _serve_until_it_ends(self) -> None:
        """Adopt or start the bookie, and watch it. Returns when it has ended, was stopped, or was released by ``end``."""
        bookie = self._adopt_or_start()
        self._change(pid=bookie.process.pid, adopted=not bookie.started)
        poll = select.poll()
        poll.register(bookie.lease, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        try:
            while not self._ended.is_set():
                self._note(bookie.status)
                # Without a time limit: a boot may take long, and only a bookie that answers no request counts as hung.
                poll.poll()
                if not bookie.lease.read_news():
                    bookie.wait_ended(STOP_SECONDS)
                    return
            if self._stop_bookie:
                self._change(phase=STOPPING)
                bookie.stop()
        finally:
            bookie.lease.close()

    def _note(self, status: Status) -> None:
        if status.bookie_id and not self._config.bookie_id:
            # For a new bookie: if its disk is emptied from now on, it does not begin anew.
            self._config = msgspec.structs.replace(self._config, bookie_id=status.bookie_id)
        self._served = self._served or status.phase == SERVING
        self._change(
            phase=status.phase,
            # A new process that has not reported its id and address yet: keep those of the process before.
            bookie_id=status.bookie_id or self.report.bookie_id,
            address=status.address or self.report.address,
            problem="" if status.phase == SERVING else self.report.problem,
        )

    def _adopt_or_start(self) -> Bookie:
        """Claim the bookie. A task of the previous attempt holds its lease until Spark has killed that task; a task of another
        run, until it reads of this run."""
        deadline = time.monotonic() + _OLD_TASK_SECONDS
        while True:
            try:
                return adopt_or_start(self._config, self._holder, instance_id=self._instance_id)
            except LeaseRefusedError as refusal:
                if not refusal.holder or time.monotonic() > deadline or self._ended.wait(0.1):
                    raise

    def _change(self, **facts: Any) -> None:
        report = msgspec.structs.replace(self.report, **facts)
        if report != self.report:
            self.report = report
            self._changed()


class Executor(NamedTuple):
    """The executor of this Python worker; all fields empty if unknown. ``id``: Spark's; ``driver`` in local mode."""

    id: str = ""
    pid: int = 0
    hostname: str = ""
    """Spark's listen name or address on this host, from the cluster manager; the driver may see another side of a gateway."""


def _executor() -> Executor:
    """The first JVM among this worker's ancestors."""
    for process in psutil.Process().parents():
        # Even the command line of another user's process may be hidden.
        with suppress(psutil.Error):
            command = process.cmdline()
            if command and os.path.basename(command[0]) == "java":
                return executor_of(command, process.pid)
    return Executor()


def executor_of(command: Sequence[str], pid: int) -> Executor:
    given = dict(pairwise(command))
    return Executor(given.get("--executor-id", "driver"), pid, given.get("--hostname", ""))
