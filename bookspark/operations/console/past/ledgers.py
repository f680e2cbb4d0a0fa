"""Ledgers of a snapshot: a list, and one ledger with its record and the map of its fragments and bookies.

Law: the map is that of the live cluster (``console.ledgers``), made from the snapshot's tables. A bookie that was down is never
shown as lacking entries. The page says so if the record changed between the reads of two tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bookspark.errors import ReadError
from bookspark.operations.console.ledgers import (
    LIST_COLUMNS,
    ON_A_PAGE,
    LedgerSeen,
    facts_of,
    from_form,
    ledger_id_of,
    map_of,
    quorums,
    state_text,
)
from bookspark.operations.console.looks import Look, unseen
from bookspark.operations.console.pages import Cell, Command, Markup, Pairs, Table, Text, Time, address, part, render
from bookspark.operations.console.past.deltas import Deltas
from bookspark.operations.console.past.moments import LEDGER, Chosen
from bookspark.protocol.ledger.ledger_metadata import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
    LedgerType,
    Replication,
)
from bookspark.support.plain_text import counted, size_text
from bookspark.support.snapshot_commits import Snapshot

__all__ = ["content", "first_of", "form", "ledger_id_of", "list_at", "list_content", "look_at"]

_LISTED = (
    "ledger_id",
    "state",
    "last_entry_id",
    "length",
    "fragments",
    "ensemble_size",
    "write_quorum",
    "ack_quorum",
    "created_at",
    "log",
)
_RECORD = (*_LISTED, "metadata_version", "digest_type", "ledger_type", "replication", "custom_metadata")
_FRAGMENT = ("metadata_version", "fragment", "first_entry_id", "ensemble")
_RANGE = ("bookie_id", "first_entry_id", "last_entry_id")
_DOWN = "down"
Row = Mapping[str, Any]


class ListSeen(NamedTuple):
    """A page of a snapshot's ledgers."""

    rows: Sequence[Row]
    at: int
    """Number of ledgers before this page."""
    ledgers: int
    earlier: int | None
    """First id of the previous page; None: no such page. ``later`` and ``last`` likewise."""
    later: int | None
    last: int | None


class ThenSeen(NamedTuple):
    """One ledger of a snapshot."""

    seen: LedgerSeen
    log: str
    problem: str


def first_of(asked: str) -> int:
    """The first id of the page. Raises ValueError, with a sentence for the page."""
    return ledger_id_of(asked) if asked else 0


# -- the list


def list_at(deltas: Deltas, snapshot: Snapshot, first: int) -> ListSeen:
    """A page of ledgers from id ``first`` on. Raises ReadError."""
    every = deltas.ledgers(snapshot)
    at = every.before(first)
    ids = every[at : at + ON_A_PAGE]
    rows: list[dict[str, Any]] = []
    if ids:
        found = deltas.rows(snapshot, "ledgers", _LISTED, ids=(ids[0], ids[-1]))
        rows = sorted(found, key=lambda row: row["ledger_id"])
    more = at + ON_A_PAGE < len(every)
    return ListSeen(
        rows,
        at,
        len(every),
        every[max(0, at - ON_A_PAGE)] if at else None,
        every[at + ON_A_PAGE] if more else None,
        every[max(0, len(every) - ON_A_PAGE)] if more else None,
    )


def form(now: Chosen, asked: str) -> Markup:
    return from_form("/time/ledgers", asked, now.query())


def list_content(now: Chosen, look: Look[ListSeen]) -> Markup:
    seen = look.found
    if seen is None:
        return part("ledgers", unseen(look), "Ledgers")
    if not seen.rows:
        return part("ledgers", f"There was none from there on, of {seen.ledgers:,}.", "Ledgers", still=True)
    told = Table("ledgers", LIST_COLUMNS, [_line(now, row) for row in seen.rows])
    ways = (("First", 0 if seen.at else None), ("Earlier", seen.earlier), ("Later", seen.later), ("Last", seen.last))
    links = [
        Text(words, path=address("/time/ledgers", **now.query(), **{"from": first}), name=f"ledgers-{words.lower()}")
        for words, first in ways
        if first is not None
    ]
    count = f"{seen.at + 1:,} to {seen.at + len(seen.rows):,} of {counted(seen.ledgers, 'ledger')}"
    return part("ledgers", (told, render("more.html", count=count, links=links)), "Ledgers", still=True)


