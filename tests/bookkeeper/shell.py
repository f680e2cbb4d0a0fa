"""BookKeeper's shell (the main class of ``bin/bookkeeper shell``) for tests. Each command has a JVM of its own, as an operator's.

Its jars come from Maven Central, as those of the judge (``judge.py``).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from bookspark.bench.peers.maven import fetched
from bookspark.cache_folder import cache_folder
from tests.bookkeeper.judge import POM

_LOGGING = Path(__file__).parent / "java/shell-log4j2.xml"
_COMMAND_SECONDS = 300.0
_SHELL = "org.apache.bookkeeper.bookie.BookieShell"


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    status: int
    lines: list[str]

    def __str__(self) -> str:
        return "\n".join([*self.lines, f"=> {self.status}"])

    def says(self, words: str) -> bool:
        """Are these words in one of the lines?"""
        return any(words in line for line in self.lines)


class Shell:
    """BookKeeper's shell with the configuration of one cluster."""

    def __init__(self, uri: str, folder: Path) -> None:
        """``folder`` gets the configuration and what a Java bookie would store; the shell never sees a bookie's directories."""
        self._uri, self._folder = uri, folder
        self._jars = fetched(POM, cache_folder() / "judge" / "jars")
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, *words: object, answer: str = "", **settings: object) -> Said:
        """Run a command. ``answer`` is what the operator types, ``settings`` are added to the configuration."""
        told = {
            "metadataServiceUri": self._uri,
            "allowLoopback": "true",
            "journalDirectory": self._folder / "journal",
            "ledgerDirectories": self._folder / "ledgers",
            # Its default is 5 s, which is little on a machine under load.
            "addEntryTimeoutSec": 60,
            "readEntryTimeoutSec": 60,
        }
        configuration = self._folder / "bookkeeper.conf"
        configuration.write_text("".join(f"{name}={value}\n" for name, value in (told | settings).items()))
        with (self._folder / "stderr").open("ab") as errors:
            ended = subprocess.run(
                [
                    *("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    f"-Dlog4j2.configurationFile={_LOGGING}",
                    *("-cp", f"{self._jars}/*", _SHELL, "-conf", configuration, *map(str, words)),
                ],
                input=answer.encode(),
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=_COMMAND_SECONDS,
                cwd=self._folder,
            )
        return Said(ended.returncode, ended.stdout.decode(errors="replace").splitlines())
