"""The tables of test classes in docs/compatibility.md, one for each set.

Law: only the command writes the lines between the two marks, from runs. A class that was run replaces its earlier result; the
other results stay. Classes that passed whole are in ``passed.json`` beside the reasons, each with its number of tests; the page
has their number. The sums are those of all results.

The reason of a failed test comes from ``reasons.toml``, where it was investigated, else from JUnit.
"""

from __future__ import annotations

import fcntl
import json
import re
import tomllib
from pathlib import Path

from tests.system.peers.java_tests.running import ROOT, ClassRun, JavaTest, PeerTests

PAGE = ROOT / "docs/compatibility.md"
_HEAD = "| class | tests | those that did not pass |\n|---|---|---|"
# By outcome: the words for one test, and for several.
_COMMON = {"insides": ("needs a Java bookie", "need a Java bookie"), "skipped": ("skipped by itself",) * 2}


def marks(tests: PeerTests) -> tuple[str, str]:
    """The lines around the table of these tests."""
    return f"<!-- {tests.name}: begin -->", f"<!-- {tests.name}: end -->"


def row(tests: PeerTests, run: ClassRun) -> str:
    """The row of one class."""
    return f"| `{run.name}` | {len(run.tests)} | {_reasons(tests, run)} |"


def write_rows(tests: PeerTests, runs: list[ClassRun], page: Path = PAGE) -> str:
    """Put the rows of ``runs`` into the page; returns the sums. Concurrent commands wait for each other."""
    with page.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _write_rows(tests, runs, page)


def _write_rows(tests: PeerTests, runs: list[ClassRun], page: Path) -> str:
    begin_mark, end_mark = marks(tests)
    text = page.read_text()
    before, begin, rest = text.partition(begin_mark)
    old, end, after = rest.partition(end_mark)
    assert begin and end, f"{page} has no marks for the table of {tests.name}"
    rows = {line.split("`")[1]: line for line in old.splitlines() if line.startswith("| `")}
    passed = tests.folder / "passed.json"
    if passed.exists():
        rows |= {name: _passed_row(name, count) for name, count in json.loads(passed.read_text()).items()}
    rows |= {run.name: row(tests, run) for run in runs}
    tests_run, failed, left_out = (sum(column) for column in zip(*map(_counts, rows.values()), strict=True))
    skipped = "1 was skipped" if left_out == 1 else f"{left_out} were skipped"
    passed_tests = tests_run - failed - left_out
    total = f"{_counted(len(rows))} with {tests_run} tests: {passed_tests} passed, {failed} failed, {skipped}."
    whole = {
        name: int(line.split("|")[2]) for name, line in rows.items() if line == _passed_row(name, line.split("|")[2])
    }
    passed.write_text(json.dumps(whole, indent=0, sort_keys=True) + "\n")
    parts = [f"{total} {_counted(len(whole))} passed whole."]
    if len(whole) < len(rows):
        parts.append("\n".join([_HEAD, *(rows[name] for name in sorted(rows.keys() - whole.keys()))]))
    written = "\n\n".join(parts)
    page.write_text(f"{before}{begin}\n{written}\n{end}{after}")
    return total


def _counted(classes: int) -> str:
    return "1 class" if classes == 1 else f"{classes} classes"


def _passed_row(name: str, count: int | str) -> str:
    return f"| `{name}` | {int(count)} |  |"


def _counts(line: str) -> tuple[int, int, int]:
    """The class's tests, and those that failed and that were skipped, from the reasons of its row."""
    _, _, tests_run, reasons, _ = line.split("|")
    numbers = re.findall(r"(?:^|; )(\d+) ([^;]*)", reasons.strip())
    skipped = sum(int(number) for number, words in numbers if words in _COMMON["skipped"])
    return int(tests_run), sum(int(number) for number, _ in numbers) - skipped, skipped


def _reasons(tests: PeerTests, run: ClassRun) -> str:
    """Each reason once, with the number of tests that did not pass, and their methods where it is no common one."""
    known: dict[str, str] = tomllib.loads((tests.folder / "reasons.toml").read_text())
    methods: dict[str, list[str]] = {}
    for test in run.tests:
        if test.outcome != "passed":
            methods.setdefault(_reason(known, run.name, test), []).append(test.name.partition("[")[0])
    return "; ".join(_with_methods(reason, names) for reason, names in methods.items())


def _with_methods(reason: str, names: list[str]) -> str:
    if reason in _COMMON:
        return f"{len(names)} {_COMMON[reason][len(names) > 1]}"
    return f"{len(names)} {', '.join(f'`{name}`' for name in dict.fromkeys(names))}: {reason}"


def _reason(reasons: dict[str, str], name: str, test: JavaTest) -> str:
    """A reason, or the outcome if it tells enough."""
    if test.outcome in _COMMON:
        return test.outcome
    said = _cell(test.why)
    if test.outcome == "not offered":
        return f"tests what we don't have ({said.partition(': ')[2]})"
    return reasons.get(f"{name}.{test.name.partition('[')[0]}", reasons.get(name)) or said


def _cell(words: str) -> str:
    return re.sub(r"[|`;]", " ", words)[:120]
