"""The page that tells what would break if bookies stopped, or all bookies of a host.

Law: ``autorecovery.stopping`` decides, as for ``bookspark bookie safe-to-stop``, by what the metadata store and the other bookies
say now. Nothing is stopped. An answer tells of when it is, and while there is none nothing is told as safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bookspark.autorecovery.stopping import dangers
from bookspark.client import BookKeeper
from bookspark.console.looks import Look, unseen
from bookspark.console.pages import command, link, moment, part, table, text
from bookspark.plain_text import size_text
from bookspark.protocol.repair.stopping import Danger
from bookspark.why.facts import Facts
from bookspark.why.words import counted, named

_SHOWN = 50
"""At most this many dangers have a line."""


def hosts_of(facts: Facts) -> dict[str, list[str]]:
    """The bookies of each host; of those that are down, where they served last, if that is known."""
    found: dict[str, list[str]] = {}
    for name, one in sorted(facts.observed.bookies.items()):
        home = facts.homes.get(name)
        host = one.host or ("" if home is None else home.host)
        if host:
            found.setdefault(host, []).append(name)
    return found


def chosen(facts: Facts, bookies: Iterable[str], hosts: Iterable[str]) -> tuple[str, ...]:
    """The bookies that are asked about. Raises ValueError, with a sentence, if the cluster does not know one."""
    known, found = hosts_of(facts), set(bookies)
    for host in hosts:
        if host not in known:
            raise ValueError(f"no bookie is known at host {host!r}")
        found.update(known[host])
    if unknown := sorted(found - facts.observed.bookies.keys()):
        raise ValueError(f"no bookie {unknown[0]!r} is known")
    return tuple(sorted(found))


def look_at(bookkeeper: BookKeeper, bookies: Sequence[str]) -> list[Danger]:
    """What would break. Raises ConfigurationError and MetadataStoreError."""
    return dangers(bookkeeper, bookies)


def form(facts: Facts, bookies: Iterable[str], hosts: Iterable[str]) -> str:
    """The form that asks. It is no live part, so nobody's choice is replaced."""
    at_hosts = {host: f"{host} ({named('bookie', there)})" for host, there in hosts_of(facts).items()}
    names = {name: name for name in sorted(facts.observed.bookies)}
    boxes = _boxes("Hosts", "host", at_hosts, hosts) + _boxes("Bookies", "bookie", names, bookies)
    return (
        '<h1>What if these stop?</h1><form action="/what-if" aria-label="What stops">'
        f"{boxes}<button>Tell me</button></form>"
    )


def _boxes(legend: str, field: str, words: dict[str, str], marked: Iterable[str]) -> str:
    there = set(marked)
    boxes = "".join(
        f'<label><input type="checkbox" name="{field}" value="{text(value)}"{" checked" if value in there else ""}> '
        f"{text(told)}</label>"
        for value, told in words.items()
    )
    return f"<fieldset><legend>{legend}</legend>{boxes}</fieldset>" if boxes else ""


def content(facts: Facts, bookies: Sequence[str], look: Look[list[Danger]]) -> str:
    """What would break without ``bookies``, as HTML."""
    if look.found is None:
        return part("answer", unseen(look), "The answer")
    found = look.found
    who = named("bookie", bookies)
    follow = f"<p>The same at a terminal: {command('bookspark bookie safe-to-stop ' + ' '.join(bookies))}</p>"
    if found:
        ledgers = len({one.ledger_id for one in found})
        gone = len({one.ledger_id for one in found if one.copies_left == 0})
        lost = f"<p>Entries of {counted(gone, 'ledger')} could not be read at all meanwhile.</p>" if gone else ""
        head = f"<h3>Not safe: without {text(who)}, {counted(ledgers, 'ledger')} would be at risk.</h3>{lost}"
        told = _dangers(found)
    else:
        head = f"<h3>Safe: without {text(who)} every entry keeps an ack quorum, and every open ledger can be recovered.</h3>"
        told = ""
    when = f"<p>By what was told from {moment(look.at_ms)} on.</p>"
    kind = "bad" if found else "good"
    banner = f'<div class="banner {kind}" role="status">{head}{_left(facts, bookies)}{when}</div>'
    return part("answer", f"{banner}{told}{follow}", "The answer")


def _left(facts: Facts, bookies: Sequence[str]) -> str:
    left = [name for name in facts.writable() if name not in bookies]
    free = sum(one.free_bytes for name, one in facts.statuses.items() if name in left)
    return f"<p>{counted(len(left), 'bookie')} would still take new entries, with {size_text(free)} free.</p>"


def _dangers(found: Sequence[Danger]) -> str:
    # Those of which the fewest copies are left come first.
    worst = sorted(found, key=lambda one: (0 if one.copies_left is None else one.copies_left, one.ledger_id))
    rows = [
        (
            link("/ledger", one.ledger_id, f"danger-{at}", id=one.ledger_id),
            _entries(one),
            "" if one.copies_left is None else f"{one.copies_left}",
            f"{one.ack_quorum}" if one.ack_quorum else "",
            text(one.why),
        )
        for at, one in enumerate(worst[:_SHOWN])
    ]
    more = f'<p class="soft">and {len(found) - _SHOWN:,} more</p>' if len(found) > _SHOWN else ""
    columns = ("ledger", "entries", "copies left", "ack quorum", "why")
    return table("answer", columns, rows, columns[2:4]) + more


def _entries(one: Danger) -> str:
    if one.first_entry_id is None:
        return ""
    return f"{one.first_entry_id:,} to " + ("the open end" if one.last_entry_id is None else f"{one.last_entry_id:,}")
