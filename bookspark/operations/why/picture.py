"""Picture of a live cluster for a terminal: a line for each bookie, with rates since the previous look.

Law: the picture depends on the facts only. The write rate is the growth of the bookie's logs between two looks; rewriting and
removal of logs may hide writes, so a rate is never below zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bookspark.operations.why.bookie_troubles import ended
from bookspark.operations.why.facts import Facts
from bookspark.operations.why.words import duration
from bookspark.support.plain_text import counted, size_text


class BookieLine(NamedTuple):
    """One bookie. Texts are for display; "": not known."""

    bookie: str
    state: str
    """``down``, ``silent``, ``healing``, ``read-only`` or ``writable``."""
    host: str
    ledgers: int | None
    logs: str
    written: str
    """Bytes a second since the previous look."""
    free: str


COLUMNS = ("bookie", "state", "host", "ledgers", "logs", "written", "free")


def bookie_lines(facts: Facts, before: Facts | None = None) -> Iterator[BookieLine]:
    """A line for each bookie, by name. ``before``: the previous look, for rates."""
    for name, one in sorted(facts.observed.bookies.items()):
        status = facts.cluster.statuses.get(name)
        host = facts.cluster.bookies[name].host
        if status is None:
            yield BookieLine(
                name, "silent" if one.registered and not ended(facts, name) else "down", host, None, "", "", ""
            )
            continue
        state = "healing" if status.limbo_ledgers else "read-only" if status.read_only else "writable"
        yield BookieLine(
            name,
            state,
            host,
            status.ledgers,
            size_text(status.log_bytes),
            _written(facts, before, name),
            size_text(status.free_bytes),
        )


def moving(facts: Facts) -> str:
    """Repairs, healing and changes under way, in one line; "": none."""
    found = facts.autorecovery
    told = []
    if found is not None and found.ledgers:
        left = "an unknown time" if found.seconds_left is None else duration(found.seconds_left)
        told.append(
            f"{counted(found.ledgers, 'ledger')} lack copies, {found.being_repaired:,} are being repaired: "
            f"{size_text(found.bytes_left)}, {left} left"
        )
    for name, status in sorted(facts.cluster.statuses.items()):
        healing = status.healing
        if healing is not None and healing.ledgers_left:
            left = "an unknown time" if healing.seconds_left is None else duration(healing.seconds_left)
            told.append(f"{name} heals: {counted(healing.ledgers_left, 'ledger')}, {left} left")
    if facts.change is not None:
        told.append("a change of the cluster is under way: `bookspark cluster status`")
    return "; ".join(told)


def _written(facts: Facts, before: Facts | None, name: str) -> str:
    earlier = None if before is None else before.cluster.statuses.get(name)
    seconds = 0.0 if before is None else (facts.at_ms - before.at_ms) / 1000
    now = facts.cluster.statuses[name]
    if earlier is None or earlier.incarnation != now.incarnation or seconds <= 0:
        return ""
    return f"{size_text(max(0, round((now.log_bytes - earlier.log_bytes) / seconds)))}/s"
