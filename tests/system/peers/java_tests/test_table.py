"""The parser of a JVM's output, and the table of results."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.system.peers.java_tests.running import ClassRun, JavaTest, PeerTests, told_tests
from tests.system.peers.java_tests.table import marks, row, write_rows


def set_of(folder: Path, reasons: str = "") -> PeerTests:
    """A set of tests with only reasons."""
    folder.mkdir()
    (folder / "reasons.toml").write_text(reasons)
    return PeerTests(folder, "server", "org.", (), "org.Cluster")


def says(words: str, *, stays: bool = False) -> list[JavaTest]:
    """Tests parsed from a process that prints ``words``, and then ends or stays."""
    command = f"import sys, time; print({words!r}, flush=True); time.sleep({600 if stays else 0})"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE) as process:
        try:
            return told_tests(process, time.monotonic() + (2 if stays else 60), 2)
        finally:
            process.kill()


def test_outcome_of_each_test_is_parsed_from_the_jvms_output() -> None:
    told = says(
        "tests\t3\nstart\ta\ntest\ta\tpassed\t\nstart\tb\ntest\tb\tinsides\tinsides: folders\ntest\tc\tskipped\t\nend"
    )
    assert told == [JavaTest("a", "passed"), JavaTest("b", "insides", "insides: folders"), JavaTest("c", "skipped")]


def test_interrupted_and_unstarted_tests_count_as_failed() -> None:
    for stays in (False, True):
        told = says("tests\t4\nstart\ta\ntest\ta\tpassed\t\nstart\tb", stays=stays)
        assert [(test.name, test.outcome) for test in told] == [
            ("a", "passed"), ("b", "failed"), ("not begun", "failed"), ("not begun", "failed")
        ]  # fmt: skip


def test_class_without_runnable_methods_has_no_tests() -> None:
    assert (
        says("tests\t1\nstart\tinitializationError\ntest\tinitializationError\tfailed\tNo runnable methods\nend") == []
    )


def test_row_replaces_only_its_class_and_sums_are_updated(tmp_path: Path) -> None:
    page, tests = tmp_path / "page.md", set_of(tmp_path / "some_tests")
    begin, end = marks(tests)
    page.write_text(f"before\n{begin}\n{end}\nafter\n")
    first = ClassRun(
        "client.B", [JavaTest("a", "passed"), JavaTest("b", "failed", "no | such `x`"), JavaTest("c", "skipped")], 1
    )
    second = ClassRun(
        "client.A", [JavaTest("a", "insides", "insides: folders"), JavaTest("b", "insides", "insides: folders")], 1
    )
    assert write_rows(tests, [first], page) == "1 class with 3 tests: 1 passed, 1 failed, 1 was skipped."
    assert write_rows(tests, [second], page) == "2 classes with 5 tests: 1 passed, 3 failed, 1 was skipped."
    assert write_rows(tests, [first._replace(tests=[JavaTest("a", "passed")])], page).startswith(
        "2 classes with 3 tests: 1 passed, 2 failed"
    )
    lines = page.read_text().splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == ("before", begin, end, "after")
    assert lines[2] == "2 classes with 3 tests: 1 passed, 2 failed, 0 were skipped. 1 class passed whole."
    assert lines[-3] == "| `client.A` | 2 | 2 need a Java bookie |"
    assert write_rows(tests, [second], page).startswith("2 classes with 3 tests: 1 passed, 2 failed")
    assert "1 `b`: no   such  x" in row(tests, first)


def test_each_set_of_tests_has_its_own_table_and_reasons(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    sets = [set_of(tmp_path / f"{name}_tests", f'"client.A.a" = "{name} looked"') for name in ("first", "second")]
    page.write_text("".join("{}\n{}\n".format(*marks(tests)) for tests in sets))
    for tests in sets:
        write_rows(
            tests,
            [ClassRun("client.A", [JavaTest(name, "failed", "never") for name in ("a", "b[1]", "b[2]", "c")], 1)],
            page,
        )
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    assert rows == [f"| `client.A` | 4 | 1 `a`: {name} looked; 3 `b`, `c`: never |" for name in ("first", "second")]
