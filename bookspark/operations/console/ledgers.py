"""Pages of ledgers: a list, and one ledger with its record and a map of its fragments and bookies.

Law: the list reads only the shown records; the watch supplies the ids. A ledger's page asks its bookies for their held ranges and
reads no entry. No password is shown. ``protocol.repair.audit_plan`` decides which entries a bookie lacks; a silent bookie is
never shown as lacking entries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bookspark.errors import ReadError
from bookspark.operations.console.looks import Look, Looks, unseen
from bookspark.operations.console.pages import command, facts, link, moment, part, table, text
from bookspark.operations.console.telling import answer
from bookspark.operations.console.watch import Seen
from bookspark.operations.why.answers import why_not_closed
from bookspark.operations.why.facts import Facts, LedgerFacts
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.protocol.logs.log_record import LOG_LABEL
from bookspark.protocol.repair.audit_plan import absent
from bookspark.store.client import BookKeeper
from bookspark.store.client.inspection.held_ranges import Ranges, held_ranges
from bookspark.support.plain_text import counted, one_line, size_text

ON_A_PAGE = 50
_FRAGMENTS_SHOWN = 200
_RANGES_TOLD = 3
_CHARACTERS_MAX = 200
_ID_MAX = (1 << 63) - 1
_STATES = {LedgerState.OPEN.value: "good", LedgerState.IN_RECOVERY.value: "busy"}


def ledger_id_of(asked: str) -> int:
    """The typed ledger id. Raises ValueError, with a sentence for the page."""
    if not (asked.isascii() and asked.isdigit() and len(asked) < 20 and int(asked) <= _ID_MAX):
        raise ValueError(f"{asked!r} is no ledger: give its id, a number")
    return int(asked)


# -- the list


def list_content(bookkeeper: BookKeeper, looks: Looks, seen: Seen | None, asked: str) -> str:
    """A list of ledgers as HTML, from id ``asked`` on; "": from the first ledger on."""
    if seen is None:
        return part("ledgers", unseen(Look(None)), "Ledgers")
    if seen.facts.zookeeper_problem:
        return part("ledgers", f'<p class="bad">{text(seen.facts.zookeeper_problem)}</p>', "Ledgers")
    try:
        at = bisect_left(seen.ledgers, ledger_id_of(asked)) if asked else 0
    except ValueError as error:
        return part("ledgers", f'<p class="bad">{text(error)}</p>', "Ledgers")
    ids = seen.ledgers[at : at + ON_A_PAGE]
    form = (
        '<form action="/ledgers" aria-label="Ledgers to show"><label>From ledger '
        f'<input name="from" inputmode="numeric" size="20" value="{text(asked)}"></label><button>Show</button></form>'
    )
    if not ids:
        return form + part("ledgers", f"<p>There is none from there on, of {len(seen.ledgers):,}.</p>", "Ledgers")
    look = looks.of(("ledgers", tuple(ids)), partial(_read, bookkeeper, ids))
    told = unseen(look) if look.found is None else _list(ids, *look.found)
    links = [
        link("/ledgers", "First", "ledgers-first") if at else "",
        link("/ledgers", "Earlier", "ledgers-earlier", **{"from": seen.ledgers[max(0, at - ON_A_PAGE)]}) if at else "",
    ]
    if at + ON_A_PAGE < len(seen.ledgers):
        last = {"from": seen.ledgers[-ON_A_PAGE]}
        links.append(link("/ledgers", "Later", "ledgers-later", **{"from": seen.ledgers[at + ON_A_PAGE]}))
        links.append(link("/ledgers", "Last", "ledgers-last", **last))
    count = f"{at + 1:,} to {at + len(ids):,} of {counted(len(seen.ledgers), 'ledger')}"
    return form + part("ledgers", f'{told}<p class="pages">{count} {" ".join(links)}</p>', "Ledgers")


def _read(bookkeeper: BookKeeper, ids: Sequence[int]) -> tuple[dict[int, LedgerMetadata], dict[int, str]]:
    unreadable: dict[int, str] = {}
    return {one.ledger_id: one for one, _ in bookkeeper.metadata.read_ledgers(ids, unreadable)}, unreadable


def _list(ids: Sequence[int], found: Mapping[int, LedgerMetadata], unreadable: Mapping[int, str]) -> str:
    columns = ("ledger", "state", "last entry", "bytes", "fragments", "quorums", "made", "log")
    return table("ledgers", columns, [_line(one, found.get(one), unreadable) for one in ids], columns[2:5])


def _line(ledger_id: int, metadata: LedgerMetadata | None, unreadable: Mapping[int, str]) -> tuple[str, ...]:
    named = link("/ledger", ledger_id, f"ledger-{ledger_id}", id=ledger_id)
    if metadata is None:
        why = unreadable.get(ledger_id)
        told = '<span class="soft">deleted</span>' if why is None else f'<span class="bad">{text(why)}</span>'
        return named, told, "", "", "", "", "", ""
    return (
        named,
        _state(metadata),
        f"{metadata.last_entry_id:,}" if metadata.closed else "",
        size_text(metadata.length) if metadata.closed else "",
        f"{len(metadata.fragments):,}",
        _quorums(metadata),
        moment(metadata.ctime_ms),
        _log(metadata),
    )


def _state(metadata: LedgerMetadata) -> str:
    return state_text(metadata.state.value)


def state_text(state: str) -> str:
    """The state of a ledger as HTML."""
    return f'<b class="{_STATES.get(state, "")}">{text(state)}</b>'


def _quorums(metadata: LedgerMetadata) -> str:
    return f"{metadata.ensemble_size}/{metadata.write_quorum}/{metadata.ack_quorum}"


def _log(metadata: LedgerMetadata) -> str:
    label = metadata.custom_metadata.get(LOG_LABEL)
    if label is None:
        return ""
    name = label.decode(errors="backslashreplace")
    return link("/log", name, f"log-of-{metadata.ledger_id}", name=name.partition("@")[0])


# -- one ledger


class LedgerSeen(NamedTuple):
    metadata: LedgerMetadata
    held: Mapping[str, Ranges]
    """Held ranges of each answering bookie."""
    limbo: frozenset[str]
    problems: Mapping[str, str]
    """Errors of the other bookies."""


def look_at(bookkeeper: BookKeeper, ledger_id: int) -> LedgerSeen:
    """The ledger's present state. Raises NoSuchLedgerError, UnreadableRecordError, MetadataStoreError."""
    metadata = bookkeeper.get_ledger_metadata(ledger_id)
    registered = bookkeeper.metadata.bookies()
    held: dict[str, Ranges] = {}
    problems: dict[str, str] = {}
    limbo = set()
    for bookie in metadata.bookies():
        if bookie not in registered:
            problems[bookie] = "down"
            continue
        try:
            if bookkeeper.bookie_status(bookie).limbo_ledgers and ledger_id in bookkeeper.list_limbo(bookie):
                limbo.add(bookie)
            held[bookie] = held_ranges(bookkeeper, bookie, ledger_id).get(ledger_id, [])
        except ReadError as error:
            problems[bookie] = one_line(error)
    return LedgerSeen(metadata, held, frozenset(limbo), problems)


