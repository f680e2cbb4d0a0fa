"""Completion by Tab, as a shell asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BOOKSPARK = str(Path(sys.executable).with_name("bookspark"))


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("lo", ["local", "log"]),
        ("log rea", ["read", "readers"]),
        ("ledger list --l", ["--long"]),
        ("job b", ["bookies"]),
        ("conf spark", ["spark-defaults.conf"]),
    ],
)
def test_tab_completes_commands_options_and_names_of_files(words: str, completed: list[str]) -> None:
    asked = {
        "_BOOKSPARK_COMPLETE": "complete_bash",
        "COMP_WORDS": f"bookspark {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = subprocess.run([BOOKSPARK], env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, completed, "")


def test_installed_completion_ends_with_status_0(tmp_path: Path) -> None:
    """Its status was 2, as if it had failed."""
    # A shell starts it, since it asks which one did.
    command = ["bash", "-c", '"$0" --install-completion; exit $?', BOOKSPARK]
    subprocess.run(command, env={**os.environ, "HOME": str(tmp_path)}, check=True)
    assert "bookspark" in (tmp_path / ".bashrc").read_text()
