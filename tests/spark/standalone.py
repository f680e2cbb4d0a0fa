"""A standalone Spark cluster on this machine, each worker on a host of its own: 127.0.0.1, 127.0.0.2, …

Spark makes no speculative copy of a task on the host of its first attempt, and all workers of ``local-cluster`` share
a host."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType

import pyspark

from bookspark.spark.short_jobs import QUICK_JVM
from tests.processes import Output

_START_SECONDS = 600.0
_SPARK_HOME = Path(pyspark.__file__).parent
# Its port is fixed (6066), and the master of another test may have it.
NO_REST = "-Dspark.master.rest.enabled=false"


class StandaloneCluster:
    """``workers`` workers with one core and memory for one small executor; ``master`` is the address within the
    ``with`` block."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[str]] = []
        self.master = ""

    def __enter__(self) -> StandaloneCluster:
        started = self._start("master.Master", 1, r"Starting Spark master at (spark://\S+)")
        self.master = started
        for number in range(1, self._workers + 1):
            resources = ("--cores", "1", "--memory", "768M", "--work-dir", str(self._folder / f"work-{number}"))
            self._start("worker.Worker", number, r"Successfully registered with master (\S+)", *resources, self.master)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(_START_SECONDS)
            assert process.stdout is not None
            process.stdout.close()

    def _start(self, what: str, host: int, started: str, *arguments: str) -> str:
        """Start a daemon; return the part of its log that ``started`` matches."""
        address = ("--host", f"127.0.0.{host}", "--port", "0", "--webui-port", "0")
        # Tests kill any number of executors.
        conf = f"-Dspark.deploy.maxExecutorRetries=-1 {NO_REST}"
        process = subprocess.Popen(
            [_SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{what}", *address, *arguments],
            env={**os.environ, "SPARK_HOME": str(_SPARK_HOME), "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JVM} {conf}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        assert process.stdout is not None
        return Output(process.stdout).wait_for(started, _START_SECONDS)[1]
