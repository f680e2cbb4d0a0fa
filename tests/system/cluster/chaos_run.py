"""``bookspark chaos`` as a user runs it, for a time; what is asserted of its result whatever the time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.processes import await_no_process

SECONDS_MAX = 280
"""A run's own seconds among them."""


def chaos_for(seconds: int, folder: Path, *options: str) -> dict[str, Any]:
    """Run it with ``folder`` for its temporary files, and with these ``options``; returns its result.

    It violated nothing, and left nothing running."""
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
