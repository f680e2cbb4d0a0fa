"""``scripts/coverage [ARGUMENTS OF PYTEST]``: lines and branches of the product that the tests reach, in all of their
processes.

Prints a table by package. The data stay in ``.cache/coverage/data`` with the tests that reach each line, for
``scripts/mutants``: a test's id, or ``processes|MODULE`` for a process that a module of tests started. As a pytest plugin,
this module records these names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".cache/coverage"
_CONTEXT = "BOOKSPARK_TEST"  # setup.cfg names it as the context of a process that starts


def pytest_configure() -> None:
    os.register_at_fork(after_in_child=_leave_to_parent)


def _leave_to_parent() -> None:
    """A child forked by a test measures nothing: it would close the database of its parent's data, and damage it."""
    if (running := coverage.Coverage.current()) is not None:
        running.stop()
        running.save = lambda: None  # type: ignore[method-assign]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    os.environ[_CONTEXT] = f"processes|{item.nodeid.partition('::')[0]}"
    if (running := coverage.Coverage.current()) is not None:
        running.switch_context(item.nodeid.partition("[")[0])


def main(arguments: list[str]) -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        "coverage",
        "run",
        "-m",
        "pytest",
        "-p",
        "tests.covering",
        "-n",
        "auto",
        *arguments,
    ]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    measured = coverage.Coverage(config_file=str(ROOT / "setup.cfg"))
    measured.combine([str(FOLDER)])
    measured.save()
    print(table(measured))
    return status


def table(measured: coverage.Coverage) -> str:
    """A Markdown table: lines and branches of each package, and the reached part of both."""
    with tempfile.NamedTemporaryFile() as report:
        # Some tests run an earlier version in a tree of its own, which is gone.
        measured.json_report(outfile=report.name, include=["bookspark/*"])
        files = json.load(report)["files"]
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for path, file in files.items():
        package = path.rpartition("bookspark/")[2].partition("/")[0].removesuffix(".py")
        for name in (package, "all"):
            sums[name].update(file["summary"])
    rows = ["| package | lines | branches | reached |", "|---|---|---|---|"]
    for package, summary in sorted(sums.items(), key=lambda row: (row[0] == "all", row[0])):
        lines, branches = summary["num_statements"], summary["num_branches"]
        reached = summary["covered_lines"] + summary["covered_branches"]
        rows.append(f"| {package} | {lines} | {branches} | {reached / max(1, lines + branches):.0%} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
