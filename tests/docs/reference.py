"""The pages of docs/reference, made from what the code says of itself; ``scripts/reference`` writes them.

Law: every option, error, command, table, column and audit that there is has its entry, in the words that stand beside it in the
code. ``test_reference`` compares, so none is forgotten and none stays that is gone.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import typer
from typer.testing import CliRunner

import bookspark
from bookspark import errors
from bookspark.operations.cli.main import command_line
from bookspark.spark.audit.runner import head_of, names
from bookspark.spark.bookies import bookies_job
from bookspark.spark.options import given_options, sink_options, source_options
from bookspark.spark.tables.system_tables import TABLES
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.changes_config import ChangesConfig
from bookspark.store.client.client_config import ClientConfig
from bookspark.support.arguments.checking import Config
from bookspark.support.arguments.taken import taken_by
from bookspark.support.command_line import judged
from bookspark.support.packaged_files import jobs as packaged_jobs

PAGES = Path(__file__).resolve().parents[2] / "docs/reference"
MADE = "<!-- Made by scripts/reference from the code. -->"


def page(title: str, introduction: str, parts: Iterable[str]) -> str:
    """A page, and who made it."""
    return "\n\n".join([f"# {title}", MADE, introduction.strip(), *parts]) + "\n"


def table(heads: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split()) or "–"


def _flowing(text: str) -> str:
    """A docstring as paragraphs."""
    parts = textwrap.dedent(inspect.cleandoc(text)).replace("``", "`").split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(part.split()), 128, break_long_words=False) for part in parts)


# -- options

CONFIGS: dict[str, tuple[str, type[Config]]] = {
    "Clients": ("client", ClientConfig),
    "Bookies": ("bookie", BookieConfig),
    "Autorecovery": ("autorecovery", AutorecoveryConfig),
    "Changes of a cluster": ("changes", ChangesConfig),
}
"""By heading: the table of a settings file, and the options in it."""


def field_docs(kind: type) -> dict[str, str]:
    """What stands behind each field of a class."""
    (body,) = (
        node for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if isinstance(node, ast.ClassDef)
    )
    found = {}
    for field, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr) and isinstance(field.target, ast.Name):
            found[field.target.id] = str(ast.literal_eval(following.value))
    return found


def options_of(kind: type[Config]) -> Iterator[tuple[str, str, str, str]]:
    """Name, values, default and meaning of each option."""
    hints, meanings = get_type_hints(kind, include_extras=True), field_docs(kind)
    for field in msgspec.structs.fields(kind):
        default = "required" if field.required else f"`{_shown(field.default)}`"
        yield f"`{field.name}`", taken_by(hints[field.name]).words, default, meanings[field.name]


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if value > 9999 else str(value)
    return f'"{value}"' if isinstance(value, str) else str(value)


def options() -> str:
    """The page of options."""
    heads = "option", "values", "default", "meaning"
    parts = [
        f"## {title}\n\nKeyword arguments, or the table `[{name}]` of a settings file.\n\n{table(heads, options_of(kind))}"
        for title, (name, kind) in CONFIGS.items()
    ]
    introduction = """
A value that can't be used is refused before anything begins, with the values that can. `bookspark conf bookspark.toml` prints the
path of a settings file with every option and its default.
"""
    return page("Options", introduction, parts)


# -- options of the data source


def spark_options() -> str:
    """The page of options of ``format("bookspark")``."""
    introduction = """
Options of `format("bookspark")`, for `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`. Spark takes their names
in upper and lower case. An option that is unknown, or has a value that can't be used, is refused on the driver before anything is
read or written.
"""
    parts = [
        part for module in (given_options, sink_options, source_options) for part in _sections(module.__doc__ or "")
    ]
    return page("Options of the data source", introduction, parts)


def _sections(text: str) -> Iterator[str]:
    """Of a docstring, each line at the left with the indented lines below it: a heading and its paragraph."""
    for heading, body in re.findall(r"^(\w[\w ]*)\n((?:    .*\n)+)", text, re.MULTILINE):
        yield f"## {heading}\n\n{_flowing(body)}"


def known_options() -> set[str]:
    """The names of the options that reads and writes know, as the error for an unknown one tells them."""
    given, found = {"zookeeper": "127.0.0.1:1", "log": "orders", "?": "?"}, set()
    for kind in (sink_options.SinkOptions, source_options.SourceOptions):
        try:
            kind.parse(given)
        except errors.ConfigurationError as error:
            found |= set(str(error).partition("known are: ")[2].split(", "))
    return found - set(given_options.SPARK_OPTIONS)


# -- errors


def all_errors() -> Iterator[tuple[type[Exception], type[Exception]]]:
    """Each public error of the package, and the one that it is a kind of."""
    for module in pkgutil.walk_packages(bookspark.__path__, "bookspark."):
        if not module.name.endswith(".__main__"):
            importlib.import_module(module.name)

    def below(kind: type[Exception]) -> Iterator[tuple[type[Exception], type[Exception]]]:
        for one in sorted(kind.__subclasses__(), key=lambda one: (one.__module__ != errors.__name__, one.__name__)):
            if one.__module__.startswith("bookspark.") and not one.__name__.startswith("_"):
                yield one, kind
                yield from below(one)

    return below(errors.BookKeeperError)


def errors_page() -> str:
    """The page of errors."""
    rows = [
        (
            f"`{error.__name__}`",
            "" if kind is errors.BookKeeperError else f"`{kind.__name__}`",
            _flowing(error.__doc__ or ""),
            f"`{error.__module__}`",
        )
        for error, kind in all_errors()
    ]
    introduction = """
