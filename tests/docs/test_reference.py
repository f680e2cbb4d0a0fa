"""docs/reference has an entry for each option, error, command, table, column and audit, and agrees with the code."""

from __future__ import annotations

import tomllib
from typing import Any

import msgspec
import pytest
import typer

from bookspark.spark.tables.system_tables import TABLES
from tests.docs import reference


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: made() for name, made in reference.PAGES_MADE.items()}


@pytest.mark.parametrize("name", reference.PAGES_MADE)
def test_page_agrees_with_the_code(pages: dict[str, str], name: str) -> None:
    assert (reference.PAGES / name).read_text("utf-8") == pages[name], "run scripts/reference"


def test_every_table_of_the_settings_file_is_documented() -> None:
    settings = tomllib.loads((reference.PAGES.parents[1] / "conf/bookspark.toml").read_text("utf-8"))
    assert {name for name, _ in reference.CONFIGS.values()} == settings.keys()


def test_no_other_page_exists() -> None:
    assert {path.name for path in reference.PAGES.iterdir()} == reference.PAGES_MADE.keys()


def _parameters(app: typer.Typer) -> list[Any]:
    return [one for one in typer.main.get_command(app).params if one.name != "queries"]


def test_everything_has_an_entry_with_a_meaning(pages: dict[str, str]) -> None:
    wanted = {
        "options.md": [
            f"`{one.name}`" for _, kind in reference.CONFIGS.values() for one in msgspec.structs.fields(kind)
        ],
        "spark-options.md": [f"`{name}`" for name in reference.known_options()],
        "errors.md": [f"`{error.__name__}`" for error, _ in reference.all_errors()],
        "commands.md": [f"## {words}\n" for words in reference.all_commands()],
        "jobs.md": [
            entry
            for name, app in reference.all_jobs().items()
            for entry in (f"## {name}\n", *(one for each in _parameters(app) for one in each.opts))
        ],
        "tables.md": [
            *(f"## {name}\n" for name in TABLES),
            *(f"`{c}`" for one in TABLES.values() for c, _, _ in one.columns),
        ],
    }
    for name, entries in wanted.items():
        assert entries and all(entry in pages[name] for entry in entries), name
    rows = [line for page in pages.values() for line in page.splitlines() if line.startswith("* `")]
    assert rows and not [row for row in rows if not row.partition(": ")[2]], "each has a meaning"
    assert all(title and why for title, why in reference.all_audits().values())


def test_entry_shared_by_commands_is_described_once_and_named_by_each(pages: dict[str, str]) -> None:
    top, *commands = pages["commands.md"].split("\n## ")
    assert "\n* `--json`: Print JSON.\n" in top and "\n* `--zookeeper=HOST:PORT`: " in top
    assert not [text for text in commands if "--help" in text or "Print JSON." in text]
    (read,) = [text for text in commands if text.startswith("bookspark ledger read\n")]
    assert "\nWith `LEDGER`, `--zookeeper`, " in read and "\n* `LEDGER`: Id of the ledger.\n" in top
    (audit,) = [text for text in commands if text.startswith("bookspark audit\n")]
    assert "\n\nWith `--path`, `--checksums`, `--zookeeper`, `--password-file`, `--json`.\n" in audit
    assert "\n* `--version=INTEGER`: " in audit
