"""``bookspark bookie status``, ``collect`` and ``read-only``: what a bookie that serves reports, and what it is told to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from bookspark.cli.terminal.command_options import Json, Zookeeper, client
from bookspark.plain_text import size_text
from bookspark.wire.messages import BookieStatus, CollectionStatus, HealingStatus


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(status)
    app.command()(collect)
    app.command("read-only")(read_only)


BookieId = Annotated[str, typer.Argument(metavar="BOOKIE", help="Id of the bookie, as `bookspark bookies` shows it.")]


class Switch(StrEnum):
    """The settings of the read-only switch."""

    ON = "on"
    OFF = "off"


def collect(
    bookie: BookieId,
    zookeeper: Zookeeper = "",
    seconds: Annotated[float, typer.Option(min=0.001, help="Longest wait, in seconds.")] = 3600.0,
    as_json: Json = False,
) -> None:
    """Let a bookie free the space of deleted ledgers now, and print the result."""
    with client(zookeeper) as bookkeeper:
        found = bookkeeper.collect_now(bookie, seconds)
        free_bytes = bookkeeper.bookie_status(bookie).free_bytes
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found) | {"free_bytes": free_bytes}, indent=2))
        return
    typer.echo(f"{bookie}: {collected(found)}; {size_text(free_bytes)} are free now")


def read_only(
    bookie: BookieId,
    switch: Annotated[
        Switch, typer.Argument(help="on: refuse new entries, also after a restart. off: take them again.")
    ],
    zookeeper: Zookeeper = "",
) -> None:
    """Make a bookie read-only, or undo that. It still takes writes of ledger recovery and repair."""
    with client(zookeeper) as bookkeeper:
        bookkeeper.switch_read_only(bookie, switch is Switch.ON)
        found = bookkeeper.bookie_status(bookie)
    for line in lines(found):
        typer.echo(line)


def status(
    bookie: BookieId,
    zookeeper: Zookeeper = "",
    as_json: Json = False,
) -> None:
    """Print a running bookie's directories, space, boots that lost entries, and healing."""
    with client(zookeeper) as bookkeeper:
        found = bookkeeper.bookie_status(bookie)
    if as_json:
        document = msgspec.to_builtins(found)
        if found.healing is not None:
            document["healing"]["seconds_left"] = found.healing.seconds_left
        typer.echo(json.dumps(document, indent=2))
        return
    for line in lines(found):
        typer.echo(line)


def lines(found: BookieStatus) -> Iterator[str]:
    """The status as lines for people."""
    state = "read-only" if found.read_only else "writable"
    yield f"{found.bookie_id}, process {found.pid}: {state}"
    yield f"  {found.ledgers:,} ledgers, {size_text(found.log_bytes)} of logs, {size_text(found.free_bytes)} free"
    if found.metrics_address:
        yield f"  metrics: http://{found.metrics_address}/metrics"
    if found.keeper:
        yield f"  looked after by {found.keeper}"
    elif found.stops_in_seconds is not None:
        yield f"  nobody looks after it; it stops in {found.stops_in_seconds:.0f} s"
    yield f"  directories: {', '.join(found.directories) or 'none in use'}"
    for path, why in found.failed_directories.items():
        yield f"  {path} is not in use: {why}; check the disk and start the bookie again"
    if found.lacking_ledgers:
        yield f"  entries of {found.lacking_ledgers:,} ledgers were lost here; autorecovery brings them back"
    for path, count in found.read_errors.items():
        yield f"  {path}: the disk could not read {count:,} batches; check the disk"
    yield f"  scrub: {found.scrub_part:.0%} of the round is read, {found.lost_copies:,} copies were unreadable since the start"
    if found.scrub_dead_bytes:
        yield f"  {found.scrub_dead_bytes:,} damaged bytes hold no entry any more; nothing is lost by them; check the disk"
    if found.renewed_files:
        yield f"  {found.renewed_files:,} damaged files beside the logs were written anew; check the disk"
    for reason in found.reasons:
        yield f"  {reason}"
    if found.collection is not None:
        yield f"  last collection: {collected(found.collection)}"
    if not found.lossy_boot:
        yield "  no boot of it lost anything"
        return
    if found.healed_boot == found.lossy_boot:
        yield f"  lossy boot {found.lossy_boot} is healed"
    else:
        yield f"  lossy boot {found.lossy_boot} is not healed: {found.limbo_ledgers:,} ledgers are in limbo"
    if found.healing is not None:
        yield f"  healing: {_progress(found.healing)}"
        if found.healing.entries_lost:
            yield f"  lost: {found.healing.entries_lost:,} entries that no bookie gives: {_ranges(found.healing)}"


def _ranges(healing: HealingStatus) -> str:
    told = (
        f"ledger {ledger_id}: {first}" + (f"..{last}" if last > first else "")
        for ledger_id, first, last in healing.lost
    )
    return ", ".join(told) + (" …" if healing.entries_lost > sum(b - a + 1 for _, a, b in healing.lost) else "")


def collected(found: CollectionStatus) -> str:
    """What came of a collection, for people."""
    text = f"{found.ledgers:,} deleted ledgers, {size_text(max(0, found.bytes_freed))} freed in {found.seconds:,.1f} s"
    return f"{text}; it did not finish: {found.problem}" if found.problem else text


def _progress(healing: HealingStatus) -> str:
    done = healing.ledgers - healing.ledgers_left
    text = (
        f"{done:,} of {healing.ledgers:,} ledgers, {healing.entries_copied:,} entries, "
        f"{size_text(healing.bytes_copied)} copied in {healing.seconds:,.0f} s"
    )
    left = healing.seconds_left
    return f"{text}, about {left:,.0f} s left" if healing.ledgers_left and left is not None else text
