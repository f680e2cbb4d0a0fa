"""The wheel in new environments without the checkout: pip installs it from a package index, and the examples of README.md run
from there as they are written."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

import bookspark
from bookspark.spark.short_jobs import QUICK_JVM
from tests.docs.test_readme import blocks
from tests.pages import small_tables
from tests.processes import Output, listening_off_loopback
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
    """Environment with the client's requirements from the package index, in the versions of ``conf/constraints.txt``."""
    home = tmp_path_factory.mktemp("client") / "environment"
    return installed(home, "--constraint", str(ROOT / "conf" / "constraints.txt"), str(wheel))


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Environment with all extras. Their requirements come from this process's environment, so that pip only checks them and
    unpacks no second Spark."""
    home = tmp_path_factory.mktemp("all") / "environment"
    return installed(home, "--no-index", f"{wheel}[all]", others=Path(sysconfig.get_path("purelib")))


def installed(home: Path, *what: str, others: Path | None = None) -> Path:
    """A new environment in which pip has installed ``what``. ``others``: a folder of further packages that it sees."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=300)
    if others is not None:
        (site,) = home.glob("lib/python*/site-packages")
        (site / "others.pth").write_text(f"{others}\n")
    pip(home, "install", "--quiet", "--no-compile", *what)
    return home


