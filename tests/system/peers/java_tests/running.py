"""Runs test classes of the BookKeeper project, each in a JVM of its own, with our bookies in place of Java bookies.

A set of tests is a folder beside this one: its ``pom.xml`` names the jars, ``java`` has a replacement, under the same name, for
the class of BookKeeper that starts bookies, and ``reasons.toml`` gives the reason of a failed test, where it was investigated.

Law: the outcome of a test is that of JUnit. A test that needs a feature our bookies lack is recognised by the exception's
origin (``Unavailable.java``), without sorting tests by hand. A test that was cut off has failed.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bookspark.lab.bench.peers.services import fetched
from bookspark.support.cache_folder import cache_folder

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
VERSION = "4.17.3"
_NO_TESTS = "No runnable methods"
"""JUnit's message for a class without tests."""
_JAVA = ("java", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=WARN")
# BookKeeper's pom opens the same packages for its tests.
_OPENED = [
    f"--add-opens=java.base/{name}=ALL-UNNAMED"
    for name in ("java.lang", "java.util", "java.io", "java.nio", "java.net")
]


class PeerTests(NamedTuple):
    """Tests that are run in the same way."""

    folder: Path
    """Has ``pom.xml``, ``java`` and ``reasons.toml``. Its name, with - for _, names the command and the marks of the table."""

    jar: str
    """The artifact with the tests."""

    package: str
    """Common prefix of the class names, omitted in the table."""

    packages: tuple[str, ...]
    """Folders of the jar with the classes; if empty, that of ``package``."""

    cluster_class: str
    """Base class of each test class with a cluster."""

    @property
    def name(self) -> str:
        return self.folder.name.replace("_", "-")


class JavaTest(NamedTuple):
    """Outcome of a test: ``passed``, ``failed``, ``skipped``, or the missing feature: ``insides``, ``not offered``."""

    name: str
    outcome: str
    why: str = ""


class ClassRun(NamedTuple):
    """Outcome of a test class."""

    name: str
    """Without the set's package."""
    tests: list[JavaTest]
    seconds: float


class Judge:
    """A set of tests, compiled with our classes."""

    def __init__(self, tests: PeerTests) -> None:
        """Download the jars and compile. Raises CalledProcessError."""
        self._tests = tests
        place = cache_folder() / tests.name
        self._jars, classes = fetched(tests.folder / "pom.xml", place / "jars"), place / "classes"
        self.logs = place / "logs"
        for folder in (classes, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        sources = [source for folder in (HERE, tests.folder) for source in sorted(folder.glob("java/**/*.java"))]
        _compile(sources, classes, f"{self._jars}/*")
        # Our classes come first: one of them has the name of one of BookKeeper's.
        self._class_path = f"{classes}:{self._jars}/*"

    def classes(self) -> list[str]:
        """Test classes that need a cluster, without the set's package."""
        jar = str(self._jars / f"{self._tests.jar}-{VERSION}-tests.jar")
        packages = self._tests.packages or (self._tests.package.rstrip(".").replace(".", "/"),)
        listing = ["bookspark.ListClasses", jar, self._tests.cluster_class, *packages]
        command = [*_JAVA, "-cp", self._class_path, *listing]
        found = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True).stdout
        return sorted(name.removeprefix(self._tests.package) for name in found.split())

    def run(self, name: str, seconds: float) -> ClassRun:
        """Run a class, with a limit of ``seconds``. The output of the JVM and the bookies is kept in ``logs``."""
        helper = f"-Dbookspark.bookies={sys.executable} -m tests.system.peers.java_tests.bookies"
        begun = time.monotonic()
        # Some tests leave folders behind; and a bookie may still write for a moment after the JVM was killed.
        with (
            TemporaryDirectory(prefix="bookspark-tests-", ignore_cleanup_errors=True) as folder,
            (self.logs / f"{name}.log").open("wb") as log,
        ):
            options = [*_JAVA, f"-Djava.io.tmpdir={folder}", *_OPENED, helper, "-cp", self._class_path]
            command = [*options, "bookspark.RunClass", self._tests.package + name]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT)
            try:
                tests = told_tests(process, begun + seconds, seconds)
            finally:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()
        return ClassRun(name, tests, time.monotonic() - begun)


def _compile(sources: list[Path], classes: Path, class_path: str) -> None:
    """Compile, unless that was done since the sources changed."""
    complete = classes.with_name("classes-complete")
    wanted = "".join(source.read_text() for source in sources)
    if not complete.exists() or complete.read_text() != wanted:
        subprocess.run(["javac", "-nowarn", "-d", classes, "-cp", class_path, *sources], check=True, timeout=300)
        complete.write_text(wanted)


def _lines(process: subprocess.Popen[bytes], deadline: float) -> Iterator[list[str]]:
    """The JVM's lines that arrive before ``deadline``."""
    assert process.stdout is not None
    rest = b""
    while True:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        piece = process.stdout.read1(1 << 16) if ready else b""  # type: ignore[attr-defined]
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode(errors="replace").split("\t") for line in lines)


def told_tests(process: subprocess.Popen[bytes], deadline: float, seconds: float) -> list[JavaTest]:
    """Outcomes of the tests that a JVM runs (``RunClass``). Tests without an outcome at ``deadline``, or when the JVM ends,
    have failed. ``seconds``: the time limit, for messages."""
    tests: list[JavaTest] = []
    planned, running, ended = 0, "", False
    for kind, *words in _lines(process, deadline):
        match kind:
            case "tests":
                planned = int(words[0])
            case "start":
                running = words[0]
            case "test":
                if _NO_TESTS not in words[-1]:
                    tests.append(JavaTest(*words))
                running = ""
            case "class":
                # The class setup has failed.
                tests.append(JavaTest("the class", *words))
            case "end":
                ended = True
    if not ended:
        why = f"cut off: the class did not end within {seconds:g} s"
        if running:
            tests.append(JavaTest(running, "failed", why))
        tests += [JavaTest("not begun", "failed", why)] * (planned - len(tests))
    return tests
