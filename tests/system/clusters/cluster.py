"""A Spark cluster of several hosts on this machine, with ZooKeeper and the job of bookies; a query and a reader run beside it.

``standalone`` and ``yarn`` add the daemons of a cluster manager. Commands are those of a user: ``spark-submit`` submits the
job, and ``bookspark stop-bookies`` stops it.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import pyspark

from bookspark.spark.bookies.service_records import (
    SERVICES,
    BookieReport,
    TaskReport,
    read_service,
    read_tasks,
    read_wanted,
)
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.awaiting import await_that
from tests.system.clusters.hosts import Machine

ROOT = Path(__file__).parents[3]
SPARK_HOME = Path(pyspark.__file__).parent
EXECUTOR = "CoarseGrainedExecutorBackend"


class Cluster(ABC):
    """``folder`` is never emptied; the third host is started by the step that needs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Host names are unique to this cluster: the processes of a host are found by its name.
        token = secrets.token_hex(2)
        self.hosts = tuple(f"host{number}-{token}" for number in (1, 2, 3))
        self.machine = Machine(folder, self.hosts)
        self.roots = (str(self.machine.disk),)
        self._stack = ExitStack()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._drivers = 0
        self.driver: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}
        """For the daemons and for spark-submit."""
        self.driver_has_last_words = True
        """True if a driver that is ended has time to log it."""
        self.private: tuple[Path, ...] = ()
        """Folders beside the disk that each host has for itself."""

    def __enter__(self) -> Cluster:
        self.zookeeper = self._stack.enter_context(EmbeddedZooKeeper(self.folder / "zookeeper")).connection_string
        self._stack.callback(self.machine.close)
        try:
            self.start_manager()
            for host in self.hosts[:2]:
                self.start_host(host)
            self.store = self._stack.enter_context(_Closing(self.zookeeper)).store
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # -- the parts of a cluster manager
    @abstractmethod
    def start_manager(self) -> None:
        """Start the master."""

    @abstractmethod
    def daemon(self, host: str) -> list[str]:
        """The command of a host's daemon."""

    @abstractmethod
    def master(self, executors: int) -> list[str]:
        """The options of spark-submit that name the master."""

    # -- actions
    def start_host(self, host: str) -> None:
        """Start the daemon of a host, also after a power cut."""
        self._daemons[host] = self.machine.run_on(
            host, self.daemon(host), self.folder / f"{host}.log", self.environment, self.private
        )

    def kill_daemon(self, host: str) -> None:
        """Kill the worker or NodeManager, and all executors that it started: only bookies remain on the host."""
        while others := [
            pid for pid, command in self.machine.processes_of(host).items() if "bookspark.servers.daemon" not in command
        ]:
            self.machine.end(others)

    def submit(self, *arguments: str, executors: int = 2, bookies: int = 3) -> None:
        """Start the job of bookies."""
        self._drivers += 1
        self.driver_log = self.folder / f"job-{self._drivers}.log"
        python = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        environment = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", **python, **self.environment}
        command = [
            *(str(SPARK_HOME / "bin" / "spark-submit"), *self.master(executors)),
            *(f"--properties-file={ROOT / 'conf/spark-defaults.conf'}", "--conf", "spark.ui.enabled=false"),
            *("--executor-memory", "512m", "--driver-memory", "512m"),
            *(part for name, value in python.items() for part in ("--conf", f"spark.executorEnv.{name}={value}")),
            *(str(ROOT / "jobs/bookies.py"), "--bookies", str(bookies), "--directory", *self.roots),
            *("--zookeeper", self.zookeeper, *arguments),
        ]
        self.driver = self.machine.run_on_gateway(command, self.driver_log, environment)

    def kill_driver(self) -> None:
        """Send SIGKILL to the job's JVM and Python at once. The bookies get no message."""
        assert self.driver is not None
        os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait(30)

    def end_driver(self) -> None:
        """Send SIGTERM to the job's Python, as a supervisor or a user does."""
        assert self.driver is not None
        jobs = self.machine.processes_with("jobs/bookies.py", str(self.machine.disk))
        drivers = [pid for pid, command in jobs.items() if "java" not in command.split()[0]]
        self.machine.end(drivers, signal.SIGTERM)
        self.driver.wait(90)

    def stop_bookies(self) -> None:
        """Run the command that stops all bookies cleanly."""
        command = [sys.executable, "-m", "bookspark", "stop-bookies", "--zookeeper", self.zookeeper]
        subprocess.run(command, cwd=ROOT, check=True, timeout=120)

    # -- observations
    def executors(self, host: str) -> list[int]:
        return [
            pid
            for pid, command in self.machine.processes_of(host).items()
            if EXECUTOR in command and "java" in command.split()[0]
        ]

    def driver_host(self) -> str:
        """The host of the job's driver, or "" on the gateway."""
        return ""

    def tasks(self) -> list[TaskReport]:
        """Reports of the newest attempt of the run that owns the service."""
        for service in self.store.list_records(SERVICES):
            record = read_service(self.store, service)
            reports = [] if record is None else read_tasks(self.store, service, record.run)
            newest = max((task.attempt for task in reports), default=0)
            return [task for task in reports if task.attempt == newest]
        return []

    def bookies(self) -> dict[str, tuple[TaskReport, BookieReport]]:
        """Serving bookies under a task, by id."""
        return {
            bookie.bookie_id: (task, bookie)
            for task in self.tasks()
            for bookie in task.bookies
            if bookie.phase == "serving" and bookie.pid
        }

    def run(self) -> str:
        """The run that owns the service."""
        for service in self.store.list_records(SERVICES):
            record = read_service(self.store, service)
            return "" if record is None else record.run
        return ""

    def await_looked_after(
        self, ids: set[str], seconds: float = 180.0, run: str = "", since: int = -1
    ) -> dict[str, tuple[TaskReport, BookieReport]]:
        """Wait until tasks hold exactly the bookies ``ids``, in a run other than ``run`` and an attempt after ``since``.
        Returns them, because a moment later there may be another attempt."""

        def there() -> dict[str, tuple[TaskReport, BookieReport]]:
            if run and self.run() == run:
                return {}
            found = self.bookies()
            newer = all(task.attempt > since for task, _ in found.values())
            return found if set(found) == ids and newer else {}

        return await_that(
            there,
            seconds,
            lambda: f"{sorted(ids)} to be looked after; there are {sorted(self.bookies())}; {self.tail()}",
        )

    def known(self) -> set[str]:
        return {home.bookie_id for home in read_wanted(self.store, self.roots).known}

    def alive(self) -> dict[int, str]:
        """Bookie processes, by pid."""
        found = self.machine.processes_with("bookspark.servers.daemon", str(self.machine.disk))
        # Each leads its session, unlike the process that starts it.
        return {pid: command for pid, command in found.items() if _session(pid) == pid}

    def told(self) -> list[str]:
        """The lines of the present job's log that are meant for users."""
        lines = self.driver_log.read_text(errors="replace").splitlines()
        return [line.removeprefix("bookies: ") for line in lines if line.startswith(("bookies:", "bookspark"))]

    def tail(self) -> str:
        return " | ".join(self.told()[-4:])


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


class _Closing:
    def __init__(self, zookeeper: str) -> None:
        self.store = ZooKeeperStore(zookeeper, begin=LedgerManager.HIERARCHICAL)

    def __enter__(self) -> _Closing:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
