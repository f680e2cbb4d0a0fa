"""Ranges that commits name, headers that sum commits up, and shares of a limit, against the same counted one by one."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from unittest import mock

from bookspark.protocol.logs import commits
from bookspark.protocol.logs.commits import TXN, Commit, CommitHeader, EntryRange, Fingerprint, Position, merged
from bookspark.protocol.logs.lanes import shared_out


def count(random: Random) -> None:
    _ranges(random)
    _headers(random)
    _shares(random)


def _ranges(random: Random) -> None:
    """Merged ranges have the same entries in the same order, each with as many rows, and as many bytes in all."""
    found: list[EntryRange] = []
    at = {1: 0, 2: 0}
    for _ in range(random.randrange(7)):
        ledger, entries, each = random.choice([1, 1, 1, 2]), random.randrange(1, 4), random.choice([1, 1, 2])
        at[ledger] += random.choice([0, 0, 0, 1])
        found.append(EntryRange(ledger, at[ledger], at[ledger] + entries - 1, entries * each, random.randrange(9)))
        at[ledger] += entries
    result = merged(found)
    assert _entries(result) == _entries(found), f"{found} are merged to {result}"
    assert sum(one.size for one in result) == sum(one.size for one in found), "bytes are lost"
    for one, other in pairwise(result):
        (ledger, last, rows), (following, first, rows_then) = _entries([one])[-1], _entries([other])[0]
        assert (ledger, last + 1, rows) != (following, first, rows_then), "neighbours are left apart"


def _entries(ranges: object) -> list[tuple[int, int, int]]:
    return [
        (one.ledger_id, entry, one.rows // (one.last_entry_id - one.first_entry_id + 1))
        for one in ranges  # type: ignore[attr-defined]
        for entry in range(one.first_entry_id, one.last_entry_id + 1)
    ]


def _headers(random: Random) -> None:
    """A header tells what all commits before it do, as far as a new ledger's header keeps it."""
    kept = random.choice([1, 2, 1000])
    with mock.patch.object(commits, "QUERIES_MAX", kept):
        # (Earlier versions kept no fingerprints.)
        earlier = random.random() < 0.3
        header, before = CommitHeader(last_batches={"old": 4} if earlier else {}), list[Commit]()
        known: dict[str, Commit | None] = {"old": None} if earlier else {}
        for number in range(random.randrange(9)):
            query = random.choice(["a", "b", "c", TXN + "a", "run"])
            ranges = (EntryRange(1, 0, 0, random.randrange(3), random.randrange(9)),)
            told, opened = random.choice([None, Fingerprint(3, "x")]), random.choice([None, 7])
            commit = header.placed(
                Commit(query, number, "run", 1, ranges, random.randrange(50), fingerprint=told, open_ledger=opened)
            )
            rows, size = sum(one.rows for one in before), sum(one.size for one in before)
            assert (commit.first_row or 0, commit.first_byte or 0) == (rows, size), "a commit begins elsewhere"
            assert all(one.time_ms <= commit.time_ms for one in before), "a commit is of an earlier time"
            header = header.followed_by(commit)
            before.append(commit)
            if query != "run":
                known.pop(query, None)
                known[query] = commit
            _is_sum(header, before, known, opened)
            if random.random() < 0.3:
                header = header.entering(header.epoch + 1)
                known = dict(list(known.items())[-kept:])
                _is_sum(header, before, known, None)


def _is_sum(header: CommitHeader, before: list[Commit], known: dict[str, Commit | None], opened: int | None) -> None:
    sums = Position(len(before), sum(one.rows for one in before), sum(one.size for one in before))
    assert header.position == sums, f"the header has {header.position}, and the commits {sums}"
    batches = [(query, 4 if one is None else one.batch) for query, one in known.items()]
    assert list(header.last_batches.items()) == batches, "other batches"
    told = {query: one.fingerprint or Fingerprint(one.rows) for query, one in known.items() if one is not None}
    assert dict(header.fingerprints) == told, "other fingerprints"
    assert header.time_ms == max(one.time_ms for one in before), "another time"
    assert header.open_ledger == opened, "another ledger is open"


def _shares(random: Random) -> None:
    """All of the limit is given, if as much waits, and none gives more than waits. Who has more gives as much or more. If it is
    enough for all in which something waits, each gives something."""
    waiting = {lane: random.choice([0, 1, 1, 2, 3, 50]) for lane in range(random.randrange(1, 6))}
    most = random.choice([0, 1, 2, 3, 5, 8, 30, 1000])
    shares = shared_out(waiting, most)
    assert shares.keys() == waiting.keys(), "a lane is left out"
    assert sum(shares.values()) == min(most, sum(waiting.values())), f"of {most} {shares} are given, and wait {waiting}"
    assert all(0 <= shares[lane] <= waiting[lane] for lane in waiting), f"{shares} are more than wait: {waiting}"
    for one, some in waiting.items():
        for other, less in waiting.items():
            assert some <= less or shares[one] >= shares[other], f"who has more gives less: {shares} of {waiting}"
    busy = [lane for lane, some in waiting.items() if some]
    assert most < len(busy) or all(shares[lane] for lane in busy), f"a lane gives nothing: {shares} of {waiting}"
