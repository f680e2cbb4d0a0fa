"""A run of ``bookspark chaos`` as a user starts it, with the checks that hold for any duration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.processes import await_no_process

SECONDS_MAX = 280
"""Includes the run's own duration."""


def chaos_for(seconds: int, folder: Path, *options: str) -> dict[str, Any]:
    """Run chaos with ``folder`` for temporary files and these ``options``; assert that it found no violation and left no
    process. Returns its result."""
    command = [sys.executable, "-m", "bookspark.operations.cli.main", "chaos", "--seconds", str(seconds), *options]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=Path.cwd(), env={"TMPDIR": str(folder)}
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert result["violations"] == 0
    checked = result["checked"]
    assert checked["appended"] == checked["acked"] + checked["failed"], "every append ends one way or the other"
    await_no_process(folder)
    return result
