"""Routing of the pages of the past, and their looks.

Law: that of the package. A page whose look takes too long says that the look is under way, and fills itself later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from bookspark.operations.console.looks import Look, Looks, Patience, unseen
from bookspark.operations.console.pages import Command, Markup, Text, part
from bookspark.operations.console.past import changes, ledgers, logs, moments, overview
from bookspark.operations.console.past.deltas import Deltas
from bookspark.support.snapshot_commits import Snapshot

Found = TypeVar("Found")

WITHOUT = (
    "The console was started without --snapshots, so it knows no past. ",
    Command("bookspark snapshot --path PATH"),
    " takes a snapshot; ",
    Command("bookspark console --snapshots PATH"),
    " shows what was.",
)
"""Words of a console without snapshots."""


class Past:
    """The pages of the past, until ``close``. Thread-safe."""

    def __init__(self, path: str, cluster: str) -> None:
        """``path``: directory or URI of the snapshots; ``cluster``: the console's live cluster. Raises MissingExtraError if the
        Delta reader is not installed."""
        self._deltas, self._cluster = Deltas(path), cluster
        self._looks = Looks("console-past", 1)

    def close(self) -> None:
        self._looks.close()

    def content(self, path: str, query: Mapping[str, str]) -> Markup:
        """The page ``path``, one of VIEWS."""
        patience = Patience()
        found = self._looks.of("snapshots", self._deltas.snapshots, patience.left)
        if found.found is None:
            return part("time", unseen(found), "Snapshots")
        try:
            now = moments.chosen(found.found, query)
        except ValueError as error:
            return part("time", Text(error, "bad"), "Snapshots", still=True)
        hidden = {name: query[name] for name in ("id", "from", "after") if query.get(name)}
        form = moments.form(found.found, now, path, hidden)
        head = moments.head(now, path, self._cluster)
        return form + head + VIEWS[path](self, now, query, patience)

    def _cluster_then(self, now: moments.Chosen, query: Mapping[str, str], patience: Patience) -> Markup:
        then = self._look("cluster", now.at, partial(overview.look_at, self._deltas, now.at), patience)
        told = overview.content(now.at, then, self._deltas.path)
        if now.since is None:
            return told + part("changes", "There is no earlier snapshot to compare it with.", "Changes", still=True)
        compare = partial(changes.look_at, self._deltas, now.since, now.at)
        changed = self._looks.of(
            ("changes", now.since.snapshot_id, now.at.snapshot_id), compare, patience.left, lasting=True
        )
        return changes.content(now, changed) + told

    def _ledgers_then(self, now: moments.Chosen, query: Mapping[str, str], patience: Patience) -> Markup:
        try:
            first = ledgers.first_of(query.get("from", "").strip())
        except ValueError as error:
            return ledgers.form(now, query.get("from", "")) + part("ledgers", str(error), "Ledgers", still=True)
        look = self._look(("ledgers", first), now.at, partial(ledgers.list_at, self._deltas, now.at, first), patience)
        return ledgers.form(now, query.get("from", "")) + ledgers.list_content(now, look)

    def _ledger_then(self, now: moments.Chosen, query: Mapping[str, str], patience: Patience) -> Markup:
        try:
            ledger_id = ledgers.ledger_id_of(query.get("id", ""))
        except ValueError as error:
            return part("ledger", str(error), "Ledger", still=True)
        look = self._look(
            ("ledger", ledger_id), now.at, partial(ledgers.look_at, self._deltas, now.at, ledger_id), patience
        )
        return ledgers.content(ledger_id, look)

    def _logs_then(self, now: moments.Chosen, query: Mapping[str, str], patience: Patience) -> Markup:
        after = query.get("after", "")
        look = self._look(("logs", after), now.at, partial(logs.look_at, self._deltas, now.at, after), patience)
        return logs.content(now, after, look)

    def _look(self, what: object, at: Snapshot, look: Callable[[], Found], patience: Patience) -> Look[Found]:
        return self._looks.of((what, at.snapshot_id), look, patience.left, lasting=True)


VIEWS: Mapping[str, Callable[[Past, moments.Chosen, Mapping[str, str], Patience], Markup]] = {
    "/time": Past._cluster_then,
    "/time/ledgers": Past._ledgers_then,
    moments.LEDGER: Past._ledger_then,
    "/time/logs": Past._logs_then,
}
