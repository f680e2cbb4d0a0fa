"""The console's page that predicts the damage if some bookies stop."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bookspark.operations.console import what_if
from bookspark.operations.console.looks import UNDER_WAY, Look
from bookspark.protocol.repair.stopping import Danger
from bookspark.store.autorecovery.stopping import Foreseen
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.bookie_homes import BookieHome
from tests.operations.console.conftest import PATIENT, page, words
from tests.operations.console.parsing import EVIL, Parsed
from tests.operations.why.kit import facts


@pytest.fixture(scope="module")
def ledger_id(cluster):
    """A ledger that survives the loss of one bookie but not of two."""
    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper:
        with bookkeeper.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as ledger:
            ledger.append(b"one")
        yield ledger.ledger_id


def test_one_bookie_may_stop_and_two_may_not(cluster, console, ledger_id):
    names = [one.bookie_id for one in cluster.bookies]
    found = words(console, f"/what-if?bookie={names[0]}")
    assert f"Safe: without bookie {names[0]} every entry keeps an ack quorum" in found
    assert f"bookspark bookie safe-to-stop {names[0]}" in found and "2 bookies would still take" in found
    assert re.search(r"By what was told from 20\d\d-", found), found
    found = words(console, f"/what-if?bookie={names[0]}&bookie={names[1]}")
    assert "Not safe: without bookies " in found and "1 ledger would be at risk" in found
    assert re.search(rf"{ledger_id} 0 to 0 1 2 ", found), found


def test_host_stands_for_all_its_bookies(console, ledger_id):
    (host,) = {
        at["value"] for tag, at in Parsed(page(console, "/what-if")).tags if tag == "input" and at.get("name") == "host"
    }
    found = words(console, f"/what-if?host={host}")
    assert "Not safe" in found and "could not be read at all" in found and "0 bookies would still take" in found


def test_empty_and_unknown_selections_get_no_verdict(console):
    assert "Safe" not in words(console, "/what-if")
    for asked in ("bookie=nobody", "host=nowhere", "bookie=%3Cimg%20src%3Dx%3E"):
        found = page(console, f"/what-if?{asked}")
        assert "is known" in found and "Safe" not in found and "<img" not in found


def test_selected_bookie_stays_marked(cluster, console):
    name = cluster.bookies[1].bookie_id
    tags = Parsed(page(console, f"/what-if?bookie={name}")).tags
    marked = [at["value"] for tag, at in tags if tag == "input" and "checked" in at]
    assert marked == [name]


def test_missing_answer_is_never_shown_as_safe():
    for look in (UNDER_WAY, Look(None, "ZooKeeper does not answer")):
        assert "Safe" not in what_if.content(facts(), ("a",), look)


def test_down_bookie_belongs_to_its_last_known_host():
    seen = facts({"a": {"registered": False}}, homes={"a": BookieHome("host-b", ())})
    seen.observed.bookies["a"] = replace(seen.observed.bookies["a"], host="")
    assert what_if.hosts_of(seen) == {"host-b": ["a", "b"], "host-c": ["c"]}
    assert what_if.chosen(seen, ["c"], ["host-b"]) == ("a", "b", "c")


def test_worst_dangers_are_listed_first_and_all_are_counted():
    found = [Danger(number, 0, None, 1, 2, "few") for number in range(60)]
    found += [Danger(100, 0, 3, 0, 2, "none"), Danger(101, None, None, None, 0, EVIL)]
    told = Parsed(what_if.content(facts(), ("a",), Look(what_if.Answer(Foreseen(found, 62, 62), 0))))
    assert "62 ledgers would be at risk" in told.text and "Entries of 1 ledger could not be read" in told.text
    assert "and 12 more" in told.text and told.text.count(EVIL) == 1
    assert [at["href"] for tag, at in told.tags if tag == "a"][:3] == [
        "/ledger?id=100",
        "/ledger?id=101",
        "/ledger?id=0",
    ]


def test_incomplete_look_reports_at_least_and_the_unseen_ledgers():
    found = [Danger(number, 0, None, 1, 2, "few") for number in range(3)]
    told = Parsed(what_if.content(facts(), ("a",), Look(what_if.Answer(Foreseen(found, 5, 1007), 0)))).text
    assert "at least 3 ledgers would be at risk" in told and "1,002 more ledgers may be" in told
