"""The console's pages about ledgers."""

from __future__ import annotations

import re
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from bookspark.operations.console import ledgers
from bookspark.operations.console.looks import Look, Looks
from bookspark.operations.console.watch import Seen
from bookspark.operations.why.facts import Health
from bookspark.protocol.ledger.ledger_metadata import WRITE_QUORUM_LABEL, Fragment, LedgerMetadata, LedgerState
from bookspark.store.client import BookKeeper
from tests.awaiting import await_that
from tests.operations.console.conftest import PATIENT, page, words
from tests.operations.console.parsing import EVIL, Parsed
from tests.operations.why.kit import facts

PASSWORD = b"a password that nobody reads"


@pytest.fixture(scope="module")
def ids(cluster):
    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper:
        made = []
        for _ in range(ledgers.ON_A_PAGE + 10):
            with bookkeeper.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2, password=PASSWORD) as ledger:
                made.append(ledger.ledger_id)
        with bookkeeper.create_ledger(
            ensemble_size=3,
            write_quorum=2,
            ack_quorum=2,
            password=PASSWORD,
            custom_metadata={"bookspark.log": b"orders@3"},
        ) as ledger:
            ledger.append(b"content that is not shown")
            made.append(ledger.ledger_id)
        yield made


def test_ledger_list_is_shown_in_pages(console, ids):
    count = f"of {len(ids)} ledgers"
    await_that(lambda: count in page(console, "/ledgers"))
    found = words(console, "/ledgers")
    assert f"1 to {ledgers.ON_A_PAGE} {count} Later Last" in found
    following = words(console, f"/ledgers?from={ids[ledgers.ON_A_PAGE]}")
    assert f"{ledgers.ON_A_PAGE + 1} to {len(ids)} {count} First Earlier" in following
    assert re.search(rf"{ids[-1]} CLOSED 0 25 B 1 3/2/2 .* orders@3", following), following
    assert "There is none" in words(console, f"/ledgers?from={ids[-1] + 1}")


def test_ledger_page_shows_copies_and_neither_content_nor_password(console, ids):
    found = words(console, f"/ledger?id={ids[-1]}")
    assert "state CLOSED" in found and "label bookspark.log orders@3" in found
    assert re.search(r"0 to 0 3 of 3 whole whole whole", found), found
    assert "why under-replicated" not in found and "content that" not in found and PASSWORD.decode() not in found


def test_ledger_page_names_the_down_bookie_and_a_why_command(cluster, console, ids):
    bookie = cluster.bookies[0]
    bookie.stop()
    try:
        await_that(lambda: "0 to 0 2 of 3 " in words(console, f"/ledger?id={ids[-1]}"))
        found = words(console, f"/ledger?id={ids[-1]}")
        assert f"bookspark why under-replicated {ids[-1]}" in found and " down " in found
    finally:
        bookie.start()


def test_open_ledger_page_explains_its_state_and_names_the_recover_command(cluster, console, ids):
    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper:
        ledger = bookkeeper.create_ledger()
        ledger.append(b"x")
        found = words(console, f"/ledger?id={ledger.ledger_id}")
        assert f"ledger {ledger.ledger_id} is OPEN, and nobody was seen to write it" in found, found
        assert f"bookspark ledger recover {ledger.ledger_id}" in found
        ledger.close()
        await_that(lambda: "state CLOSED" in words(console, f"/ledger?id={ledger.ledger_id}"))
        assert "ledger recover" not in words(console, f"/ledger?id={ledger.ledger_id}")
        bookkeeper.delete_ledger(ledger.ledger_id)


@pytest.mark.parametrize("asked", ["", "-1", "x", "²", "9" * 19, "9" * 5000, EVIL])
def test_invalid_ledger_id_is_refused(console, asked):
    assert "is no ledger" in words(console, f"/ledger?id={quote(asked)}")
    if asked:
        assert "is no ledger" in words(console, f"/ledgers?from={quote(asked)}")


def test_unknown_ledger_page_names_its_id(console):
    assert "987654321" in words(console, "/ledger?id=987654321")


