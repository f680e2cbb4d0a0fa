"""Pages of ledgers: a list, and one ledger with its record and a map of its fragments and bookies.

Law: the list reads only the shown records; the watch supplies the ids. A ledger's page asks its bookies for their held ranges and
reads no entry. No password is shown. ``protocol.repair.audit_plan`` decides which entries a bookie lacks; a silent bookie is
never shown as lacking entries.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from bookspark.errors import ReadError
from bookspark.operations.console.looks import UNDER_WAY, Look, Looks, unseen
from bookspark.operations.console.pages import (
    Cell,
    Command,
    Markup,
    Pairs,
    Table,
    Text,
    Time,
    address,
    answers,
    columns,
    part,
    render,
)
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


def list_content(bookkeeper: BookKeeper, looks: Looks, seen: Seen | None, asked: str) -> Markup:
    """A list of ledgers, from id ``asked`` on; "": from the first ledger on."""
    if seen is None:
        return part("ledgers", unseen(UNDER_WAY))
    if seen.facts.zookeeper_problem:
        return part("ledgers", Text(seen.facts.zookeeper_problem, "bad"))
    form = from_form("/ledgers", asked)
    try:
        at = bisect_left(seen.ledgers, ledger_id_of(asked)) if asked else 0
    except ValueError as error:
        return form + part("ledgers", Text(error, "bad"))
    ids = seen.ledgers[at : at + ON_A_PAGE]
    if not ids:
        return form + part("ledgers", f"There is none from there on, of {len(seen.ledgers):,}.")
    look = looks.of(("ledgers", tuple(ids)), partial(_read, bookkeeper, ids))
    told = unseen(look) if look.found is None else _list(ids, *look.found)
    links = [
        Text("First", path="/ledgers", name="ledgers-first") if at else "",
        _way("Earlier", seen.ledgers[max(0, at - ON_A_PAGE)]) if at else "",
    ]
    if at + ON_A_PAGE < len(seen.ledgers):
        links += [_way("Later", seen.ledgers[at + ON_A_PAGE]), _way("Last", seen.ledgers[-ON_A_PAGE])]
    count = f"{at + 1:,} to {at + len(ids):,} of {counted(len(seen.ledgers), 'ledger')}"
    return form + part("ledgers", (told, render("more.html", count=count, links=links)))


def from_form(path: str, asked: str, hidden: Mapping[str, object] = MappingProxyType({})) -> Markup:
    """The form for the first ledger of a list. ``hidden``: other fields of the query."""
    return render("from.html", path=path, asked=asked, hidden=hidden)


def _way(words: str, first: int) -> Text:
    return Text(words, path=address("/ledgers", **{"from": first}), name=f"ledgers-{words.lower()}")


def _read(bookkeeper: BookKeeper, ids: Sequence[int]) -> tuple[dict[int, LedgerMetadata], dict[int, str]]:
    unreadable: dict[int, str] = {}
    return {one.ledger_id: one for one, _ in bookkeeper.metadata.read_ledgers(ids, unreadable)}, unreadable


LIST_COLUMNS = columns(
    *("ledger", "state", "last entry", "bytes", "fragments", "quorums", "made", "log"),
    numbers=("last entry", "bytes", "fragments"),
    minor=("last entry", "fragments", "quorums", "made"),
)


def _list(ids: Sequence[int], found: Mapping[int, LedgerMetadata], unreadable: Mapping[int, str]) -> Table:
    return Table("ledgers", LIST_COLUMNS, [_line(one, found.get(one), unreadable) for one in ids])


def _line(ledger_id: int, metadata: LedgerMetadata | None, unreadable: Mapping[int, str]) -> tuple[object, ...]:
    named = Text(ledger_id, path=address("/ledger", id=ledger_id), name=f"ledger-{ledger_id}")
    if metadata is None:
        why = unreadable.get(ledger_id)
        told = Text("deleted", "soft") if why is None else Text(why, "bad")
        return named, told, "", "", "", "", "", ""
    closed = metadata.closed
    return (
        named,
        _state(metadata),
        Cell(f"{metadata.last_entry_id:,}", metadata.last_entry_id) if closed else "",
        Cell(size_text(metadata.length), metadata.length) if closed else "",
        f"{len(metadata.fragments):,}",
        quorums(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum),
        Cell(Time(metadata.ctime_ms), metadata.ctime_ms),
        _log(metadata) or "",
    )


def _state(metadata: LedgerMetadata) -> Text:
    return state_text(metadata.state.value)


def state_text(state: str) -> Text:
    """The state of a ledger."""
    return Text(state, _STATES.get(state, "soft"))


def quorums(ensemble: int, write: int, ack: int) -> Text:
    """The sizes of a ledger's quorums."""
    title = f"{counted(ensemble, 'bookie')} of an ensemble, {write} copies of an entry, {ack} acknowledge"
    return Text(f"{ensemble}/{write}/{ack}", title=title)


