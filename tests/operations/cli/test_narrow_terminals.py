"""Tables of the commands at any width of a terminal, and in a file."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import closing

import pytest
from rich.console import Console

from bookspark.local import LocalCluster
from bookspark.logs import create_log
from bookspark.support.printed_tables import PrintedTable
from tests.operations.cli.conftest import Run
from tests.terminals import CommandTerminal


@pytest.fixture(scope="module", autouse=True)
def _orders(cluster: LocalCluster) -> None:
    """A log with a lane of a long name, and a reader."""
    with cluster.bookkeeper() as bookkeeper:
        log = create_log(bookkeeper, "orders-of-the-year-before-last")
        with log.producer("billing") as producer:
            for number in range(1200):
                producer.append_async(b"order %d" % number)
        with log.reader(group="mailing") as reader:
            reader.read()
            reader.commit()


OnTerminal = Callable[..., str]


@pytest.fixture
def on_terminal(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> OnTerminal:
    """``on_terminal(80, "bookies")``: the command's output on a terminal of that width, without its colours."""

    def run(width: int, *words: str) -> str:
        monkeypatch.setenv("BOOKSPARK_ZOOKEEPER", cluster.zookeeper)
        monkeypatch.setenv("COLUMNS", str(width))
        with monkeypatch.context() as replaced, closing(CommandTerminal(replaced)) as terminal:
            shown = terminal.run(*words).decode()
        return re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "\n")

    return run


TABLES = [
    ("bookies",),
    ("top", "--once"),
    ("ledger", "list", "--long"),
    ("log", "list", "--long"),
    ("log", "describe", "orders-of-the-year-before-last"),
    ("log", "readers", "orders-of-the-year-before-last"),
]


@pytest.mark.parametrize("command", TABLES, ids=" ".join)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_cuts_no_word_and_fits(
    on_cluster: Run, on_terminal: OnTerminal, command: tuple[str, ...], width: int
) -> None:
    """At 80 columns `log readers` showed three letters of each value."""
    wide = on_cluster(*command).text
    narrow = on_terminal(width, *command)
    assert max(map(len, narrow.splitlines())) <= width
    assert names_in(narrow) - {"too", "narrow", "for:", "(--json", "has", "all)"} <= names_in(wide)


def names_in(text: str) -> set[str]:
    """The words with a letter: figures change between two looks."""
    return {word for each in text.split() if any(map(str.isalpha, word := each.strip(",;")))}


def test_table_names_the_columns_that_a_narrow_terminal_goes_without(
    on_terminal: OnTerminal,
) -> None:
    told = on_terminal(80, "log", "readers", "orders-of-the-year-before-last")
    assert "mailing" in told and told.endswith("(--json has all)\n")
    left_out = told.rpartition("too narrow for: ")[2].removesuffix(" (--json has all)\n").split(", ")
    assert "id" in left_out and "lag rows" not in left_out


def test_terminal_too_narrow_for_a_table_gets_a_line_for_each_value(
    on_terminal: OnTerminal, cluster: LocalCluster
) -> None:
    told = on_terminal(32, "bookies")
    for bookie in cluster.bookies:
        assert f"bookie   {bookie.bookie_id}" in told and f"address  {bookie.address}" in told


def test_file_gets_a_row_in_one_line(on_cluster: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a process that has loaded readline, which exports the width of its terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    told = on_cluster("log", "readers", "orders-of-the-year-before-last").text
    assert len(told.splitlines()) == 3, "head, rule and row"


def test_ids_have_no_commas(on_cluster: Run, cluster: LocalCluster) -> None:
    """The option logId takes the id of a log, `ledger read --last` the last entry of a ledger."""
    log_id = next(
        line.split()[1]
        for line in on_cluster("log", "describe", "orders-of-the-year-before-last").text.splitlines()
        if line.startswith("id ")
    )
    assert log_id.isdecimal()
    told = on_cluster("ledger", "list", "--long").text
    assert "1,199" not in told


@pytest.mark.parametrize("text", ["日本語 bookie-5f2c9a1e 日本語", "   bookie-5f2c9a1e is away"])
def test_word_that_fits_is_shown_whole_beside_wide_characters_and_spaces(text: str) -> None:
    screen = io.StringIO()
    Console(file=screen, width=22).print(PrintedTable(["what", "n"], [[text, 1]]))
    assert "…" not in screen.getvalue() and "5f2c9a1e" in screen.getvalue()
