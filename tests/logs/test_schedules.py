"""Random schedules of all that works on a log break no law, and each of some planted faults makes them break one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import repeat
from typing import Any
from unittest import mock

import pytest

from bookspark.errors import ReadError
from bookspark.logs import producer_ledgers
from bookspark.logs.chain import committer, compaction, maintenance, retention
from bookspark.logs.chain.commit_ledgers import HEADER_ENTRY
from bookspark.logs.chain.reader import LogReader, commits
from bookspark.logs.chain.registry import KIND, LogRegistry
from bookspark.logs.producer_ledgers import Numbers, ProducerLedgers
from bookspark.logs.row_reader import RowReader
from bookspark.metadata.documents.sharing import Sharing
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.protocol.logs.retention import Retention
from tests.logs.schedules import stand_ins
from tests.logs.schedules.cluster import Client
from tests.logs.schedules.handles import Reader
from tests.logs.schedules.offloads import Offload
from tests.logs.schedules.run import Kind, run

SEEDS, SEEDS_PLANTED = 40, 300


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_random_schedules_break_no_law(kind: Kind, first: int) -> None:
    # (Of a log that is deleted again and again less is read.)
    least = 10 if kind is Kind.OFFLOAD_ANEW else 50
    assert sum(run(seed, kind)["rows"] for seed in range(first, first + 10)) > least


def test_a_seed_is_a_schedule() -> None:
    assert run(17) == run(17)


def no_fence(client: Client, ledger_id: int, password: bytes = b"") -> Reader:
    return client.open_ledger_no_recovery(ledger_id)


def ended_too_early(record: LogRecord, epoch: int) -> bool:
    return epoch < record.newest_epoch and epoch not in record.live_epochs


def header_alone(bookkeeper: Any, link: Any, password: bytes) -> Any:
    return bookkeeper.open_ledger_no_recovery(link.ledger_id, password=password, confirmed=HEADER_ENTRY)


def all_but_one(copied: Callable[..., int]) -> Callable[..., int]:
    return lambda bookkeeper, record, links, run: copied(bookkeeper, record, links[:-1], run)


def behind_any(grown: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    return lambda record, ledger, run, epoch, _, start: grown(record, ledger, run, epoch, record.commit_ledgers, start)


def a_row_more(truncated: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    return lambda record, row, ends: truncated(record, row + 1, ends)


class ListedLater(list[int]):
    """The ledgers that are there when somebody looks through them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __iter__(self) -> Iterator[int]:
        self._client.step("list ledgers")
        return iter(self._client.world.records.list_ledgers())


def whichever(registry: LogRegistry, name: str, ctime_ms: int | None = None) -> None:
    registry._store.delete_record(KIND, name)


def with_the_next(expired: Callable[..., bool]) -> Callable[..., bool]:
    """Nothing need be behind a commit but itself."""
    return lambda kept, commit, after, size, now_ms: expired(kept, commit, after, size + commit.size, now_ms + 20)


def all_at(bookkeeper: Any, record: LogRecord, password: bytes, row: int) -> dict[Any, int]:
    return dict.fromkeys(record.commit_ledgers, row)


def passing_over(enter: Callable[..., None]) -> Callable[..., None]:
    def call(reader: Any, link: Any) -> None:
        try:
            enter(reader, link)
        except ReadError:
            reader._link = link
            raise

    return call


def whatever_is_closed(run: Offload, record: LogRecord, before_ms: float) -> list[int]:
    named = {item.ledger_id for placed in commits(run._client, run._log, b"") for item in placed.commit.ranges}
    return [one.ledger_id for one, _ in run._client.metadata.read_ledgers(sorted(named), {}) if one.closed]


def saves_the_end(save: Callable[[RowReader], dict[str, int]]) -> Callable[[RowReader], dict[str, int]]:
    def call(reader: RowReader) -> dict[str, int]:
        read, reader._offset = reader._offset, reader._not_before(reader._feed.known())
        try:
            return save(reader)
        finally:
            reader._offset = read

    return call


def whoever_has_them(sharing: Sharing, things: Iterable[str]) -> set[str]:
    return set(things)


def of_whichever_log(reader: RowReader, document: bytes) -> dict[str, int]:
    offset: dict[str, int] = json.loads(document)
    reader._feed.check(offset)
    return offset


