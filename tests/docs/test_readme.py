"""README.md is short, and its blocks are those that ``tests/system/acceptance/test_installed_package.py`` runs."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_readme_has_six_code_blocks_and_otherwise_text_blocks() -> None:
    """Two of commands (bookies, audits) and four of Python (a query, a service, a reading query, a tail), as many as are
    run."""
    assert (len(blocks("bash")), len(blocks("python"))) == (2, 4)
    assert TEXT.count("```") == 2 * (2 + 4 + len(blocks("text")))


def test_readme_is_short() -> None:
    assert TEXT.count("\n") <= 155
