"""Made-up cluster facts, and a check of the command lines that answers name."""

from __future__ import annotations

import functools
import shlex
from typing import Any

import typer

from bookspark.operations.cli.main import command_line
from bookspark.operations.why.facts import Answer, Facts
from bookspark.protocol.changes.observed import Fragments, Observed, ObservedBookie, Placed
from bookspark.store.autorecovery.status import AutorecoveryStatus
from bookspark.store.cluster_view import BookieView, ClusterView
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.wire.messages import BookieStatus

NOW_MS = 1_800_000_000_000


def status(name: str, **fields: Any) -> BookieStatus:
    given = {
        "incarnation": 1,
        "pid": 1,
        "directories": ["/d"],
        "ledgers": 1,
        "log_bytes": 1,
        "free_bytes": 1,
        "version": "1",
    }
    return BookieStatus(bookie_id=name, **{**given, **fields})


def autorecovery(**fields: Any) -> AutorecoveryStatus:
    given: dict[str, Any] = {
        "auditor": "host:1",
        "enabled": True,
        "checking": False,
        "lost": (),
        "away": {},
        "last_check": None,
        "workers": {},
        "ledgers": 0,
        "being_repaired": 0,
        "failed": 0,
        "missed": {},
        "unreadable": {},
        "bytes_left": 0,
        "bytes_per_second": None,
        "seconds_left": 0.0,
    }
    return AutorecoveryStatus(**{**given, **fields})


def facts(
    bookies: dict[str, dict[str, Any]] | None = None,
    fragments: tuple[Placed, ...] = (),
    statuses: dict[str, BookieStatus] | None = None,
    **fields: Any,
) -> Facts:
    """Facts of three healthy bookies a, b and c, changed by the arguments."""
    seen = {name: ObservedBookie(name, host=f"host-{name}", **(bookies or {}).get(name, {})) for name in "abc"}
    problems, homes = fields.pop("bookie_problems", {}), fields.pop("homes", {})
    told = {name: status(name) for name, one in seen.items() if one.registered and name not in problems}
    told |= statuses or {}
    cluster = ClusterView(
        {
            name: BookieView(
                name,
                BookieRegistration(name, f"{name}:1", 1, host=f"host-{name}")
                if name not in seen or seen[name].registered
                else None,
                status=told.get(name),
                problem=problems.get(name, ""),
                home=homes.get(name),
            )
            for name in sorted({*seen, *told})
        }
    )
    observed = Observed(seen, Fragments(fragments), fields.pop("lacking", {}), fields.pop("unreadable", {}))
    return Facts(
        "zk:2181", NOW_MS, observed, cluster, autorecovery=fields.pop("autorecovery", autorecovery()), **fields
    )


def check_command(found: Answer) -> None:
    """Check that ``bookspark`` accepts every command that the answer names, also inside its text."""
    words = [
        found.command,
        *found.mend.split("`")[1::2],
        *(part for one in found.causes for part in one.split("`")[1::2]),
    ]
    for command in filter(None, words):
        name, *arguments = shlex.split(command)
        assert name == "bookspark", command
        parse(arguments)


@functools.cache
def _commands() -> Any:
    return typer.main.get_command(command_line())


def parse(arguments: list[str]) -> None:
    """Parse a command line without running it; raises what a wrong command line raises."""
    command: Any = _commands()
    while hasattr(command, "commands"):
        with command.make_context("bookspark", list(arguments)) as context:
            _, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
    if "--help" not in arguments:
        command.make_context("bookspark", list(arguments))