def _log(metadata: LedgerMetadata) -> Text | None:
    label = metadata.custom_metadata.get(LOG_LABEL)
    if label is None:
        return None
    name = label.decode(errors="backslashreplace")
    return Text(name, path=address("/log", name=name.partition("@")[0]), name=f"log-of-{metadata.ledger_id}")


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


def content(ledger_id: int, look: Look[LedgerSeen]) -> Markup:
    """One ledger."""
    if look.found is None:
        return part("ledger", unseen(look))
    seen = look.found
    follow: object = ""
    lacking = seen.problems or seen.limbo or seen.metadata.lacks_copies
    if lacking or any(absent(seen.metadata, bookie, held) for bookie, held in seen.held.items()):
        follow = ("Next: ", Command(f"bookspark why under-replicated {ledger_id}"))
    log = _log(seen.metadata)
    told = [*facts_of(seen.metadata), *([("log", log)] if log is not None else [])]
    return part("ledger", Pairs(told)) + part("map", (map_of(seen), follow), "Fragments and bookies")


def not_closed(now: Facts, look: Look[LedgerFacts]) -> Markup:
    """Why a ledger is not closed. ``now``: the watch's last facts."""
    told = unseen(look) if look.found is None else answers([why_not_closed(now, look.found)])
    return part("why", told, "Why it is not closed")


def facts_of(metadata: LedgerMetadata) -> Iterator[tuple[str, object]]:
    """Names and values of the record's fields, without the ledger's log."""
    yield "state", _state(metadata)
    yield "made", Time(metadata.ctime_ms)
    if metadata.closed:
        yield "last entry", f"{metadata.last_entry_id:,}" if metadata.last_entry_id >= 0 else "it has none"
        yield "bytes", size_text(metadata.length)
    yield "bookies of an ensemble", f"{metadata.ensemble_size}"
    wanted = f" of {metadata.copies_wanted}" if _few(metadata) else ""
    yield "copies of an entry", f"{metadata.write_quorum}{wanted}, {metadata.ack_quorum} acknowledge"
    yield "type", metadata.ledger_type.value
    yield "digest", metadata.digest_type.value
    yield "replication", metadata.replication.value
    for name, value in sorted(metadata.custom_metadata.items()):
        told = value.decode(errors="backslashreplace")
        yield f"label {name}", told[:_CHARACTERS_MAX] + ("…" if len(told) > _CHARACTERS_MAX else "")
    loss = metadata.accepted_loss
    if loss is not None:
        lost = "; ".join(
            f"{one.kind.value}: entries {one.first} to {one.last} on {', '.join(one.bookies)}" for one in loss.losses
        )
        yield "accepted loss", Text((Time(loss.at_ms), f" by {loss.by}: {lost}"), "bad")


def _few(metadata: LedgerMetadata) -> int:
    """Copies that each entry lacks because the ledger was made over fewer bookies."""
    return metadata.copies_wanted - metadata.write_quorum if metadata.accepted_loss is None else 0


def map_of(seen: LedgerSeen) -> object:
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
        wanted = len(fragment.ensemble) + _few(metadata)
        kind = "bad" if good < metadata.ack_quorum else "busy" if good < wanted else "good"
        cells = (_cell(seen, bookie, lost[bookie], first, last) if bookie in lost else "" for bookie in bookies)
        to = "its open end" if last is None else f"{last:,}"
        # In the open fragment no copy counts as lacking: its end is unknown.
        copies = (Text(f"{good} of {wanted}", kind), " answer" if last is None else "")
        span = f"{first:,} to {to}" if last is None or last >= first else "no entry"
        rows.append((Cell(span, first), Cell(copies, good), *cells))
    left = len(every) - len(rows)
    note = Markup('<p class="soft">Before them {}.</p>').format(counted(left, "more fragment")) if left else ""
    return Table("map", columns("entries", "whole copies", *bookies), rows), note


def _within(ranges: Sequence[tuple[int, int]], first: int, last: int | None) -> Iterator[tuple[int, int]]:
    for low, high in ranges:
        if high >= first and (last is None or low <= last):
            yield max(low, first), high if last is None else min(high, last)


def _cell(seen: LedgerSeen, bookie: str, lost: Sequence[tuple[int, int]], first: int, last: int | None) -> object:
    if bookie not in seen.held:
        return Text(seen.problems.get(bookie, "not known"), "bad")
    limbo = (Text("in limbo", "busy"), " ") if bookie in seen.limbo else ""
    if lost:
        told = ", ".join(f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in lost[:_RANGES_TOLD])
        more = f" and {counted(len(lost) - _RANGES_TOLD, 'more range')}" if len(lost) > _RANGES_TOLD else ""
        return limbo, Text("lacks", "bad"), f" {told}{more}"
    if last is None:
        newest = max((high for _, high in seen.held[bookie] if high >= first), default=None)
        return limbo, "holds none yet" if newest is None else f"holds up to {newest:,}"
    return limbo, Text("whole", "good")
