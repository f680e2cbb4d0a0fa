"""The index lists every page of the manual, and llms.txt is made from it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs import manual


def test_every_page_is_in_the_index_once() -> None:
    listed = [page.path for page in manual.pages()]
    docs = manual.ROOT / "docs"
    there = {str(path.relative_to(manual.ROOT)) for path in docs.rglob("*.md")} - {"docs/index.md"}
    of_a_list = {path for path in there if path.startswith("docs/decisions/") and not path.endswith("/README.md")}
    assert sorted(listed) == sorted(there - of_a_list)


def test_llms_txt_agrees_with_the_index() -> None:
    assert manual.LIST.read_text("utf-8") == manual.llms(), "run scripts/manual"
    assert all(page.section and page.title and page.what for page in manual.pages())


def test_whole_manual_contains_every_page() -> None:
    text = manual.whole()
    assert all(f"<!-- {page.path} -->" in text for page in manual.pages()) and "# Bookspark" in text


def test_web_pages_are_all_in_the_navigation_and_link_only_to_each_other(tmp_path: Path) -> None:
    """A reader of the web pages has no checkout: a link to code would lead nowhere."""
    manual.prepare_site(tmp_path)
    copied = tmp_path / "pages"
    pages = {str(path.relative_to(copied)) for path in copied.rglob("*.md")}
    listed = re.findall(r'"([^"]+\.md)"', (tmp_path / "mkdocs.yml").read_text("utf-8").splitlines()[-1])
    assert sorted(listed) == sorted(pages) and "README.md" in pages
    dead = [
        f"{page}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)\s:#]+)(?:#[^)\s]*)?\)", (copied / page).read_text("utf-8"))
        if not (copied / page).parent.joinpath(link).exists()
    ]
    assert dead == []
