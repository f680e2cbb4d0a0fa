"""The cluster at one snapshot.

Law: facts that no table has are listed as unknown; a table that the snapshot lacks counts as unknown, never as empty.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bookspark.operations.console.looks import Look, unseen
from bookspark.operations.console.pages import Cell, Command, Markup, Pairs, Table, Text, columns, part
from bookspark.operations.console.past.deltas import Deltas
from bookspark.support.plain_text import counted, size_text
from bookspark.support.snapshot_commits import Snapshot

_STATES = {"writable": "good", "read_only": "busy"}
_REASONS = {"lost": "a bookie is lost", "lacks": "a bookie lacks entries", "misplaced": "copies are to be moved"}
UNTOLD = (
    "free space, versions and keepers of bookies, what was written and read a second and how long it took, the time left of "
    "repairs, and the readers of logs"
)
"""Facts of the live overview that no snapshot has."""


class Sizes(NamedTuple):
    """Contents of a bookie: number of logs, their bytes, live bytes, entries."""

    logs: int
    size: int
    live: int
    entries: int


class Then(NamedTuple):
    """The cluster at one snapshot."""

    bookies: Sequence[Mapping[str, Any]]
    disks: Mapping[str, Sequence[str]] | None
    """Problems of each bookie's directories. None: not known."""
    sizes: Mapping[str, Sizes]
    limbo: Mapping[str, int]
    """Ledgers in limbo, by bookie."""
    states: Mapping[str, int]
    length: int
    """Bytes of the closed ledgers."""
    waiting: int
    """Ledgers with a task of autorecovery."""
    reasons: Mapping[str, int]
    """Reason → number of (ledger, bookie) pairs in the tasks."""
    enabled: bool | None
    """Autorecovery was enabled. None: not known."""
    lanes: int
    rows: int


def look_at(deltas: Deltas, snapshot: Snapshot) -> Then:
    """The cluster at the snapshot. Raises ReadError."""
    import pyarrow.compute as pc

    def count(column: Any) -> int:
        return int(pc.sum(column).as_py() or 0)

    bookies = deltas.rows(snapshot, "bookies", ("bookie_id", "state", "host", "rack"))
    ledgers = deltas.read(snapshot, "ledgers", ("state", "length"))
    states = ledgers.group_by("state").aggregate([([], "count_all")]).to_pylist()
    tasks = deltas.read(snapshot, "underreplication", ("ledger_id", "reason"))
    reasons = tasks.group_by("reason").aggregate([([], "count_all")]).to_pylist()
    limbo = deltas.read(snapshot, "limbo", ("bookie_id",)).group_by("bookie_id").aggregate([([], "count_all")])
    logs = deltas.read(snapshot, "logs", ("rows",))
    return Then(
        sorted(bookies, key=lambda one: one["bookie_id"]),
        _disks(deltas, snapshot),
        sizes_of(deltas, snapshot),
        {one["bookie_id"]: one["count_all"] for one in limbo.to_pylist()},
        {one["state"] or "not known": one["count_all"] for one in states},
        count(ledgers["length"]),
        pc.count_distinct(tasks["ledger_id"]).as_py(),
        {one["reason"]: one["count_all"] for one in reasons if one["reason"]},
        enabled_of(deltas, snapshot),
        logs.num_rows,
        count(logs["rows"]),
    )


def _disks(deltas: Deltas, snapshot: Snapshot) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for one in deltas.rows(snapshot, "disks", ("bookie_id", "directory", "state", "reason")):
        wrong = found.setdefault(one["bookie_id"], [])
        if one["state"] != "writable":
            wrong.append(f"{one['directory']} is {one['state']}: {one['reason'] or ''}")
    return found


def sizes_of(deltas: Deltas, snapshot: Snapshot) -> dict[str, Sizes]:
    """Contents of each bookie that was up. Raises ReadError."""
    columns = ("bytes", "live_bytes", "entries")
    logs = deltas.read(snapshot, "entry_logs", ("bookie_id", *columns)).group_by("bookie_id")
    found = logs.aggregate([([], "count_all"), *((name, "sum") for name in columns)]).to_pylist()
    return {
        one["bookie_id"]: Sizes(one["count_all"], one["bytes_sum"], one["live_bytes_sum"], one["entries_sum"])
        for one in found
    }


def enabled_of(deltas: Deltas, snapshot: Snapshot) -> bool | None:
    """Was autorecovery enabled? None: not known. Raises ReadError."""
    return next((one["enabled"] for one in deltas.rows(snapshot, "autorecovery", ("enabled",))), None)


def content(snapshot: Snapshot, look: Look[Then], path: str) -> Markup:
    then = look.found
    if then is None:
        return part("cluster", unseen(look), "Cluster")
    follow = Command(f"bookspark audit --path {shlex.quote(path)} --version {snapshot.version}")
    note = Markup('<p class="soft">A snapshot does not tell: {}.</p>').format(UNTOLD)
    told = (Pairs(list(_facts(then))), note, "What was wrong then, ledger by ledger: ", follow)
    return part("cluster", told, "Cluster", still=True) + part("bookies", _bookies(then), "Bookies", still=True)


def _facts(then: Then) -> Iterator[tuple[str, object]]:
    up = sum(one["state"] != "down" for one in then.bookies)
    kind = "good" if up == len(then.bookies) else "bad"
    yield "bookies up", Text(f"{up:,} of {len(then.bookies):,}", kind)
    told = ", ".join(f"{count:,} {state}" for state, count in sorted(then.states.items()))
    yield "ledgers", f"{sum(then.states.values()):,}{f': {told}' if told else ''}"
    yield "bytes of the closed ones", size_text(then.length)
    yield "lanes of logs", f"{then.lanes:,}, with {counted(then.rows, 'row')}"
    why = "; ".join(f"{count:,} because {_REASONS.get(reason, reason)}" for reason, count in then.reasons.items())
    waiting = f"{counted(then.waiting, 'ledger')} waited for a repair{f': {why}' if why else ''}"
    yield "replication", Text(waiting, "busy") if then.waiting else "no ledger waited for a repair"
    yield (
        "autorecovery",
        "not told"
        if then.enabled is None
        else "enabled"
        if then.enabled
        else Text("disabled: lost copies were not replaced", "bad"),
    )


def _bookies(then: Then) -> object:
    names = ("bookie", "state", "host", "rack", "entries", "logs", "of it live", "in limbo")
    shape = columns(*names, numbers=names[4:], minor=("host", "rack", "logs", "of it live", "in limbo"))
    rows = [_row(then, one) for one in then.bookies]
    return Table("bookies", shape, rows) if rows else Text("No bookie was known.", "soft")


def _row(then: Then, one: Mapping[str, Any]) -> tuple[object, ...]:
    name, state = one["bookie_id"], one["state"]
    sizes = then.sizes.get(name)
    wrong = () if then.disks is None else then.disks.get(name, ())
    why = Markup().join(Markup('<p class="why soft">{}</p>').format(reason) for reason in wrong)
    limbo = then.limbo.get(name, 0)
    return (
        name,
        (Text(state.replace("_", "-"), _STATES.get(state, "bad")), why),
        one["host"] or "",
        one["rack"] or "",
        "" if sizes is None else f"{sizes.entries:,}",
        "" if sizes is None else Cell(size_text(sizes.size), sizes.size),
        "" if sizes is None else Cell(size_text(sizes.live), sizes.live),
        Text(f"{limbo:,}", "busy") if limbo else "",
    )
