"""The plugin that reports a run: seconds, idle time and failures.

It notes the duration of each module (``scheduling`` starts the longest first), prints the twenty slowest modules and the
processor's idle time, and writes the failures to the file of ``--failures``.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

MODULES_MIN, MODULES_SHOWN = 5, 20
_NOTE = "bookspark/seconds"
_CRASHED = "???"
_MESSAGE_CHARACTERS_MAX = 500


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", help="write the failed tests to this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(config))


class Failure(NamedTuple):
    """A failed test. ``final``: it judges a promise, or its process crashed, so it is not tried again."""

    test: str
    message: str
    load: float
    final: bool


class Report:
    """The plugin in the process that distributes the tests, or runs them all."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: dict[str, float] = defaultdict(float)
        self._failures: dict[str, Failure] = {}
        self._before = psutil.cpu_times()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:
            self._fail(report, "promise" in report.keywords or report.when == _CRASHED)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._fail(report, final=True)

    def _fail(self, report: pytest.TestReport | pytest.CollectReport, final: bool) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash is not None else report.longreprtext
        load = round(os.getloadavg()[0], 1)
        self._failures.setdefault(report.nodeid, Failure(report.nodeid, message[:_MESSAGE_CHARACTERS_MAX], load, final))

    def pytest_sessionfinish(self) -> None:
        if (cache := _cache(self._config)) is not None:
            rounded = {module: round(seconds, 1) for module, seconds in self._seconds.items()}
            cache.set(_NOTE, noted_seconds(self._config) | rounded)
        if (file := self._config.option.failures) is not None:
            Path(file).write_text(json.dumps([failure._asdict() for failure in self._failures.values()]))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if len(self._seconds) < MODULES_MIN:
            return
        terminalreporter.section("slowest modules")
        slowest = sorted(self._seconds, key=self._seconds.__getitem__, reverse=True)
        for module in slowest[:MODULES_SHOWN]:
            terminalreporter.write_line(f"{self._seconds[module]:7.1f} s  {module}")
        terminalreporter.write_line(
            f"The processor was idle for {_idle(self._before, psutil.cpu_times()):.0%} of the time."
        )


def _idle(before: Any, after: Any) -> float:
    """The idle part of the processors' time, 0 to 1."""
    spent = [late - early for early, late in zip(before, after, strict=True)]
    idle = after.idle - before.idle + getattr(after, "iowait", 0.0) - getattr(before, "iowait", 0.0)
    # Linux counts the time of guests twice: in ``user`` and in ``guest``.
    total = sum(spent) - sum(getattr(after, name, 0) - getattr(before, name, 0) for name in ("guest", "guest_nice"))
    return idle / total if total > 0 else 0.0


def noted_seconds(config: pytest.Config) -> dict[str, float]:
    """The seconds of each module in its last run in this checkout."""
    cache = _cache(config)
    noted = None if cache is None else cache.get(_NOTE, None)
    return noted if isinstance(noted, dict) else {}


def _cache(config: pytest.Config) -> pytest.Cache | None:
    """None if pytest runs without its cache."""
    return getattr(config, "cache", None)
