"""The pages of docs/reference, generated from the code; ``scripts/reference`` writes them.

Law: every existing option, error, command, table, column and audit has its entry, with the description beside it in the
code. ``test_reference`` compares, so no entry is missing or outdated.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections import Counter
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
from bookspark.support.arguments import Config, taken_by
from bookspark.support.command_line import judged
from bookspark.support.packaged_files import jobs as packaged_jobs

PAGES = Path(__file__).resolve().parents[2] / "docs/reference"
MADE = "<!-- Made by scripts/reference from the code. -->"


def page(title: str, introduction: str, parts: Iterable[str]) -> str:
    """A page with its title and its origin."""
    return "\n\n".join([f"# {title}", MADE, introduction.strip(), *parts]) + "\n"


def entries(rows: Iterable[tuple[str, str, str]]) -> str:
    """A Markdown list: names, what stands beside each, and its meaning."""
    return "\n".join(f"* `{name}`{beside}: {_meaning(text)}" for name, beside, text in rows)


def _meaning(text: str) -> str:
    # Outside of code, Markdown takes <label> for HTML.
    text = re.sub(r"`[^`]*`|(\w+<\w+>)", lambda one: f"`{one[1]}`" if one[1] else one[0], text.replace("``", "`"))
    return " ".join(text.split())


def _flowing(text: str) -> str:
    """A docstring as paragraphs."""
    parts = textwrap.dedent(inspect.cleandoc(text)).replace("``", "`").split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(part.split()), 128, break_long_words=False) for part in parts)


# -- options

# By heading: the table of a settings file, and its options.
CONFIGS: dict[str, tuple[str, type[Config]]] = {
    "Clients": ("client", ClientConfig),
    "Bookies": ("bookie", BookieConfig),
    "Autorecovery": ("autorecovery", AutorecoveryConfig),
    "Changes of a cluster": ("changes", ChangesConfig),
}


def field_docs(kind: type) -> dict[str, str]:
    """The docstring after each field of a class."""
    (body,) = (
        node for node in ast.parse(textwrap.dedent(inspect.getsource(kind))).body if isinstance(node, ast.ClassDef)
    )
    found = {}
    for field, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr) and isinstance(field.target, ast.Name):
            found[field.target.id] = str(ast.literal_eval(following.value))
    return found


def options_of(kind: type[Config]) -> Iterator[tuple[str, str, str]]:
    """Name, default with unusual bounds, and meaning of each option."""
    hints, meanings = get_type_hints(kind, include_extras=True), field_docs(kind)
    for field in msgspec.structs.fields(kind):
        default = " (required)" if field.required else f" = `{_shown(field.default)}`"
        yield field.name, default + _bounds(taken_by(hints[field.name]).words), meanings[field.name]


_USUAL_BOUNDS = re.compile(r"a text|true or false|a list .*|a table .*|at least [01]|0(?:\.001)? to 10{6,9}")


def _bounds(values: str) -> str:
    """Bounds that the default and the option's name don't suggest."""
    values = values.removesuffix(" (a whole number)")
    return "" if _USUAL_BOUNDS.fullmatch(values) else f" ({re.sub(' to ', '…', values)})"


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
    parts, known = [], set[tuple[str, str, str]]()
    for title, (name, kind) in CONFIGS.items():
        own = [one for one in options_of(kind) if one not in known]
        again = ", ".join(f"`{one[0]}`" for one in options_of(kind) if one in known)
        known.update(own)
        parts.append(f"## {title}\n\nTable `[{name}]`.{f' As above: {again}.' * bool(again)}\n\n{entries(own)}")
    introduction = """
Options are keyword arguments, or lines in tables of a settings file: `bookspark conf bookspark.toml` prints the path of a file
with every option and its default. A wrong value is refused at the start, with the allowed values.
"""
    return page("Options", introduction, parts)


# -- options of the data source


def spark_options() -> str:
    """The page of options of ``format("bookspark")``."""
    introduction = """
