"""Viewer of a log's rows: some rows of a lane, from a position or a time, as text, JSON or columns.

Law: rows need ``--show-rows``. A page reads at most ``ROWS_MAX`` rows and about ``_BYTES_MAX`` bytes, also after their inflation,
and shows at most ``_CHARACTERS_MAX`` characters of each value. An invalid row is shown as its error. Reads never fence, and do
not count for ``bookspark log readers``.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from bookspark.errors import InvalidRowError
from bookspark.logs import LogRegistry
from bookspark.logs.chain.log_run import lane_of_ledger
from bookspark.logs.feeds.lane_feed import LaneFeed
from bookspark.logs.feeds.lost_rows import PassedOver
from bookspark.logs.feeds.times import RowTimes, time_ms
from bookspark.operations.console.looks import Look, unseen
from bookspark.operations.console.pages import Markup, Plain, Table, Text, Time, address, columns, part, render
from bookspark.store.client import BookKeeper

if TYPE_CHECKING:
    from bookspark.logs.rows.encodings import RowDecoder
    from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata

ROWS_MAX = 50
_BYTES_MAX = 4 << 20
_CHARACTERS_MAX = 2000
_POSITION_MAX = (1 << 63) - 1


class Wanted(NamedTuple):
    """The request for rows."""

    lane: str
    first: int | None = None
    """The first row; None: by ``since_ms``, else the newest rows."""
    since_ms: int | None = None
    """Begin with the rows of this time, in ms since 1970."""


class RowsSeen(NamedTuple):
    """Some rows of a lane."""

    first: int
    """The first requested row that still exists."""
    next: int
    newest: int
    """The lane's number of rows."""
    rows: tuple[tuple[int, int, Mapping[str, Any]], ...]
    """Position, time in ms since 1970, and values by column."""


def wanted(query: Mapping[str, str], lane: str) -> Wanted:
    """The request of a form. ``lane``: the default. Raises ValueError, with a sentence for the page."""
    lane, row, since = query.get("lane", "") or lane, query.get("row", "").strip(), query.get("since", "").strip()
    if row:
        if not (row.isascii() and row.isdigit() and int(row) <= _POSITION_MAX):
            raise ValueError(f"{row!r} is no row: give a number, 0 or more")
        return Wanted(lane, first=int(row))
    try:
        return Wanted(lane, since_ms=time_ms(since) if since else None)
    except ValueError as error:
        raise ValueError(
            f"{since!r} is no time ({error}): give ISO 8601 with an offset, like 2026-11-22T14:05:00+01:00"
        ) from None


def look_at(bookkeeper: BookKeeper, asked: Wanted) -> RowsSeen:
    """The requested rows. Raises NoSuchLogError, UnauthorizedAccessError (the log has a password), ReadError,
    MetadataStoreError, MissingExtraError."""
    from bookspark.spark.connector.source import VALUE_SCHEMA
    from bookspark.spark.offload.offloaded import rows_of
    from bookspark.spark.offload.opened_ledgers import OpenedLedgers
    from bookspark.spark.rows.row_format import columns_of
    from bookspark.spark.rows.rows import row_decoder

    registry, gone = LogRegistry(bookkeeper.metadata), PassedOver(fail=False)
    gone.told_elsewhere = True
    feed = LaneFeed(bookkeeper, asked.lane, b"", gone, with_times=True)
    columns, newest = columns_of(feed.record.options), feed.newest()
    first = max(0, newest - ROWS_MAX) if asked.first is None else asked.first
    if asked.since_ms is not None:
        first = feed.row_at(asked.since_ms)
    first = min(newest, max(first, feed.record.first_position))
    end = feed.limited(first, newest, ROWS_MAX, _BYTES_MAX)
    pieces = [piece for piece, _ in feed.pieces(first, end)]
    positions = [piece.position + at for piece in pieces for at in range(piece.rows)]
    times = list(RowTimes(pieces).each())

    def decoder(metadata: LedgerMetadata) -> RowDecoder:
        return row_decoder(metadata, columns, lambda: registry.get(lane_of_ledger(metadata)).dictionary)

    schema, found, size = columns or VALUE_SCHEMA, list[Mapping[str, Any]](), 0
    ledgers, left = OpenedLedgers(bookkeeper, b"", decoder), deque(pieces)
    while left and size <= _BYTES_MAX:
        piece, before = left[0], len(found)
        try:
            for batch in rows_of(ledgers, feed.lane, left, schema):
                found += batch.to_pylist()
                size += batch.nbytes
                if size > _BYTES_MAX:
                    break
        except InvalidRowError as error:
            rest = piece.part(len(found) - before, piece.rows)
            invalid = min(rest.rows, rest.rows_each - rest.skip)
            found += [{**dict.fromkeys(schema.names), schema.names[0]: str(error)}] * invalid
            if invalid < rest.rows:
                left.appendleft(rest.part(invalid, rest.rows))
    count = len(found)
    following = positions[count] if count < len(positions) else end
    return RowsSeen(first, following, newest, tuple(zip(positions[:count], times[:count], found, strict=True)))


