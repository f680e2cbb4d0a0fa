"""A mutant put in the place of the right code, in this process alone.

Law: no file is written. A function is changed by its code object, so whoever holds the function calls the mutant, wherever it was
imported to. Two kinds of mutants are no change of a function: a flag of a class is turned, and an event that a table of a
machine takes is late in it, so that the machine ignores it.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from tests.mutants.operators import ANY_VERSION, mutants_of

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = ROOT / "bookspark" / "protocol"


class Known(NamedTuple):
    """What the harness knows of a mutant before it is made. ``first..last``: its lines in ``path``; 0 for all of the module."""

    name: str
    operator: str
    path: str
    first: int
    last: int


def all_mutants() -> list[Known]:
    """Every mutant of the protocol, in the order of the files."""
    return [mutant for path in sorted(PROTOCOL.rglob("*.py")) for mutant in _of_module(path)]


def _of_module(path: Path) -> Iterator[Known]:
    module = _module(path)
    for mutant in mutants_of(path.read_text(), module):
        yield Known(mutant.name, mutant.operator, str(path), mutant.first, mutant.last)
    for name, operator, _ in _data(importlib.import_module(f"bookspark.protocol.{module}")):
        yield Known(f"{module}:{name}", operator, str(path), 0, 0)


def _module(path: Path) -> str:
    return ".".join(path.relative_to(PROTOCOL).with_suffix("").parts)


def change(mutant: Known) -> None:
    """From now on this process runs the mutant. Raises LookupError if there is none of that name."""
    setattr(builtins, ANY_VERSION, _AnyVersion())
    path = Path(mutant.path)
    module, _, rest = mutant.name.partition(":")
    live = importlib.import_module(f"bookspark.protocol.{module}")
    if not mutant.first:
        next(turn for name, _, turn in _data(live) if name == rest)()
        return
    function = rest.partition(" ")[0]
    for made in mutants_of(path.read_text(), module, function):
        if made.name == mutant.name:
            code = _code_in(compile(made.tree, mutant.path, "exec"), function)
            _function_in(live, function).__code__ = code
            return
    raise LookupError(f"there is no mutant {mutant.name}")


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
                    if isinstance(set_to, bool):
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
