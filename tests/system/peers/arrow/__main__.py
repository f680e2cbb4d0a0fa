"""``scripts/peers arrow``: Arrow's implementations in Java, JavaScript and Go open the logs of a live bookie.

Each prints every entry of a log, which has to equal that of pyarrow. A language without its tools here is named, and not judged:
Java needs ``mvn`` and ``javac``, JavaScript ``npm`` and ``node``, Go ``go``. Readers in Python and Rust:
``tests/system/cluster/test_arrow_readers.py``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bookspark.lab.bench.peers.services import fetched
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.support.cache_folder import cache_folder
from tests.arrow_readers import by_pyarrow, written_logs

HERE = Path(__file__).parent
_SECONDS_MAX = 600.0


class Language(NamedTuple):
    """A language: the tools that it needs, and what makes a reader in a folder and returns its command."""

    tools: tuple[str, ...]
    made: Callable[[Path], list[str]]


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 if each language that was found reads every log as pyarrow does, and one was found."""
    argparse.ArgumentParser("scripts/peers arrow", description=__doc__).parse_args(arguments)
    found, wrong = 0, 0
    with tempfile.TemporaryDirectory(prefix="arrow-") as name:
        home = Path(name)
        with EmbeddedZooKeeper(home / "zookeeper", 0) as zookeeper:
            logs = written_logs(home, zookeeper.connection_string)
        for language, (tools, made) in LANGUAGES.items():
            if lacking := [tool for tool in tools if shutil.which(tool) is None]:
                print(f"{language}: not found here: {', '.join(lacking)}")
                continue
            found += 1
            command = made(_folder(language))
            for life, (_, _, paths) in logs.items():
                told, wanted = _said([*command, *map(str, paths)]), "".join(map(_entries, paths))
                wrong += told != wanted
                print(
                    f"{language}: {life}: {wanted.count(chr(10))} entries: {'equal' if told == wanted else told[-300:]}"
                )
    return 1 if wrong or not found else 0


def _folder(language: str) -> Path:
    """A folder for the language's reader, with a copy of its sources."""
    folder = cache_folder() / "arrow-peer" / language.lower()
    shutil.copytree(HERE / language.lower(), folder, dirs_exist_ok=True)
    return folder


def _entries(path: Path) -> str:
    """The entries of a log, as the readers print them."""
    columns = (by_pyarrow(path).column(name).to_pylist() for name in ("ledger_id", "entry_id", "length", "payload"))
    return "".join(
        f"{ledger} {entry} {length} {zlib.crc32(payload)}\n"
        for ledger, entry, length, payload in zip(*columns, strict=True)
    )


def _said(command: list[str]) -> str:
    """What a command prints, and if it fails, its error."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False)
    return done.stdout if done.returncode == 0 else done.stderr


def _java(folder: Path) -> list[str]:
    jars = fetched(folder / "pom.xml", folder / "jars")
    subprocess.run(["javac", "-d", folder, "-cp", f"{jars}/*", folder / "ReadLog.java"], check=True)
    return ["java", "--add-opens=java.base/java.nio=ALL-UNNAMED", "-cp", f"{folder}:{jars}/*", "ReadLog"]


def _javascript(folder: Path) -> list[str]:
    subprocess.run(["npm", "install", "--silent", "--no-fund", "--no-audit"], cwd=folder, check=True)
    return ["node", str(folder / "read_log.mjs")]


def _go(folder: Path) -> list[str]:
    subprocess.run(["go", "mod", "tidy"], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["go", "build", "-o", "read-log", "."], cwd=folder, check=True)
    return [str(folder / "read-log")]


LANGUAGES = {
    "Java": Language(("mvn", "javac", "java"), _java),
    "JavaScript": Language(("npm", "node"), _javascript),
    "Go": Language(("go",), _go),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