def planted(owner: Any, name: str, fault: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(owner, name, fault)


def silent(owner: Any, name: str, answer: object) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(owner, name, return_value=answer)


PLANTED = {
    "recovery fences nothing": (1, planted(Client, "open_ledger", no_fence)),
    "an epoch that is over commits": (2, silent(LogRecord, "check_writer", None)),
    "an epoch is over before its commits are recovered": (11, planted(LogRecord, "ended", ended_too_early)),
    "a batch is committed twice": (0, silent(committer, "is_committed", False)),
    "a chain grows behind a ledger that was not recovered": (
        2,
        planted(LogRecord, "with_commit_ledger", behind_any(LogRecord.with_commit_ledger)),
    ),
    "compaction leaves out a ledger": (4, planted(compaction, "_copied", all_but_one(compaction._copied))),
    "a collection does not know of the newest ledger's first commit": (
        84,
        planted(maintenance, "open_commit_ledger", header_alone),
    ),
    "a truncation takes a row more": (10, planted(LogRecord, "truncated", a_row_more(LogRecord.truncated))),
    "a producer forgets what the one before left open": (2, silent(ProducerLedgers, "_take_over", None)),
    "a producer forgets its numbers": (13, planted(producer_ledgers, "Numbers", lambda last: Numbers(-1))),
    "a reader begins at the chain's first ledger, wherever it is": (8, silent(LogReader, "_seek", None)),
}
"""The fault, and from which seed on it is looked for: one that finds it now."""


PLANTED_ANEW = {
    "a collection lists ledgers after it has read the record": (
        292,
        planted(Client, "list_ledgers", lambda client: ListedLater(client)),
    ),
    "a deletion deletes whatever record is there": (43, planted(LogRegistry, "delete", whichever)),
    "a log that was made anew is taken for the old one": (
        0,
        planted(stand_ins, "count", lambda first, _: repeat(first)),
    ),
}
"""The same for a log that is deleted and made anew."""

PLANTED_RETENTION = {
    "retention takes a commit too many": (14, planted(Retention, "expired", with_the_next(Retention.expired))),
    "retention deletes ledgers of which rows stay": (
        25,
        planted(retention, "_complete", lambda _, last_entries: last_entries),
    ),
    "retention takes commit ledgers of rows that stay": (14, planted(retention, "link_ends", all_at)),
}
"""The same for one whose rows go by time and by bytes."""

PLANTED_OFFLOAD = {
    "an offload deletes ledgers of which rows are not in the table": (
        3,
        planted(Offload, "_needless", whatever_is_closed),
    ),
    "a reader goes on behind a ledger that it could not open": (
        52,
        planted(LogReader, "_enter", passing_over(LogReader._enter)),
    ),
}
"""The same for one that is offloaded."""

PLANTED_OFFLOAD_ANEW = {
    "an offload goes on in the next log of the name": (241, planted(Offload, "_same", lambda _, record: record)),
}
"""The same for one that is offloaded, and deleted and made anew."""

PLANTED_GROUPS = {
    "a reader saves the end of the log, wherever it is": (
        7,
        planted(RowReader, "_save", saves_the_end(RowReader._save)),
    ),
    "a reader does not begin where its group was": (0, silent(RowReader, "_saved", None)),
    "a lane is taken that another reader of the group has": (53, planted(Sharing, "take", whoever_has_them)),
    "a place in a log that was deleted is one in the next log": (17, planted(RowReader, "_place_in", of_whichever_log)),
}
"""The same for readers of groups."""

EVERY = [
    *((Kind.STEADY, what, *fault) for what, fault in PLANTED.items()),
    *((Kind.ANEW, what, *fault) for what, fault in PLANTED_ANEW.items()),
    *((Kind.RETENTION, what, *fault) for what, fault in PLANTED_RETENTION.items()),
    *((Kind.OFFLOAD, what, *fault) for what, fault in PLANTED_OFFLOAD.items()),
    *((Kind.OFFLOAD_ANEW, what, *fault) for what, fault in PLANTED_OFFLOAD_ANEW.items()),
    *((Kind.GROUPS, what, *fault) for what, fault in PLANTED_GROUPS.items()),
]


@pytest.mark.parametrize(("kind", "what", "first", "fault"), EVERY, ids=[what for _, what, *_ in EVERY])
def test_a_planted_fault_is_found(
    kind: Kind, what: str, first: int, fault: Callable[[], AbstractContextManager[Any]]
) -> None:
    def some() -> None:
        for seed in range(first, first + SEEDS_PLANTED):
            run(seed, kind)

    with fault(), pytest.raises(AssertionError) as found:
        some()
    first_error = found.value.__cause__ or found.value
    while first_error.__cause__ is not None:
        first_error = first_error.__cause__
    assert not isinstance(first_error, TypeError), "the fault is of no use any more: it is called with other arguments"
