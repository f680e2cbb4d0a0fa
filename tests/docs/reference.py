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


def table(heads: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split()) or "–"


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
A wrong value is refused at the start, with the allowed values. `bookspark conf bookspark.toml` prints the path of a settings file
with every option and its default.
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
All are `BookKeeperError`s. The message says what was wrong and what to do; the class says where the cause lies.
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
    """The typer command; a ``CliRunner`` would build it for each call, which takes longer than all help texts."""
    return typer.main.get_command(app)


def _help(app: typer.Typer, name: str, *words: str) -> str:
    # A fixed width, as without a terminal.
    with CliRunner().isolation(env={"COLUMNS": "100"}) as (shown, *_):
        status = _made(app).main([*words, "--help"], prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        assert not status
        return shown.getvalue().decode().strip()


_OPTION = re.compile(r"^  (?:-\w, )?(--[\w-]+).*\n(?:   .*\n)*", re.MULTILINE)
# An option that at least this many commands share in the same words stands at the top of the page.
SHARED_MIN = 3


def _parts(option: str) -> tuple[str, str]:
    """Split an option's help into the option with its values, and its meaning."""
    values, *meaning = re.split(r"\s{2,}", option.strip(), maxsplit=1)
    return values, " ".join(" ".join(meaning).split())


def _command(words: str, shared: dict[str, tuple[str, str]]) -> str:
    """A command's help, which names the shared options and omits ``--help``."""
    names: list[str] = []

    def own(option: re.Match[str]) -> str:
        if option[1] == "--help":
            return ""
        if shared.get(option[1]) != _parts(option[0]):
            return option[0]
        names.append(option[1])
        return ""

    head, options, rest = f"{_help(_whole(), *words.split())}\n".partition("Options:\n")
    rest = _OPTION.sub(own, rest) + f"  Also: {', '.join(names)}\n" * bool(names)
    return f"## {words}\n\n```text\n{(head + options * bool(rest) + rest).strip()}\n```"


def shared_options(helps: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Options by name that several commands share in the same words; of several wordings the most frequent."""
    counts = Counter(
        (found[1], _parts(found[0]))
        for text in helps
        for found in _OPTION.finditer(f"{text}\n")
        if found[1] != "--help"
    )
    return dict(reversed([key for key, n in counts.most_common() if n >= SHARED_MIN]))


def commands() -> str:
    """The page of commands."""
    introduction = """
`--help` after any command shows the same. Options that several commands share stand here; each command names them after "Also".
Exit status: 0 success; 1 something was found, is missing or failed; 2 the command can't be carried out.
"""
    shared = shared_options(_help(_whole(), *words.split()) for words in all_commands())
    several = "\n".join(
        f"  {values}\n{textwrap.indent(textwrap.fill(meaning, 72), ' ' * 6)}"
        for _, (values, meaning) in sorted(shared.items())
    )
    return page(
        "Commands", introduction, [f"```text\n{several}\n```", *(_command(words, shared) for words in all_commands())]
    )


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
shows the same. Exit status: 0 success, 1 an audit found something, 2 it could not be done.
"""
    return page("Jobs", introduction, (_job(name, arguments) for name, arguments in all_jobs().items()))


# -- tables and audits


def _of_table(name: str) -> str:
    one = TABLES[name]
    other = next((o for o, its in TABLES.items() if o != name and its.columns == one.columns[: len(its.columns)]), None)
    own = one.columns[len(TABLES[other].columns) :] if other else one.columns
    rows = [(f"`{column}`", kind.simpleString(), meaning) for column, kind, meaning in own]
    more = f"The columns of [{other}](#{other}), and:\n\n" if other else ""
    return f"## {name}\n\n{one.comment}\n\n{more}{table(('column', 'type', 'meaning'), rows)}"


def all_audits() -> dict[str, tuple[str, str]]:
    """Title and explanation of each audit, by its name."""
    folder = Path(bookspark.__path__[0]) / "spark/audit"
    return {name: head_of((folder / f"{name}.sql").read_text("utf-8")) for name in names()}


def tables() -> str:
    """The page of tables and audits."""
    introduction = """
`spark.read.format("bookspark").option("table", NAME).load()` reads a table of the running cluster. `bookspark snapshot --path
PATH` writes Delta tables of the same names for `bookspark audit --path PATH` and your own SQL, also with `VERSION AS OF`.
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
