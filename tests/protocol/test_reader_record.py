"""Records of log readers: live states, and which records are outdated."""

from __future__ import annotations

from dataclasses import replace

from bookspark.protocol.logs.reader_record import (
    KEPT_MAX,
    KEPT_MS,
    STALE_MS,
    UNNAMED_KEPT_MS,
    ReaderKind,
    ReaderRecord,
    ReaderState,
    outdated,
)

NOW = 10 * KEPT_MS
OFFSET = {"position": 3, "log": 7}
QUERY = ReaderRecord(ReaderKind.SPARK, OFFSET, NOW - 60_000, "q", "run-1", heard_ms=NOW)
GROUP = ReaderRecord(ReaderKind.PYTHON, OFFSET, NOW - 60_000, "audit", heard_ms=NOW)


def gone(**records: ReaderRecord) -> set[str]:
    named = {f"{name}@orders": one for name, one in records.items()}
    return {name.partition("@")[0] for name in outdated(named, NOW)}


def test_silent_reader_is_stale_and_ended_reader_is_closed() -> None:
    assert QUERY.state(NOW + STALE_MS) is ReaderState.LIVE
    assert QUERY.state(NOW + STALE_MS + 1) is ReaderState.STALE
    assert replace(QUERY, closed=True).state(NOW) is ReaderState.CLOSED


def test_living_runs_of_a_query_count_or_else_the_run_heard_last() -> None:
    """A killed run of a host whose clock was ahead counted as the newest, and hid the living one."""
    stale = replace(QUERY, heard_ms=NOW - STALE_MS - 1, since_ms=NOW + 3_600_000)
    newer = replace(QUERY, run="run-2")
    assert gone(a=QUERY, b=stale) == set(), "two sources of a run"
    assert gone(a=stale, b=stale, c=newer, d=newer, e=replace(QUERY, reader="q2")) == {"a", "b"}
    assert gone(a=QUERY, c=newer) == set(), "both live"
    ended = replace(newer, closed=True)
    assert gone(a=replace(QUERY, heard_ms=NOW - 1), c=ended) == set(), (
        "a killed run may seem to live when its successor has ended"
    )
    assert gone(a=stale, c=replace(newer, heard_ms=NOW - STALE_MS - 2)) == {"c"}
    # A reader of a single lane is separate.
    assert outdated({"a@7": stale, "b@7@1": newer}, NOW) == set()


def test_live_readers_of_a_group_count_or_else_the_last_reader() -> None:
    stale = replace(GROUP, heard_ms=NOW - STALE_MS - 1)
    closed = replace(GROUP, heard_ms=NOW - 1, closed=True)
    assert gone(a=GROUP, b=replace(GROUP, heard_ms=NOW - 1), c=stale, d=closed) == {"c", "d"}
    assert gone(c=stale, d=closed) == {"c"}
    nameless = replace(stale, reader="")
    assert gone(a=nameless, b=nameless) == set()


def test_old_records_are_outdated() -> None:
    assert gone(a=replace(GROUP, heard_ms=NOW - KEPT_MS), b=replace(QUERY, heard_ms=NOW - KEPT_MS - 1)) == {"b"}
    nameless = replace(GROUP, reader="")
    assert gone(a=replace(nameless, heard_ms=NOW - UNNAMED_KEPT_MS - 1), b=nameless) == {"a"}


def test_number_of_records_of_dead_readers_is_bounded() -> None:
    many = {f"s{n}": replace(GROUP, reader=f"g{n}", heard_ms=NOW - STALE_MS - 1 - n) for n in range(KEPT_MAX + 2)}
    assert gone(**many, live=GROUP) == {f"s{KEPT_MAX}", f"s{KEPT_MAX + 1}"}
