"""A mutant put in the place of the right code, in this process alone.

Law: no file is written. A function is changed by its code object, so whoever holds the function calls the mutant, wherever it was
imported to. Two kinds of mutants are no change of a function: a flag of a class is turned, and an event that a table of a
machine takes is late in it, so that the machine ignores it.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from tests.mutants.driver_operators import DRIVER_OPERATORS
from tests.mutants.operators import ANY_VERSION, OPERATORS, Operators, functions, mutants_of

ROOT = Path(__file__).resolve().parents[2]


class Part(NamedTuple):
    """Code whose mutants are made and judged alike. ``prefix``: what stands before a module's name in those of its mutants;
    modules of the protocol have none. ``tests``: those who may reach it; which ones do is measured."""

    package: str
    prefix: str
    operators: Operators
    tests: Sequence[str]
    is_simulated: bool = False
    in_clusters: bool = False
    """Tests with clusters judge too: the mutant is in their own process."""

    @property
    def folder(self) -> Path:
        return ROOT.joinpath(*self.package.split("."))


_CLIENTS = (
    "client_metrics", "close_race", "ensemble_changes", "fetching", "guaranteed_write_quorum", "handles", "ledgers",
    "no_call_hangs", "placement", "pressure", "published_counterexamples", "read_only_bookies", "reads",
    "recovery_under_faults", "relaxed_durability", "security", "tailing", "wire_faults", "writers_lac", "wrong_arguments",
)  # fmt: skip
"""Modules of tests/cluster that are about clients: each of their tests takes about a second."""

_MINUTES = re.compile(r"test_(?:every_|fuzzed_|kill|storage_model)")
"""Modules that try everything or much at random, and nothing else. They would judge each mutant for minutes."""


def _modules(folder: str, without: re.Pattern[str]) -> list[str]:
    return [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / folder).glob("test_*.py"))
        if not without.match(path.name)
    ]


PARTS = {
    "protocol": Part(
        "bookspark.protocol",
        "",
        OPERATORS,
        ("tests/protocol", "tests/scenarios", "tests/simulation"),
        is_simulated=True,
    ),
    "bookie": Part(
        "bookspark.bookie",
        "bookspark.bookie.",
        DRIVER_OPERATORS,
        (
            *_modules("tests/bookie", _MINUTES),
            "tests/autorecovery/test_unreadable_records.py",
            "tests/befell_bookkeeper/test_bookies.py",
            "tests/bookkeeper",
            "tests/compatibility",
        ),
    ),
    "client": Part(
        "bookspark.client",
        "bookspark.client.",
        DRIVER_OPERATORS,
        ("tests/client", "tests/befell_bookkeeper", *(f"tests/cluster/test_{name}.py" for name in _CLIENTS)),
        in_clusters=True,
    ),
}


_PYTHONS_FLAGS = frozenset(("_use_args_", "_is_protocol"))
"""What Enum and Protocol note of a class while they make it: nobody reads it later."""


class Known(NamedTuple):
    """What the harness knows of a mutant before it is made. ``first..last``: its lines in ``path``; 0 for all of the module."""

    name: str
    operator: str
    path: str
    first: int
    last: int


def all_mutants(part: Part = PARTS["protocol"]) -> list[Known]:
    """Every mutant of a part, in the order of the files."""
    return [mutant for path in sorted(part.folder.rglob("*.py")) for mutant in _of_module(part, path)]


def _of_module(part: Part, path: Path) -> Iterator[Known]:
    module = _module(part, path)
    for mutant in mutants_of(path.read_text(), part.prefix + module, operators=part.operators):
        yield Known(mutant.name, mutant.operator, str(path), mutant.first, mutant.last)
    for name, operator, _ in _data(importlib.import_module(f"{part.package}.{module}")):
        yield Known(f"{part.prefix}{module}:{name}", operator, str(path), 0, 0)


def _module(part: Part, path: Path) -> str:
    return ".".join(path.relative_to(part.folder).with_suffix("").parts)


def place_of(path: str, line: int) -> tuple[str, int]:
    """The function that a line is in, and how far from its head: the same until the function itself changes."""
    name, head = "", 0
    for function, first, last in _heads(path):
        if first <= line <= last:
            name, head = function, first
    return name, line - head


@cache
def _heads(path: str) -> Sequence[tuple[str, int, int]]:
    tree = ast.parse(Path(path).read_text())
    return [(name, node.lineno, node.end_lineno or node.lineno) for name, node in functions(tree)]


def change(mutant: Known) -> None:
    """From now on this process runs the mutant. Raises LookupError if there is none of that name."""
    setattr(builtins, ANY_VERSION, _AnyVersion())
    path = Path(mutant.path)
    part = next(part for part in PARTS.values() if path.is_relative_to(part.folder))
    named, _, rest = mutant.name.partition(":")
    live = importlib.import_module(f"{part.package}.{_module(part, path)}")
    if not mutant.first:
        next(turn for name, _, turn in _data(live) if name == rest)()
        return
    name = rest.partition(" ")[0]
    for made in mutants_of(path.read_text(), named, name, part.operators):
        if made.name == mutant.name:
            function = _function_in(live, name)
            function.__code__ = code_for(function, made.tree, mutant.path, name)
            return
    raise LookupError(f"there is no mutant {mutant.name}")


def code_for(function: FunctionType, tree: ast.Module, path: str, name: str) -> CodeType:
    """The mutant's code. It names all that the function has from outside, because only such code can take its place."""
    free = function.__code__.co_freevars
    code = _code_in(compile(tree, path, "exec"), name)
    if code.co_freevars == free:
        return code
    node = next(node for found, node in functions(tree) if found == name)
    naming = ast.If(ast.Constant(False), [ast.Expr(ast.Name(one, ast.Load())) for one in free], [])
    before, node.body = node.body, [*node.body, ast.fix_missing_locations(ast.copy_location(naming, node.body[-1]))]
    try:
        return _code_in(compile(tree, path, "exec"), name)
    finally:
        node.body = before


