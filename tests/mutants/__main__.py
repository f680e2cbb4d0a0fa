"""``scripts/mutants``: which mutants of the product do the tests find?

    scripts/mutants draw [--count 100] [--seed 41]   draw mutants, and write their patches to tests/mutants/drawn.diff
    scripts/mutants judge --out FILE                 judge these patches, one line of JSON each; continues where FILE ends

A mutant is judged in a git worktree of its own: the patch is applied, and the tests that reach its line run until the
first failure. ``scripts/coverage`` records which tests reach which line. A failure counts if the same test fails again with
the patch, and passes without it. The nearest and quickest tests come first, up to a number of seconds; a mutant that outlives
them survives (``"cut_short"``: more tests reach it).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from coverage.numbits import num_in_numbits

from tests.mutants.drawing import Mutant, draw

ROOT = Path(__file__).resolve().parents[2]
DRAWN = Path(__file__).with_name("drawn.diff")
COVERAGE = ROOT / ".cache/coverage/data"
SECONDS = ROOT / ".pytest_cache/v/bookspark/seconds"
FOLDERS = [
    f"bookspark/{name}"
    for name in (
        "protocol", "store/bookie", "store/client", "store/metadata", "logs", "spark", "store/autorecovery", "servers/daemon",
        "operations/why", "operations/changes",
    )
]  # fmt: skip
_HEAD = "# mutant "
_TESTS_MAX = 400
_MODULES_MAX = 12
_TEST_SECONDS_MAX = 90
_USAGE, _NO_TESTS = 4, 5  # exit statuses of pytest
_GONE = re.compile(r"^ERROR: not found: \S+/(tests/\S+)$", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?: - .*)?$", re.MULTILINE)


def main() -> int:
    options = _arguments()
    if options.command == "draw":
        mutants = draw(ROOT, FOLDERS, options.count, options.seed)
        DRAWN.write_text("".join(f"{_HEAD}{mutant.name}\n{mutant.patch}" for mutant in mutants), "utf-8")
        print(f"{len(mutants)} mutants in {DRAWN.relative_to(ROOT)}")
        return 0
    reached = Reached(options.coverage, options.seconds_of)
    judged = {verdict["mutant"] for verdict in _lines(options.out)}
    with tempfile.TemporaryDirectory(prefix="bookspark-mutants-") as folder:
        tree = Path(folder, "tree")
        _git(ROOT, "worktree", "add", "--detach", str(tree), "HEAD")
        try:
            for mutant in read_mutants(DRAWN):
                if mutant.name not in judged:
                    verdict = judge(mutant, tree, reached.tests(mutant), options.seconds)
                    with options.out.open("a") as out:
                        out.write(json.dumps(verdict) + "\n")
                    print(json.dumps(verdict), flush=True)
        finally:
            _git(ROOT, "worktree", "remove", "--force", str(tree))
    verdicts = list(_lines(options.out))
    killed = sum(verdict["killed"] for verdict in verdicts)
    print(f"{killed} of {len(verdicts)} mutants were killed")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description="Which wrong products do the tests find?")
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--count", type=int, default=100)
    drawing.add_argument("--seed", type=int, default=41)
    judging = commands.add_parser("judge")
    judging.add_argument("--out", type=Path, required=True, help="a file of JSON lines")
    judging.add_argument("--seconds", type=float, default=180.0, help="of tests for each mutant (default: 180)")
    judging.add_argument("--coverage", type=Path, default=COVERAGE, help="what scripts/coverage wrote")
    judging.add_argument("--seconds-of", type=Path, default=SECONDS, help="how long each module of tests takes")
    return parser.parse_args()


def read_mutants(path: Path) -> Iterator[Mutant]:
    for text in path.read_text("utf-8").split(_HEAD)[1:]:
        name, _, patch = text.partition("\n")
        place = name.split()[0].split(":")
        yield Mutant(name, place[0], int(place[1]), patch)


class Reached:
    """The tests that reach a line, by the contexts of ``tests.covering``."""

    def __init__(self, data: Path, seconds: Path) -> None:
        self._data = sqlite3.connect(f"file:{data}?mode=ro", uri=True)
        self._seconds: dict[str, float] = json.loads(seconds.read_text()) if seconds.exists() else {}

    def tests(self, mutant: Mutant) -> list[list[str]]:
        """Lists of test ids, one list a run of pytest: first tests that reach the line in their own process, then modules
        whose processes reach it."""
        contexts = self._contexts(mutant.path, _statement(mutant)) - {""}
        if not contexts:  # a line that runs when its module is imported
            contexts = self._contexts(mutant.path, None)
        modules: dict[str, list[str]] = defaultdict(list)
        processes: list[str] = []
        for context in contexts:
            kind, _, module = context.rpartition("|")
            if kind:
                processes.append(module)
            elif "::" in context:
                modules[context.partition("::")[0]].append(context)
        near = set(mutant.path.removesuffix(".py").split("/"))

        def rank(module: str) -> tuple[bool, int, float]:
            words = set(re.split(r"[/_.]", module))
            return "tests/system/acceptance" in module, -len(near & words), self._seconds.get(module, 60.0)

        ids = [test for module in sorted(modules, key=rank) for test in sorted(modules[module])]
        others = sorted(set(processes) - set(modules), key=rank)
        return [run for run in (ids[:_TESTS_MAX], others[:_MODULES_MAX]) if run]

    def _contexts(self, path: str, line: int | None) -> set[str]:
        found: set[str] = set()
        rows = self._data.execute(
            "select context.context, line_bits.numbits from line_bits join file on file.id = line_bits.file_id"
            " join context on context.id = line_bits.context_id where file.path like ?",
            (f"%/{path}",),
        )
        arcs = self._data.execute(
            "select distinct context.context from arc join file on file.id = arc.file_id"
            " join context on context.id = arc.context_id where file.path like ?"
            + ("" if line is None else " and (arc.fromno = ?2 or arc.tono = ?2)"),
            (f"%/{path}",) if line is None else (f"%/{path}", line),
        )
        found.update(context for context, bits in rows if line is None or num_in_numbits(line, bits))
        found.update(context for (context,) in arcs)
        return found


def _statement(mutant: Mutant) -> int:
    """The first line of the innermost statement around the mutant's line, which is the line in coverage's data."""
    tree = ast.parse((ROOT / mutant.path).read_text("utf-8"))
    around = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    return max(node.lineno for node in around if node.lineno <= mutant.line <= (node.end_lineno or node.lineno))


def judge(mutant: Mutant, tree: Path, runs: Iterable[list[str]], seconds: float) -> dict[str, Any]:
    """Run the tests with the patch until the first failure caused by the patch, and leave the tree without it."""

    def patched(tests: list[str], left: float) -> tuple[int | None, str]:
        _git(tree, "apply", "-", patch=mutant.patch)
        try:
            return _pytest(tree, tests, left)
        finally:
            _git(tree, "checkout", "-q", ".")

    began, ran, cut_short = time.monotonic(), 0, False
    for run in runs:
        while run:
            if (left := seconds - (time.monotonic() - began)) <= 0:
                cut_short = True
                break
            status, output = patched(["-x", *run], left)
            gone = set(_GONE.findall(output))
            if status == _USAGE and gone:
                run = [test for test in run if test not in gone]
                continue
            if status in (None, 0, _NO_TESTS):
                cut_short |= status is None
                ran += len(run)
                break
            alone = _FAILED.findall(output)[:1] or run[:1]
            # A loaded machine fails a test, too: once, and with or without the patch.
            if patched(alone, seconds)[0] not in (None, 0) and _pytest(tree, alone, seconds)[0] == 0:
                return _verdict(mutant, True, began, killed_by=alone[0])
            run = [test for test in run if test != alone[0].split("[")[0]]
    return _verdict(mutant, False, began, tests=ran, cut_short=cut_short)


def _verdict(mutant: Mutant, killed: bool, began: float, **more: Any) -> dict[str, Any]:
    return {"mutant": mutant.name, "killed": killed, "seconds": round(time.monotonic() - began, 1)} | more


def _pytest(tree: Path, tests: list[str], seconds: float) -> tuple[int | None, str]:
    """The exit status, None if time was up; and the output."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-rfE", "--tb=no"]
    command += [f"--timeout={_TEST_SECONDS_MAX}", "--all", *(test for test in tests if _is_there(tree, test))]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end_session(process)
        output.seek(0)
        return status, output.read()


def _is_there(tree: Path, test: str) -> bool:
    return test.startswith("-") or (tree / test.partition("::")[0]).is_file()


def _end_session(process: subprocess.Popen[Any]) -> None:
    """End pytest and all processes that its tests left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _git(tree: Path, *arguments: str, patch: str | None = None) -> None:
    subprocess.run(["git", *arguments], cwd=tree, input=patch, text=True, check=True, capture_output=True)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


if __name__ == "__main__":
    sys.exit(main())
