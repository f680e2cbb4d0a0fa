"""Pages of the manual, run as they are written.

All blocks of a page are one script of bash, in a folder of its own. Its Python blocks are one program, run where the first of
them stands (``script_of``). Pages whose Python is one session of Spark are one program with the blocks of bash in their places
(``session_of``). A block that has the commands of another page's is run there alone (``tests.docs.blocks``). A cluster of four
bookies and an autorecovery process runs beside, started as the tutorial says.
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
TUTORIAL = "first-cluster"
"""The directory of the tutorial's cluster, of which it kills a bookie by the path in its command line: so others have another."""
SECONDS_MAX = 1200
_BIN = Path(sys.executable).parent
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Language and text of the blocks of ``page`` (a path below docs/), without pictures and what is run elsewhere. Raises
    AssertionError if one is in a language that is not run here."""
    blocks = [(language, code) for language, code in _BLOCK.findall((DOCS / page).read_text()) if language != "text"]
    assert {language for language, _ in blocks} <= {"bash", "python"}, blocks
    again = tuple(AGAIN.get(f"docs/{page}", ()))
    return [(language, code) for language, code in blocks if not code.startswith(again)]


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
    """The blocks of ``pages`` (paths below docs/) as a script, which is one Python program: Python blocks are one session, and
    those of bash are run where they stand. Snapshots and audits get this session instead of a Spark of their own, which those of
    the README start. By page: what it takes for given."""
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
    """For the variable PYSPARK_SUBMIT_ARGS: settings for sessions that begin in Python. What a page sets wins. (A folder of
    settings would be in the class path, and the JVMs have an archive for theirs: ``tests.spark_classes``.)"""
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
    """``bookspark local`` in ``folder``, with its data in ``directory``; gives the environment of a shell beside it."""
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
