"""Every command and job that prints a table has ``--json``. Their source tells which do: a function prints a table if it,
or a function of its module that it calls, uses a printer's name."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from bookspark.operations.cli.main import command_line
from bookspark.operations.cli.terminal.output import print_table

ROOT = Path(__file__).resolve().parents[3]
# Names that print a table: ``bookspark.operations.cli.terminal.output``, rich, the audits' ``show``, and the benchmarks'
# tables.
PRINTERS = {"print_table", "console", "Console", "Table", "table", "show"}


def names_in(function: Callable[..., Any], module: ModuleType) -> set[str]:
    """All names used by a function and by the functions of its module that it calls."""
    bodies = {
        one.name: one for one in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(one, ast.FunctionDef)
    }
    found: set[str] = set()
    to_do = [function.__name__]
    while to_do:
        body = bodies.pop(to_do.pop(), None)
        if body is None:
            continue
        taken = {one.arg for one in ast.walk(body) if isinstance(one, ast.arg)}
        used = {one.id for one in ast.walk(body) if isinstance(one, ast.Name)} - taken
        used |= {one.attr for one in ast.walk(body) if isinstance(one, ast.Attribute)}
        found |= used
        calls = (one.func for one in ast.walk(body) if isinstance(one, ast.Call))
        to_do += sorted(one.id for one in calls if isinstance(one, ast.Name))
    return found


def commands(command: Any, name: str) -> Iterator[tuple[str, Callable[..., Any], Any]]:
    """Name, function and click command of every command below ``command``."""
    if not hasattr(command, "commands"):
        yield name, inspect.unwrap(command.callback), command
    for word, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{name} {word}")


def jobs() -> Iterator[tuple[str, Callable[..., Any], Any]]:
    for path in sorted((ROOT / "jobs").glob("[a-z]*.py")):
        spec = importlib.util.spec_from_file_location(f"job_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module
        spec.loader.exec_module(module)
        if path.stem != "bookies":
            job = typer.Typer()
            job.command()(module.main)
            yield f"job {path.stem}", module.main, typer.main.get_command(job)


def without_json(found: Iterator[tuple[str, Callable[..., Any], Any]]) -> tuple[list[str], list[str]]:
    """The names of the commands that print a table, and of those that lack ``--json``."""
    printing, lacking = [], []
    for name, function, command in found:
        if names_in(function, sys.modules[function.__module__]) & PRINTERS:
            printing.append(name)
            if not any("--json" in parameter.opts for parameter in command.params):
                lacking.append(name)
    return printing, lacking


def test_every_command_that_prints_a_table_has_json_output() -> None:
    printing, lacking = without_json(commands(typer.main.get_command(command_line()), "bookspark"))
    assert lacking == []
    assert {"bookspark bookies", "bookspark ledger list", "bookspark audit", "bookspark safe-to-stop"} <= set(printing)
    assert {"bookspark bench peers spark", "bookspark autorecovery list"} <= set(printing)
    assert without_json(jobs()) == (["job audit"], [])


def a_new_command() -> None:
    _its_helper()


def _its_helper() -> None:
    print_table((), ())


def test_table_command_without_json_is_detected() -> None:
    new = typer.Typer()
    new.command()(a_new_command)
    new.command("other")(jobs)
    assert without_json(commands(typer.main.get_command(new), "new")) == (["new a-new-command"], ["new a-new-command"])
