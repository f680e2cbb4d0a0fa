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

MADE, NOW = 5, 10 * KEPT_MS
OFFSET = {"position": 3, "log": MADE}
QUERY = ReaderRecord(ReaderKind.SPARK, OFFSET, NOW - 60_000, NOW, "q", "run-1")
GROUP = ReaderRecord(ReaderKind.PYTHON, OFFSET, NOW - 60_000, NOW, "audit")


def gone(**records: ReaderRecord) -> set[str]:
    named = {f"{name}@orders": one for name, one in records.items()}
    return {name.partition("@")[0] for name in outdated(named, MADE, NOW)}


def test_silent_reader_is_stale_and_ended_reader_is_closed() -> None:
    assert QUERY.state(NOW + STALE_MS) is ReaderState.LIVE
    assert QUERY.state(NOW + STALE_MS + 1) is ReaderState.STALE
    assert replace(QUERY, closed=True).state(NOW) is ReaderState.CLOSED


def test_only_sources_of_a_querys_newest_run_count() -> None:
    newer = replace(QUERY, run="run-2", since_ms=NOW - 1000)
    other = replace(QUERY, reader="q2")
    assert gone(a=QUERY, b=replace(QUERY, heard_ms=NOW - STALE_MS - 1)) == set()
    assert gone(a=QUERY, b=QUERY, c=newer, d=newer, e=other) == {"a", "b"}
    # A reader of a single lane is separate.
    assert outdated({"a@orders": QUERY, "b@orders@1": newer}, MADE, NOW) == set()


def test_live_readers_of_a_group_count_or_else_the_last_reader() -> None:
    stale = replace(GROUP, heard_ms=NOW - STALE_MS - 1)
    closed = replace(GROUP, heard_ms=NOW - 1, closed=True)
    assert gone(a=GROUP, b=replace(GROUP, heard_ms=NOW - 1), c=stale, d=closed) == {"c", "d"}
    assert gone(c=stale, d=closed) == {"c"}
    nameless = replace(stale, reader="")
    assert gone(a=nameless, b=nameless) == set()


def test_offsets_of_an_earlier_log_of_that_name_and_old_records_are_outdated() -> None:
    earlier = replace(QUERY, offset={"position": 3, "log": MADE - 1}, since_ms=NOW)
    assert gone(a=QUERY, b=earlier, c=replace(GROUP, offset={})) == {"b", "c"}
    assert gone(a=replace(GROUP, heard_ms=NOW - KEPT_MS), b=replace(QUERY, heard_ms=NOW - KEPT_MS - 1)) == {"b"}
    nameless = replace(GROUP, reader="")
    assert gone(a=replace(nameless, heard_ms=NOW - UNNAMED_KEPT_MS - 1), b=nameless) == {"a"}


def test_number_of_records_of_dead_readers_is_bounded() -> None:
    many = {f"s{n}": replace(GROUP, reader=f"g{n}", heard_ms=NOW - STALE_MS - 1 - n) for n in range(KEPT_MAX + 2)}
    assert gone(**many, live=GROUP) == {f"s{KEPT_MAX}", f"s{KEPT_MAX + 1}"}
