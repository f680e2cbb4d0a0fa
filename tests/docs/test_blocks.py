"""Every code block and command of a page is covered by a test (``tests.docs.blocks``)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer

from bookspark.operations.cli.main import command_line
from tests.docs.blocks import AGAIN, DATA, PAGES, PROGRAMS, ROOT, RUN, SHOWN, Block, blocks

# Without docs/reference, which is generated from the code (``tests.docs.reference``).
BLOCKS = [block for page in PAGES if not page.startswith("docs/reference/") for block in blocks(page)]
_REASONS = {reason for shown in SHOWN.values() for reason in shown.values() if not reason.startswith("tests/")}
_COMMAND = re.compile(r"^(?:\$ |sudo |env |export )?(?:bookspark|spark-submit|scripts/|python3? |pip |kubectl )")
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def shown_as(block: Block) -> list[str]:
    """The keys under which ``SHOWN`` lists a block."""
    return [words for words in SHOWN.get(block.page, {}) if block.first.startswith(words)]


def test_every_block_is_run_or_has_a_reason() -> None:
    escaped = [
        f"{block.page}: {block.first}"
        for block in BLOCKS
        if not (block.page in RUN if block.language in PROGRAMS else block.language in DATA or shown_as(block))
    ]
    assert escaped == []


def test_text_blocks_contain_no_command() -> None:
    hidden = [
        f"{block.page}: {line}"
        for block in BLOCKS
        if block.language == "text"
        for line in block.text.split("\n")
        if _COMMAND.match(line)
    ]
    assert hidden == []


def test_tables_list_no_block_that_is_gone() -> None:
    known = [(block.page, words) for block in BLOCKS if not block.language for words in shown_as(block)]
    assert [(page, words) for page, shown in SHOWN.items() for words in shown if (page, words) not in known] == []
    assert {
        page for page in RUN if not any(block.page == page and block.language in PROGRAMS for block in BLOCKS)
    } == set()
    assert len(_REASONS) <= 4, "reasons are few and said once"


def test_block_run_elsewhere_has_the_words_of_the_block_there() -> None:
    """In any order, except for the path."""

    def words(block: Block) -> list[list[str]]:
        lines = [shlex.split(line) for line in block.text.strip().split("\n")]
        places = [(line, line.index("--path") + 1) for line in lines]
        return [sorted([*line[:place], *line[place + 1 :]]) for line, place in places]

    for page, again in AGAIN.items():
        for begins, other in again.items():
            (block,) = [one for one in BLOCKS if one.page == page and one.first.startswith(begins)]
            there = [one for one in BLOCKS if one.page == other and one.first.startswith(begins)]
            assert block.language == "bash" and {page, other} <= RUN.keys()
            assert words(block) in map(words, there), (page, begins)


@pytest.mark.parametrize("page", RUN)
def test_module_that_runs_a_page_names_it(page: str) -> None:
    module = (ROOT / RUN[page]).read_text("utf-8")
    assert page.removeprefix("docs/").removeprefix("guides/") in module, f"{RUN[page]} does not run {page}"


def test_modules_that_cover_a_block_in_another_way_exist() -> None:
    named = {reason for shown in SHOWN.values() for reason in shown.values() if reason.startswith("tests/")}
    assert {module for module in named if not (ROOT / module).is_file()} == set()


def commands(page: str) -> Iterator[str]:
    """The ``bookspark`` commands in a page's blocks and code spans."""
    for block in blocks(page):
        if block.language in ("", "bash"):
            for line in block.text.replace("\\\n", " ").split("\n"):
                # Text after a run of spaces, and a comment, explain the command.
                yield from re.findall(
                    r"(?<!-n )\bbookspark [a-z].*?(?=$|\s{3,}|  #|[|;)&>]|\$\()", re.sub(r"\s#.*", "", line)
                )
    fenced = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^    .*$", "", fenced.sub("", (ROOT / page).read_text("utf-8")), flags=re.MULTILINE)
    for span in _SPAN.findall(re.sub(r"(?<!\n)\n(?=\S)", " ", prose)):
        yield from re.findall(r"^bookspark [a-z][^|;&>]*", span)


@cache
def all_commands() -> Any:
    """The command ``bookspark`` with all its subcommands."""
    return typer.main.get_command(command_line())


@cache
def unknown(command: str) -> str | None:
    """The unknown part of a command; None if all of it is known."""
    try:
        words = shlex.split(command)[1:]
    except ValueError:
        words = command.split()[1:]
    found = all_commands()
    for place, word in enumerate(words):
        below = getattr(found, "commands", None)
        if below is not None and not word.startswith("-"):
            if word not in below:
                return None if "…" in word or word.isupper() else f"{found.name} has no command {word}"
            found = below[word]
        elif word.startswith("-") and word != "-":
            options = {name for one in found.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
            name = word.partition("=")[0]
            if name not in options and not (len(name) > 2 and name[1] != "-") and "…" not in name:
                return f"{' '.join(words[:place])} has no option {name}"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_exists(page: str) -> None:
    wrong = {f"{command}: {what}" for command in commands(page) if (what := unknown(command)) is not None}
    assert wrong == set()


@pytest.mark.parametrize(
    "command",
    [
        "bookspark frobnicate",
        "bookspark log frobnicate",
        "bookspark audit --frobnicate",
        "bookspark log alter x --ensemble 3",
    ],
)
def test_unknown_command_is_detected(command: str) -> None:
    assert unknown(command) is not None