def _code_in(outer: CodeType, function: str) -> CodeType:
    for name in function.split("."):
        outer = next(const for const in outer.co_consts if isinstance(const, CodeType) and const.co_name == name)
    return outer


def _function_in(module: ModuleType, function: str) -> FunctionType:
    found: Any = module
    for name in function.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if isinstance(found, cached_property):
        found = found.func
    if hasattr(found, "cache_clear"):
        found.cache_clear()
    return inspect.unwrap(found)  # type: ignore[no-any-return]


def _data(module: ModuleType) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """The mutants that are no change of a function: name, operator, and what makes it."""
    from bookspark.protocol.ledger.transitions import LATE, TAKEN

    for name, value in list(vars(module).items()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            if not hasattr(value, "__dataclass_fields__"):
                for flag, set_to in list(vars(value).items()):
                    if isinstance(set_to, bool) and flag not in _PYTHONS_FLAGS:
                        turn = _turning(value, flag, not set_to)
                        yield f"{name}.{flag} flag: {set_to} → {not set_to}", "flag", turn
        elif isinstance(value, dict) and name.isupper():
            for state, row in value.items():
                for event, cell in row.items() if isinstance(row, dict) else ():
                    if cell is TAKEN:
                        text = f"{name}[{state.name}] event: {event.__name__} taken → late"
                        yield text, "event", _setting(row, event, LATE)


def _turning(kind: type, flag: str, value: bool) -> Callable[[], None]:
    return lambda: setattr(kind, flag, value)


def _setting(row: dict[type, Any], event: type, cell: object) -> Callable[[], None]:
    return lambda: row.update({event: cell})


class _AnyVersion(int):
    """A version that is the right one, whatever that is."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0
