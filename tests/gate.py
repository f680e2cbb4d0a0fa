"""``scripts/test``: the checks, the tests, and a second try for a few failed tests.

    scripts/test                                  all but tests/system/acceptance and tests with the mark of that name
    scripts/test --all                            all but tests with the mark release
    scripts/test --release                        all
    scripts/test bookspark/store/bookie/disk/index.py   the tests that belong to a file or folder, without the checks
    scripts/test tests/x/test_y.py -k name        any paths and arguments of pytest

A test that failed in a whole run is tried once more, alone, after all others. If each of them passes then, the run
succeeds: its last lines name them, and so does ``SECOND_TRIES``, the list of tests to fix. Law: a test with the mark
``promise`` (``tests.promises``) is never tried again, and no test is if more than ``SECOND_TRIES_MAX`` failed.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.operations.console.browser import BROWSER

ROOT = Path(__file__).resolve().parents[1]
SECOND_TRIES = ROOT / ".cache/second-tries.jsonl"
SECOND_TRIES_MAX = 3
CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports",),
    ("python", "-m", "tests.spark_classes"),  # no check: an archive that makes later JVMs start faster
)
_PYTEST = (sys.executable, "-m", "pytest")
_WITH_VALUE = ("-k", "-m", "-n", "-p", "-W", "-o", "-c")  # options of pytest whose value could be the name of a folder
_TESTS_FAILED = 1  # pytest's exit status
_CHROMIUM = "chromium"
_INSTALL_SECONDS_MAX = 300


def main(arguments: Sequence[str]) -> int:
    before = ("", *arguments)
    paths = [one for one, last in zip(arguments, before, strict=False) if last not in _WITH_VALUE and _is_path(one)]
    if paths:
        options = [argument for argument in arguments if argument not in paths]
        try:
            tests = [test for path in paths for test in belonging(path)]
        except LookupError as error:
            print(f"scripts/test: {error.args[0]}", file=sys.stderr)
            return 2
        return _run("-n", "auto", *dict.fromkeys(tests), *options)
    if failed := _failed_checks():
        for check in failed:
            print(f"scripts/test: failed: {' '.join(check)}", file=sys.stderr)
        return 1
    if {"--all", "--release"}.intersection(arguments):
        _bring_browser()
    with tempfile.NamedTemporaryFile() as file:
        status = _run("-n", "auto", f"--failures={file.name}", *arguments)
        status = status if status != _TESTS_FAILED else second_tries(json.load(file))
    if BROWSER is None and shutil.which(_CHROMIUM) is None:
        print("scripts/test: no page of the console was seen: there is no Chromium (Debian: apt install chromium)")
    return status


def _bring_browser() -> None:
    """Install Chromium where Debian's packages can be: without it the tests of the console's pages are skipped."""
    if BROWSER is not None or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print("scripts/test: installing Chromium, which shows the console's pages to their tests", file=sys.stderr)
    for command in (["update"], ["install", "-y", "--no-install-recommends", _CHROMIUM]):
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(["apt-get", "-qq", *command], capture_output=True, check=False, timeout=_INSTALL_SECONDS_MAX)


def _is_path(argument: str) -> bool:
    return not argument.startswith("-") and (ROOT / argument.partition("::")[0]).exists()


def _failed_checks() -> list[tuple[str, ...]]:
    """Run the checks concurrently, and print the output of each failed check in one piece."""

    def failed(check: tuple[str, ...]) -> bool:
        ran = subprocess.run(check, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if ran.returncode:
            print(f"{' '.join(check)}\n{ran.stdout}", file=sys.stderr)
        return ran.returncode != 0

    with ThreadPoolExecutor(len(CHECKS)) as pool:
        return [check for check, bad in zip(CHECKS, pool.map(failed, CHECKS), strict=True) if bad]


def _run(*arguments: str) -> int:
    return subprocess.run([*_PYTEST, *arguments], cwd=ROOT, check=False).returncode


def second_tries(failures: list[dict[str, Any]]) -> int:
    """Try each failed test once more, alone, and report it. Returns the exit status of the whole run."""
    final = [failure for failure in failures if failure["final"]]
    if final or len(failures) > SECOND_TRIES_MAX or not failures:
        for failure in final:
            print(f"scripts/test: not tried again, for it judges a promise or ended its process: {failure['test']}")
        if len(failures) > SECOND_TRIES_MAX:
            print(f"scripts/test: none was tried again, for {len(failures)} failed, and {SECOND_TRIES_MAX} may")
        return _TESTS_FAILED
    if any(_run("-n", "0", failure["test"]) != 0 for failure in failures):
        return _TESTS_FAILED
    SECOND_TRIES.parent.mkdir(exist_ok=True)
    print(
        f"scripts/test: {len(failures)} failed and passed when tried again alone (noted in {SECOND_TRIES.relative_to(ROOT)}):"
    )
    with SECOND_TRIES.open("a") as notes:
        for failure in failures:
            note = {"date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", **failure}
            notes.write(json.dumps(note) + "\n")
            print(f"  {note['date']}  load {note['load']}  {note['test']}: {note['message'].splitlines()[0]}")
    return 0


# -- the tests that belong to a path of the product


def belonging(path: str) -> list[str]:
    """The paths for pytest that belong to a file or folder. A path of tests is returned unchanged. A path of the product
    gives the test modules that import it: those of its name, else those in the deepest test folder that mirrors its
    place, else all. Raises LookupError if no test imports it."""
    relative = (ROOT / path.partition("::")[0]).resolve().relative_to(ROOT)
    if relative.parts[0] == "tests":
        return [path]
    wanted = {".".join(file.relative_to(ROOT).with_suffix("").parts) for file in _modules(ROOT / relative)}
    found = [
        module.relative_to(ROOT)
        for module in _modules(ROOT / "tests")
        if module.name.startswith("test_") and not wanted.isdisjoint(_imported(module, wanted))
    ]
    if not found:
        raise LookupError(f"no test imports {path}; run a folder of tests")
    named = [test for test in found if relative.suffix and f"{test.stem}_".startswith(f"test_{relative.stem}_")]
    mirrored = [Path("tests", *relative.parts[1:depth]) for depth in range(len(relative.parts), 1, -1)]
    near = ([test for test in found if folder in test.parents] for folder in mirrored)
    return [str(test) for test in named or next(filter(None, near), found)]


def _modules(place: Path) -> Iterable[Path]:
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


def _imported(file: Path, wanted: Iterable[str]) -> frozenset[str]:
    """The product's modules that a module imports, by dotted name; none if its text contains no wanted name."""
    text = file.read_text("utf-8")
    if not any(module.rpartition(".")[2] in text for module in wanted):
        return frozenset()
    return frozenset(_dotted(ast.parse(text)))


def _dotted(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("bookspark"):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
