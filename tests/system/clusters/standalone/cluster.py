"""A standalone master and workers, each worker on a simulated host."""

from __future__ import annotations

from pathlib import Path

from bookspark.spark.short_jobs import QUICK_JVM
from tests.awaiting import await_that
from tests.ports import free_port
from tests.spark.standalone import NO_REST
from tests.system.clusters.cluster import SPARK_HOME, Cluster


class StandaloneCluster(Cluster):
    """A master at 127.0.0.1, and workers with two cores."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_port()
        # By default a master declares a worker lost after a minute, and an application failed after ten lost executors: tests
        # are shorter, and kill more.
        conf = f"{QUICK_JVM} -Dspark.worker.timeout=15 -Dspark.deploy.maxExecutorRetries=-1 {NO_REST}"
        self.environment = {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_DAEMON_JAVA_OPTS": conf,
            "SPARK_DAEMON_MEMORY": "256m",
        }

    def start_manager(self) -> None:
        master = _daemon("master.Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0")
        log = self.folder / "master.log"
        self.machine.run_on_gateway(master, log, {**self.environment, "SPARK_LOCAL_IP": "127.0.0.1"})
        await_that(lambda: "Starting Spark master" in log.read_text(), 60, "the master")

    def daemon(self, host: str) -> list[str]:
        work = self.folder / "work" / host
        return _daemon(
            "worker.Worker",
            *("--host", host, "--webui-port", "0", "--cores", "2", "--memory", "1300M", "--work-dir", str(work)),
            f"spark://127.0.0.1:{self._port}",
        )

    def master(self, executors: int) -> list[str]:
        return ["--master", f"spark://127.0.0.1:{self._port}", "--conf", "spark.driver.host=127.0.0.1"]


def _daemon(name: str, *arguments: str) -> list[str]:
    return [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