All are `BookKeeperError`s. A message says what was wrong and what to do about it; the class says where the cause lies. Catch what
your program can do something about, and let the rest through.
"""
    return page("Errors", introduction, [table(("error", "a kind of", "when", "module"), rows)])


# -- commands


def all_commands() -> list[str]:
    """Each command with all its words."""

    def below(command: Any, words: str) -> Iterator[str]:
        groups = getattr(command, "commands", None)
        if groups is None:
            yield words
        else:
            for name in sorted(groups):
                yield from below(groups[name], f"{words} {name}")

    return list(below(_made(_whole()), "bookspark"))


_whole = cache(command_line)


@cache
def _made(app: typer.Typer) -> Any:
    """The command. (A ``CliRunner`` makes it for each call, which takes longer than all help.)"""
    return typer.main.get_command(app)


def _help(app: typer.Typer, name: str, *words: str) -> str:
    # The width that it would have without a terminal, whoever runs this.
    with CliRunner().isolation(env={"COLUMNS": "100"}) as (shown, *_):
        status = _made(app).main([*words, "--help"], prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        assert not status
        return shown.getvalue().decode().strip()


def _command(words: str) -> str:
    return f"## {words}\n\n```text\n{_help(_whole(), *words.split())}\n```"


def commands() -> str:
    """The page of commands."""
    introduction = """
`--help` after any command shows the same. The exit status is 0 if all went well, 1 if something was found, is missing or failed,
and 2 if the command can't be carried out as it was given.
"""
    return page("Commands", introduction, map(_command, all_commands()))


# -- jobs


def all_jobs() -> dict[str, typer.Typer]:
    """The arguments of each packaged job, by its name."""
    found = {}
    for name in sorted(packaged_jobs()):
        main = importlib.import_module(f"bookspark.jobs.{name}").main
        if main is bookies_job.main:
            found[name] = bookies_job._app
        else:
            found[name] = typer.Typer(add_completion=False, rich_markup_mode=None)
            found[name].command()(judged(main))
    return found


def _job(name: str, arguments: typer.Typer) -> str:
    return f"## {name}\n\n```text\n{_help(arguments, f'{name}.py')}\n```"


def jobs_page() -> str:
    """The page of the jobs for spark-submit."""
    introduction = """
`spark-submit … $(bookspark job NAME) OPTIONS`. Bookies, clients and autorecovery have their other [options](options.md) in the
settings file that `BOOKSPARK_CONFIG` names, on the driver and (`spark.executorEnv.BOOKSPARK_CONFIG`) on the executors. `--help`
shows the same. The exit status is 0 if all went well, 1 if an audit found something, and 2 if it could not be done.
"""
    return page("Jobs", introduction, (_job(name, arguments) for name, arguments in all_jobs().items()))


# -- tables and audits


def _of_table(name: str) -> str:
    one = TABLES[name]
    rows = [(f"`{column}`", kind.simpleString(), meaning) for column, kind, meaning in one.columns]
    return f"## {name}\n\n{one.comment}\n\n{table(('column', 'type', 'meaning'), rows)}"


def all_audits() -> dict[str, tuple[str, str]]:
    """Title and explanation of each audit, by its name."""
    folder = Path(bookspark.__path__[0]) / "spark/audit"
    return {name: head_of((folder / f"{name}.sql").read_text("utf-8")) for name in names()}


def tables() -> str:
    """The page of tables and audits."""
    introduction = """
`spark.read.format("bookspark").option("table", NAME).load()` reads a table of the living cluster. `bookspark snapshot --path
PATH` writes them to Delta tables of the same names, where `bookspark audit --path PATH` and your own SQL read them, also as they
were (`VERSION AS OF`).
"""
    audits = table(
        ("audit", "what it finds"), ((f"`{name}`", f"{title}: {why}") for name, (title, why) in all_audits().items())
    )
    return page("Tables and audits", introduction, [*map(_of_table, TABLES), f"# Audits\n\n{audits}"])


PAGES_MADE: dict[str, Callable[[], str]] = {
    "options.md": options,
    "spark-options.md": spark_options,
    "errors.md": errors_page,
    "commands.md": commands,
    "jobs.md": jobs_page,
    "tables.md": tables,
}


if __name__ == "__main__":
    PAGES.mkdir(exist_ok=True)
    for name, made in PAGES_MADE.items():
        (PAGES / name).write_text(made(), "utf-8")
