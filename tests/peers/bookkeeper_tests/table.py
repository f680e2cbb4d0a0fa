"""The table of BookKeeper's classes of tests in docs/compatibility.md.

Law: the lines between the two marks are written by the command alone, from runs. The row of a class is replaced when it was run;
the other rows stay. The sums are those of the rows.

Why a test failed is in ``reasons.toml``, where somebody looked; what JUnit said stands there otherwise.
"""

from __future__ import annotations

import fcntl
import re
import tomllib
from collections import Counter
from pathlib import Path

from tests.peers.bookkeeper_tests.running import HERE, ROOT, ClassRun, JavaTest

PAGE = ROOT / "docs/compatibility.md"
BEGIN, END = "<!-- bookkeeper-tests: begin -->", "<!-- bookkeeper-tests: end -->"
_HEAD = "| class | tests | passed | failed | skipped | those that did not pass |\n|---|---|---|---|---|---|"
_REASONS: dict[str, str] = tomllib.loads((HERE / "reasons.toml").read_text())
_KINDS = {
    "insides": ("reaches into a Java bookie's insides", "reach into a Java bookie's insides"),
    "not offered": ("tests what we don't have", "test what we don't have"),
}


def row(run: ClassRun) -> str:
    """The row of one class."""
    passed, skipped = run.count("passed"), run.count("skipped")
    failed = len(run.tests) - passed - skipped
    return f"| `{run.name}` | {len(run.tests)} | {passed} | {failed} | {skipped} | {_reasons(run)} |"


def write_rows(runs: list[ClassRun], page: Path = PAGE) -> str:
    """Put the rows of ``runs`` into the page; returns the sums. Commands that run at the same time wait for each other."""
    with page.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _write_rows(runs, page)


def _write_rows(runs: list[ClassRun], page: Path) -> str:
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    assert begin and end, f"{page} has no marks for the table"
    rows = {line.split("`")[1]: line for line in old.splitlines() if line.startswith("| `")}
    rows |= {run.name: row(run) for run in runs}
    counts = [[int(cell) for cell in line.split("|")[2:6]] for line in rows.values()]
    sums = [sum(column) for column in zip(*counts, strict=True)]
    classes = "1 class" if len(rows) == 1 else f"{len(rows)} classes"
    skipped = "1 was skipped" if sums[3] == 1 else f"{sums[3]} were skipped"
    total = f"{classes} with {sums[0]} tests: {sums[1]} passed, {sums[2]} failed, {skipped}."
    table = "\n".join([_HEAD, *(rows[name] for name in sorted(rows))])
    page.write_text(f"{before}{begin}\n{total}\n\n{table}\n{end}{after}")
    return total


def _reasons(run: ClassRun) -> str:
    """Each reason once, with how many tests of the class it stopped."""
    reasons = Counter(_reason(run.name, test) for test in run.tests if test.outcome != "passed")
    return "; ".join(f"{count} {one if count == 1 else many}" for (one, many), count in reasons.items())


def _reason(name: str, test: JavaTest) -> tuple[str, str]:
    """Said of one test, and of several."""
    said = _cell(test.why)
    if test.outcome in _KINDS:
        what = said.partition(": ")[2]
        return tuple(f"{words} ({what})" for words in _KINDS[test.outcome])  # type: ignore[return-value]
    if test.outcome == "skipped":
        return (f"skipped by itself{f' ({said})' if said else ''}",) * 2
    method = test.name.partition("[")[0]
    known = _REASONS.get(f"{name}.{method}", _REASONS.get(name))
    return (f"`{method}`: {known or said}",) * 2


def _cell(words: str) -> str:
    return re.sub(r"[|`]", " ", words)[:120]
