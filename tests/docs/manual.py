"""The manual for programs: llms.txt, a list of its pages, and all pages as one text; ``scripts/manual`` writes them.

The form of llms.txt is that of https://llmstxt.org. Both are made from docs/index.md, which lists every page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
INDEX, LIST = ROOT / "docs" / "index.md", ROOT / "llms.txt"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)\)")


class Page(NamedTuple):
    """A page of the manual."""

    section: str
    title: str
    # from the root of the project
    path: str
    what: str


def pages() -> Iterator[Page]:
    """All pages, in the order of the index."""
    section = ""
    for line in INDEX.read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ["):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            for title, path in _LINK.findall(cells[0]):
                place = (INDEX.parent / path).resolve().relative_to(ROOT)
                yield Page(section, title, str(place), cells[-1].strip(" |"))


def llms() -> str:
    """The text of llms.txt."""
    lines = [
        "# Bookspark",
        "",
        "> Ledger storage for Spark: append-only ledgers and logs on several bookies, with the protocol of Apache BookKeeper.",
        "",
        "The [README](README.md) says what it is in a page.",
    ]
    section = ""
    for page in pages():
        if page.section != section:
            section = page.section
            lines += ["", f"## {section}", ""]
        lines.append(f"- [{page.title}]({page.path}): {page.what}")
    return "\n".join(lines) + "\n"


def whole() -> str:
    """The README and all pages as one text."""
    paths = ["README.md", *(page.path for page in pages())]
    return "\n\n".join(f"<!-- {path} -->\n\n{(ROOT / path).read_text('utf-8').strip()}" for path in paths) + "\n"


if __name__ == "__main__":
    LIST.write_text(llms(), "utf-8")
    for target in sys.argv[1:]:
        Path(target).write_text(whole(), "utf-8")