Options of `format("bookspark")`, for `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`, in upper or lower case.
The driver refuses unknown options and wrong values before it reads or writes.
"""
    parts = [
        part for module in (given_options, sink_options, source_options) for part in _sections(module.__doc__ or "")
    ]
    return page("Options of the data source", introduction, parts)


def _sections(text: str) -> Iterator[str]:
    """The sections of a docstring: each line at the left margin is a heading, the indented lines below are its paragraph."""
    for heading, body in re.findall(r"^(\w[\w ]*)\n((?:    .*\n)+)", text, re.MULTILINE):
        yield f"## {heading}\n\n{_flowing(body)}"


def known_options() -> set[str]:
    """The names of the options of reads and writes, from the error for an unknown option."""
    given, found = {"zookeeper": "127.0.0.1:1", "log": "orders", "?": "?"}, set()
    for kind in (sink_options.SinkOptions, source_options.SourceOptions):
        try:
            kind.parse(given)
        except errors.ConfigurationError as error:
            found |= set(str(error).partition("known are: ")[2].split(", "))
    return found - set(given_options.SPARK_OPTIONS)


# -- errors


def all_errors() -> Iterator[tuple[type[Exception], type[Exception]]]:
    """Each public error of the package with its base class."""
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
    rows = (
        (
            error.__name__,
            f" (`{error.__module__}`)" * (error.__module__ != errors.__name__),
            f"A `{kind.__name__}`. " * (kind is not errors.BookKeeperError) + _flowing(error.__doc__ or ""),
        )
        for error, kind in all_errors()
    )
    introduction = """
All are `BookKeeperError`s of the module `bookspark.errors` or the named one. The message says what was wrong and what to do; the
class says where the cause lies.
"""
    return page("Errors", introduction, [entries(rows)])


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
    """The typer command; a ``CliRunner`` would build it for each call, which takes longer than all help texts."""
    return typer.main.get_command(app)


def _help(app: typer.Typer, name: str, *words: str) -> str:
    # A fixed width, as without a terminal.
    with CliRunner().isolation(env={"COLUMNS": "100"}) as (shown, *_):
        status = _made(app).main([*words, "--help"], prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        assert not status
        return shown.getvalue().decode().strip()


_ENTRY = re.compile(r"^  (?:-\w, )?((?:--)?[^\s,]+).*\n(?:   .*\n)*", re.MULTILINE)
# An argument or option that at least this many commands share in the same words stands at the top of the page.
SHARED_MIN = 2
_KINDS = {"int": "INTEGER", "float": "NUMBER", "str": "TEXT", "path": "PATH"}


def _parts(entry: str) -> tuple[str, str]:
    """Split an entry of a help text into the argument, or the option with its kind of value, and its meaning."""
    values, *meaning = re.split(r"\s{2,}", entry.strip(), maxsplit=1)
    name, _, kind = values.partition(" <") if values.endswith(">") else (values, "", "")
    kind = re.sub(r"list\[(.*)\]", r"\1", kind.removesuffix(">"))
    if "--" in name and kind:
        name = f"{name}={_KINDS.get(kind.lower(), kind)}"
    return re.sub(r"(--[\w-]+) (?!/)(\S+)$", r"\1=\2", name), " ".join(" ".join(meaning).split())


def _row(values: str, meaning: str) -> tuple[str, str, str]:
    """A row for ``entries``, with the default in parentheses."""
    default = re.search(r" \[default: ([^;\]]+)(?:; )?", meaning)
    if default is None:
        return values, "", meaning
    rest = meaning[default.end() :]
    return values, f" ({default[1]})", meaning[: default.start()] + (f" [{rest}" if rest != "]" else "")


def _split(text: str) -> tuple[str, str, str]:
    """The description, arguments and options of a help text, without its usage, which its heading and arguments say.

    Omitted are lower bounds of 0 and 1, and that an argument without brackets is required.
    """
    text = re.sub(r"<(int|float) range>", r"<\1>" + " " * len(" range"), f"{text}\n")
    text = re.sub(r"\s+\[x>=[01](?:\.0)?\]|;\s+x>=[01](?:\.0)?(?=\])|(?<=\[)x>=[01](?:\.0)?;\s+", "", text)
    head, _, options = text.partition("Options:\n")
    head, _, arguments = head.partition("Arguments:\n")
    arguments = re.sub(r"\s+\[required\]|;\s+required(?=\])", "", arguments)
    return head.partition("\n\n")[2].strip("\n"), arguments, options


def _described(text: str, shared: dict[str, tuple[str, str]]) -> str:
    """A help text without usage and ``--help``, which only names the shared arguments and options."""
    description, *parts = _split(text)
    own, named = [], []
    for title, part in zip(("Arguments", "Options"), parts, strict=True):
        described = {entry[1]: _parts(entry[0]) for entry in _ENTRY.finditer(part) if entry[1] != "--help"}
        # The order of arguments counts, so they are all shared or all described.
        whole = title == "Options" or described.items() <= shared.items()
        for name, entry in described.items():
            if whole and shared.get(name) == entry:
                named.append(f"`{name}`")
            else:
                own.append(_row(*entry))
    return "\n\n".join(filter(None, [_flowing(description), entries(own), f"With {', '.join(named)}." * bool(named)]))


def shared_entries(helps: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Arguments and options by name that several commands share in the same words; of several wordings the most frequent."""
    counts = Counter(
        (entry[1], _parts(entry[0]))
        for text in helps
        for part in _split(text)[1:]
        for entry in _ENTRY.finditer(part)
        if entry[1] != "--help"
    )
    return dict(reversed([key for key, n in counts.most_common() if n >= SHARED_MIN]))


