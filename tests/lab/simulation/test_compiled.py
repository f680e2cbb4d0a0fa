"""Compiled modules of the simulator are never stale: modules compiled from other sources are not used."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bookspark.lab.simulation.compiled import MODULES, SHARED, digest_of
from tests.awaiting import SECONDS_MAX

ROOT = Path(__file__).resolve().parents[3]
USES = """
import sys
from pathlib import Path
{first}
from bookspark.lab.simulation.compiled import use_compiled
print(use_compiled(Path(sys.argv[1])))
from bookspark.lab.simulation.search.exhaustive import Exhaustive
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    copied = tmp_path / "checkout"
    for part in ("lab/simulation", "protocol"):
        shutil.copytree(ROOT / "bookspark" / part, copied / "bookspark" / part)
    shutil.copy(ROOT / "bookspark/errors.py", copied / "bookspark/errors.py")
    return copied


@pytest.mark.parametrize(
    "edited", ["lab/simulation/slots.py", "lab/simulation/bookie.py", "protocol/writing/writer.py", "errors.py"]
)
def test_edit_of_any_source_changes_the_digest(sources: Path, edited: str) -> None:
    before = digest_of(sources)
    assert before == digest_of(ROOT)
    with open(sources / "bookspark" / edited, "a", encoding="utf-8") as file:
        file.write("# edited\n")
    assert digest_of(sources) != before


def test_each_compiled_module_has_its_source() -> None:
    assert all((ROOT / f"{name.replace('.', '/')}.py").is_file() for name in MODULES)


def used(folder: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", USES.format(first=first), str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX)


def test_sources_are_used_without_modules_compiled_from_them(tmp_path: Path) -> None:
    other = tmp_path / ("0" * 20)
    other.mkdir()
    (other / f"{SHARED}.so").write_bytes(b"of other sources")
    done = used(tmp_path)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert used(tmp_path / "nowhere").stdout == "False\n"


def test_broken_compiled_module_is_an_import_error(tmp_path: Path) -> None:
    own = tmp_path / digest_of(ROOT)
    own.mkdir()
    (own / f"{SHARED}.so").write_bytes(b"no library")
    assert "ImportError" in used(tmp_path).stderr


def test_process_that_has_imported_a_source_keeps_using_sources(tmp_path: Path) -> None:
    own = tmp_path / digest_of(ROOT)
    own.mkdir()
    (own / f"{SHARED}.so").write_bytes(b"no library")
    done = used(tmp_path, first="import bookspark.lab.simulation.slots")
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
