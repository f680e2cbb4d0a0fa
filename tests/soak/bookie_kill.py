"""A bookie's storage is killed with SIGKILL at random moments under load: every acknowledged entry must exist at the next
start."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.soak._command import main
from tests.store.bookie.kills import Kills


def run(rounds: int) -> Mapping[str, int]:
    with tempfile.TemporaryDirectory(prefix="bookspark-kill-") as directory:
        return Kills(Path(directory)).run(rounds)


if __name__ == "__main__":
    main(__doc__, run, 200)