def _line(now: Chosen, row: Row) -> tuple[object, ...]:
    state = row["state"] or "not known"
    made = None if row["created_at"] is None else _ms(row["created_at"])
    return (
        ledger_link(now, row["ledger_id"], f"ledger-{row['ledger_id']}"),
        state_text(state) if row["fragments"] is not None else Text(state, "bad"),
        Cell(_number(row["last_entry_id"]), row["last_entry_id"]),
        "" if row["length"] is None else Cell(size_text(row["length"]), row["length"]),
        _number(row["fragments"]),
        "" if row["ensemble_size"] is None else quorums(row["ensemble_size"], row["write_quorum"], row["ack_quorum"]),
        "" if made is None else Cell(Time(made), made),
        row["log"] or "",
    )


def ledger_link(now: Chosen, ledger_id: int, name: str) -> Text:
    """A link to a ledger of the snapshot."""
    return Text(ledger_id, path=address(LEDGER, **now.query(), id=ledger_id), name=name)


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _ms(time: Any) -> int:
    # Rounded: a binary number may lie just below the millisecond.
    return int(time.timestamp() * 1000 + 0.5)


# -- one ledger


def look_at(deltas: Deltas, snapshot: Snapshot, ledger_id: int) -> ThenSeen:
    """The ledger in the snapshot. Raises ReadError, also if the snapshot has no such ledger."""
    only = ledger_id, ledger_id
    found = deltas.rows(snapshot, "ledgers", _RECORD, ids=only)
    if not found:
        raise ReadError(f"there was no ledger {ledger_id}: it was made later, or deleted before")
    row = found[0]
    if row["fragments"] is None:
        raise ReadError(f"the record of ledger {ledger_id} could not be decoded")
    fragments = sorted(deltas.rows(snapshot, "fragments", _FRAGMENT, ids=only), key=lambda one: one["fragment"])
    metadata = _metadata(row, fragments)
    states = {one["bookie_id"]: one["state"] for one in deltas.rows(snapshot, "bookies", ("bookie_id", "state"))}
    problems = {
        name: _DOWN if states.get(name) == _DOWN else "not known then"
        for name in metadata.bookies()
        if states.get(name, _DOWN) == _DOWN
    }
    held: dict[str, list[tuple[int, int]]] = {name: [] for name in metadata.bookies() if name not in problems}
    for one in deltas.rows(snapshot, "index_ranges", _RANGE, ids=only):
        if one["bookie_id"] in held:
            held[one["bookie_id"]].append((one["first_entry_id"], one["last_entry_id"]))
    limbo = frozenset(one["bookie_id"] for one in deltas.rows(snapshot, "limbo", ("bookie_id",), ids=only))
    changed = {one["metadata_version"] for one in fragments} != {row["metadata_version"]}
    problem = "Its record changed while the snapshot was taken, so its parts may not match." if changed else ""
    return ThenSeen(LedgerSeen(metadata, held, limbo, problems), row["log"] or "", problem)


def _metadata(row: Row, fragments: Sequence[Row]) -> LedgerMetadata:
    labels = json.loads(row["custom_metadata"] or "{}")
    return LedgerMetadata(
        row["ledger_id"],
        row["ensemble_size"],
        row["write_quorum"],
        row["ack_quorum"],
        tuple(Fragment(one["first_entry_id"], tuple(one["ensemble"])) for one in fragments),
        LedgerState(row["state"]),
        -1 if row["last_entry_id"] is None else row["last_entry_id"],
        row["length"] or 0,
        DigestType(row["digest_type"]),
        ledger_type=LedgerType(row["ledger_type"]),
        replication=Replication(row["replication"]),
        ctime_ms=_ms(row["created_at"]),
        custom_metadata={name: value.encode() for name, value in labels.items()},
    )


def content(ledger_id: int, look: Look[ThenSeen]) -> Markup:
    label = f"Ledger {ledger_id}"
    if look.found is None:
        return part("ledger", unseen(look), label)
    then = look.found
    own: list[tuple[str, object]] = [("log", then.log)] if then.log else []
    today = Text("This ledger now", path=address("/ledger", id=ledger_id), name="ledger-now")
    told = (Text(then.problem, "bad") if then.problem else "", Pairs([*facts_of(then.seen.metadata), *own]), today)
    note = ("By the bookies' indexes. Whether copies could be read is told by ", Command("bookspark audit"))
    return part("ledger", told, label, still=True) + part(
        "map", (map_of(then.seen), note), "Fragments and bookies", still=True
    )
