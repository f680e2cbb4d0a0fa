"""A log on paper breaks no law, and each of some planted faults makes it break one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from bookspark.protocol.logs.commits import CommitHeader
from bookspark.protocol.logs.log_record import LogRecord, NoSuchLogError
from tests.logs.paper import counts, index, lane
from tests.logs.paper.run import run

SEEDS = 2000


def test_a_log_on_paper_breaks_no_law() -> None:
    for seed in range(SEEDS):
        run(seed)


def forgetting(original: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    return lambda record, *args: original(replace(record, claims=()), *args)


def whatever_is_committed(original: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    return lambda record, run, now_ms: original(
        replace(record, batch_writes=tuple(one._replace(commit_ledger=-1) for one in record.batch_writes)), run, now_ms
    )


def a_row_more(original: Callable[..., LogRecord]) -> Callable[..., LogRecord]:
    return lambda record, row, ends: original(record, row, {link: end - 1 for link, end in ends.items()})


def not_live(record: LogRecord, epoch: int) -> bool:
    return epoch <= record.newest_epoch and epoch not in record.live_epochs


def the_next(original: Callable[..., Any]) -> Callable[..., Any]:
    def full_block(record: LogRecord) -> Any:
        found = original(record)
        return None if found is None else (found[0] + 1, found[1])

    return full_block


def the_first_gets_the_rest(original: Callable[..., dict[int, int]]) -> Callable[..., dict[int, int]]:
    def shares(waiting: dict[int, int], most: int) -> dict[int, int]:
        found = original(waiting, most)
        return {**found, 0: found[0] + most - sum(found.values())}

    return shares


def left_open(original: Callable[..., CommitHeader]) -> Callable[..., CommitHeader]:
    return lambda header, epoch: replace(original(header, epoch), open_ledger=header.open_ledger)


PLANTED: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "a run that lost a lane claims it again": (LogRecord, "claim", forgetting),
    "a batch write is forgotten that readers do not see yet": (LogRecord, "batch_write_begun", whatever_is_committed),
    "who is no writer commits": (LogRecord, "check_writer", lambda _: lambda *args: None),
    "a ledger leaves the chain of which a row stays": (LogRecord, "truncated", a_row_more),
    "an epoch is over before its chain is recovered": (LogRecord, "ended", lambda _: not_live),
    "a lane that has ended is claimed": (lane, "ending", lambda _: lambda record, run: replace(record, owner=run)),
    "ended lanes are in the next block": (index, "full_block", the_next),
    "a reader stays where it is": (index, "later", lambda _: lambda offset, newest: dict(offset)),
    "whatever is a place": (index, "is_offset", lambda _: lambda offset: True),
    "a lane's writers are not kept": (index, "kept_of", lambda _: lambda record, lane, owner: []),
    "any lane may end": (index, "check_may_end", lambda _: lambda record, number: None),
    "neighbours are not merged": (counts, "merged", lambda _: tuple),
    "a lane gives more than waits": (counts, "shared_out", the_first_gets_the_rest),
    "a ledger stays open": (CommitHeader, "entering", left_open),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_breaks_a_law_on_paper(fault: str) -> None:
    where, name, plant = PLANTED[fault]

    def some() -> None:
        for seed in range(SEEDS):
            run(seed)

    with mock.patch.object(where, name, plant(getattr(where, name))), pytest.raises((AssertionError, NoSuchLogError)):
        some()
