"""Runs pages of the manual as they are written.

All blocks of a page become one bash script, in a folder of its own. Its Python blocks are one program, run at the place of
the first (``script_of``). Pages whose Python is one Spark session become one program with the bash blocks in their places
(``session_of``). A block with the same commands as another page runs only there (``tests.docs.blocks``). A cluster of four
bookies and an autorecovery process runs beside the script, started as the tutorial says.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from bookspark.spark.short_jobs import QUICK_JVM, SMALL_TABLES
from tests import forked_commands
from tests.docs.blocks import AGAIN

DOCS = Path(__file__).resolve().parents[1] / "docs"
LOCAL = ("local", "--bookies", "4", "--autorecovery", "--directory")
# The directory of the tutorial's cluster. The tutorial kills a bookie by this path in its command line, so other clusters
# have another.
TUTORIAL = "first-cluster"
SECONDS_MAX = 1200
_BIN = Path(sys.executable).parent
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Language and text of the blocks of ``page`` (a path below docs/), without pictures and blocks run elsewhere. Raises
    AssertionError for a block in another language."""
    blocks = [(language, code) for language, code in _BLOCK.findall((DOCS / page).read_text()) if language != "text"]
    assert {language for language, _ in blocks} <= {"bash", "python"}, blocks
    again = tuple(AGAIN.get(f"docs/{page}", ()))
    return [(language, code) for language, code in blocks if not code.startswith(again)]


def script_of(page: str, before: str = "") -> str:
    """The blocks of ``page`` (a path below docs/) as one script. ``before``: the page's preconditions, in Python."""
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


_SESSION = """
import contextlib
import shlex
import subprocess
import sys

from bookspark.__main__ import main
from bookspark.spark import short_jobs
from bookspark.spark.session import session


def _in_the_shell_beside_it(script):
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], check=True)


def _in_this_spark(script):
    for line in script.strip().splitlines():
        command, _, otherwise = line.partition(" || ")
        sys.argv = shlex.split(command)
        try:
            main()
        except SystemExit as end:
            if end.code:
                _in_the_shell_beside_it(otherwise or f"exit {end.code}")


short_jobs.quiet_session = lambda name: contextlib.nullcontext(session(name, **short_jobs.SMALL_TABLES))
"""
_STARTS_SPARK = re.compile(r"(bookspark (snapshot|audit) .*\n)+")


def session_of(pages: Mapping[str, str]) -> str:
    """The blocks of ``pages`` (paths below docs/) as a script with one Python program: Python blocks are one session, and
    bash blocks run in their places. Snapshots and audits use this session instead of a Spark of their own; those of the
    README start Spark. Values of ``pages``: each page's preconditions, in Python."""
    lines = [_SESSION]
    for page, before in pages.items():
        lines.append(before)
        for language, code in blocks_of(page):
            where = "_in_this_spark" if _STARTS_SPARK.fullmatch(code) else "_in_the_shell_beside_it"
            lines.append(code if language == "python" else f"{where}({code!r})")
    program = "\n".join(lines)
    return f"python -u - << 'END OF PYTHON'\n{program}\nEND OF PYTHON\n"


@cache
def small_tables() -> str:
    """A value of PYSPARK_SUBMIT_ARGS: settings for sessions that start in Python; a page's own settings win. (A folder of
    settings would be in the class path, and break the JVMs' archive for theirs: ``tests.spark_classes``.)"""
    folder = Path(tempfile.mkdtemp(prefix="bookspark-pages-"))
    lines = [f"{name} {value}\n" for name, value in (SMALL_TABLES | {"spark.ui.enabled": "false"}).items()]
    (folder / "small-tables.conf").write_text("".join(lines))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return f"--properties-file {folder}/small-tables.conf pyspark-shell"


def path() -> str:
    """PATH with the commands of this environment."""
    return os.pathsep.join([forked_commands.folder(), str(_BIN), os.environ["PATH"]])


def shell_of(zookeeper: str) -> dict[str, str]:
    """The environment of a shell for this cluster."""
    return {
        **os.environ,
        "PATH": path(),
        "PYTHONPATH": "",
        "JAVA_TOOL_OPTIONS": QUICK_JVM,
        "PYSPARK_SUBMIT_ARGS": small_tables(),
        "BOOKSPARK_ZOOKEEPER": zookeeper,
    }


@contextmanager
def local_cluster(folder: Path, directory: str = "cluster") -> Iterator[dict[str, str]]:
    """Run ``bookspark local`` in ``folder``, with its data in ``directory``; yields the environment of a shell beside it."""
    with subprocess.Popen(
        [_BIN / "bookspark", *LOCAL, directory],
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
    """The output of ``script``. Raises AssertionError if it fails. Its background processes are ended. ``answers``: the
    reader's answers to questions."""
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