FORMS = ("auto", "text", "json", "columns")
"""Forms of a row: ``auto`` is columns for a row of several, else JSON if it is that, else text."""


def content(asked: Wanted, log: str, form: str, look: Look[RowsSeen]) -> Markup:
    """The rows. ``form``: one of FORMS."""
    seen = look.found
    if seen is None:
        return part("rows", unseen(look), "Rows")
    where = {"name": log, "lane": asked.lane, "as": form}
    links = [
        _way("Earlier", **where, row=max(0, seen.first - ROWS_MAX)) if seen.first else "",
        _way("Later", **where, row=seen.next) if seen.next < seen.newest else "",
        _way("Newest", **where),
    ]
    if not seen.rows:
        told = f"{asked.lane} has no rows there: it has {seen.newest:,}."
        return part("rows", (told, render("more.html", count="", links=links)), "Rows")
    names = list(seen.rows[0][2])
    apart = form == "columns" or (form == "auto" and names != ["value"])
    rows = [
        (f"{position:,}", Time(at), *([_shown(row[name]) for name in names] if apart else [_shown(_whole(row, form))]))
        for position, at, row in seen.rows
    ]
    head = Markup("<p>Rows {:,} to {:,} of {}, which has {:,}</p>").format(
        seen.rows[0][0], seen.next - 1, asked.lane, seen.newest
    )
    shown = Table("rows", columns("position", "time", *(names if apart else ["row"]), minor=("time",)), rows)
    return part("rows", (head, shown, render("more.html", count="", links=links)), "Rows")


def _way(words: str, **query: object) -> Text:
    return Text(words, path=address("/log", **query), name=f"rows-{words.lower()}")


def _whole(row: Mapping[str, Any], form: str) -> Any:
    """A row as one value: the value itself if that is the only column."""
    value = row["value"] if list(row) == ["value"] else row
    if form in ("json", "auto") and isinstance(value, bytes):
        with suppress(ValueError, RecursionError):
            found = json.loads(value)
            # A number or a word is shown as it was written.
            return found if form == "json" or isinstance(found, dict | list) else value
    return value


def _shown(value: Any) -> Plain:
    if isinstance(value, Mapping | list):
        try:
            told = json.dumps(value, default=_plain, ensure_ascii=False, indent=2)
        except RecursionError:
            told = "nested too deep to be shown as JSON: choose text"
    else:
        told = str(_plain(value))
    return Plain(told[:_CHARACTERS_MAX], max(0, len(told) - _CHARACTERS_MAX))


def _plain(value: Any) -> str:
    """Bytes as UTF-8 text, else as hexadecimal digits; other values as text."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"0x{value.hex()}"
    return "null" if value is None else str(value)


def form(log: str, lanes: Sequence[str], query: Mapping[str, str], lane: str) -> Markup:
    """The form for rows. ``lane``: the lane that is shown. No live part, so updates do not replace the input."""
    return render("rows.html", log=log, lanes=lanes, forms=FORMS, query=query, lane=lane)