def closed(**fields) -> LedgerMetadata:
    fragments = (Fragment(0, ("a", "b", "c")), Fragment(10, ("a", "b", EVIL)))
    told = {"state": LedgerState.CLOSED, "last_entry_id": 19, "length": 20, **fields}
    return LedgerMetadata(7, 3, 3, 2, fragments, **told)


def cells(metadata, held, limbo=(), problems=None) -> list[str]:
    seen = ledgers.LedgerSeen(metadata, held, frozenset(limbo), problems or {})
    table = str(ledgers.content(7, Look(seen))).partition("<tbody")[2].replace("<td", "|<td").replace("<th", "|<th")
    return [one.strip() for one in Parsed("<tbody" + table).text.split("|")[1:]]


def test_map_shows_the_entries_that_each_bookie_lacks():
    held = {"a": [(0, 19)], "b": [(0, 4), (6, 12), (14, 19)], "c": [(0, 9)]}
    found = cells(closed(), held, limbo={"a"}, problems={EVIL: "it does not answer"})
    # The bookies are sorted by name.
    assert found[:5] == ["0 to 9", "1 of 3", "", "in limbo whole", "lacks 5"]
    assert found[5] == "whole"
    assert found[6:9] == ["10 to 19", "0 of 3", "it does not answer"]
    assert found[9:11] == ["in limbo whole", "lacks 13"] and not found[11].startswith("whole")


def test_ledger_over_fewer_bookies_lacks_a_copy_of_each_entry_as_why_says():
    metadata = LedgerMetadata(
        7, 2, 2, 2, (Fragment(0, ("a", "b")),), state=LedgerState.CLOSED, last_entry_id=9, length=10,
        custom_metadata={WRITE_QUORUM_LABEL: b"3"},
    )  # fmt: skip
    held = {"a": [(0, 9)], "b": [(0, 9)]}
    assert cells(metadata, held)[:3] == ["0 to 9", "2 of 3", "whole"]
    found = Parsed(ledgers.content(7, Look(ledgers.LedgerSeen(metadata, held, frozenset(), {})))).text
    assert "2 of 3, 2 acknowledge" in found and "bookspark why under-replicated 7" in found
    whole = metadata.with_another_copy("c")
    assert cells(whole, held | {"c": [(0, 9)]})[:2] == ["0 to 9", "3 of 3"]


def test_map_of_an_open_fragment_shows_each_bookies_last_entry():
    metadata = closed(state=LedgerState.OPEN, last_entry_id=-1, length=0)
    found = cells(metadata, {"a": [(0, 15)], "b": [(0, 9)], "c": [(0, 9)], EVIL: [(10, 12)]})
    assert found[6:8] == ["10 to its open end", "3 of 3 answer"]
    assert found[8:11] == ["holds up to 12", "holds up to 15", "holds none yet"]


def test_ledger_metadata_is_escaped_in_the_page():
    metadata = closed(custom_metadata={EVIL: EVIL.encode(), "bookspark.log": EVIL.encode()}, password=PASSWORD)
    page = ledgers.content(7, Look(ledgers.LedgerSeen(metadata, {}, frozenset(), {EVIL: EVIL})))
    found = Parsed(page)
    assert "img" not in [name for name, _ in found.tags] and found.text.count(EVIL) == 6
    assert PASSWORD.decode() not in page


def test_list_of_a_million_ledgers_reads_only_the_shown_page():
    asked = []

    def read_ledgers(ids, unreadable):
        asked.extend(ids)
        unreadable[ids[0]] = EVIL
        return iter(())

    bookkeeper = SimpleNamespace(metadata=SimpleNamespace(read_ledgers=read_ledgers))
    seen = Seen(facts(), None, Health(""), (), 0.0, 0, ledgers=range(0, 2_000_000, 2))
    looks = Looks()
    try:
        page = ledgers.list_content(bookkeeper, looks, seen, "1000001")
    finally:
        looks.close()
    assert asked == list(range(1_000_002, 1_000_002 + 2 * ledgers.ON_A_PAGE, 2))
    found = Parsed(page)
    assert "500,002 to 500,051 of 1,000,000 ledgers" in found.text
    assert found.text.count(EVIL) == 1 and found.text.count("deleted") == ledgers.ON_A_PAGE - 1
