"""Every option and argument of every command and job gets wrong values, chosen by its declared type.

The commands' own code never runs: a value that reaches it was not refused.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
import typer

from bookspark.errors import BookKeeperError, InvalidArgumentError
from bookspark.operations.cli.main import command_line
from bookspark.spark.bookies.bookies_job import parse_arguments
from bookspark.support.arguments import checked, judges

ROOT = Path(__file__).resolve().parents[3]
# The error that typer raises for a wrong command line; typer may bundle its own click.
USAGE_ERROR: Any = typer.BadParameter.__base__
# Python's decoding of a byte on the command line that is not UTF-8.
NOT_UTF8 = "\udcff"


class ReachedError(Exception):
    """The command would have started."""


def _stub(function: Any) -> Any:
    @functools.wraps(inspect.unwrap(function))
    def reached(*args: Any, **kwargs: Any) -> None:
        raise ReachedError

    return checked(reached)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Every command by its name, with its callback replaced by a stub."""

    def spare(one: typer.Typer) -> None:
        for command in one.registered_commands:
            assert judges(command.callback), f"{command.callback} does not judge its arguments"
            monkeypatch.setattr(command, "callback", _stub(command.callback))
        for group in one.registered_groups:
            if group.typer_instance is not None:
                spare(group.typer_instance)

    app = command_line()
    spare(app)
    found = dict(_leaves(typer.main.get_command(app), ""))
    for path in sorted((ROOT / "jobs").glob("[a-z]*.py")):
        if path.stem == "bookies":
            continue
        spec = importlib.util.spec_from_file_location(f"job_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        job = typer.Typer(add_completion=False)
        job.command()(_stub(module.main))
        found[f"job {path.stem}"] = typer.main.get_command(job)
    return found


def _leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for below, one in command.commands.items():
            yield from _leaves(one, f"{name} {below}".strip())
    else:
        yield name, command


@functools.cache
def _hints(function: Any) -> dict[str, Any]:
    """Cached: the hints cost more than a parse, and each parameter of each command line needs them."""
    return get_type_hints(function, include_extras=True)


def _declared(command: Any, parameter: Any) -> tuple[Any, Any]:
    """The type of the parameter in the command's function, and its typer annotation."""
    hint = _hints(inspect.unwrap(command.callback))[parameter.name]
    notes = getattr(hint, "__metadata__", ())
    kind = get_args(hint)[0] if notes else hint
    inner = [one for one in get_args(kind) if one is not type(None)]
    return inner[0] if inner and get_origin(kind) in (Union, UnionType) else kind, notes[-1] if notes else None


def _wrong(command: Any, parameter: Any) -> list[str]:
    kind, said = _declared(command, parameter)
    low, high = getattr(said, "min", None), getattr(said, "max", None)
    bounds = [str(low - 1)] if low is not None else []
    bounds += [str(high + 1)] if high is not None else []
    if kind is int:
        return ["abc", "1.5", "", "9" * 40, *bounds]
    if kind is float:
        return ["abc", "", "nan", "inf", "-inf", "1e999", *bounds]
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return ["nonsense", ""]
    return [NOT_UTF8] if kind is str else []


def _right(command: Any, parameter: Any) -> str:
    kind, said = _declared(command, parameter)
    if kind in (int, float):
        return str(max(1, getattr(said, "min", None) or 1))
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return str(next(iter(kind)).value)
    return "/tmp" if kind is Path else "a"


def _line(command: Any, wrong: Any, value: str) -> list[str]:
    """A command line that is valid except for the value of one parameter."""
    line: list[str] = []
    places: list[str] = []
    for parameter in command.params:
        given = value if parameter is wrong else _right(command, parameter)
        if parameter.param_type_name == "argument":
            if parameter.required or parameter is wrong:
                places.append(given)
        elif parameter is wrong or parameter.required:
            line.append(f"{max(parameter.opts, key=len)}={given}")
    return [*line, "--", *places]


def test_wrong_values_on_the_command_line_are_refused_by_parameter_name(commands: dict[str, Any]) -> None:
    tried = 0
    for name, command in commands.items():
        for parameter in command.params:
            if getattr(parameter, "is_flag", False):
                continue
            for value in _wrong(command, parameter):
                what = f"{name}: {parameter.name} {value!r}"
                with pytest.raises((USAGE_ERROR, InvalidArgumentError, ReachedError)) as told:
                    command.main(_line(command, parameter, value), prog_name="bookspark", standalone_mode=False)
                assert not isinstance(told.value, ReachedError), f"{what} was taken"
                text = getattr(told.value, "format_message", lambda: str(told.value))().lower().replace("-", "_")
                names = {parameter.name, *(one.strip("-").replace("-", "_") for one in parameter.opts)}
                assert any(one.lower() in text for one in names) or (parameter.metavar or "?").lower() in text, text
                tried += 1
    assert len(commands) > 40 and tried > 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["--bookies", "0"],
        ["--bookies", "three"],
        ["--bookies", "9" * 40],
        ["--option", "port"],
        ["--option", "ports=1"],
        ["--boookies", "3"],
    ],
)
def test_bookies_job_refuses_wrong_values(arguments: list[str]) -> None:
    with pytest.raises(BookKeeperError):
        parse_arguments(["--directory", "/d", *arguments])
