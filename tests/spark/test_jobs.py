"""The spark-submit entry points without Spark: each error is a single line, and Ctrl-C ends them cleanly."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest
from py4j.protocol import Py4JError

from bookspark.errors import BookieError, BookKeeperError
from bookspark.spark.audit import Finding
from bookspark.spark.bookies import bookies_job
from bookspark.spark.offload import Offloaded
from bookspark.spark.short_jobs import run_job
from bookspark.support.extras import MissingExtraError
from tests.authority import private

JOBS = Path(__file__).parents[2] / "jobs"
FAILED = "An error occurred while calling o76.save.\n: org.apache.spark.SparkException: Job aborted\n\tat org.apache"


def job(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_job", JOBS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ended(monkeypatch: pytest.MonkeyPatch, name: str, module: ModuleType, *arguments: str) -> object:
    """The exit status of a job."""
    monkeypatch.setattr("sys.argv", [name, *arguments])
    with pytest.raises(SystemExit) as end:
        run_job(name, module.main)
    return end.value.code


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Restore the signal handlers when a test ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Service:
    """A service that Ctrl-C interrupts while it starts, or while it serves."""

    failure, told_to_stop, missing = "", False, ()
    zookeeper, bookies, executors = "z", {}, {}  # type: ignore[var-annotated]

    def __init__(self, told: list[str], interrupted: str) -> None:
        self.told, self.interrupted = told, interrupted

    def start(self) -> None:
        self.told.append("start")
        if self.interrupted == "while it starts":
            signal.raise_signal(signal.SIGINT)
        self.told.append("serves")
        signal.raise_signal(signal.SIGINT)

    def stop(self) -> None:
        self.told.append("stop")

    def let_go(self) -> None:
        self.told.append("let go")


class Helper:
    """An autorecovery process that ends after each start, and can't start the second time."""

    name, pid = "helper-1", None

    def __init__(self, told: list[str]) -> None:
        self.told, self.starts = told, 0

    def start(self) -> None:
        self.starts += 1
        if self.starts in (2, 3):
            raise BookieError("no ZooKeeper")

    def stop(self) -> None:
        self.told.append("autorecovery stops")


def spark_with_a_handler(*arguments: object, **options: object) -> Any:
    """Handle SIGINT as SparkContext does (signal_handler in its __init__)."""

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    return SimpleNamespace(stop=lambda: None, sparkContext=SimpleNamespace(master="local[2]"))


def failing(*arguments: object, **options: object) -> Any:
    raise Py4JError(FAILED)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("audit", {"path": "/nowhere"}),
        ("autorecovery", {"zookeeper": "z"}),
        ("offload", {"zookeeper": "z", "log": "orders", "table": "/nowhere"}),
        ("snapshot", {"zookeeper": "z", "path": "/nowhere"}),
    ],
)
def test_java_error_of_a_job_is_a_single_line(
    name: str, arguments: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = job(name)
    monkeypatch.setattr(module, "session" if name == "autorecovery" else "delta_session", failing)
    options = [text for option, value in arguments.items() for text in (f"--{option}", value)]
    assert ended(monkeypatch, name, module, *options) == 2
    assert re.fullmatch(
        rf"bookspark {name}: \w+: org.apache.spark.SparkException: Job aborted\n", capsys.readouterr().err
    )


def test_exit_status_of_the_audit_job_reports_findings_and_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0: no finding. 1: findings. 2: the job could not run, whatever the reason."""
    module = job("audit")
    monkeypatch.setattr(module, "delta_session", lambda _: SimpleNamespace(stop=lambda: None))
    good = Finding("orphans", "orphans", "", ("ledger_id",), (), 0)
    bad = replace(good, rows=((7,),), total=1)
    for finding, status in ((good, 0), (bad, 1)):
        monkeypatch.setattr(module.audit, "run", lambda *_, found=finding: [found])
        assert ended(monkeypatch, "audit", module, "--path", "/nowhere") == status
        capsys.readouterr()
        assert ended(monkeypatch, "audit", module, "--path", "/nowhere", "--json") == status
        assert json.loads(capsys.readouterr().out)["findings"][0]["rows"] == [{"ledger_id": 7}] * status
    assert ended(monkeypatch, "audit", module) == 2
    assert ended(monkeypatch, "audit", module, "--path", "/nowhere", "--version", "x") == 2
    monkeypatch.setattr(module.audit, "run", lambda *_: 1 // 0)
    assert ended(monkeypatch, "audit", module, "--path", "/nowhere") == 2
    assert capsys.readouterr().err.endswith("ZeroDivisionError: integer division or modulo by zero\n")


def test_offload_without_new_rows_says_why(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The message "0 rows were offloaded" did not say that the ledgers were still open."""
    module = job("offload")
    monkeypatch.setattr(module, "delta_session", lambda *_, **__: SimpleNamespace(stop=lambda: None))
    for rows in (0, 5):
        monkeypatch.setattr(module, "offload", lambda *_, rows=rows, **__: Offloaded(rows, rows, []))
        module.main("z", "orders", "/nowhere")
        assert ("without new rows for an hour" in capsys.readouterr().out) == (rows == 0)


def test_java_error_of_the_bookies_job_is_a_single_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bookies_job, "session", failing)
    assert bookies_job.main(["--directory", "/nowhere"]) == 2
    assert capsys.readouterr().err == "bookspark bookies: Job aborted\n"


