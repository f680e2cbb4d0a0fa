"""Only ``tests/awaiting.py`` sleeps: a sleep is too long on an idle machine and too short on a busy one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent


def sleeps(source: str) -> Iterator[int]:
    """The lines that call a ``sleep``, pass it on, or wait for an event that is never set: ``Event().wait(…)``, or that of
    a function which neither sets its event nor passes it on."""
    if "sleep" not in source and "Event" not in source:
        return
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=made), attr="wait")) if _name(made) == "Event":
                yield node.lineno
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
                yield node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id="asyncio"), attr="sleep"), args=[argument, *_]):
                if not (isinstance(argument, ast.Constant) and argument.value == 0):  # 0 is one turn of the loop
                    yield node.lineno
            case ast.ImportFrom(module="time") if any(alias.name == "sleep" for alias in node.names):
                yield node.lineno
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _waits_for_nobody(node)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _waits_for_nobody(function: ast.AST) -> Iterator[int]:
    """Waits with a timeout for an event that is a local variable of the function, and is only waited for."""
    made: set[str] = set()
    used: dict[str, int] = {}
    waits: list[tuple[str, int]] = []
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=targets, value=value):
                names = targets[0].elts if isinstance(targets[0], ast.Tuple) else targets[:1]
                values = value.elts if isinstance(value, ast.Tuple) else [value]
                for name, one in zip(names, values, strict=False):
                    if isinstance(name, ast.Name) and isinstance(one, ast.Call) and _name(one.func) == "Event":
                        made.add(name.id)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="wait"), args=[_, *_]):
                waits.append((name, node.lineno))
            case ast.Name(id=name, ctx=ast.Load()):
                used[name] = used.get(name, 0) + 1
    for name, line in waits:
        if name in made and used[name] == sum(name == other for other, _ in waits):
            yield line


def test_no_test_module_sleeps() -> None:
    files = [path for path in TESTS.rglob("*.py") if path != TESTS / "awaiting.py"]
    found = [f"{path.relative_to(TESTS)}:{line}" for path in sorted(files) for line in sleeps(path.read_text("utf-8"))]
    assert len(files) > 100
    assert found == [], "await a condition, or the event that tells of it: tests/awaiting.py"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import time\ntime.sleep(1)", [2]),
        ("from time import sleep", [1]),
        ("check.run(time.sleep)", [1]),
        ("threading.Event().wait(0.5)", [1]),
        ("def f():\n    pause = Event()\n    while g():\n        pause.wait(0.05)", [4]),
        ("def f():\n    a, pause = 1, threading.Event()\n    pause.wait(0.05)", [3]),
        ("async def f():\n    await asyncio.sleep(0)", []),
        ("async def f():\n    await asyncio.sleep(0.1)", [2]),
        ("def f():\n    done = Event()\n    g(done.set)\n    done.wait(60)", []),
        ("def f():\n    done = Event()\n    done.wait()", []),
    ],
)
def test_sleeps_and_waits_for_events_never_set_are_detected(source: str, lines: list[int]) -> None:
    assert list(sleeps(source)) == lines
