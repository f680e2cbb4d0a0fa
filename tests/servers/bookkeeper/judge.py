"""A JVM with BookKeeper's own client for tests; it executes one command per input line.

``java/Judge.java`` drives the client, ``java/Recovery.java`` autorecovery and its tools, ``java/ManyShells.java`` the shell. The
jars come from Maven Central, like those of ``bench compare``.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from bookspark.lab.bench.peers.services import fetched
from bookspark.support.cache_folder import cache_folder

_ROOT = Path(__file__).parents[3]
_JAVA = _ROOT / "tests/servers/bookkeeper/java"
POM = _ROOT / "bookspark/lab/bench/peers/java/bookkeeper-pom.xml"
ANSWER_SECONDS = 300.0


class Judge:
    """A JVM with BookKeeper's client. ``ask`` returns its answer, or raises RuntimeError with the name of BookKeeper's error."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ask(self, *words: object) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
        self._process.stdin.flush()
        line, deadline = b"", time.monotonic() + ANSWER_SECONDS
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no answer to {words} in {ANSWER_SECONDS} s"
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            assert piece, f"the judge ended at {words}"
            line += piece
        kind, _, rest = line.decode().strip().partition(" ")
        if kind != "ok":
            raise RuntimeError(rest)
        return rest


def class_path(program: str = "") -> str:
    """Class path of BookKeeper's jars and of ``program`` in tests/servers/bookkeeper/java, compiled."""
    place = cache_folder() / "judge"
    jars = fetched(POM, place / "jars")
    if not program:
        return f"{jars}/*"
    source = _JAVA / f"{program}.java"
    # Compiled once: javac takes longer than many tests here.
    classes = place / f"{program}-{sha256(source.read_bytes() + POM.read_bytes()).hexdigest()[:16]}"
    if not classes.exists():
        with tempfile.TemporaryDirectory(dir=place) as made:
            compiled = Path(made, "classes")
            command = ["javac", "-nowarn", "-d", compiled, "-cp", f"{jars}/*", source]
            subprocess.run(command, check=True, timeout=300)
            with suppress(OSError):  # another process was first
                compiled.rename(classes)
    return f"{classes}:{jars}/*"


@contextmanager
def judging(
    uri: str, told: Path, *tls: Path, program: str = "Judge", options: Sequence[str] = (), folder: Path | None = None
) -> Iterator[Judge]:
    """A judge of the cluster at ``uri``. Its log goes to the file ``told``; ``tls`` is the folder of its certificate. Its JVM has
    ``options`` and the working directory ``folder``."""
    classes = class_path(program)
    with ExitStack() as stack:
        said = stack.enter_context(told.open("wb"))
        command = [
            "java",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *options,
            "-cp",
            classes,
            program,
        ]
        process = subprocess.Popen(
            [*command, uri, *tls],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            cwd=folder,
        )
        stack.callback(process.wait, 60)
        stack.callback(process.kill)
        assert process.stdin is not None and process.stdout is not None
        stack.callback(process.stdout.close)
        yield Judge(process)
        process.stdin.close()
