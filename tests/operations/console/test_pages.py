"""The console's overview, from made-up cluster facts."""

from __future__ import annotations

from bookspark.operations.console.figures import Point
from bookspark.operations.console.logs import LogsKnown
from bookspark.operations.console.overview import content
from bookspark.operations.console.pages import (
    Cell,
    Column,
    Command,
    Lines,
    Markup,
    Meter,
    Pairs,
    Plain,
    Table,
    Text,
    html,
    page,
)
from bookspark.operations.console.watch import Seen
from bookspark.operations.why.facts import Answer, Health, Severity
from bookspark.store.metadata.bookie_homes import BookieHome
from bookspark.store.wire.messages import HealingStatus
from tests.operations.console.parsing import EVIL, Parsed
from tests.operations.why.kit import autorecovery, facts, status


def shown(seen_facts, health=None, point=None, metrics=0, problem="", known=None, hour=()):
    seen = Seen(seen_facts, None, health or Health("all is well"), point, metrics, problem)
    return spaced(content(seen, known, hour))


def spaced(html):
    """The page with a space for each line break of a template."""
    return Markup(" ".join(html.split()))


def test_overview_shows_each_bookie_state_with_its_reason():
    found = Parsed(
        shown(
            facts(
                {"a": {"registered": False}},
                statuses={
                    "b": status(
                        "b", read_only=True, reasons=["it was ordered"], log_bytes=2_000_000, stops_in_seconds=61.0
                    ),
                    "c": status(
                        "c",
                        limbo_ledgers=7,
                        healing=HealingStatus(10, 5, 1, 1, 60.0),
                        directories=["/one", "/two"],
                        full_directories={"/two": "it is full"},
                        failed_directories={"/three": "rot"},
                        keeper="a job",
                    ),
                },
                homes={"a": BookieHome("host-9", ())},
                autorecovery=autorecovery(away={"a": 119.0}),
            )
        )
    ).text
    for words in (
        "counts as lost in 0:01:59",
        "it was ordered",
        "2.0 MB of logs",
        "nobody: it stops in 0:01:01",
        "7 ledgers in limbo, 0:01:00 left",
        "/two full",
        "/three failed",
        "a job",
    ):
        assert words in found, words


def test_overview_shows_underreplicated_ledgers_and_the_time_left():
    found = facts(autorecovery=autorecovery(ledgers=3, being_repaired=2, bytes_left=5_000_000, seconds_left=90.0))
    assert "3 ledgers lack copies, 2 are being repaired: 5.0 MB, 0:01:30 left" in Parsed(shown(found)).text


def test_overview_shows_verdict_troubles_and_next_command():
    trouble = Answer("k", "s", "it is bad", ("of this",), "do that", "bookspark why", Severity.DANGER)
    found = Parsed(shown(facts(), Health("it is in danger", (trouble,)))).text
    for words in ("it is in danger", "Next: bookspark why", "danger", "it is bad", "of this", "So: do that"):
        assert words in found, words


def test_failed_look_is_reported():
    assert "The last look failed, what is shown is old: oh" in Parsed(shown(facts(), problem="oh")).text


def test_overview_before_the_first_look_says_so():
    assert "The first look at the cluster is under way" in content(None)


def test_overview_escapes_everything_from_the_cluster():
    trouble = Answer(EVIL, EVIL, EVIL, (EVIL,), EVIL, EVIL)
    fields = {
        "directories": [EVIL],
        "failed_directories": {EVIL: EVIL},
        "reasons": [EVIL],
        "keeper": EVIL,
        "version": EVIL,
    }
    seen = facts(
        {"a": {"registered": False}}, statuses={EVIL: status(EVIL, **fields)}, homes={"a": BookieHome(EVIL, ())}
    )
    bookie = seen.observed.bookies["b"]
    seen.observed.bookies[EVIL] = bookie
    found = Parsed(page(EVIL, "/", shown(seen, Health(EVIL, (trouble,)), problem=EVIL)).decode())
    assert "script" not in [name for name, at in found.tags if "src" not in at]
    assert "img" not in [name for name, _ in found.tags]
    assert not [name for _, at in found.tags for name in at if name.startswith("on") or name == "style"]
    # The title, the head, the problem, five in the trouble, seven in the bookie, the last host of the other one.
    assert found.text.count(EVIL) == 16


def test_totals_show_the_last_figures_and_their_trend():
    point = Point(5.0, 1000.0, None, 0.5, None, 1.0)
    hour = [Point(1.0, 1.0, None, None, None, None), point]
    told = Parsed(shown(facts(), point=point, metrics=3, known=LogsKnown(9, 4, 1200, 3, 1), hour=hour)).text
    for words in (
        "Bookies up 3 of 3",
        "Entries added 5/s hour: mean 3/s, most 5/s",
        "Bytes added 1.0 kB/s",
        "Entries read not known no figures yet",
        "Logs 9 1,200 rows, of 4 logs so far",
        "Readers 3 1 behind or not known",
    ):
        assert words in told, (words, told)


def test_bookies_without_metrics_are_reported():
    assert "0 of 3 bookies tell metrics: set their option metrics_port" in shown(facts())
    assert "metrics_port" not in shown(facts(), metrics=3)
    # A fourth bookie had metrics and has ended since.
    assert "metrics_port" not in shown(facts(), metrics=4)


def test_command_has_a_button_that_copies_it():
    tags = Parsed(shown(facts(), Health("it is bad", (Answer("k", "s", "v", command="bookspark why"),)))).tags
    assert ("Copy: bookspark why") in [at.get("aria-label") for name, at in tags if name == "button"]


def test_value_from_the_cluster_is_escaped_in_every_place():
    cell = Cell(Text(EVIL, EVIL, EVIL, EVIL, EVIL), EVIL)
    table = Table(EVIL, [Column(EVIL, title=EVIL, path=EVIL)], [(cell,)])
    values = (EVIL, Command(EVIL), Lines([EVIL]), Meter(1, 2, EVIL), Plain(EVIL), Pairs([(EVIL, EVIL)]), table)
    found = Parsed(html(values))
    assert {name for name, _ in found.tags} & {"script", "img"} == set()
    assert not [name for _, at in found.tags for name in at if name.startswith("on") or name == "style"]
    assert found.text.count(EVIL) >= 8