@pytest.mark.parametrize(
    ("interrupted", "steps"), [("while it starts", ["start", "stop"]), ("later", ["start", "serves", "stop"])]
)
def test_ctrl_c_ends_the_bookies_cleanly_while_they_start_and_later(
    interrupted: str, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(bookies_job, "session", spark_with_a_handler)
    monkeypatch.setattr(bookies_job, "BookieService", lambda *_, **__: Service(told, interrupted))
    assert bookies_job.main(["--directory", "/nowhere", "--no-autorecovery"]) == 0
    assert told == steps


def test_console_of_the_bookies_job_runs_until_the_bookies_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[object] = []

    class Serving(Service):
        def start(self) -> None:
            told.append("start")

    @contextmanager
    def show(zookeeper: str, options: bookies_job.ConsoleOptions) -> Iterator[str]:
        told.append((zookeeper, options.port, options.listen, options.token_file, options.snapshots))
        yield "http://127.0.0.1:8190/"
        told.append("console ends")

    def say(line: str) -> None:
        told.append(line)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(bookies_job, "session", spark_with_a_handler)
    monkeypatch.setattr(bookies_job, "BookieService", lambda *_, **__: Serving(told, ""))
    monkeypatch.setattr(
        bookies_job, "print", lambda line, **_: say(line) if line.startswith("{") else None, raising=False
    )
    options = (
        "--console-port",
        "8190",
        "--console-token-file",
        "f",
        "--console-snapshots",
        "s",
        "--console-listen",
        "h",
    )
    assert bookies_job.main(["--directory", "/nowhere", "--no-autorecovery", *options], show) == 0
    start, asked, line, *rest = told
    assert start == "start" and asked == ("z", 8190, "h", "f", "s") and rest == ["console ends", "stop"]
    assert json.loads(str(line))["console"] == "http://127.0.0.1:8190/"
    told.clear()
    assert bookies_job.main(["--directory", "/nowhere", "--no-autorecovery"], show) == 0
    assert [one for one in told if one != told[1]] == ["start", "stop"] and "console" not in json.loads(str(told[1]))


def test_autorecovery_runs_beside_the_bookies_and_is_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    helper = Helper(told)

    class Serving(Service):
        def start(self) -> None:
            told.append("start")

        @property
        def told_to_stop(self) -> bool:  # type: ignore[override]
            return helper.starts > 3

    monkeypatch.setattr(bookies_job, "session", spark_with_a_handler)
    monkeypatch.setattr(bookies_job, "BookieService", lambda *_, **__: Serving(told, ""))
    monkeypatch.setattr(bookies_job, "AutorecoveryProcess", lambda zookeeper, *_: helper)
    monkeypatch.setattr(bookies_job, "_RESTART_SECONDS", 0.0)
    monkeypatch.setattr(bookies_job, "_LOOK_SECONDS", 0.01)
    assert bookies_job.main(["--directory", "/nowhere"]) == 0
    assert told == ["start", "autorecovery stops", "stop"]
    said = [line for line in capsys.readouterr().err.splitlines() if "autorecovery" in line]
    # A failure that goes on is told once.
    assert (
        len(said) == 3
        and "no ZooKeeper" in said[1]
        and said[0] == said[2] == "bookies: autorecovery runs here as helper-1"
    )


def test_console_without_its_extra_ends_the_job_before_any_bookie_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def check() -> None:
        raise MissingExtraError("the console needs uvicorn")

    monkeypatch.setattr(bookies_job, "BookieService", lambda *_, **__: Service(told, ""))
    assert bookies_job.main(["--directory", "/nowhere", "--console-port", "0"], None, check) == 2
    assert told == [] and "the console needs uvicorn" in capsys.readouterr().err


def test_console_that_fails_to_start_ends_the_job_and_its_bookies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    class Serving(Service):
        def start(self) -> None:
            told.append("start")

    monkeypatch.setattr(bookies_job, "session", spark_with_a_handler)
    monkeypatch.setattr(bookies_job, "BookieService", lambda *_, **__: Serving(told, ""))
    arguments = ["--directory", "/nowhere", "--console-port", "0", "--console-listen", "0.0.0.0"]
    # Not on loopback, and without tokens.
    assert bookies_job.main(arguments, job("bookies").open_console) == 2
    assert told == ["start", "stop"] and "--token-file" in capsys.readouterr().err


def test_end_of_a_job_on_a_cluster_leaves_the_bookies_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """The death of an application master, or ``yarn kill``, stopped all bookies."""
    told: list[str] = []

    def on_yarn(*arguments: object, **options: object) -> Any:
        spark = spark_with_a_handler()
        spark.sparkContext.master = "yarn"
        return spark

    monkeypatch.setattr(bookies_job, "session", on_yarn)
    monkeypatch.setattr(bookies_job, "BookieService", lambda *_, **__: Service(told, "later"))
    assert bookies_job.main(["--directory", "/nowhere", "--no-autorecovery"]) == 0
    assert told == ["start", "serves", "let go"]


def test_ctrl_c_while_spark_starts_ends_the_job_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*arguments: object, **options: object) -> None:
        spark_with_a_handler()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(bookies_job, "session", session)
    assert bookies_job.main(["--directory", "/nowhere", "--no-autorecovery"]) == 0


