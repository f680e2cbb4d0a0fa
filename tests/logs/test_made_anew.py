"""Logs that are deleted and made anew, at each step of what somebody does with the old one: the new log stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import BookKeeperError
from bookspark.logs import delete_log, truncate_log
from bookspark.logs.chain import registry as registries
from bookspark.logs.chain.maintenance import collect_orphans, collect_recent_orphans
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.feeds.log_feed import LogFeed
from bookspark.metadata.memory.memory_store import MemoryStore
from tests.logs.test_deletion import write_log
from tests.spark.memory_bookkeeper import MemoryBookKeeper

LOG = "orders"
STEPS = "read_record", "write_record", "delete_record", "list_records", "list_ledgers", "read_ledgers", "read_ledger"
Does = Callable[[Any], object]


@pytest.fixture(autouse=True)
def no_two_logs_in_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    made = count(1_700_000_000_000_000_000, 1_000_000)
    monkeypatch.setattr(registries, "time", SimpleNamespace(time_ns=lambda: next(made)))


def rows_of(bookkeeper: Any) -> list[bytes]:
    """All rows of the log."""
    feed = LogFeed(bookkeeper, LOG, b"", fail_on_data_loss=True)
    pieces = feed.pieces({**feed.newest(), "position": 0, "1": 0, "3": 0, "ended": 0}, feed.newest())
    return [
        entry.payload
        for piece, _ in pieces
        for entry in bookkeeper.open_ledger_no_recovery(piece.ledger_id).read(piece.first_entry_id, piece.last_entry_id)
    ]


def each_step(does: Does, meanwhile: Does, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Clusters in which somebody does something with a log, and ``meanwhile`` happens before each of its steps, one after
    another."""
    found: list[Any] = []
    while True:
        bookkeeper: Any = MemoryBookKeeper()
        write_log(bookkeeper, LOG)
        left = [len(found)]

        def step(original: Any) -> Any:
            def call(*arguments: Any) -> Any:
                left[0] -= 1  # noqa: B023
                if left[0] == -1:  # noqa: B023
                    meanwhile(bookkeeper)  # noqa: B023
                return original(*arguments)

            return call

        with monkeypatch.context() as patched:
            for name in STEPS:
                patched.setattr(MemoryStore, name, step(getattr(MemoryStore, name)))
            # What it worked on is gone.
            with suppress(BookKeeperError):
                does(bookkeeper)
        if left[0] >= 0:
            return found
        found.append(bookkeeper)


def made_anew(bookkeeper: Any) -> None:
    delete_log(bookkeeper, LOG, b"")
    write_log(bookkeeper, LOG)
    # The metadata store counts the versions of a record that was made anew from 0, too: let them be others than the old one's.
    for number in range(10):
        LogRegistry(bookkeeper.metadata).alter(LOG, ensemble_size=4 + number)


def whole_or_gone(bookkeeper: Any) -> bool:
    """Is the log there, with all of its rows, or is there nothing of it? True: it is there."""
    if LogRegistry(bookkeeper.metadata).find(LOG) is None:
        assert LogRegistry(bookkeeper.metadata).lane_names() == []
        return False
    assert rows_of(bookkeeper) == [b"x"] * 12
    return True


def test_a_deletion_that_another_one_overtook_takes_nothing_of_a_later_log(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = each_step(lambda bookkeeper: delete_log(bookkeeper, LOG, b""), made_anew, monkeypatch)
    found = [whole_or_gone(bookkeeper) for bookkeeper in clusters]
    # Who has not looked yet what there is deletes the later one.
    assert found == [False] * 2 + [True] * (len(found) - 2) and len(found) > 20


@pytest.mark.parametrize(
    "does",
    [
        lambda bookkeeper: collect_orphans(bookkeeper, LOG, b""),
        lambda bookkeeper: collect_recent_orphans(bookkeeper, LOG, b""),
        lambda bookkeeper: truncate_log(bookkeeper, f"{LOG}@0", 0, b""),
    ],
    ids=["all", "recent", "truncation"],
)
def test_a_collection_of_orphans_takes_nothing_of_a_log_that_was_made_anew_meanwhile(
    does: Does, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledgers are of epochs that were over in the old log."""

    def of_many_epochs(bookkeeper: Any) -> None:
        for number in range(5):
            LogRegistry(bookkeeper.metadata).claim(LOG, f"run{number}", "service:0")
        does(bookkeeper)

    clusters = each_step(of_many_epochs, made_anew, monkeypatch)
    assert all(map(whole_or_gone, clusters)) and len(clusters) > 20
