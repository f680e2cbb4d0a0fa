"""BookKeeper's shell (the main class of ``bin/bookkeeper shell``) for tests.

One JVM runs all commands of a cluster, each through the main method: a JVM for each command took most of the time.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.servers.bookkeeper.judge import Judge, judging

_LOGGING = Path(__file__).parent / "java/shell-log4j2.xml"


class Said(NamedTuple):
    """Exit status and output of a command."""

    status: int
    lines: list[str]

    def __str__(self) -> str:
        return "\n".join([*self.lines, f"=> {self.status}"])

    def says(self, words: str) -> bool:
        """Does a line contain these words?"""
        return any(words in line for line in self.lines)


class Shell:
    """BookKeeper's shell with the configuration of one cluster."""

    def __init__(self, uri: str, folder: Path, judge: Judge) -> None:
        self._uri, self._folder, self._judge = uri, folder, judge

    def run(self, *words: object, answer: str = "", **settings: object) -> Said:
        """Run a command. ``answer`` is the operator's input; ``settings`` are added to the configuration."""
        told = {
            "metadataServiceUri": self._uri,
            "allowLoopback": "true",
            "journalDirectory": self._folder / "journal",
            "ledgerDirectories": self._folder / "ledgers",
            # The default of 5 s is too short on a loaded machine.
            "addEntryTimeoutSec": 60,
            "readEntryTimeoutSec": 60,
        }
        configuration = self._folder / "bookkeeper.conf"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in (told | settings).items()))
        texts = (answer, "-conf", configuration, *words)
        status, _, printed = self._judge.ask(*(b64encode(str(text).encode()).decode() for text in texts)).partition(" ")
        return Said(int(status), b64decode(printed).decode(errors="replace").splitlines())


@contextmanager
def shell_of(uri: str, folder: Path) -> Iterator[Shell]:
    """The shell of the cluster at ``uri``. ``folder`` holds its configuration and the directories of a Java bookie; the shell
    never sees our bookies' directories."""
    folder.mkdir(parents=True, exist_ok=True)
    options = (f"-Dlog4j2.configurationFile={_LOGGING}", "-Djava.security.manager=allow")
    with judging(uri, folder / "stderr", program="ManyShells", options=options, folder=folder) as judge:
        yield Shell(uri, folder, judge)