def content(ledger_id: int, look: Look[LedgerSeen]) -> str:
    """One ledger as HTML."""
    title = f"Ledger {ledger_id}"
    if look.found is None:
        return part("ledger", unseen(look), title)
    seen = look.found
    follow = ""
    if seen.problems or seen.limbo or any(absent(seen.metadata, bookie, held) for bookie, held in seen.held.items()):
        follow = f"<p>Next: {command(f'bookspark why under-replicated {ledger_id}')}</p>"
    told = part(
        "ledger", facts([*facts_of(seen.metadata), *([("log", log)] if (log := _log(seen.metadata)) else [])]), title
    )
    return told + part("map", map_of(seen) + follow, "Fragments and bookies")


def not_closed(now: Facts, look: Look[LedgerFacts]) -> str:
    """Why a ledger is not closed, as HTML. ``now``: the watch's last facts."""
    told = unseen(look) if look.found is None else f"<ul>{answer(why_not_closed(now, look.found))}</ul>"
    return part("why", told, "Why it is not closed")


def facts_of(metadata: LedgerMetadata) -> Iterator[tuple[str, str]]:
    """Names and values (HTML) of the record's fields, without the ledger's log."""
    yield "state", _state(metadata)
    yield "made", moment(metadata.ctime_ms)
    if metadata.closed:
        yield "last entry", f"{metadata.last_entry_id:,}" if metadata.last_entry_id >= 0 else "it has none"
        yield "bytes", size_text(metadata.length)
    yield "bookies of an ensemble", f"{metadata.ensemble_size}"
    yield "copies of an entry", f"{metadata.write_quorum}, {metadata.ack_quorum} acknowledge"
    yield "type", text(metadata.ledger_type.value)
    yield "digest", text(metadata.digest_type.value)
    yield "replication", text(metadata.replication.value)
    for name, value in sorted(metadata.custom_metadata.items()):
        told = value.decode(errors="backslashreplace")
        yield f"label {name}", text(told[:_CHARACTERS_MAX] + ("…" if len(told) > _CHARACTERS_MAX else ""))
    loss = metadata.accepted_loss
    if loss is not None:
        lost = "; ".join(
            f"{one.kind.value}: entries {one.first} to {one.last} on {', '.join(one.bookies)}" for one in loss.losses
        )
        yield "accepted loss", f'<span class="bad">{moment(loss.at_ms)} by {text(loss.by)}: {text(lost)}</span>'


