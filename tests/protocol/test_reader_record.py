"""Records of readers: who lives, and which tell nothing any more."""

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


def test_a_reader_that_is_not_heard_is_stale_and_one_that_ended_is_closed() -> None:
    assert QUERY.state(NOW + STALE_MS) is ReaderState.LIVE
    assert QUERY.state(NOW + STALE_MS + 1) is ReaderState.STALE
    assert replace(QUERY, closed=True).state(NOW) is ReaderState.CLOSED


def test_of_a_query_the_sources_of_its_newest_run_count() -> None:
    newer = replace(QUERY, run="run-2", since_ms=NOW - 1000)
    other = replace(QUERY, reader="q2")
    assert gone(a=QUERY, b=replace(QUERY, heard_ms=NOW - STALE_MS - 1)) == set()
    assert gone(a=QUERY, b=QUERY, c=newer, d=newer, e=other) == {"a", "b"}
    # A reader of one lane is another one.
    assert outdated({"a@orders": QUERY, "b@orders@1": newer}, MADE, NOW) == set()


def test_of_a_group_the_readers_that_live_count_or_else_the_last_one() -> None:
    stale = replace(GROUP, heard_ms=NOW - STALE_MS - 1)
    closed = replace(GROUP, heard_ms=NOW - 1, closed=True)
    assert gone(a=GROUP, b=replace(GROUP, heard_ms=NOW - 1), c=stale, d=closed) == {"c", "d"}
    assert gone(c=stale, d=closed) == {"c"}
    nameless = replace(stale, reader="")
    assert gone(a=nameless, b=nameless) == set()


def test_a_place_in_an_earlier_log_of_the_name_and_an_old_one_tell_nothing() -> None:
    earlier = replace(QUERY, offset={"position": 3, "log": MADE - 1}, since_ms=NOW)
    assert gone(a=QUERY, b=earlier, c=replace(GROUP, offset={})) == {"b", "c"}
    assert gone(a=replace(GROUP, heard_ms=NOW - KEPT_MS), b=replace(QUERY, heard_ms=NOW - KEPT_MS - 1)) == {"b"}
    nameless = replace(GROUP, reader="")
    assert gone(a=replace(nameless, heard_ms=NOW - UNNAMED_KEPT_MS - 1), b=nameless) == {"a"}


def test_no_more_than_so_many_of_readers_that_live_no_more_are_kept() -> None:
    many = {f"s{n}": replace(GROUP, reader=f"g{n}", heard_ms=NOW - STALE_MS - 1 - n) for n in range(KEPT_MAX + 2)}
    assert gone(**many, live=GROUP) == {f"s{KEPT_MAX}", f"s{KEPT_MAX + 1}"}
