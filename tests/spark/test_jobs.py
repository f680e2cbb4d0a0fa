"""The spark-submit entry points without Spark: what is wrong is one line, whatever it is, and Ctrl-C ends them cleanly."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from py4j.protocol import Py4JError

from bookspark.spark import bookies_job

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
    monkeypatch.setattr(module, "session", failing)
    with pytest.raises(SystemExit, match=rf"^bookspark {name}: \w+: org.apache.spark.SparkException: Job aborted$"):
        module.main(**arguments)


def test_an_error_of_java_is_one_line_for_bookies_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bookies_job, "session", failing)
    assert bookies_job.main(["--directory", "/nowhere"]) == 1
    assert capsys.readouterr().err == "bookspark bookies: Job aborted\n"
