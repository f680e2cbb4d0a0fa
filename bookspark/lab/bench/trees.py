"""``bookspark bench against``: the ledger bench of this checkout and of another commit of it, in turns.

Law: the two never run at once, and take turns at being the first. Each runs its own code in its own process, with the
packages of this environment. The other commit is a work tree in a temporary folder, removed at the end; this checkout stays
unchanged, and is measured with its uncommitted changes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bookspark.errors import ConfigurationError
from bookspark.lab.bench.kept_results import Results, side_by_side
from bookspark.lab.bench.ledger.cases import Turn

HERE, THERE = "this tree", "against"
_GIT_SECONDS = 120.0

Line = dict[str, Any]


def against(
    tree: Path, revision: str, turns: Sequence[Turn], rounds: int, scale: float, directory: Path | None
) -> tuple[str, list[Line]]:
    """Measure both trees. Each line goes to standard output. Returns a Markdown table, and the lines. Raises
    ConfigurationError if ``tree`` is no checkout or lacks the commit, RuntimeError if a bench fails."""
    results = Results()
    with checked_out(tree, revision) as other:
        for number in range(rounds):
            for turn in turns:
                pair = [(HERE, tree), (THERE, other)]
                for system, place in pair[:: -1 if number % 2 else 1]:
                    for line in bench(place, turn, scale, directory):
                        results.add(line, system=system, round=number)
    return side_by_side(results.lines, HERE), results.lines


@contextmanager
def checked_out(tree: Path, revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-tree-") as folder:
        place = Path(folder) / "tree"
        # git would take "--" for a path, so a revision that looks like an option is refused here.
        if revision.startswith("-"):
            raise ConfigurationError(f"{revision!r} is no commit")
        _git(tree, revision, "worktree", "add", "--quiet", "--detach", str(place), revision)
        try:
            yield place
        finally:
            _git(tree, revision, "worktree", "remove", "--force", str(place))


def _git(tree: Path, revision: str, *words: str) -> None:
    try:
        subprocess.run(
            ["git", "-C", str(tree), *words], check=True, capture_output=True, text=True, timeout=_GIT_SECONDS
        )
    except FileNotFoundError:
        raise ConfigurationError("git is not installed, and the other tree is a commit of it") from None
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(f"commit {revision!r} of {tree} can't be measured: {error.stderr.strip()}") from None


def bench(tree: Path, turn: Turn, scale: float, directory: Path | None, cases: Sequence[str] = ()) -> Iterator[Line]:
    """The lines of ``bookspark bench ledger`` from the code in ``tree``. Raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "bookspark", "bench", "ledger", "--turn", turn, "--scale", str(scale)]
    command += [word for case in cases for word in ("--case", case)]
    if directory is not None:
        command += ["--directory", str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tree, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed in {tree}")
