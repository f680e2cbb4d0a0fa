"""Pages of the manual, run as they are written.

All blocks of a page are one script of bash, in a folder of its own. Its Python blocks are one program, run where the first of
them stands. A cluster of four bookies and an autorecovery process runs beside, started as the tutorial says.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bookspark.spark.short_jobs import QUICK_JVM

DOCS = Path(__file__).resolve().parents[1] / "docs"
LOCAL = ("local", "--bookies", "4", "--autorecovery", "--directory", "first-cluster")
SECONDS_MAX = 1200
_BIN = Path(sys.executable).parent
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Language and text of the blocks of ``page`` (a path below docs/), pictures left out. Raises AssertionError if one is in a
    language that is not run here."""
    blocks = [(language, code) for language, code in _BLOCK.findall((DOCS / page).read_text()) if language != "text"]
    assert {language for language, _ in blocks} <= {"bash", "python"}, blocks
    return blocks


def script_of(page: str, before: str = "") -> str:
    """The blocks of ``page`` (a path below docs/) as one script. ``before``: what the page takes for given, in Python."""
    blocks = blocks_of(page)
    program = "\n".join([before, *(code for language, code in blocks if language == "python")])
    lines, written = ["set -euo pipefail"], False
    for language, code in blocks:
        if language == "bash":
            lines.append(code)
        elif not written:
            lines.append(f"python - << 'END OF PYTHON'\n{program}\nEND OF PYTHON\n")
            written = True
    return "\n".join(lines)


def shell_of(zookeeper: str) -> dict[str, str]:
    """The environment of a shell for this cluster."""
    return {
        **os.environ,
        "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": "",
        "JAVA_TOOL_OPTIONS": QUICK_JVM,
        "BOOKSPARK_ZOOKEEPER": zookeeper,
    }


@contextmanager
def local_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """``bookspark local`` in ``folder``; gives the environment of a shell beside it."""
    with subprocess.Popen(
        [_BIN / "bookspark", *LOCAL],
        cwd=folder, env=shell_of(""), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as cluster:  # fmt: skip
        try:
            assert cluster.stdout is not None
            address = cluster.stdout.readline().strip()
            assert address, "`bookspark local` ended"
            yield shell_of(address)
        finally:
            cluster.send_signal(signal.SIGINT)
            try:
                cluster.communicate(timeout=300)
            finally:
                cluster.kill()


def run(script: str, folder: Path, environment: Mapping[str, str], answers: str = "") -> str:
    """What ``script`` prints. Raises AssertionError if it fails. What it left in the background is ended. ``answers``: what its
    reader types, when he is asked."""
    (folder / "page.sh").write_text(script)
    with subprocess.Popen(
        ["bash", "page.sh"], cwd=folder, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as shell:  # fmt: skip
        try:
            printed, _ = shell.communicate(answers, timeout=SECONDS_MAX)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
    assert shell.returncode == 0, f"{printed[:3000]} … {printed[-3000:]}"
    return printed
