"""Each package says what it is for, what is in it, and how it is used.

The docstring of ``bookspark/**/__init__.py`` has one or two sentences, a table that names each of the package's modules and
sub-packages, and an example. What the example imports can be imported.
"""

from __future__ import annotations

import ast
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent.relative_to(ROOT) for path in (ROOT / "bookspark").rglob("__init__.py"))
_NAME = r"[A-Za-z_][\w.]*"
_IMPORT = re.compile(
    rf"^ *(?:>>> )?(from bookspark[\w.]* import (?:\([^)]*\)|{_NAME}(?: as \w+)?(?:, {_NAME}(?: as \w+)?)*)"
    r"|import bookspark[\w.]*(?: as \w+)?)",
    re.MULTILINE,
)

_USED = re.compile(r"^ {4,}.*?\b(bookspark(?:\.[A-Za-z_]\w*)+)\(", re.MULTILINE)
"""Called by its full name in an example."""


def _docstring(package: Path) -> str:
    return ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""


def _rooms(package: Path) -> set[str]:
    modules = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__", "__main__"}
    return modules | {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}


@pytest.mark.parametrize("package", PACKAGES, ids=str)
class TestPackage:
    def test_says_what_it_is_for(self, package):
        first = _docstring(package).split("\n\n")[0].replace("\n", " ")
        assert re.search(r"\w{3,}.*[.:]$", first), f"{package}/__init__.py begins with a sentence about the package"

    def test_lists_its_rooms(self, package):
        words = set(re.findall(r"\w+", _docstring(package)))
        assert _rooms(package) - words == set(), f"{package}/__init__.py names each of its modules and sub-packages"

    def test_has_an_example_that_can_be_imported(self, package):
        text = _docstring(package)
        imports, used = _IMPORT.findall(text), _USED.findall(text)
        assert imports or used, f"{package}/__init__.py has an example that imports what it uses"
        for statement in imports:
            exec(statement.replace(">>> ", "").replace("... ", ""), {})
        for dotted in used:
            pkgutil.resolve_name(dotted)
