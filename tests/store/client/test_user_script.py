"""A user's script under ``mypy --strict``, without a setting for Bookspark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("user_script.py")
SETTINGS = """
[mypy]
# As for every package that is installed, errors inside Bookspark are not the user's. Large packages that are not typed, or take
# long to look through, are left out.
follow_imports = silent
[mypy-pyspark.*,delta.*,kazoo.*,pyarrow.*,pandas.*]
follow_imports = skip
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mypy")
    (made / "mypy.ini").write_text(SETTINGS)
    return made


def strictly_checked(directory: Path, script: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        "mypy.ini",
        "--cache-dir",
        "cache",
        str(script),
    ]
    environment = os.environ | {"MYPYPATH": str(ROOT)}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.acceptance
def test_script_that_uses_the_whole_api_passes_mypy(directory: Path) -> None:
    checked = strictly_checked(directory, SCRIPT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_mypy_finds_mistakes_in_a_script(directory: Path) -> None:
    script = directory / "mistakes.py"
    script.write_text(
        "from bookspark import BookKeeper\n"
        "from bookspark.local import LocalCluster\n"
        "with BookKeeper('h:2181') as bookkeeper, bookkeeper.create_ledger() as ledger:\n"
        "    ledger.append('text')\n"
        "    ledger.apend(b'x')\n"
        "    bookkeeper.open_ledger(1).append(b'x')\n"
        "with LocalCluster() as cluster:\n"
        "    cluster.bookies[0].pid + 1\n"
    )
    found = strictly_checked(directory, script).stdout
    assert re.findall(r"^mistakes.py:(\d+): error", found, re.MULTILINE) == ["4", "5", "6", "8"], found
