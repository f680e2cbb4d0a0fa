"""Each cell of the table in ``docs/durability.md``, on real bookies.

Every entry is exactly where the options put it: the third bookie of the write set gets no add, unless the ledger is to be
closed with all copies. Then the writer dies, bookies fail, and another client opens the ledger. Cells that share the same
failure of the same cluster run together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
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
        """The number of failed bookies. A cell without a promise takes 1, to show that entries are then lost."""
        return COUNTS[self.promise] or 1

    @property
    def struck_with(self) -> tuple[bool, str, bool, int]:
        """Key of the cells that share a failure. Cells without a promise run apart: ledgers of a bookie share its log and so
        its syncs, and a bookie that acknowledged PD adds unsynced vouches for nothing after a crash."""
        return self.journal, self.blow, self.promise != "none", self.hit


def cells() -> Iterator[Cell]:
    for line in PAGE.splitlines():
        found = re.fullmatch(
            r"\| (\w+_JOURNAL) \| (\w+) \| (true|false) \| ([\w, ]+) \| (.+?) \| (.+?) \| (.+?) \|", line
        )
        if found:
            ledger_type, replication, journal, stages, *promises = found.groups()
            for stage, (blow, promise) in product(stages.split(", "), zip(BLOWS, promises, strict=True)):
                yield Cell(ledger_type, replication, journal == "true", stage, blow, promise)


CELLS = list(cells())


def test_durability_page_has_a_cell_for_each_combination():
    told = {cell[:5] for cell in CELLS}
    assert len(CELLS) == len(told) == 2 * 2 * 2 * len(STAGES) * len(BLOWS)
    assert {cell.promise for cell in CELLS} == set(COUNTS)


@pytest.fixture(scope="module")
def clusters(new_chroot: Callable[[], str]):
    """Clusters with and without a journal, started at first use."""
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
    """Outcome for the ledgers of all cells of a failure: by cell, the payloads or the error."""

    @cache
    def found(journal, blow, promised, hit):
        cluster = clusters(journal)
        # An idle writer would send its LAC, and with that record a bookie syncs the data that a power cut should take.
        writer = cluster.bookkeeper(
            client_name="writer", answer_timeout_seconds=60.0, explicit_lac_interval_seconds=3600.0
        )
        together = [cell for cell in CELLS if cell.struck_with == (journal, blow, promised, hit)]
        ledgers = {cell: written(cluster, writer, cell) for cell in together}
        writer.close()
        strike(cluster, blow, hit)
        reader = cluster.bookkeeper(client_name="reader", answer_timeout_seconds=20.0, recovery_timeout_seconds=300.0)
        outcome = {cell: opened(cluster, reader, ledger_id, cell) for cell, ledger_id in ledgers.items()}
        # The next ledgers must not name a bookie whose disk was lost: recovery would ask it instead of the third bookie.
        await_that(lambda: set(reader.metadata.bookies()) == {bookie.bookie_id for bookie in cluster.bookies})
        reader.close()
        return outcome

    return found


def payloads(cell):
    return [f"{cell.stage} {number}".encode() for number in range(5)]


def written(cluster, writer, cell):
    """A ledger at the cell's stage, with no more copies than promised."""
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
    """The first ``hit`` bookies fail; they hold everything. A lost disk is replaced by an empty one, which makes a new
    bookie."""
    bookies = cluster.bookies[:hit]
    if blow == "host":
        cut_power(*bookies)
        return
    for bookie in bookies:
        if blow == "disk":
            bookie.stop()  # so its registration is gone; the wipe removes its data in any case
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
    # The bookie with the last copy must not answer recovery first: it is asked once both others have answered.
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
def test_cell_of_the_durability_page_holds(found_after, cell):
    outcome = found_after(*cell.struck_with)[cell]
    if cell.promise == "none":
        assert outcome == payloads(cell)[: len(outcome)]
    else:
        assert outcome == payloads(cell)


@pytest.mark.parametrize("journal", [True, False])
def test_cells_without_a_promise_do_lose_entries(found_after, journal):
    outcomes = found_after(journal, "host", False, 1)
    assert any(outcomes[cell] != payloads(cell) for cell in outcomes)


def test_ack_quorum_1_without_a_journal_gives_a_warning(clusters, caplog):
    client = clusters(False).bookkeeper()
    client.create_ledger(WQ, WQ, AQ)
    assert "ack_quorum" not in caplog.text
    client.create_ledger(WQ, WQ, 1)
    assert "ack_quorum 1, and 3 of its bookies run without a journal" in caplog.text
