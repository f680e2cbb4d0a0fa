"""The spark-submit entry points without Spark: what is wrong is one line, whatever it is, and Ctrl-C ends them cleanly."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from bookspark.spark.bookies import bookies_job

JOBS = Path(__file__).parents[2] / "jobs"
FAILED = "An error occurred while calling o76.save.\n: org.apache.spark.SparkException: Job aborted\n\tat org.apache"


def job(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_job", JOBS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Handlers are as before when a test ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Service:
    """Starts when Ctrl-C came meanwhile, or is stopped by one that comes while it serves."""

    failure = ""
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


def spark_with_a_handler(*arguments: object, **options: object) -> Any:
    """What SparkContext does to SIGINT (signal_handler in its __init__)."""

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    return SimpleNamespace(stop=lambda: None)


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
def test_an_error_of_java_is_one_line(name: str, arguments: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = job(name)
    monkeypatch.setattr(module, "session" if name == "autorecovery" else "delta_session", failing)
    with pytest.raises(SystemExit, match=rf"^bookspark {name}: \w+: org.apache.spark.SparkException: Job aborted$"):
        module.main(**arguments)


def test_an_error_of_java_is_one_line_for_bookies_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bookies_job, "session", failing)
    assert bookies_job.main(["--directory", "/nowhere"]) == 1
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
    assert bookies_job.main(["--directory", "/nowhere"]) == 0
    assert told == steps


def test_ctrl_c_while_spark_starts_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*arguments: object, **options: object) -> None:
        spark_with_a_handler()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(bookies_job, "session", session)
    assert bookies_job.main(["--directory", "/nowhere"]) == 0


def test_ctrl_c_ends_autorecovery_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    module = job("autorecovery")
    monkeypatch.setattr(module, "session", spark_with_a_handler)
    monkeypatch.setattr(module, "AutorecoveryService", lambda *_: Service(told, "later"))
    module.main("z")
    assert told == ["start", "serves", "stop"]
