"""``bookspark bookie …``: what the directories of a stopped bookie hold.

``bookie_status`` has the commands for one that serves, ``bookie_run`` has the one that is a bookie.

Law: the readers are those of the bookie. The locks of the directories are taken, so a running bookie is an error that names its
process. Only ``rebuild`` changes anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bookspark.cli.commands import bookie_run, bookie_status
from bookspark.cli.terminal.command_options import Json
from bookspark.cli.terminal.output import console, payload_document, table
from bookspark.command_line import FOUND
from bookspark.errors import InvalidCookieError
from bookspark.plain_text import size_text

if TYPE_CHECKING:
    from bookspark.bookie.offline.inspection import Inspection
    from bookspark.bookie.offline.scrub import Scrubbed
    from bookspark.wire.entry_batch import Entry

app = typer.Typer(
    help="Run a bookie, look into the directories of a stopped one, ask one that serves, or tell it what to do.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def add_to(commands: typer.Typer) -> None:
    """Add the commands."""
    commands.add_typer(app, name="bookie")


bookie_status.add_to(app)
bookie_run.add_to(app)

Directories = Annotated[
    list[Path], typer.Argument(metavar="DIRECTORY…", help="All directories of the bookie, in any order.")
]
_PAYLOAD_CHARACTERS = 60
_LOG_NUMBER_HELP = "Number of the log in hexadecimal, as in the name of its file."


@app.command()
def logs(directories: Directories, as_json: Json = False) -> None:
    """List entry logs and rewritten logs. Live: bytes in the index."""
    with _stopped(directories) as places:
        found = [log._asdict() | {"number": f"{log.number:08x}"} for log in _inspection(places).logs()]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    columns = ("log", "kind", "size", "synced", "live", "ledgers", "entries", "file")
    rows = [
        (
            log["number"],
            "rewritten" if log["rewritten"] else "plain",
            size_text(log["size"]),
            size_text(log["synced"]),
            size_text(log["live"]),
            log["ledgers"],
            log["entries"],
            log["path"],
        )
        for log in found
    ]
    console().print(table("", columns, rows))


@app.command()
def read(
    number: Annotated[str, typer.Argument(metavar="LOG", help=_LOG_NUMBER_HELP)],
    directories: Directories,
    ledger: Annotated[int | None, typer.Option(min=0, help="Only batches of this ledger.")] = None,
    entries: Annotated[bool, typer.Option("--entries", help="Also print each batch's entries.")] = False,
    as_json: Json = False,
) -> None:
    """Print the batches of a log in order. With --json: one object a line."""
    wanted = _log_number(number)
    with _stopped(directories) as places:
        for batch in _inspection(places).batches(wanted):
            if ledger not in (None, batch.ledger_id):
                continue
            if as_json:
                document = batch._asdict() | {"entries": [_entry_document(entry) for entry in batch.entries]}
                if not entries:
                    del document["entries"]
                typer.echo(json.dumps(document, ensure_ascii=False))
                continue
            typer.echo(
                f"{wanted:08x}:{batch.position} {batch.size} B: ledger {batch.ledger_id} entries {batch.first}..{batch.last}, "
                f"LAC {batch.last_add_confirmed}"
            )
            for entry in batch.entries if entries else ():
                typer.echo(f"    {entry.entry_id}: length {entry.length}, {_text(entry.payload)}")


@app.command()
def index(
    directories: Directories,
    ledger: Annotated[int | None, typer.Option(min=0, help="Only ranges of this ledger.")] = None,
    as_json: Json = False,
) -> None:
    """Print the index of the next start: ranges of entries and their batches."""
    with _stopped(directories) as places:
        rows = list(_inspection(places).rows(ledger))
    if as_json:
        typer.echo(json.dumps([row._asdict() | {"log": f"{row.log:08x}"} for row in rows], indent=2))
        return
    columns = ("ledger", "first", "last", "log", "position", "bytes")
    cells = [(row.ledger_id, row.first, row.last, f"{row.log:08x}", row.position, row.size) for row in rows]
    console().print(table("", columns, cells))


@app.command()
def verify(directories: Directories, as_json: Json = False) -> None:
    """Read and check every byte. Exit status 1: damage."""
    from bookspark.bookie.disk.file_system import RealFileSystem
    from bookspark.bookie.offline.scrub import scrub

    with _stopped(directories) as places:
        found = {place: scrub(RealFileSystem(), place) for place in places}
    if as_json:
        typer.echo(json.dumps([_scrubbed_document(place, scrubbed) for place, scrubbed in found.items()], indent=2))
    else:
        for place, scrubbed in found.items():
            _print_scrubbed(place, scrubbed)
    if any(scrubbed.damages for scrubbed in found.values()):
        raise typer.Exit(FOUND)


@app.command()
def rebuild(directories: Directories) -> None:
    """Rebuild the index from the logs, as a start does if an index checkpoint is missing or damaged."""
    from bookspark.bookie.disk.file_system import RealFileSystem
    from bookspark.bookie.offline.inspection import rebuild_index

    with _stopped(directories) as places:
        count = rebuild_index(RealFileSystem(), places)
    typer.echo(f"the index has {count} ranges")


@contextmanager
def _stopped(directories: list[Path]) -> Iterator[list[str]]:
    """Lock the directories and yield their absolute paths, in the order of the cookie: a directory's place says which numbers
    its logs have, and what it is called in the other ones. Raises InvalidCookieError if they are not all directories of one
    bookie, and BookieError if it runs."""
    from bookspark.daemon.directories import DirectoryLocks, read_cookie

    places = list(dict.fromkeys(str(directory.absolute()) for directory in directories))
    for place in places:
        if not Path(place).is_dir():
            raise InvalidCookieError(f"{place} is not a directory; name the bookie's directories on this host")
    with DirectoryLocks(places):
        cookies = {place: read_cookie(place) for place in places}
        for place, cookie in cookies.items():
            if cookie is None:
                raise InvalidCookieError(
                    f"{place} has no cookie, so it is no bookie's directory; if it lost its cookie, use `bookspark cookie fix`"
                )
            if set(cookie.directories) != set(places):
                raise InvalidCookieError(
                    f"{place} belongs to {cookie.bookie_id}, which has {', '.join(cookie.directories)}; name all of these"
                )
            places = list(cookie.directories)
        yield places


def _inspection(places: list[str]) -> Inspection:
    from bookspark.bookie.disk.file_system import RealFileSystem
    from bookspark.bookie.offline.inspection import Inspection

    return Inspection(RealFileSystem(), places)


def _log_number(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not the number of a log, for example 0000002a") from None


def _scrubbed_document(place: str, scrubbed: Scrubbed) -> dict[str, Any]:
    damages = [
        asdict(damage) | {"entries": [entries._asdict() for entries in damage.entries]} for damage in scrubbed.damages
    ]
    return {"directory": place, **asdict(scrubbed), "damages": damages}


def _print_scrubbed(place: str, scrubbed: Scrubbed) -> None:
    typer.echo(
        f"{place}: {scrubbed.files} files, {size_text(scrubbed.size)}, {scrubbed.batches} batches, {scrubbed.entries} entries"
        + (f"; {scrubbed.torn} bytes torn by a crash, which the next start cuts" if scrubbed.torn else "")
    )
    for damage in scrubbed.damages:
        where = f"{damage.path} at byte {damage.position}, {damage.size} bytes" if damage.size else damage.path
        typer.echo(f"  DAMAGED {where}: {damage.what}")
        for entries in damage.entries:
            typer.echo(f"    hit: ledger {entries.ledger_id} entries {entries.first}..{entries.last}")
    if not scrubbed.damages:
        typer.echo("  all good")


def _entry_document(entry: Entry) -> dict[str, Any]:
    return {
        "entry_id": entry.entry_id,
        "last_add_confirmed": entry.last_add_confirmed,
        "length": entry.length,
        **payload_document(entry.payload),
        "digest": entry.digest.hex(),
    }


def _text(payload: bytes) -> str:
    text = payload.decode(errors="backslashreplace")
    return repr(text) if len(text) <= _PAYLOAD_CHARACTERS else f"{text[:_PAYLOAD_CHARACTERS]!r}…"