def pip(home: Path, *words: str) -> str:
    """Run pip for an environment. Returns its output."""
    command = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "--disable-pip-version-check", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def run(home: Path, *command: str, **variables: str) -> str:
    """Run a command of the environment in the folder above it. Returns its standard output."""
    done = subprocess.run(
        [home / "bin" / command[0], *command[1:]],
        cwd=home.parent,
        env={**environment(home), **variables},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(1800)
def test_client_installation_has_neither_spark_nor_plot_packages(client_home: Path) -> None:
    packages = {each["name"].lower() for each in json.loads(pip(client_home, "list", "--format=json"))}
    assert packages == {"bookspark", "crc32c", "kazoo", "msgspec", "sortedcontainers", "uvloop", "zstandard"}
    place = run(client_home, "python", "-c", "import bookspark; bookspark.BookKeeper; print(bookspark.__file__)")
    assert place.startswith(str(client_home))


AUDITED, AGAIN = "the audits", "once more"
TRIGGERS = """
from pyspark.sql.streaming import StreamingQueryListener

class Triggers(StreamingQueryListener):
    def onQueryStarted(self, event): pass
    def onQueryTerminated(self, event): pass
    def onQueryProgress(self, event):
        print("trigger", event.progress.timestamp, event.progress.numInputRows, flush=True)
    def onQueryIdle(self, event): print("trigger", event.timestamp, 0, flush=True)

# Each trigger is told, also one that found nothing.
spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "0")
spark.sparkContext.setLogLevel("OFF")
spark.streams.addListener(Triggers())
"""


@pytest.mark.spark
@pytest.mark.timeout(2400)
def test_four_examples_of_the_readme_run_as_written(home: Path, client_home: Path, tmp_path: Path) -> None:
    """As they are written. The first query, the audits, the first query again and the reading query are one session beside
    the bookies. The environment of the service and the tail has no pyspark."""
    assert run(home, "bookspark", "--version") == f"bookspark {bookspark.__version__}\n"
    assert run(home, "bookspark", "job", "bookies").startswith(str(home))
    assert run(home, "bookspark", "conf", "spark-defaults.conf").startswith(str(home))
    (bookies, audits), (query, service, payments, tail) = blocks("bash"), blocks("python")
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    own = {"HOME": str(tmp_path), "XDG_CACHE_HOME": cache, "JAVA_TOOL_OPTIONS": QUICK_JVM}
    # A reader of the README has not set Spark's address.
    variables = {name: value for name, value in (environment(home) | own).items() if name != "SPARK_LOCAL_IP"}
    with started(["bash", "-ec", f"exec {bookies}"], tmp_path, variables) as (job, zookeeper):
        assert listening_off_loopback(job) == [], "a first try opens this host to nobody"
        address = {"BOOKSPARK_ZOOKEEPER": zookeeper}
        assert run(client_home, "python", "-c", CLIENT, **address) == "first\n"
        missing = subprocess.run(
            [client_home / "bin" / "python", "-c", "import pyspark"], capture_output=True, timeout=300
        )
        assert b"No module named 'pyspark'" in missing.stderr
        run(home, "bookspark", "log", "create", "payments", **address)
        in_bash = f"import subprocess\nprint({AUDITED!r}, flush=True)\nsubprocess.run(['bash', '-ec', {audits!r}], check=True)\n"
        session = f"{query}{in_bash}print({AGAIN!r}, flush=True)\n{query}{TRIGGERS}{payments}"
        spark = variables | address | {"PYSPARK_SUBMIT_ARGS": small_tables()}
        without = environment(client_home) | address
        with (
            program([client_home / "bin" / "python", "-c", tail], client_home.parent, without) as tailed,
            program([home / "bin" / "python", "-c", session], tmp_path, spark) as queried,
        ):
            queried.wait_for("^trigger", 1200)
            shown, rest = "".join(queried.lines).split(f"{AUDITED}\n")
            audited, asked = rest.split(f"{AGAIN}\n")
            assert "only showing top 5 rows" in shown
            assert "Under-replicated ranges: none" in audited
            assert len(first_rows(shown)) == 5
            assert first_rows(shown) == first_rows(asked), "run again with its checkpoint, nothing is doubled"
            reads_what_is_written(client_home, service, without, tailed, queried)


def first_rows(output: str) -> list[str]:
    """The rows of the first table that Spark shows; log lines may come in between."""
    return [line for line in output.splitlines() if re.match(r"\|\s*\d+\|", line)][:5]


def reads_what_is_written(
    client_home: Path, service: str, variables: Mapping[str, str], tailed: Output, queried: Output
) -> None:
    """The tail and the query get each row of the service, which runs twice; the query gets it in its next trigger."""
    for first in (0, 3):
        positions = [first, first + 1, first + 2]
        assert list(map(int, run(client_home, "python", "-c", service, **variables).split())) == positions
        acknowledged = f"{datetime.now(UTC).isoformat()[:23]}Z"
        for number, position in enumerate(positions):
            tailed.wait_for(f"^{position} payment {number}$", 300)
        for number, position in enumerate(positions):
            queried.wait_for(rf"\|\s*{position}\|\s*payment {number}\|", 300)
        queried.wait_for("^trigger .* 0$", 300)
        triggers = [line.split()[1:] for line in queried.lines if line.startswith("trigger")]
        later = [int(rows) for began, rows in triggers if began > acknowledged]
        assert sum(later[1:]) == 0, f"acknowledged {acknowledged}, and not all read in a trigger: {triggers}"


@contextmanager
def started(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """The job of bookies until it is stopped. Yields its pid and the address of its ZooKeeper, once it serves."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    guard = threading.Timer(1800, lambda: os.killpg(process.pid, signal.SIGKILL))
    guard.start()
    try:
        assert process.stdout is not None
        before: list[str] = []
        serving = next((line for line in process.stdout if line.startswith("{") or before.append(line)), None)
        assert serving is not None, f"the job of bookies ended without serving: {''.join(before)[-3000:]}"
        assert len([line for line in before if " INFO " in line]) <= 5, "the job's log is short"
        yield process.pid, json.loads(serving)["zookeeper"]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=300)
        finally:
            guard.cancel()
    assert process.returncode in (0, 128 + signal.SIGTERM, -signal.SIGTERM)


@contextmanager
def program(command: Sequence[str | Path], folder: Path, variables: Mapping[str, str]) -> Iterator[Output]:
    """A program that runs until it is killed. Yields its output."""
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
