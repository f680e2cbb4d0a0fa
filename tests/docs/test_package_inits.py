"""Each package says what it is for, what is in it, and how it is used.

The docstring of ``bookspark/**/__init__.py`` has one or two sentences, a table that names each of the package's modules and
sub-packages, and an example of a few lines. The example is Python; what it imports can be imported, and the classes and functions
that it uses without importing them are there.
"""

from __future__ import annotations

import ast
import builtins
import pkgutil
import re
import textwrap
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent.relative_to(ROOT) for path in (ROOT / "bookspark").rglob("__init__.py"))
_INDENTED = re.compile(r"(?:^ {2,}\S.*\n?|^ *\n)+", re.MULTILINE)


def _docstring(package: Path) -> str:
    return ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""


def _rooms(package: Path) -> set[str]:
    modules = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__", "__main__"}
    return modules | {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}


def _examples(package: Path) -> list[ast.Module]:
    """The indented blocks that are Python and call something."""
    found = []
    for block in _INDENTED.findall(_docstring(package)):
        try:
            tree = ast.parse(textwrap.dedent(block))
        except SyntaxError:
            continue
        if any(isinstance(node, ast.Call | ast.Import | ast.ImportFrom) for node in ast.walk(tree)):
            found.append(tree)
    return found


@cache
def _defined_or_imported() -> frozenset[str]:
    text = "\n".join(path.read_text() for path in (ROOT / "bookspark").rglob("*.py"))
    names = re.findall(r"^(?:class|def|async def) (\w+)|^([A-Za-z_]\w*)(?:: [^=\n]+)? = ", text, re.MULTILINE)
    imports = re.findall(r"^ *(?:from \S+ )?import (\([^)]*\)|.*)", text, re.MULTILINE)
    return frozenset(name for pair in names for name in pair).union(re.findall(r"\w+", " ".join(imports)))


def _unknown(tree: ast.Module) -> set[str]:
    """Classes and functions that are neither made in the example nor anywhere in the package."""
    nodes = list(ast.walk(tree))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    used = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    used |= {node.id for node in nodes if isinstance(node, ast.Name) and re.match(r"_?[A-Z]", node.id)}
    return used - bound - set(dir(builtins)) - _defined_or_imported()


def _dotted(tree: ast.Module) -> set[str]:
    """Names such as ``bookspark.BookKeeper``."""
    found = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {name for name in found if re.fullmatch(r"bookspark(\.\w+)+", name)}


@pytest.mark.parametrize("package", PACKAGES, ids=str)
class TestPackage:
    def test_says_what_it_is_for(self, package):
        first = _docstring(package).split("\n\n")[0].replace("\n", " ")
        assert re.search(r"\w{3,}.*[.:]$", first), f"{package}/__init__.py begins with a sentence about the package"

    def test_lists_its_rooms(self, package):
        words = set(re.findall(r"\w+", _docstring(package)))
        assert _rooms(package) - words == set(), f"{package}/__init__.py names each of its modules and sub-packages"

    def test_has_an_example_that_is_true(self, package):
        examples = _examples(package)
        assert examples, f"{package}/__init__.py has an example"
        for tree in examples:
            imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(imports, []), f"{package}/__init__.py", "exec"), {})
            assert _unknown(tree) == set()
            for name in _dotted(tree):
                pkgutil.resolve_name(name)
