"""README.md is short, and its blocks are those that ``tests/system/acceptance/test_installed_package.py`` runs.

Its links work in a checkout (``test_references``), those of the package's description anywhere.
"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import bookspark
from tests.docs import blocks as pages

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_readme_has_six_code_blocks_and_otherwise_text_blocks() -> None:
    """Two of commands (bookies, audits) and four of Python (a query, a service, a reading query, a tail), as many as are
    run."""
    assert (len(blocks("bash")), len(blocks("python"))) == (2, 4)
    assert TEXT.count("```") == 2 * (2 + 4 + len(blocks("text")))


def test_examples_of_readme_and_tutorial_pass_strict_type_checks(tmp_path: Path) -> None:
    """Spark's classes are not looked into (``setup.cfg``)."""
    for page in ("README.md", "docs/tutorial.md"):
        for number, block in enumerate(block for block in pages.blocks(page) if block.language == "python"):
            (tmp_path / f"{Path(page).stem.lower()}_{number}.py").write_text(block.text)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "setup.cfg", *map(str, tmp_path.iterdir())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def test_readme_is_read_in_three_minutes() -> None:
    prose = re.sub(r"\]\([^)]*\)|^```.*?^```$", " ", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"\w[\w.,'’/-]*", prose)) <= 1000


def test_wheel_is_installed_by_the_file_name_that_is_built() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        named = re.findall(r"bookspark-(\d[\w.]*)-py3-none-any\.whl", page.read_text("utf-8"))
        assert set(named) <= {bookspark.__version__}, page
        assert named or page != ROOT / "README.md"


def test_description_of_the_package_has_no_link_that_works_only_in_a_checkout() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    description = (ROOT / settings["metadata"]["long_description"].removeprefix("file: ")).read_text("utf-8")
    targets = re.findall(r"\]\(([^)]*)\)|^\[[^\]]*\]: *(\S+)", description, flags=re.MULTILINE)
    assert [target for target in targets if not "".join(target).startswith("https://")] == []
