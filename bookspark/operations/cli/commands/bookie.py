"""``bookspark bookie …``: run a bookie in the foreground, ask and switch a live bookie, inspect a stopped bookie's directories.

Law of ``run``: the process is the bookie. Its status is 0 after SIGTERM or Ctrl-C and a clean stop, else 2. Standard output has
one line, when the bookie serves. The directories decide its identity; a new bookie needs ``--create`` or an id, because empty
directories may mean a missing disk.

Law of the inspection: the commands use the bookie's disk readers and lock its directories, so a running bookie is an error that
names its process. Only ``rebuild`` and ``accept-loss`` change anything, and ``verify`` the notes of losses over good bytes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from bookspark.errors import InvalidCookieError
from bookspark.operations.cli.terminal import settings
from bookspark.operations.cli.terminal.command_options import (
    BookieId,
    Directories,
    Json,
    Yes,
    Zookeeper,
    client,
    existing_directories,
    given,
    group,
    operator,
)
from bookspark.operations.cli.terminal.output import json_line, payload_document, print_json, print_table, problem, say
from bookspark.operations.cli.terminal.signals import until_signal
from bookspark.store.wire.messages import BookieStatus, CollectionStatus, HealingStatus
from bookspark.support.arguments import check_names
from bookspark.support.certificates import end_text
from bookspark.support.command_line import COULD_NOT, FOUND
from bookspark.support.plain_text import counted, size_text
from bookspark.support.private_files import refuse_foreign

if TYPE_CHECKING:
    from bookspark.protocol.repair.stopping import Danger
    from bookspark.store.bookie.offline.inspection import Inspection
    from bookspark.store.bookie.offline.scrub import Scrubbed
    from bookspark.store.client import BookKeeper
    from bookspark.store.metadata.records.bookie_registration import BookieRegistration
    from bookspark.store.wire.entry_batch import Entry


app = group(
    "bookie", "Run a bookie, look into the directories of a stopped one, ask one that serves, or tell it what to do."
)


# -- ``bookspark bookie run`` and ``safe-to-stop``


_NAMED_MAX = 20
"""Ledgers printed at most."""


@app.command()
def run(
    directory: Annotated[
        list[Path],
        typer.Option(help="Folder for this bookie's entries. Repeat for each disk."),
    ],
    zookeeper: Zookeeper = "",
    bookie_id: Annotated[
        str,
        typer.Option(
            envvar="BOOKSPARK_BOOKIE_ID",
            help="Id of the bookie; its first start creates it.",
            show_default=False,
        ),
    ] = "",
    create: Annotated[
        bool, typer.Option("--create", help="Create a bookie with a new id if the directories have none.")
    ] = False,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port to listen on. Default: any free port.", show_default=False),
    ] = None,
    advertised_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address for clients instead of --host and --port.", show_default=False),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=-1,
            max=65535,
            help="Port for Prometheus (/metrics) and probes (/health, /ready), or the next free one. -1: any. Default: none.",
            show_default=False,
        ),
    ] = None,
    rack: Annotated[
        str | None, typer.Option(help="Bookies of one rack fail together. Default: none.", show_default=False)
    ] = None,
) -> None:
    """Run a bookie, without Spark, until Ctrl-C or SIGTERM.

    Directories without a bookie are refused, except with --create or a new --bookie-id. Once it serves, it prints its id and
    address as JSON. Other options: table [bookie] of `bookspark --config FILE`.
    """
    from bookspark.servers.daemon.bookie_process import Foreground, prepare_process, run_bookie
    from bookspark.store.bookie.bookie_config import bookie_config

    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "advertised_address": advertised_address,
        "metrics_port": metrics_port,
        "rack": rack,
        "bookie_id": bookie_id or None,
    }
    told = {name: value for name, value in options.items() if value is not None}
    places = [str(one.absolute()) for one in directory]
    config = bookie_config(
        **{**settings.chosen("bookie"), **told, "directories": places, "zookeeper": given(zookeeper)}
    )
    if not (create or config.bookie_id):
        _refuse_a_new_bookie(places)
    begun = time.monotonic()

    def serving(registration: BookieRegistration, metrics_port: int) -> None:
        line = {
            "bookie_id": registration.bookie_id,
            "address": registration.address,
            "directories": places,
            "zookeeper": config.zookeeper,
            "metrics_port": metrics_port,
            "pid": registration.pid,
            "incarnation": registration.incarnation,
            "started_in_seconds": round(time.monotonic() - begun, 3),
        }
        print_json(line, one_line=True)
        sys.stdout.flush()

    # Covers signals that come before the bookie installs its own handlers.
    with until_signal():
        prepare_process()
        run_bookie(config, Foreground("`bookspark bookie run`, in the foreground", serving, COULD_NOT))


def _refuse_a_new_bookie(places: Sequence[str]) -> None:
    from bookspark.servers.daemon.directories import has_cookie

    for place in places:
        refuse_foreign(place)
    if not any(map(has_cookie, places)):
        raise InvalidCookieError(
            f"{', '.join(places)}: no bookie's cookie lies there, so this would be a new bookie. If one served from there, mount "
            "its disk again. If the cluster is to have a new bookie, give --create, or its name with --bookie-id"
        )


@app.command()
def alive(
    directory: Annotated[list[Path], typer.Option(help="A directory of the bookie. Repeat for each disk.")],
    ready: Annotated[bool, typer.Option("--ready", help="Also be registered, and serve clients.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer.")] = 5.0,
) -> None:
    """Say whether a bookie on this host works, for a supervisor's probes. Exit status 1: no.

    Asks the socket in the bookie's directory. A starting bookie is alive, and so is one without ZooKeeper.
    """
    from bookspark.servers.daemon.lease_client import LeaseConnection, LeaseLostError

    try:
        connection = LeaseConnection([str(one.absolute()) for one in directory], timeout)
        problem = connection.ask_probe("ready" if ready else "health", timeout)
        connection.close()
    except LeaseLostError as error:
        problem = str(error)
    typer.echo(problem or ("ready" if ready else "alive"))
    if problem:
        raise typer.Exit(FOUND)


@app.command("safe-to-stop")
def safe_to_stop(
    bookies: Annotated[
        list[str],
        typer.Argument(metavar="BOOKIE…", envvar="BOOKSPARK_BOOKIE_ID", help="Ids of the bookies to stop."),
    ],
    zookeeper: Zookeeper = "",
    wait: Annotated[float, typer.Option(min=0.0, help="If unsafe, keep asking so many seconds.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Say whether bookies can be stopped: every entry keeps an ack quorum of copies, and every open ledger can be recovered.
    Exit status 1: no, or unknown.

    It trusts the records, unless a bookie or a task of autorecovery reports missing entries. `bookspark safe-to-stop`
    compares every copy.
    """
    from bookspark.store.autorecovery.stopping import dangers

    deadline = time.monotonic() + wait
    with client(zookeeper) as bookkeeper:
        while (found := dangers(bookkeeper, bookies)) and time.monotonic() < deadline:
            time.sleep(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
    if as_json:
        print_json({"safe": not found, "dangers": [one._asdict() for one in found]})
    elif found:
        _show(found)
    else:
        without = ", ".join(dict.fromkeys(bookies))
        say(f"safe: without {without} every entry keeps an ack quorum, and every open ledger can be recovered")
    if found:
        raise typer.Exit(FOUND)


_LOOK_SECONDS = 2.0


def _show(found: Sequence[Danger]) -> None:
    rows = [(str(one.ledger_id), _entries(one), one.copies_left, one.ack_quorum, one.why) for one in found[:_NAMED_MAX]]
    print_table(("ledger", "entries", "copies left", "ack quorum", "why"), rows, "Not safe to stop")
    if len(found) > _NAMED_MAX:
        say(f"and {len(found) - _NAMED_MAX:,} more")


def _entries(one: Danger) -> str:
    if one.first_entry_id is None:
        return ""
    return f"{one.first_entry_id}.." + ("" if one.last_entry_id is None else str(one.last_entry_id))


# -- ``bookspark bookie status``, ``collect`` and ``read-only``: a live bookie.


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


@app.command()
def collect(
    bookie: BookieId,
    zookeeper: Zookeeper = "",
    seconds: Annotated[float, typer.Option(min=0.001, help="Longest wait, in seconds.")] = 3600.0,
    as_json: Json = False,
) -> None:
    """Let a bookie free the space of deleted ledgers now."""
    with client(zookeeper) as bookkeeper:
        _check_known(bookkeeper, bookie)
        found = bookkeeper.collect_now(bookie, seconds)
        free_bytes = bookkeeper.bookie_status(bookie).free_bytes
    if as_json:
        print_json(msgspec.to_builtins(found) | {"free_bytes": free_bytes})
        return
    say(f"{bookie}: {collected(found)}; {size_text(free_bytes)} are free now")


@app.command("read-only")
def read_only(
    bookie: BookieId,
    switch: Annotated[Switch, typer.Argument(help="on: refuse new entries, also after a restart. off: take them.")],
    zookeeper: Zookeeper = "",
) -> None:
    """Make a bookie read-only, or undo that. Recovery and repair still write to it."""
    with client(zookeeper) as bookkeeper:
        _check_known(bookkeeper, bookie)
        bookkeeper.switch_read_only(bookie, switch is Switch.ON)
        found = bookkeeper.bookie_status(bookie)
    for line in lines(found):
        say(line)


@app.command()
def status(
    bookie: BookieId,
    zookeeper: Zookeeper = "",
    as_json: Json = False,
) -> None:
    """Print a running bookie's directories, space, boots that lost entries, and healing."""
    with client(zookeeper) as bookkeeper:
        _check_known(bookkeeper, bookie)
        found = bookkeeper.bookie_status(bookie)
    if as_json:
        document = msgspec.to_builtins(found)
        if found.healing is not None:
            document["healing"]["seconds_left"] = found.healing.seconds_left
        print_json(document)
        return
    for line in lines(found):
        say(line)


def _check_known(bookkeeper: BookKeeper, bookie: str) -> None:
    check_names([bookie], {*bookkeeper.metadata.list_cookies(), *bookkeeper.metadata.bookies()}, "bookie")


def lines(found: BookieStatus) -> Iterator[str]:
    """The status as lines of text."""
    state = "read-only" if found.read_only else "writable"
    yield f"{found.bookie_id}, process {found.pid}: {state}"
    yield f"  {counted(found.ledgers, 'ledger')}, {size_text(found.log_bytes)} of logs, {size_text(found.free_bytes)} free"
    if found.metrics_address:
        yield f"  metrics: http://{found.metrics_address}/metrics"
    for option, end_ms in found.certificate_ends.items():
        yield f"  {option}: {end_text(end_ms, found.store_ms or time.time_ns() // 1_000_000)}"
    if found.keeper:
        yield f"  looked after by {found.keeper}"
    elif found.stops_in_seconds is not None:
        yield f"  nobody looks after it; it stops in {found.stops_in_seconds:.0f} s"
    yield f"  directories: {', '.join(found.directories) or 'none in use'}"
    for path, why in found.failed_directories.items():
        yield f"  {path} is not in use: {why}; check the disk and start the bookie again"
    if found.lacking_ledgers:
        yield f"  lost here: entries of {counted(found.lacking_ledgers, 'ledger')}; autorecovery brings them back"
    for path, count in found.read_errors.items():
        yield f"  {path}: the disk could not read {counted(count, 'batch')}; check the disk"
    for path in found.unread_logs:
        yield f"  {path}: the disk could not read all of it at the start; check the disk"
    yield f"  scrub: {found.scrub_part:.0%} of the round is read, {counted(found.lost_copies, 'copy')} damaged since the start"
    if found.unread_copies:
        yield f"  {counted(found.unread_copies, 'copy')} can't be read now, perhaps good, and read again later; check the disk"
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
        yield f"  lossy boot {found.lossy_boot} is not healed: {counted(found.limbo_ledgers, 'ledger')} in limbo"
    if found.healing is not None:
        yield f"  healing: {_progress(found.healing)}"
        if found.healing.entries_lost:
            yield f"  lost: {counted(found.healing.entries_lost, 'entry')} that no bookie gives: {_ranges(found.healing)}"


def _ranges(healing: HealingStatus) -> str:
    told = (
        f"ledger {ledger_id}: {first}" + (f"..{last}" if last > first else "")
        for ledger_id, first, last in healing.lost
    )
    return ", ".join(told) + (" …" if healing.entries_lost > sum(b - a + 1 for _, a, b in healing.lost) else "")


def collected(found: CollectionStatus) -> str:
    """A collection's result as text."""
    copies = f", copies of {counted(found.copies, 'ledger')} that name others" if found.copies else ""
    text = f"{found.ledgers:,} deleted ledgers{copies}, {size_text(max(0, found.bytes_freed))} freed in {found.seconds:,.1f} s"
    return f"{text}; it did not finish: {found.problem}" if found.problem else text


def _progress(healing: HealingStatus) -> str:
    done = healing.ledgers - healing.ledgers_left
    text = (
        f"{done:,} of {counted(healing.ledgers, 'ledger')}, {counted(healing.entries_copied, 'entry')}, "
        f"{size_text(healing.bytes_copied)} copied in {healing.seconds:,.0f} s"
    )
    left = healing.seconds_left
    return f"{text}, about {left:,.0f} s left" if healing.ledgers_left and left is not None else text


# -- Inspection of a stopped bookie's directories


_PAYLOAD_CHARACTERS = 60
_LOG_NUMBER_HELP = "Number of the log in hexadecimal, as in the name of its file."


@app.command()
def logs(directories: Directories, as_json: Json = False) -> None:
    """List entry logs and rewritten logs. Live: bytes in the index."""
    with _stopped(directories) as places:
        found = [log._asdict() | {"number": f"{log.number:08x}"} for log in _inspection(places).logs()]
    if as_json:
        print_json(found)
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
    print_table(columns, rows, spare=("synced", "entries", "ledgers"))


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
                say(json_line(document).decode())
                continue
            say(
                f"{wanted:08x}:{batch.position} {batch.size} B: ledger {batch.ledger_id} entries {batch.first}..{batch.last}, "
                f"LAC {batch.last_add_confirmed}"
            )
            for entry in batch.entries if entries else ():
                say(f"    {entry.entry_id}: length {entry.length}, {_text(entry.payload)}")


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
        print_json([row._asdict() | {"log": f"{row.log:08x}"} for row in rows])
        return
    columns = ("ledger", "first", "last", "log", "position", "bytes")
    cells = [
        (*map(str, (row.ledger_id, row.first, row.last)), f"{row.log:08x}", str(row.position), row.size) for row in rows
    ]
    print_table(columns, cells)


@app.command()
def verify(directories: Directories, as_json: Json = False) -> None:
    """Read and check every byte. Good entries noted as lost are served again. Exit status 1: damage."""
    from bookspark.store.bookie.disk.file_system import RealFileSystem
    from bookspark.store.bookie.offline.inspection import take_back_good
    from bookspark.store.bookie.offline.scrub import scrub

    with _stopped(directories) as places:
        found = {place: scrub(RealFileSystem(), place) for place in places}
        back = 0 if any(scrubbed.damages for scrubbed in found.values()) else take_back_good(RealFileSystem(), places)
    if back:
        problem(f"batches that were noted as lost and are good: {back:,}; the bookie serves them again")
    if as_json:
        print_json([_scrubbed_document(place, scrubbed) for place, scrubbed in found.items()])
    else:
        for place, scrubbed in found.items():
            _print_scrubbed(place, scrubbed)
    if any(scrubbed.damages for scrubbed in found.values()):
        raise typer.Exit(FOUND)


@app.command()
def rebuild(directories: Directories) -> None:
    """Rebuild the index from the logs, as a start without index checkpoint does."""
    from bookspark.store.bookie.disk.file_system import RealFileSystem
    from bookspark.store.bookie.offline.inspection import rebuild_index

    with _stopped(directories) as places:
        count = rebuild_index(RealFileSystem(), places)
    say(f"the index has {count} ranges")


@app.command("accept-loss")
def accept_loss(directories: Directories, yes: Yes = False) -> None:
    """Accept the loss of bytes that neither the disk nor another bookie gives, so that later starts don't look for them, or of a
    damaged control log that no directory has whole.

    It first prints the bytes, with the entries that may lie there as far as the index shows. Only for bytes that the disk never
    reads again. The next start still fences ledgers being written to the bookie and asks all others for the entries; while one
    does not answer, it gives nothing up. An entry that none has stays unknown here, never denied. The control log keeps who
    accepted the loss until the bytes are given up.
    """
    from bookspark.store.bookie.disk.file_system import RealFileSystem
    from bookspark.store.bookie.offline.inspection import accept_losses, losses_to_accept

    with _stopped(directories) as places:
        found = losses_to_accept(RealFileSystem(), places)
        for loss in found:
            say(loss.what)
            for entries in loss.entries:
                say(f"  may hit: ledger {entries.ledger_id} entries {entries.first}..{entries.last}")
        if not found:
            say("the disk gives all bytes that a start reads: no loss is to be accepted")
            return
        if not yes:
            typer.confirm("Are these bytes lost for good?", abort=True, err=True)
        accept_losses(RealFileSystem(), places, operator())
    say("accepted; start the bookie: it copies back what other bookies have, then gives up the rest")


@contextmanager
def _stopped(directories: list[Path]) -> Iterator[list[str]]:
    """Lock the directories and yield their absolute paths in the cookie's order: a directory's place in it decides the numbers of
    its logs and its name in the other directories. Raises InvalidCookieError if they are not all directories of one bookie,
    BookieError if the bookie runs."""
    from bookspark.servers.daemon.directories import DirectoryLocks, read_cookie

    places = list(dict.fromkeys(existing_directories(directories)))
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
    from bookspark.store.bookie.disk.file_system import RealFileSystem
    from bookspark.store.bookie.offline.inspection import Inspection

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
    say(
        f"{place}: {counted(scrubbed.files, 'file')}, {size_text(scrubbed.size)}, {counted(scrubbed.batches, 'batch')}, "
        f"{counted(scrubbed.entries, 'entry')}"
        + (f"; {scrubbed.torn} bytes torn by a crash, which the next start cuts" if scrubbed.torn else "")
    )
    for damage in scrubbed.damages:
        where = f"{damage.path} at byte {damage.position}, {damage.size} bytes" if damage.size else damage.path
        say(f"  DAMAGED {where}: {damage.what}")
        for entries in damage.entries:
            say(f"    hit: ledger {entries.ledger_id} entries {entries.first}..{entries.last}")
    if not scrubbed.damages:
        say("  all good")


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
