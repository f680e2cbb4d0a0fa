"""``docs/durability.md``: each cell of its table, as the page says it.

Every entry is where the choice puts it and nowhere else: the third bookie of the write set gets no add, unless the ledger is
to be closed with all copies. Then the writer dies, bookies are hit, and somebody else opens the ledger. Cells that are about the
same blow to the same cluster take it together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from bookspark.errors import BookKeeperError
from bookspark.store.wire.header import Kind
from bookspark.testing import FaultyCluster
from tests.awaiting import SECONDS_MAX, await_that
from tests.system.cluster.copies import cut_power, start_all

WQ, AQ = 3, 2
COUNTS = {"all": WQ, "WQ − 1": WQ - 1, "AQ − 1": AQ - 1, "none": 0}
STAGES, BLOWS = ("append", "sync", "close"), ("process", "host", "disk")
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "durability.md").read_text()
NEVER = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40}


class Cell(NamedTuple):
    ledger_type: str
    replication: str
    journal: bool
    stage: str
    blow: str
    promise: str

    @property
    def hit(self) -> int:
        """How many bookies are hit; where nothing is promised, one, to see that this is no understatement."""
        return COUNTS[self.promise] or 1

    @property
    def struck_with(self) -> tuple[bool, str, bool, int]:
        """What cells that share a blow have in common. Those that nothing is promised of are alone: the ledgers of a bookie share
        its log and so their syncs, and one that acknowledged PD adds unsynced vouches for nothing after a crash."""
        return self.journal, self.blow, self.promise != "none", self.hit


def cells() -> Iterator[Cell]:
    for line in PAGE.splitlines():
        found = re.fullmatch(r"\| (\w+_JOURNAL) \| (\w+) \| (true|false) \| (\w+) \| (.+?) \| (.+?) \| (.+?) \|", line)
        if found:
            ledger_type, replication, journal, stage, *promises = found.groups()
            for blow, promise in zip(BLOWS, promises, strict=True):
                yield Cell(ledger_type, replication, journal == "true", stage, blow, promise)


CELLS = list(cells())


def test_the_page_has_a_cell_for_each_combination():
    told = {cell[:5] for cell in CELLS}
    assert len(CELLS) == len(told) == 2 * 2 * 2 * len(STAGES) * len(BLOWS)
    assert {cell.promise for cell in CELLS} == set(COUNTS)


@pytest.fixture(scope="module")
def clusters(new_chroot: Callable[[], str]):
    """With and without a journal, made when asked for."""
    running: dict[bool, FaultyCluster] = {}

    def cluster(journal):
        if journal not in running:
            running[journal] = FaultyCluster(bookies=WQ, journal_write_data=journal, **NEVER, zookeeper=new_chroot())
            running[journal].start()
        return running[journal]

    yield cluster
    for one in running.values():
        one.stop()


@pytest.fixture(scope="module")
def found_after(clusters):
    """What is found of the ledgers of all cells of one blow: by cell, the payloads or the error."""

    @cache
    def found(journal, blow, promised, hit):
        cluster = clusters(journal)
        # An idle writer would tell its LAC, and with that record a bookie syncs what a cut is to take.
        writer = cluster.bookkeeper(
            client_name="writer", answer_timeout_seconds=60.0, explicit_lac_interval_seconds=3600.0
        )
        together = [cell for cell in CELLS if cell.struck_with == (journal, blow, promised, hit)]
        ledgers = {cell: written(cluster, writer, cell) for cell in together}
        writer.close()
        strike(cluster, blow, hit)
        reader = cluster.bookkeeper(client_name="reader", answer_timeout_seconds=20.0, recovery_timeout_seconds=300.0)
        outcome = {cell: opened(cluster, reader, ledger_id, cell) for cell, ledger_id in ledgers.items()}
        # The next ledgers are not for a bookie whose disk was lost: recovery would ask it, and not the third one that is there.
        await_that(lambda: set(reader.metadata.bookies()) == {bookie.bookie_id for bookie in cluster.bookies})
        reader.close()
        return outcome

    return found


def payloads(cell):
    return [f"{cell.stage} {number}".encode() for number in range(5)]


def written(cluster, writer, cell):
    """A ledger at the cell's stage, without a copy more than is promised."""
    ledger = writer.create_ledger(WQ, WQ, AQ, ledger_type=cell.ledger_type, replication=cell.replication)
    if cell.stage == "close" and cell.replication == "guaranteed":
        ledger.append_batch(payloads(cell))
    else:
        cluster.wire.drop(Kind.ADD, bookie=cluster.bookies[-1].bookie_id, client="writer", ledger_id=ledger.ledger_id)
        ledger.append_batch(payloads(cell))
    if cell.stage == "sync":
        ledger.sync()
    elif cell.stage == "close":
        ledger.close()
    return ledger.ledger_id


def strike(cluster, blow, hit):
    """The first bookies are hit, which hold everything. A disk that is lost is replaced by an empty one: a new bookie."""
    bookies = cluster.bookies[:hit]
    if blow == "host":
        cut_power(*bookies)
        return
    for bookie in bookies:
        if blow == "disk":
            bookie.stop()  # and so its registration is gone; of its data nothing is left in any case
            bookie.wipe()
        else:
            bookie.kill()
    start_all(*bookies)


def opened(cluster, reader, ledger_id, cell):
    def found():
        try:
            return [entry.payload for entry in reader.open_ledger(ledger_id).read()]
        except BookKeeperError as error:
            return error

    if cell.promise != "none":
        return found()
    # Its one copy that is left is not the first that recovery hears of: it is asked once both others have answered.
    reads = {"kind": Kind.READ, "client": "reader", "ledger_id": ledger_id}
    first, left, last = (bookie.bookie_id for bookie in cluster.bookies)
    answers = [cluster.wire.delay(0.0, bookie=other, response=True, **reads) for other in (first, last)]
    held = cluster.wire.park(bookie=left, **reads)
    with ThreadPoolExecutor(1) as pool:
        finding = pool.submit(found)
        await_that(lambda: finding.done() or all(answer.seen for answer in answers))
        held.release()
        return finding.result(SECONDS_MAX)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: " ".join(map(str, cell)))
def test_cell(found_after, cell):
    outcome = found_after(*cell.struck_with)[cell]
    if cell.promise == "none":
        assert outcome == payloads(cell)[: len(outcome)]
    else:
        assert outcome == payloads(cell)


@pytest.mark.parametrize("journal", [True, False])
def test_none_is_no_understatement(found_after, journal):
    outcomes = found_after(journal, "host", False, 1)
    assert any(outcomes[cell] != payloads(cell) for cell in outcomes)


def test_one_acknowledgement_without_a_journal_is_warned_of(clusters, caplog):
    client = clusters(False).bookkeeper()
    client.create_ledger(WQ, WQ, AQ)
    assert "ack_quorum" not in caplog.text
    client.create_ledger(WQ, WQ, 1)
    assert "ack_quorum 1, and 3 of its bookies run without a journal" in caplog.text
