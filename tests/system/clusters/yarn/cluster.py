"""A real YARN: a ResourceManager, and NodeManagers on simulated hosts. Hadoop comes from Maven (``pom.xml``).

In cluster mode the job's driver is the application master, on one of the hosts.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from bookspark.store.metadata.zookeeper.java import find_java
from bookspark.support.cache_folder import cache_folder
from tests.awaiting import await_that
from tests.system.clusters.cluster import ROOT, SPARK_HOME, Cluster

_POM = Path(__file__).with_name("pom.xml")
_OPEN = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
_MANAGER = "http://127.0.0.1:8088/ws/v1/cluster"
_SITE = {
    "yarn.resourcemanager.hostname": "127.0.0.1",
    "yarn.resourcemanager.bind-host": "127.0.0.1",
    # A lost host is noticed after this time; the default is ten minutes.
    "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",
    "yarn.am.liveness-monitor.expiry-interval-ms": "90000",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.nodemanager.resource.memory-mb": "3500",
    "yarn.nodemanager.resource.cpu-vcores": "8",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.hostname": "${nm.name}",
    "yarn.nodemanager.address": "${nm.name}:8041",
    "yarn.nodemanager.localizer.address": "${nm.name}:8040",
    "yarn.nodemanager.webapp.address": "${nm.name}:8042",
    "yarn.nodemanager.collector-service.address": "${nm.name}:8048",
}
_QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.5",
}
_LOG4J = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""


class YarnCluster(Cluster):
    """``cluster_mode``: the driver is the application master."""

    def __init__(self, folder: Path, cluster_mode: bool) -> None:
        super().__init__(folder)
        self._cluster_mode = cluster_mode
        # A NodeManager kills a container 0.25 s after the request to end.
        self.driver_has_last_words = not cluster_mode
        self._conf = folder / "conf"
        self._conf.mkdir()
        self._local = folder / "nm-local"
        self.private = (self._local,)
        site = _SITE | {
            "yarn.nodemanager.local-dirs": str(self._local),
            "yarn.nodemanager.log-dirs": f"{folder}/logs/${{nm.name}}",
        }
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": f"{folder}/tmp"}
        for name, values in (("yarn-site", site), ("core-site", core), ("capacity-scheduler", _QUEUES)):
            (self._conf / f"{name}.xml").write_text(_xml(values))
        (self._conf / "log4j.properties").write_text(_LOG4J)
        java = Path(find_java()).resolve()
        self.environment = {
            "HADOOP_CONF_DIR": str(self._conf),
            "YARN_CONF_DIR": str(self._conf),
            "JAVA_HOME": str(java.parents[1]),
        }
        self._java = str(java)
        self._classpath = f"{self._conf}:{hadoop()}/*"

    def start_manager(self) -> None:
        manager = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
        command = [self._java, "-Xmx256m", "-XX:+UseSerialGC", *_OPEN, "-cp", self._classpath, manager]
        log = self.folder / "manager.log"
        self.machine.run_on_gateway(command, log, self.environment)
        await_that(lambda: "Transitioned to active state" in log.read_text(), 120, "the ResourceManager")

    def daemon(self, host: str) -> list[str]:
        manager = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
        return [
            self._java,
            "-Xmx200m",
            "-XX:+UseSerialGC",
            *_OPEN,
            f"-Dnm.name={host}",
            "-cp",
            self._classpath,
            manager,
        ]

    def master(self, executors: int) -> list[str]:
        jars = SPARK_HOME / "jars"
        options = ["--master", "yarn", "--num-executors", str(executors), "--executor-cores", "2"]
        settings = {
            "spark.yarn.jars": f"local:{jars}/*",
            "spark.yarn.stagingDir": f"file://{self.folder}/staging",
            # The test may kill any number of executors.
            "spark.executor.maxNumFailures": "1000",
        }
        if self._drivers == 1:
            # YARN chooses the hosts. Executors of this size don't fit twice on one host, so both hosts get bookies.
            settings["spark.executor.memoryOverhead"] = "1400m"
        if self._cluster_mode:
            options += ["--deploy-mode", "cluster"]
            settings |= {
                "spark.yarn.submit.waitAppCompletion": "false",
                "spark.yarn.appMasterEnv.PYTHONPATH": str(ROOT),
                "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable,
                # Spark prefers any other address of the machine to a host's own.
                "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
                "spark.yarn.maxAppAttempts": "1",
            }
        else:
            settings["spark.driver.host"] = "127.0.0.1"
        return [*options, *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}"))]

    # -- cluster mode
    def application_masters(self) -> list[int]:
        return [
            pid
            for pid, command in self.machine.processes_with("deploy.yarn.ApplicationMaster", str(self.folder)).items()
            if "java" in command.split()[0]
        ]

    def driver_host(self) -> str:
        masters = set(self.application_masters()) if self._cluster_mode else set()
        return next((host for host in self.hosts if masters & self.machine.processes_of(host).keys()), "")

    def kill_driver(self) -> None:
        if not self._cluster_mode:
            return super().kill_driver()
        self.machine.end(self.application_masters(), signal.SIGKILL)
        return None

    def end_driver(self) -> None:
        """``yarn application -kill`` in cluster mode."""
        if not self._cluster_mode:
            return super().end_driver()
        for application in self._running():
            request = urllib.request.Request(
                f"{_MANAGER}/apps/{application}/state?user.name=root",
                data=b'{"state": "KILLED"}',
                headers={"Content-Type": "application/json"},
                method="PUT",
            )
            urllib.request.urlopen(request, timeout=30).close()
        await_that(lambda: not self._running(), 60, "the end of the application")
        return None

    def _running(self) -> list[str]:
        with urllib.request.urlopen(f"{_MANAGER}/apps?states=ACCEPTED,RUNNING", timeout=30) as answer:
            apps = json.load(answer).get("apps") or {}
        return [app["id"] for app in apps.get("app", [])]

    def told(self) -> list[str]:
        if not self._cluster_mode:
            return super().told()
        logs = list((self.folder / "logs").glob("*/application_*/container_*/std*"))
        newest = max((log.parts[-3] for log in logs), default="")
        lines = [
            line
            for log in sorted(log for log in logs if log.parts[-3] == newest)
            for line in log.read_text(errors="replace").splitlines()
        ]
        return [line.removeprefix("bookies: ") for line in lines if line.startswith(("bookies:", "bookspark"))]


def hadoop() -> Path:
    """The folder of Hadoop's jars. Maven downloads them once (154 jars, 89 MB)."""
    folder = cache_folder() / "hadoop-3.5.0"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(_POM, folder / "pom.xml")
        command = ["mvn", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        subprocess.run(command, cwd=folder, check=True, timeout=900)
        (folder / "done").touch()
    return folder


def _xml(values: dict[str, str]) -> str:
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n" for name, value in values.items()
    )
    return f"<configuration>\n{rows}</configuration>\n"
