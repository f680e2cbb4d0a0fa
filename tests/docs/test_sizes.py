"""No module, and no shelf, is too long to be read in one go (docs/decisions/shelves.md)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 399
MODULES_MAX = 15
NOT_COUNTED = ("__init__.py", "__main__.py")

LINES = {
    path.relative_to(ROOT): path.read_text().count("\n")
    for path in (ROOT / "bookspark").rglob("*.py")
    if path.name not in NOT_COUNTED
}


def test_no_module_is_too_long():
    assert {str(path): lines for path, lines in LINES.items() if lines > LINES_MAX} == {}


def test_no_shelf_holds_too_many_modules():
    shelves = Counter(str(path.parent) for path in LINES)
    assert {shelf: count for shelf, count in shelves.items() if count > MODULES_MAX} == {}


def test_the_median_module_is_short():
    assert 90 <= median(LINES.values()) <= 150