@cache
def _helps() -> dict[str, str]:
    """The help text of each command."""
    return {words: _help(_whole(), *words.split()) for words in all_commands()}


def commands() -> str:
    """The page of commands."""
    introduction = """
`--help` after any command shows this. Arguments and options that commands share stand here; each command only names them.
Arguments in brackets are optional; defaults stand in parentheses; a minimum of 0 or 1 is not shown. Exit status: 0 success; 1
finding, lack or failure; 2 the command can't be carried out.
"""
    helps, shared = _helps(), shared_entries(_helps().values())
    several = entries(_row(*entry) for _, entry in sorted(shared.items()))
    parts = (f"## {words}\n\n{_described(text, shared)}" for words, text in helps.items())
    return page("Commands", introduction, [several, *parts])


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
    return f"## {name}\n\n{_described(_help(arguments, f'{name}.py'), shared_entries(_helps().values()))}"


def jobs_page() -> str:
    """The page of the jobs for spark-submit."""
    introduction = """
`spark-submit … $(bookspark job NAME) OPTIONS`. Bookies, clients and autorecovery have their other [options](options.md) in the
settings file that `BOOKSPARK_CONFIG` names, on the driver and (`spark.executorEnv.BOOKSPARK_CONFIG`) on the executors. Options
that are only named stand in [commands](commands.md). Exit status: 0 success, 1 findings, 2 it could not be done.
"""
    return page("Jobs", introduction, (_job(name, arguments) for name, arguments in all_jobs().items()))


# -- tables and audits


Column = tuple[str, Any, str]


def _columns(columns: Iterable[Column]) -> str:
    kinds = ((name, kind.simpleString(), meaning) for name, kind, meaning in columns)
    return entries((name, f" (`{kind}`)" * (kind != "bigint"), meaning) for name, kind, meaning in kinds)


def _of_table(name: str, shared: dict[str, Column]) -> str:
    """A table's section: the names of its shared columns, then its own columns."""
    table, columns, others = TABLES[name], TABLES[name].columns, ""
    for other, its in TABLES.items():
        if other != name and its.columns == columns[: len(its.columns)]:
            columns, others = columns[len(its.columns) :], f"the columns of [{other}](#{other})"
            break
    own = [one for one in columns if shared.get(one[0]) != one]
    others = others or ", ".join(f"`{one[0]}`" for one in columns if one not in own)
    return f"## {name}\n\n{table.comment}{f' Also {others}.' * bool(others)}\n\n{_columns(own)}"


def shared_columns() -> dict[str, Column]:
    """Columns by name that several tables have in the same words; of several wordings the most frequent."""
    counts = Counter(column for one in TABLES.values() for column in one.columns)
    return {column[0]: column for column, n in reversed(counts.most_common()) if n > SHARED_MIN}


def all_audits() -> dict[str, tuple[str, str]]:
    """Title and explanation of each audit, by its name."""
    folder = Path(bookspark.__path__[0]) / "spark/audit"
    return {name: head_of((folder / f"{name}.sql").read_text("utf-8")) for name in names()}


def tables() -> str:
    """The page of tables and audits."""
    introduction = """
`spark.read.format("bookspark").option("table", NAME).load()` reads a table of the running cluster. `bookspark snapshot --path
PATH` writes Delta tables of the same names for `bookspark audit --path PATH` and your own SQL, also with `VERSION AS OF`. Unknown
or absent values are null. A column without a type is a `bigint`. Columns of several tables stand here, their names at each table.
"""
    shared = shared_columns()
    sections = (_of_table(name, shared) for name in TABLES)
    audits = entries((name, "", why) for name, (_, why) in all_audits().items())
    return page("Tables and audits", introduction, [_columns(shared.values()), *sections, f"# Audits\n\n{audits}"])


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
