"""Changes between two snapshots: ledgers, bookies, replication, bytes, logs.

Law: all ledger ids are compared, as Arrow arrays; a few of each kind are named. A ledger created and deleted in between is in
neither snapshot and is not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bookspark.operations.console.looks import Look, unseen
from bookspark.operations.console.pages import Cell, Markup, Pairs, Table, Text, columns, html, part
from bookspark.operations.console.past.deltas import Deltas
from bookspark.operations.console.past.ledgers import ledger_link
from bookspark.operations.console.past.moments import Chosen, moment_of
from bookspark.operations.console.past.overview import enabled_of, sizes_of
from bookspark.support.plain_text import counted, size_text
from bookspark.support.snapshot_commits import Snapshot

if TYPE_CHECKING:
    import pyarrow

NAMED = 10
_LOGS_SHOWN = 20
_CLOSED = "CLOSED"


class Some(NamedTuple):
    """Number of ledgers, and the lowest ids."""

    ledgers: int
    first: tuple[int, ...]


class Moved(NamedTuple):
    """The changes of one bookie."""

    bookie: str
    words: tuple[tuple[str, str], ...]
    """Predicates, each with its CSS class."""


class Changed(NamedTuple):
    """The changes from one snapshot to a later one."""

    made: Some
    closed: Some
    deleted: Some
    bookies: tuple[Moved, ...]
    sizes: tuple[tuple[str, int, int, int], ...]
    """Growth of each bookie: name, bytes, live bytes, entries."""
    reported: int
    """Ledgers with a new task of autorecovery."""
    repaired: int
    """Ledgers whose task is gone."""
    waiting: tuple[int, int]
    """Ledgers with a task, in the earlier and the later snapshot."""
    enabled: tuple[bool | None, bool | None]
    """Autorecovery in the earlier and the later snapshot; None: not known."""
    logs: tuple[tuple[str, int | None, int | None], ...]
    """Lanes with the largest changes: name, earlier and later rows; None: no such lane, or unreadable commits."""
    logs_changed: int


def look_at(deltas: Deltas, before: Snapshot, then: Snapshot) -> Changed:
    """The changes. Raises ReadError."""
    ids_before, ids_then = deltas.every_id(before), deltas.every_id(then)
    open_before, open_then = (_column(deltas, one, "ledgers", _still_open()) for one in (before, then))
    tasks_before, tasks_then = (_column(deltas, one, "underreplication", None).unique() for one in (before, then))
    sizes_before, sizes_then = sizes_of(deltas, before), sizes_of(deltas, then)
    sizes = [
        (name, new.size - old.size, new.live - old.live, new.entries - old.entries)
        for name, new in sorted(sizes_then.items())
        if (old := sizes_before.get(name)) is not None
    ]
    logs = _logs(deltas, before, then)
    return Changed(
        _some(_without(ids_then, ids_before)),
        _some(_without(_both(open_before, ids_then), open_then)),
        _some(_without(ids_before, ids_then)),
        tuple(_moved(deltas, before, then)),
        tuple((name, size, live, entries) for name, size, live, entries in sizes if size or live or entries),
        len(_without(tasks_then, tasks_before)),
        len(_without(tasks_before, tasks_then)),
        (len(tasks_before), len(tasks_then)),
        (enabled_of(deltas, before), enabled_of(deltas, then)),
        tuple(logs[:_LOGS_SHOWN]),
        len(logs),
    )


def _still_open() -> Any:
    from pyarrow.dataset import field

    return field("state") != _CLOSED


def _column(deltas: Deltas, snapshot: Snapshot, name: str, where: Any) -> pyarrow.Array:
    return deltas.read(snapshot, name, ("ledger_id",), where)["ledger_id"].combine_chunks()


def _both(these: pyarrow.Array, those: pyarrow.Array) -> pyarrow.Array:
    import pyarrow.compute as pc

    return these.filter(pc.is_in(these, value_set=those))


def _without(these: pyarrow.Array, those: pyarrow.Array) -> pyarrow.Array:
    import pyarrow.compute as pc

    return these.filter(pc.invert(pc.is_in(these, value_set=those)))


def _some(ids: pyarrow.Array) -> Some:
    import pyarrow.compute as pc

    return Some(len(ids), tuple(ids.take(pc.array_sort_indices(ids)[:NAMED]).to_pylist()))


def _moved(deltas: Deltas, before: Snapshot, then: Snapshot) -> Iterator[Moved]:
    columns = ("bookie_id", "state", "host")
    old, new = (
        {one["bookie_id"]: one for one in deltas.rows(snapshot, "bookies", columns)} for snapshot in (before, then)
    )
    for name in sorted(old.keys() | new.keys()):
        words = tuple(_words(old.get(name), new.get(name)))
        if words:
            yield Moved(name, words)


def _words(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if new is None:
        yield "is gone: its cookie was removed", ""
    elif old is None:
        yield f"came, and is {new['state'].replace('_', '-')}", "good"
    else:
        if old["state"] != new["state"]:
            told = {"down": ("went down", "bad"), "read_only": ("became read-only", "busy")}
            back = "came back" if old["state"] == "down" else "became writable again"
            yield told.get(new["state"], (back, "good"))
        if old["host"] and new["host"] and old["host"] != new["host"]:
            yield f"moved from {old['host']} to {new['host']}", ""


def _logs(deltas: Deltas, before: Snapshot, then: Snapshot) -> list[tuple[str, int | None, int | None]]:
    import pyarrow.compute as pc

    columns = ("log", "rows")
    old, new = (deltas.read(snapshot, "logs", columns) for snapshot in (before, then))
    both = old.rename_columns(["log", "before"]).join(
        new.rename_columns(["log", "then"]), "log", join_type="full outer"
    )
    known = pc.and_(pc.is_valid(both["before"]), pc.is_valid(both["then"]))
    same = pc.or_(
        pc.and_(known, pc.fill_null(pc.equal(both["before"], both["then"]), False)),
        # Lanes with unreadable commits in both snapshots.
        pc.and_(
            pc.is_in(both["log"], value_set=old["log"].combine_chunks()),
            pc.and_(pc.is_null(both["before"]), pc.is_null(both["then"])),
        ),
    )
    changed = both.filter(pc.invert(same))
    grown = pc.abs(pc.subtract(pc.fill_null(changed["then"], 0), pc.fill_null(changed["before"], 0)))
    found = changed.append_column("grown", grown).sort_by([("grown", "descending"), ("log", "ascending")])
    return [(one["log"], one["before"], one["then"]) for one in found.select(["log", "before", "then"]).to_pylist()]


def content(now: Chosen, look: Look[Changed]) -> Markup:
    found = look.found
    if found is None or now.since is None:
        return part("changes", unseen(look), "Changes")
    before = Chosen(now.since, None)
    title = ("Since ", moment_of(now.since), f" (snapshot {now.since.version})")
    told = (title, Pairs(list(_facts(now, before, found))), _sizes(found.sizes), _lanes(found))
    return part("changes", told, "Changes", still=True)


def _facts(now: Chosen, before: Chosen, found: Changed) -> Iterator[tuple[str, object]]:
    yield "ledgers made", _ledgers(now, "made", found.made)
    yield "ledgers closed", _ledgers(now, "closed", found.closed)
    yield "ledgers deleted", _ledgers(before, "deleted", found.deleted)
    moved = [
        (f"{one.bookie} ", _joined([Text(words, kind) for words, kind in one.words], ", ")) for one in found.bookies
    ]
    yield "bookies", _joined(moved, "; ") if moved else "none came, went or changed its state"
    old, new = found.waiting
    told = f"{counted(new, 'ledger')} waited for a repair, {old:,} before"
    if found.reported or found.repaired:
        told += f": {found.reported:,} were reported, {found.repaired:,} are done or deleted"
    yield "replication", told
    if found.enabled[0] != found.enabled[1] and None not in found.enabled:
        kind, words = ("good", "was enabled") if found.enabled[1] else ("bad", "was disabled")
        yield "autorecovery", Text(words, kind)
    yield "bytes of logs", _signed(sum(size for _, size, _, _ in found.sizes))


def _joined(values: Iterable[object], between: str) -> Markup:
    return Markup(between).join(map(html, values))


def _ledgers(at: Chosen, kind: str, some: Some) -> object:
    links = _joined([ledger_link(at, one, f"{kind}-{one}") for one in some.first], ", ")
    more = f" and {some.ledgers - len(some.first):,} more" if some.ledgers > len(some.first) else ""
    return f"{some.ledgers:,}", ": " if some.first else "", links, more


def _signed(size: int) -> str:
    return f"{'−' if size < 0 else '+'}{size_text(abs(size))}" if size else "the same"


def _sizes(sizes: Sequence[tuple[str, int, int, int]]) -> object:
    if not sizes:
        return ""
    names = ("bookie", "bytes of logs", "live bytes", "entries")
    rows = [
        (name, Cell(_signed(size), size), Cell(_signed(live), live), Cell(f"{entries:+,}", entries))
        for name, size, live, entries in sizes
    ]
    shape = columns(*names, numbers=names[1:], minor=("live bytes",))
    return Markup("<h3>On the bookies</h3>"), Table("sizes", shape, rows)


def _lanes(found: Changed) -> object:
    if not found.logs:
        return ""
    names = ("log or lane", "rows before", "rows then", "more")
    rows = [
        (
            name,
            "" if before is None else f"{before:,}",
            "" if then is None else f"{then:,}",
            Cell(f"{(then or 0) - (before or 0):+,}", (then or 0) - (before or 0)),
        )
        for name, before, then in found.logs
    ]
    more = found.logs_changed - len(rows)
    note = Markup('<p class="soft">and {}</p>').format(counted(more, "more lane")) if more else ""
    shape = columns(*names, numbers=names[1:], minor=("rows before",))
    return Markup("<h3>Logs</h3>"), Table("lanes", shape, rows), note