def map_of(seen: LedgerSeen) -> str:
    """A table with a row for each fragment and a column for each bookie; at most the newest ``_FRAGMENTS_SHOWN`` fragments."""
    metadata = seen.metadata
    bookies = metadata.bookies()
    lacking = {bookie: absent(metadata, bookie, held) for bookie, held in seen.held.items()}
    every = list(metadata.fragment_ranges())
    rows = []
    for fragment, last in every[-_FRAGMENTS_SHOWN:]:
        first = fragment.first_entry_id
        lost = {bookie: list(_within(lacking.get(bookie, ()), first, last)) for bookie in fragment.ensemble}
        good = sum(
            bookie in seen.held and bookie not in seen.limbo and not lost[bookie] for bookie in fragment.ensemble
        )
        kind = "bad" if good < metadata.ack_quorum else "busy" if good < len(fragment.ensemble) else "good"
        cells = (_cell(seen, bookie, lost[bookie], first, last) if bookie in lost else "" for bookie in bookies)
        to = "its open end" if last is None else f"{last:,}"
        # In the open fragment no copy counts as lacking: its end is unknown.
        copies = f'<b class="{kind}">{good} of {len(fragment.ensemble)}</b>{" answer" if last is None else ""}'
        span = f"{first:,} to {to}" if last is None or last >= first else "no entry"
        rows.append((span, copies, *cells))
    left = len(every) - len(rows)
    note = f'<p class="soft">Before them {counted(left, "more fragment")}.</p>' if left else ""
    return table("map", ("entries", "whole copies", *bookies), rows) + note


def _within(ranges: Sequence[tuple[int, int]], first: int, last: int | None) -> Iterator[tuple[int, int]]:
    for low, high in ranges:
        if high >= first and (last is None or low <= last):
            yield max(low, first), high if last is None else min(high, last)


def _cell(seen: LedgerSeen, bookie: str, lost: Sequence[tuple[int, int]], first: int, last: int | None) -> str:
    if bookie not in seen.held:
        return f'<b class="bad">{text(seen.problems.get(bookie, "not known"))}</b>'
    limbo = '<b class="busy">in limbo</b> ' if bookie in seen.limbo else ""
    if lost:
        told = ", ".join(f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in lost[:_RANGES_TOLD])
        more = f" and {counted(len(lost) - _RANGES_TOLD, 'more range')}" if len(lost) > _RANGES_TOLD else ""
        return f'{limbo}<b class="bad">lacks</b> {told}{more}'
    if last is None:
        newest = max((high for _, high in seen.held[bookie] if high >= first), default=None)
        return f"{limbo}{'holds none yet' if newest is None else f'holds up to {newest:,}'}"
    return f'{limbo}<span class="good">whole</span>'
