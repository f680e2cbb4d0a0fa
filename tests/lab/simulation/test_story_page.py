"""A violation as a page: the drawing shows each message once, and the page loads nothing from elsewhere."""

from __future__ import annotations

import re
from html import escape
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

from bookspark.lab.simulation.search.random_schedules import RandomSchedules
from bookspark.lab.simulation.sequence import Sequence
from bookspark.lab.simulation.state import CLIENTS
from bookspark.lab.simulation.story import tell
from bookspark.lab.simulation.story_page import story_page
from bookspark.lab.simulation.view import Violation
from bookspark.lab.simulation.world import World
from bookspark.operations.cli.main import command_line
from tests.lab.simulation.test_short_stories import DISKS_LOST

GIVEN = {"losses": 3, "duplicates": 2, "crashes": 2, "recoverers": 2, "readers": 1}


@pytest.mark.parametrize("seed", range(0, 200, 20))
def test_each_message_is_drawn_once(seed):
    world, moves, _ = RandomSchedules(GIVEN).schedule(seed)
    drawn = Sequence(world, moves)
    state = world.initial
    for move in moves:
        state = world.apply(state, move)
    arrivals = [one.arrived for one in drawn.arrows if one.arrived is not None]
    assert sorted(arrivals) == [
        step for step, move in enumerate(moves, 1) if move.kind in ("request", "answer", "duplicate")
    ]
    under_way = [one for one in drawn.arrows if one.arrived is None and one.given_up is None]
    assert len(under_way) == sum(len(world.slots.table[slot].messages) for slot in state[world.slots_from :])
    for one in drawn.arrows:
        assert one.sent < (one.arrived or one.given_up or len(moves) + 1) or one.given_up == one.sent
        assert (one.sender > world.slots_from - CLIENTS) == one.is_answer
    told = tell(world, moves)
    for one in drawn.arrows:
        if one.arrived is not None and not one.is_answer:
            assert one.what in told[one.arrived - 1]
            assert told[one.arrived - 1].count(drawn.lanes[one.receiver])


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in ("href", "src", "xlink:href", "srcset")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_option_writes_a_self_contained_page(tmp_path):
    path = tmp_path / "story.html"
    arguments = f"--exhaustive {DISKS_LOST.arguments()} --no-limbo --page {path}"
    result = CliRunner().invoke(command_line(["simulate"]), ["simulate", *arguments.split()])
    assert result.exit_code == 1, result.output
    text = path.read_text()
    page = Page(text)
    assert page.open == []
    assert all(address.startswith("#step") for address in page.addresses)
    assert not re.search(r"https?:|url\(|@import|<script", text)
    told = [line.split(". ", 1)[1] for line in result.stdout.splitlines() if re.match(r" *\d+\. ", line)]
    assert len(told) == 17 and all(f">{escape(line)}</li>" in text for line in told)
    assert "the ledger is closed at entry -1, and entry 0 was confirmed to its writer" in text
    assert "bookspark simulate --exhaustive" in text
    assert text.count('class="event"') == 17


def test_unwritable_page_is_reported_and_the_story_is_still_printed(tmp_path):
    arguments = f"--exhaustive {DISKS_LOST.arguments()} --no-limbo --page {tmp_path / 'no' / 'story.html'}"
    result = CliRunner().invoke(command_line(["simulate"]), ["simulate", *arguments.split()])
    assert result.exit_code == 1
    assert "the page can't be written" in result.stderr and " 17. the recoverer writes" in result.stdout


def test_names_are_escaped_in_the_page():
    world = World(DISKS_LOST)
    page = story_page(world, [world.moves(world.initial)[0]], Violation("no_dirty_reads", "a < b"), "simulate <script>")
    assert "a &lt; b" in page
    assert "simulate &lt;script&gt;" in page and "<script" not in page