def test_ctrl_c_ends_autorecovery_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    module = job("autorecovery")
    monkeypatch.setattr(module, "session", spark_with_a_handler)
    monkeypatch.setattr(module, "AutorecoveryService", lambda *_: Service(told, "later"))
    module.main("z")
    assert told == ["start", "serves", "stop"]


@pytest.mark.parametrize("name", ["snapshot", "offload"])
def test_password_of_a_job_comes_from_a_file_or_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    module, told = job(name), []

    def note(spark: object, zookeeper: str, *given: str, **options: object) -> NoReturn:
        told.append(given[-1])
        raise BookKeeperError("seen")

    monkeypatch.setattr(module, "delta_session", lambda *_, **__: None)
    monkeypatch.setattr(*((module.snapshots, "write", note) if name == "snapshot" else (module, "offload", note)))
    required = ("--zookeeper", "z", *(("--path", "p") if name == "snapshot" else ("--log", "l", "--table", "t")))
    file = private(tmp_path / "password", "of the file\n")
    for given in (), ("--password-file", file):
        assert ended(monkeypatch, name, module, *required, *given) == 2
    monkeypatch.setenv("BOOKSPARK_PASSWORD", "of the environment")
    for given in (), ("--password-file", file):
        assert ended(monkeypatch, name, module, *required, *given) == 2
    assert told == ["", "of the file", "of the environment", "of the file"]
    Path(file).chmod(0o644)
    capsys.readouterr()
    assert ended(monkeypatch, name, module, *required, "--password-file", file) == 2
    assert f"--password-file {file} is refused: others may read" in capsys.readouterr().err
    assert ended(monkeypatch, name, module, *required, "--password", "secret") == 2
    # ``ps`` and /proc show command lines.
    assert "--password-file" in capsys.readouterr().err and len(told) == 4
