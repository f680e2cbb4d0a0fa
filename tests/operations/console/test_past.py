"""The console's pages of the past, over snapshots of a real cluster."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from bookspark.local import LocalCluster
from bookspark.logs import create_log
from bookspark.operations.console import WebConsole
from bookspark.operations.console.past import moments
from bookspark.store.client import BookKeeper
from bookspark.support.snapshot_commits import Snapshot
from tests.awaiting import await_that
from tests.operations.console import snapshots
from tests.operations.console.conftest import PATIENT, ask, page, words
from tests.operations.console.parsing import EVIL


def test_times_of_the_slider_do_not_depend_on_the_consoles_time_zone(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        one = Snapshot("s", 3, datetime(2026, 11, 29, tzinfo=UTC))
        form = moments.form([one], moments.chosen([one], {}), "/time", {})
    finally:
        monkeypatch.undo()
        time.tzset()
    assert 'data-times="3:1795910400"' in form


@pytest.fixture(scope="module")
def past(new_chroot, tmp_path_factory):
    """Three snapshots: two ledgers and a log; after the first, a ledger is closed, one deleted, one created, a bookie
    read-only and another down."""
    path = tmp_path_factory.mktemp("snapshots")
    with LocalCluster(bookies=4, zookeeper=new_chroot()) as cluster, cluster.bookkeeper(**PATIENT) as bookkeeper:
        gone = bookkeeper.create_ledger(3, 3, 2, custom_metadata={"who": EVIL.encode()})
        gone.append(b"one")
        gone.close()
        closing = bookkeeper.create_ledger(3, 3, 2)
        closing.append_batch([b"x" * 1000] * 10)
        with create_log(bookkeeper, "orders").producer("billing") as producer:
            producer.append_batch([b"a row"] * 3)
        first = snapshots.take(bookkeeper, path)
        closing.close()
        bookkeeper.delete_ledger(gone.ledger_id)
        with bookkeeper.create_ledger(3, 3, 2) as made:
            made.append(b"another")
        with create_log(bookkeeper, "others").producer("billing") as producer:
            producer.append_batch([b"a row"] * 2)
        holders = bookkeeper.get_ledger_metadata(closing.ledger_id).bookies()
        ordered = [name for name in (one.bookie_id for one in cluster.bookies) if name not in holders]
        down = next(one for one in cluster.bookies if one.bookie_id == holders[0])
        bookkeeper.switch_read_only(ordered[0], True)
        await_that(lambda: bookkeeper.metadata.bookies()[ordered[0]].read_only)
        down.stop()
        await_that(lambda: down.bookie_id not in bookkeeper.metadata.bookies())
        snapshots.take(bookkeeper, path, oldest=first)
        bookkeeper.metadata.underreplication.disable()
        snapshots.take(bookkeeper, path, oldest=first)
        with WebConsole(bookkeeper, snapshots=str(path)) as console:
            yield SimpleNamespace(
                console=console,
                gone=gone.ledger_id,
                closing=closing.ledger_id,
                made=made.ledger_id,
                down=down.bookie_id,
                read_only=ordered[0],
                path=path,
                cluster=cluster,
            )


def test_newest_snapshot_is_shown_and_compared_with_the_previous_one(past):
    found = words(past.console, "/time")
    assert "As it was at" in found and "3 of 4" in found and "disabled: lost copies were not replaced" in found
    assert "autorecovery was disabled" in found
    assert "ledgers made 0" in found and "none came, went or changed" in found


def test_comparison_shows_all_changes_between_two_snapshots(past):
    found = words(past.console, "/time?at=1&since=0")
    assert re.search(rf"ledgers closed 1: {past.closing} ", found), found
    assert re.search(rf"ledgers deleted 1: {past.gone} ", found), found
    assert re.search(rf"ledgers made \d: {past.made}\b", found), found
    assert f"{past.down} went down" in found and f"{past.read_only} became read-only" in found
    assert re.search(r"others@1 2 \+2", found), found
    assert "autorecovery enabled" in found and "autorecovery enabled" in words(past.console, "/time?at=0")
    assert "There is no earlier snapshot" in words(past.console, "/time?at=0")
    # The later snapshot is shown, whichever slider selects it.
    assert "went down" in words(past.console, "/time?at=0&since=1")


def test_page_says_which_facts_snapshots_do_not_contain(past):
    found = words(past.console, "/time?at=1")
    assert "A snapshot does not tell: free space" in found
    assert f"bookspark audit --path {past.path} --version 1" in found
    assert "don't tell who read the logs" in words(past.console, "/time/logs?at=1")


def test_past_ledger_list_shows_the_ledgers_of_its_snapshot(past):
    before, then = words(past.console, "/time/ledgers?at=0"), words(past.console, "/time/ledgers?at=1")
    assert re.search(rf"{past.closing} OPEN ", before) and re.search(rf"{past.closing} CLOSED 9 10.0 kB 1 3/3/2", then)
    assert re.search(rf"{past.gone} CLOSED 0 3 B", before) and not re.search(r" CLOSED 0 3 B", then)
    assert "There was none from there on" in words(past.console, f"/time/ledgers?at=1&from={past.made + 1000}")


def test_past_ledger_map_shows_the_copies_of_its_snapshot(past):
    before = words(past.console, f"/time/ledger?at=0&id={past.closing}")
    assert "0 to its open end 3 of 3 answer holds up to 9" in before
    then = words(past.console, f"/time/ledger?at=1&id={past.closing}")
    assert "0 to 9 2 of 3" in then and "down" in then and "whole whole" in then
    assert "there was no ledger" in words(past.console, f"/time/ledger?at=1&id={past.gone}")
    shown = page(past.console, f"/time/ledger?at=0&id={past.gone}")
    assert "&lt;script&gt;" in shown and "<script>alert" not in shown and "why under-replicated" not in shown


def test_past_log_list_shows_the_lanes_of_its_snapshot(past):
    assert re.search(r"orders@1 \d 3 \d+ B 0", words(past.console, "/time/logs?at=0"))
    found = words(past.console, "/time/logs?at=1")
    assert "others@1" in found and "4 lanes" in found
    assert "others" not in words(past.console, "/time/logs?at=1&after=others@1").partition("Logs")[2]


@pytest.mark.parametrize("query", ["at=x", "since=-1", f"at={'9' * 30}", f"at={quote(EVIL)}"])
def test_invalid_snapshot_number_is_refused(past, query):
    assert "is no snapshot" in words(past.console, f"/time?{query}")
    assert "<script>alert" not in ask(past.console, f"/time?{query}").text


def test_version_between_snapshots_selects_the_previous_snapshot(past):
    assert "snapshot 2" in words(past.console, "/time?at=17")


def test_page_of_the_past_does_not_poll(past):
    found = page(past.console, "/time")
    assert 'data-live="still"' in found
    assert "data-live " not in found.replace('data-live="still"', "")


def test_console_without_snapshots_names_the_option(console):
    assert "bookspark console --snapshots PATH" in words(console, "/time")
    assert ask(console, "/time/ledgers").status == 404


def test_missing_snapshots_and_snapshots_of_another_cluster_are_reported(cluster, past, tmp_path):
    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper:
        with WebConsole(bookkeeper, snapshots=str(tmp_path / "none")) as console:
            assert "`bookspark snapshot`" in words(console, "/time")
            assert ask(console, "/").status == 200
        with WebConsole(bookkeeper, snapshots=str(past.path)) as console:
            assert f"These snapshots are of another cluster: {past.cluster.zookeeper}" in words(console, "/time")


def test_expired_and_incomplete_snapshots_are_not_offered(past, tmp_path):
    cluster = past.cluster
    with cluster.bookkeeper(**PATIENT) as bookkeeper:
        snapshots.take(bookkeeper, tmp_path)
        with WebConsole(bookkeeper, snapshots=str(tmp_path)) as console:
            assert 'max="0"' in page(console, "/time")
            kept = snapshots.take(bookkeeper, tmp_path)
            # A snapshot that was interrupted between its tables.
            snapshots.take(bookkeeper, tmp_path, without={"entry_checksums", "index_ranges"}, oldest=kept)
            await_that(lambda: 'min="1" max="1"' in ask(console, "/time?at=0").text)
            snapshots.take(bookkeeper, tmp_path, oldest=kept)
            await_that(lambda: 'min="1" max="2"' in ask(console, "/time?at=2").text)
            assert "3 of 4" in words(console, "/time?at=2")
