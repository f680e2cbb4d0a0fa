"""The manual in other forms: llms.txt, a list of its pages; all pages as one text; web pages with search. ``scripts/manual``
writes them.

The form of llms.txt is that of https://llmstxt.org. All are made from docs/index.md, which lists every page. This module needs
only the standard library: it runs without the checkout's environment.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
INDEX, LIST = ROOT / "docs" / "index.md", ROOT / "llms.txt"
SITE = Path(__file__).with_name("site.yml")
"""Settings of the web pages without their navigation."""
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)\)")
_NAMED_FENCE = re.compile(r"^( *```\w+) +(\S.*)$", re.MULTILINE)
_ANY_LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)\s:#]+)(?:#[^)\s]*)?\)")


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


def navigation() -> list[dict[str, object]]:
    """The navigation of the web pages: the README, the index, then the sections of the index. The page of decisions has its
    list below it."""
    sections: dict[str, list[object]] = {}
    for page in pages():
        title, below = page.title[0].upper() + page.title[1:], Path(page.path).parent
        listed: object = page.path
        if Path(page.path).name == "README.md":
            others = sorted(str(path.relative_to(ROOT)) for path in (ROOT / below).glob("*.md"))
            listed = [page.path, *(path for path in others if path != page.path)]
        sections.setdefault(page.section, []).append({title: listed})
    home: list[dict[str, object]] = [{"Bookspark": "README.md"}, {"Find it": str(INDEX.relative_to(ROOT))}]
    return [*home, *({section: listed} for section, listed in sections.items())]


def prepare_site(folder: Path) -> None:
    """Write the input of mkdocs to ``folder``: ``mkdocs.yml`` and ``pages``, where each page has its place in the project.

    Links to files outside of the manual become their text, because a site's reader has no checkout.
    """
    copied = folder / "pages"
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(INDEX.parent, copied / "docs")
    shutil.copy(ROOT / "README.md", copied)
    for page in copied.rglob("*.md"):

        def kept(link: re.Match[str], place: Path = page.parent) -> str:
            return link[0] if (place / link[2]).exists() else link[1]

        text = _ANY_LINK.sub(kept, page.read_text("utf-8"))
        page.write_text(_NAMED_FENCE.sub(r'\1 title="\2"', text), "utf-8")
    settings = f"{SITE.read_text('utf-8')}nav: {json.dumps(navigation(), ensure_ascii=False)}\n"
    (folder / "mkdocs.yml").write_text(settings, "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["site"]:
        prepare_site(Path(sys.argv[2]))
    else:
        LIST.write_text(llms(), "utf-8")
        for target in sys.argv[1:]:
            Path(target).write_text(whole(), "utf-8")
