"""Page of the risks of a stop of bookies, or of all bookies of a host.

Law: ``autorecovery.stopping`` decides, as for ``bookspark bookie safe-to-stop``. The places of closed ledgers come from the
watch's last look; bookies' statuses and the records of open, new and doubtful ledgers are read now. Each answer has its time;
without an answer nothing is called safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bookspark.operations.console.looks import Look, unseen
from bookspark.operations.console.pages import Command, Markup, Table, Text, Time, address, columns, html, part, render
from bookspark.operations.console.watch import Seen
from bookspark.operations.why.facts import Facts
from bookspark.operations.why.words import named
from bookspark.protocol.repair.stopping import Danger
from bookspark.store.autorecovery.stopping import Foreseen, Index, foreseen
from bookspark.store.client import BookKeeper
from bookspark.support.plain_text import counted, size_text

_SHOWN = 50


def hosts_of(facts: Facts) -> dict[str, list[str]]:
    """Bookies by host; a bookie that is down counts to its last known host."""
    found: dict[str, list[str]] = {}
    for name, one in facts.cluster.bookies.items():
        if one.host:
            found.setdefault(one.host, []).append(name)
    return found


def chosen(facts: Facts, bookies: Iterable[str], hosts: Iterable[str]) -> tuple[str, ...]:
    """The chosen bookies, sorted. Raises ValueError, with a sentence for the page, for an unknown bookie or host."""
    known, found = hosts_of(facts), set(bookies)
    for host in hosts:
        if host not in known:
            raise ValueError(f"no bookie is known at host {host!r}")
        found.update(known[host])
    if unknown := sorted(found - facts.observed.bookies.keys()):
        raise ValueError(f"no bookie {unknown[0]!r} is known")
    return tuple(sorted(found))


class Answer(NamedTuple):
    """The risks, and their time."""

    found: Foreseen
    at_ms: int
    """Start of the watch's look, in ms since 1970."""


def look_at(bookkeeper: BookKeeper, bookies: Sequence[str], seen: Seen) -> Answer:
    """The risks. Raises ConfigurationError, MetadataStoreError."""
    observed = seen.facts.observed
    index = Index(seen.by_shape, observed.fragments, observed.unreadable, seen.ledgers)
    return Answer(foreseen(bookkeeper, bookies, index), seen.facts.at_ms)


def form(facts: Facts, bookies: Iterable[str], hosts: Iterable[str]) -> Markup:
    """The form. No live part, so updates do not replace the choice."""
    at_hosts = {host: f"{host} ({named('bookie', there)})" for host, there in hosts_of(facts).items()}
    names = {name: name for name in sorted(facts.observed.bookies)}
    fields = (("Hosts", "host", at_hosts, set(hosts)), ("Bookies", "bookie", names, set(bookies)))
    return render("what_if.html", fields=fields)


def content(facts: Facts, bookies: Sequence[str], look: Look[Answer]) -> Markup:
    """The risks without ``bookies``."""
    if look.found is None:
        return part("answer", unseen(look), "The answer")
    foreseen, at_ms = look.found
    found = foreseen.dangers
    who = named("bookie", bookies)
    follow = ("The same at a terminal: ", Command("bookspark bookie safe-to-stop " + " ".join(bookies)))
    if found:
        head, told = _risk(foreseen, who), _dangers(found)
    else:
        head = [f"Safe: without {who} every entry keeps an ack quorum, and every open ledger can be recovered."]
        told = Markup()
    banner = render(
        "verdict.html",
        kind="bad" if found else "good",
        head=head[0],
        more=[*head[1:], _left(facts, bookies), ("By what was told from ", Time(at_ms), " on.")],
    )
    return part("answer", (banner, told, follow), "The answer")


def _risk(foreseen: Foreseen, who: str) -> list[str]:
    ledgers = len({one.ledger_id for one in foreseen.dangers})
    gone = len({one.ledger_id for one in foreseen.dangers if one.copies_left == 0})
    left = foreseen.doubtful - foreseen.looked_at
    count = f"{'at least ' if left else ''}{counted(ledgers, 'ledger')}"
    found = [f"Not safe: without {who}, {count} would be at risk."]
    if gone:
        found.append(f"Entries of {counted(gone, 'ledger')} could not be read at all meanwhile.")
    if left:
        found.append(f"{counted(left, 'more ledger')} may be: the records of these were not looked at.")
    return found


def _left(facts: Facts, bookies: Sequence[str]) -> str:
    left = [name for name in facts.writable() if name not in bookies]
    free = sum(one.free_bytes for name, one in facts.cluster.statuses.items() if name in left)
    return f"{counted(len(left), 'bookie')} would still take new entries, with {size_text(free)} free."


def _dangers(found: Sequence[Danger]) -> Markup:
    # The fewest remaining copies first.
    worst = sorted(found, key=lambda one: (0 if one.copies_left is None else one.copies_left, one.ledger_id))
    rows = [
        (
            Text(one.ledger_id, path=address("/ledger", id=one.ledger_id), name=f"danger-{at}"),
            _entries(one),
            "" if one.copies_left is None else f"{one.copies_left}",
            f"{one.ack_quorum}" if one.ack_quorum else "",
            one.why,
        )
        for at, one in enumerate(worst[:_SHOWN])
    ]
    more = Markup('<p class="soft">and {:,} more</p>').format(len(found) - _SHOWN) if len(found) > _SHOWN else ""
    names = ("ledger", "entries", "copies left", "ack quorum", "why")
    return html((Table("answer", columns(*names, numbers=names[2:4], minor=("ack quorum",)), rows), more))


def _entries(one: Danger) -> str:
    if one.first_entry_id is None:
        return ""
    return f"{one.first_entry_id:,} to " + ("the open end" if one.last_entry_id is None else f"{one.last_entry_id:,}")
