"""``bookspark bookie status``: what a bookie that serves reports, and how far its healing is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from bookspark.cli.terminal.command_options import Json, Zookeeper, client
from bookspark.plain_text import size_text
from bookspark.wire.messages import BookieStatus, HealingStatus


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(status)


def status(
    bookie: Annotated[str, typer.Argument(metavar="BOOKIE", help="Id of the bookie, as `bookspark bookies` shows it.")],
    zookeeper: Zookeeper = "",
    as_json: Json = False,
) -> None:
    """Ask a bookie that serves: its directories and their space, whether a boot lost entries, and how far these are healed."""
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
    yield f"  directories: {', '.join(found.directories) or 'none in use'}"
    for path, why in found.failed_directories.items():
        yield f"  {path} is not in use: {why}; check the disk and start the bookie again"
    for path, why in found.full_directories.items():
        yield f"  {path} is full: {why}; free space there, or add a directory"
    if found.lacking_ledgers:
        yield f"  entries of {found.lacking_ledgers:,} ledgers were lost here; autorecovery brings them back"
    for path, count in found.read_errors.items():
        yield f"  {path}: the disk could not read {count:,} batches; check the disk"
    yield f"  scrub: {found.scrub_part:.0%} of the round is read, {found.lost_copies:,} copies were unreadable since the start"
    if not found.lossy_boot:
        yield "  no boot of it lost anything"
        return
    if found.healed_boot == found.lossy_boot:
        yield f"  lossy boot {found.lossy_boot} is healed"
    else:
        yield f"  lossy boot {found.lossy_boot} is not healed: {found.limbo_ledgers:,} ledgers are in limbo"
    if found.healing is not None:
        yield f"  healing: {_progress(found.healing)}"


def _progress(healing: HealingStatus) -> str:
    done = healing.ledgers - healing.ledgers_left
    text = (
        f"{done:,} of {healing.ledgers:,} ledgers, {healing.entries_copied:,} entries, "
        f"{size_text(healing.bytes_copied)} copied in {healing.seconds:,.0f} s"
    )
    left = healing.seconds_left
    return f"{text}, about {left:,.0f} s left" if healing.ledgers_left and left is not None else text
