"""The wheel in new environments without the checkout: pip installs it from a package index, and everything starts from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

import bookspark
from bookspark.local import LocalCluster
from bookspark.logs import create_log
from bookspark.spark.short_jobs import QUICK_JVM
from tests.acceptance.test_readme import blocks
from tests.processes import Output
from tests.wheels import ROOT, build_wheel, environment

CLIENT = """
import os
from bookspark import BookKeeper
with BookKeeper(os.environ["BOOKSPARK_ZOOKEEPER"]) as bookkeeper:
    with bookkeeper.create_ledger(3, 3, 2, password=b"secret") as ledger:
        ledger.append(b"first")
    (entry,) = bookkeeper.open_ledger(ledger.ledger_id, password=b"secret").read()
    print(bytes(entry.payload).decode())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def client_home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("client") / "environment", str(wheel))


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("all") / "environment", f"{wheel}[all]")


def installed(home: Path, what: str) -> Path:
    """A new environment with ``what`` in the versions of ``conf/constraints.txt``."""
    subprocess.run([sys.executable, "-m", "venv", home], check=True, timeout=300)
    pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    command = [*pip, "--constraint", ROOT / "conf" / "constraints.txt", what]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:]
    return home


def run(home: Path, *command: str, **variables: str) -> str:
    """Run a command of the environment in a folder of its own. Returns its standard output."""
    done = subprocess.run(
        [home / "bin" / command[0], *command[1:]],
        cwd=home.parent,
        env={**environment(home), "JAVA_TOOL_OPTIONS": QUICK_JVM, **variables},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@contextmanager
def started(home: Path, *command: str) -> Iterator[str]:
    """A command that serves until Ctrl-C. Yields the first line of its standard output that is JSON or an address."""
    process = subprocess.Popen(
        [home / "bin" / command[0], *command[1:]],
        cwd=home.parent,
        env={**environment(home), "JAVA_TOOL_OPTIONS": QUICK_JVM, "HOME": os.environ["HOME"]},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    guard = threading.Timer(1200, lambda: os.killpg(process.pid, signal.SIGKILL))
    guard.start()
    try:
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if line.startswith(("{", "127.0.0.1:")):
                break
        else:
            pytest.fail(f"it ended without serving: {''.join(printed[-20:])}")
        yield line.strip()
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=300)
        finally:
            guard.cancel()
    assert process.returncode in (0, 128 + signal.SIGTERM, -signal.SIGTERM)


@pytest.mark.timeout(1800)
def test_the_client_alone_brings_neither_spark_nor_plots(client_home: Path) -> None:
    packages = {each["name"].lower() for each in json.loads(run(client_home, "pip", "list", "--format=json"))}
    assert packages - {"pip", "setuptools"} == {"bookspark", "crc32c", "kazoo", "msgspec", "uvloop", "zstandard"}
    place = run(client_home, "python", "-c", "import bookspark; bookspark.BookKeeper; print(bookspark.__file__)")
    assert place.startswith(str(client_home))


@pytest.mark.spark
@pytest.mark.timeout(2400)
def test_bookies_on_spark_without_a_checkout(home: Path, client_home: Path, tmp_path: Path) -> None:
    assert run(home, "bookspark", "--version") == f"bookspark {bookspark.__version__}\n"
    job = run(home, "bookspark", "job", "bookies").strip()
    defaults = run(home, "bookspark", "conf", "spark-defaults.conf").strip()
    assert job.startswith(str(home)) and defaults.startswith(str(home))
    submit = ("spark-submit", "--master", "local-cluster[3,2,1024]", "--properties-file", defaults, job)
    with started(home, *submit, "--bookies", "3", "--directory", str(tmp_path / "bookies")) as line:
        zookeeper = json.loads(line)["zookeeper"]
        assert run(client_home, "python", "-c", CLIENT, BOOKSPARK_ZOOKEEPER=zookeeper) == "first\n"
        assert run(home, "bookspark", "ledger", "list", "--zookeeper", zookeeper).split() != []


@pytest.mark.timeout(1800)
def test_a_cluster_on_this_host(home: Path, client_home: Path) -> None:
    with started(home, "python", "-m", "bookspark", "local") as zookeeper:
        assert run(client_home, "python", "-c", CLIENT, BOOKSPARK_ZOOKEEPER=zookeeper) == "first\n"


TRIGGERS = """
from pyspark.sql.streaming import StreamingQueryListener
from bookspark.spark import session

class Triggers(StreamingQueryListener):
    def onQueryStarted(self, event): pass
    def onQueryTerminated(self, event): pass
    def onQueryProgress(self, event):
        print("trigger", event.progress.timestamp, event.progress.numInputRows, flush=True)
    def onQueryIdle(self, event): print("trigger", event.timestamp, 0, flush=True)

# Each trigger is told, also one that found nothing.
spark = session("payments", **{"spark.sql.streaming.noDataProgressEventInterval": "0"})
spark.sparkContext.setLogLevel("OFF")
spark.streams.addListener(Triggers())
"""


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_service_and_a_tail_without_spark_and_a_query_share_a_log(
    client_home: Path, new_chroot: Callable[[], str]
) -> None:
    """The README's three programs as they are written. The service's and the tail's environment has no pyspark."""
    service, query, tail = blocks("python")[1:]
    python = client_home / "bin" / "python"
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as cluster, cluster.bookkeeper() as bookkeeper:
        create_log(bookkeeper, "payments")
        variables = {**environment(client_home), "BOOKSPARK_ZOOKEEPER": cluster.zookeeper}
        missing = subprocess.run([python, "-c", "import pyspark"], env=variables, capture_output=True, timeout=300)
        assert b"No module named 'pyspark'" in missing.stderr
        spark = {**os.environ, "BOOKSPARK_ZOOKEEPER": cluster.zookeeper, "JAVA_TOOL_OPTIONS": QUICK_JVM}
        with (
            program([python, "-c", tail], client_home.parent, variables) as tailed,
            program([sys.executable, "-c", TRIGGERS + query], ROOT, spark) as queried,
        ):
            queried.wait_for("^trigger", 600)
            for first in (0, 3):
                positions = [first, first + 1, first + 2]
                assert list(map(int, run_code(python, service, variables).split())) == positions
                acknowledged = f"{datetime.now(UTC).isoformat()[:23]}Z"
                for number, position in enumerate(positions):
                    tailed.wait_for(f"^{position} payment {number}$", 300)
                for number, position in enumerate(positions):
                    queried.wait_for(rf"\|\s*{position}\|\s*payment {number}\|", 300)
                queried.wait_for("^trigger .* 0$", 300)
                triggers = [line.split()[1:] for line in queried.lines if line.startswith("trigger")]
                later = [int(rows) for began, rows in triggers if began > acknowledged]
                assert sum(later[1:]) == 0, f"acknowledged {acknowledged}, and not all read in a trigger: {triggers}"


def run_code(python: Path, code: str, variables: Mapping[str, str]) -> str:
    done = subprocess.run([python, "-c", code], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@contextmanager
def program(command: Sequence[str | Path], folder: Path, variables: Mapping[str, str]) -> Iterator[Output]:
    """A program that goes on without an end. Yields what it prints."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        yield Output(process.stdout)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        process.stdout.close()
