"""``bookspark ledger …``: ledgers from the command line.

The only writer of a ledger is the process that created it. So ``append`` creates a ledger and closes it at the end of the input.
``create`` makes an empty open ledger without a writer, as a crashed writer leaves it; use it to try ``recover``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from bookspark.errors import ConfigurationError, LedgerRecoveryError, ReadError
from bookspark.operations.cli.terminal.command_options import (
    Json,
    LedgerId,
    Yes,
    Zookeeper,
    client,
    group,
    grouped,
    operator,
)
from bookspark.operations.cli.terminal.output import (
    json_line,
    metadata_document,
    payload_document,
    payload_writer,
    print_json,
    print_names,
    print_table,
    problem,
    say,
)
from bookspark.operations.cli.terminal.signals import interruptible
from bookspark.protocol.ledger.entry_ranges import NO_RANGES, with_ranges
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication
from bookspark.store.metadata.lost_records import give_up_lost_records, read_lost_records
from bookspark.support.arguments import check_names
from bookspark.support.password_option import Password
from bookspark.support.plain_text import counted, one_line

if TYPE_CHECKING:
    from bookspark.protocol.bookie.lost_records import LostRecords
    from bookspark.store.client import BookKeeper, LedgerHandle

app = group("ledger", "Create, write, read, list, recover and delete ledgers.")


@dataclass(frozen=True)
class Shape:
    """Options of new ledgers."""

    ensemble_size: Annotated[
        int, typer.Option("--ensemble-size", "-E", min=1, help="Bookies that hold the entries.")
    ] = 3
    write_quorum: Annotated[int, typer.Option("--write-quorum", "-w", min=1, help="Copies of each entry.")] = 3
    ack_quorum: Annotated[int, typer.Option("--ack-quorum", "-a", min=1, help="Copies that acknowledge an entry.")] = 2
    digest_type: Annotated[
        DigestType, typer.Option("--digest-type", case_sensitive=False, help="Digest against damage.")
    ] = DigestType.CRC32C
    ledger_type: Annotated[
        LedgerType,
        typer.Option(
            "--ledger-type",
            case_sensitive=False,
            help="Acknowledge entries when synced (pd_journal) or in memory (vd_journal).",
        ),
    ] = LedgerType.PD_JOURNAL
    replication: Annotated[
        Replication,
        typer.Option(
            "--replication",
            case_sensitive=False,
            help="Copies of a closed ledger: an ack quorum (best_effort) or a write quorum (guaranteed).",
        ),
    ] = Replication.BEST_EFFORT


@dataclass(frozen=True)
class NewLedger(Shape):
    password: Password = ""
    custom_metadata: Annotated[
        list[str] | None, typer.Option("--custom-metadata", metavar="NAME=VALUE", help="May be repeated.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``create_ledger``. Raises ConfigurationError."""
        labels = {}
        for text in self.custom_metadata or ():
            name, equals, value = text.partition("=")
            if not (name and equals):
                raise ConfigurationError(f"--custom-metadata {text!r} is not NAME=VALUE")
            labels[name] = value.encode()
        return {**vars(self), "password": self.password.encode(), "custom_metadata": labels}


_CHUNK_BYTES = 1 << 18


@app.command()
@grouped
def append(
    zookeeper: Zookeeper = "",
    file: Annotated[Path | None, typer.Argument(help="File of lines. Default: standard input.")] = None,
    new: NewLedger = NewLedger(),
) -> None:
    """Create a ledger, append each line as an entry, close the ledger, and print its id.

    Only the process that created a ledger writes it.
    """
    arguments = new.arguments()
    with interruptible(), _opened(file) as lines, client(zookeeper) as bookkeeper:
        ledger = bookkeeper.create_ledger(**arguments)
        with _told_if_left_open(ledger):
            for batch in _batches(lines):
                ledger.append_batch_async(batch)
            ledger.close()
        say(ledger.ledger_id)


@contextmanager
def _told_if_left_open(ledger: LedgerHandle) -> Iterator[None]:
    """Print the ledger's id and entry count if the block fails: the id was not printed yet."""
    try:
        yield
    except BaseException:
        problem(
            f"ledger {ledger.ledger_id} is left open with {ledger.last_add_confirmed + 1} acknowledged entries; "
            f"`bookspark ledger recover {ledger.ledger_id}` closes it"
        )
        raise


@app.command()
@grouped
def create(zookeeper: Zookeeper = "", new: NewLedger = NewLedger()) -> None:
    """Create an empty, open ledger without a writer, and print its id.

    `bookspark ledger recover` closes it. To write entries, use `append`.
    """
    arguments = new.arguments()
    with client(zookeeper) as bookkeeper:
        ledger = bookkeeper.create_ledger(**arguments)
        say(ledger.ledger_id)


@app.command()
def read(
    ledger: LedgerId,
    zookeeper: Zookeeper = "",
    first: Annotated[int, typer.Option(min=0, help="First entry.")] = 0,
    last: Annotated[int | None, typer.Option(min=0, help="Last entry. Default: the last confirmed one.")] = None,
    password: Password = "",
    as_json: Json = False,
) -> None:
    """Print entries, each with a line break; of an open ledger up to the last confirmed one. The writer goes on.

    With --json: one object a line, with entry_id, length and payload (payload_base64 if not UTF-8).
    """
    write = payload_writer()
    with (
        client(zookeeper) as bookkeeper,
        bookkeeper.open_ledger_no_recovery(ledger, password=password.encode()) as handle,
    ):
        if last is None and handle.last_add_confirmed < first:
            return
        for entry in handle.read(first, last):
            if as_json:
                document = {"entry_id": entry.entry_id, "length": entry.length}
                write(json_line(document | payload_document(bytes(entry.payload))))
            else:
                write(entry.payload)
            write(b"\n")
    sys.stdout.flush()


@app.command()
def metadata(ledger: LedgerId, zookeeper: Zookeeper = "") -> None:
    """Print a ledger's metadata as JSON."""
    with client(zookeeper) as bookkeeper:
        print_json(metadata_document(bookkeeper.get_ledger_metadata(ledger)))


@app.command("list")
def list_ledgers(
    zookeeper: Zookeeper = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="Also print state, quorums and size.")] = False,
    as_json: Json = False,
) -> None:
    """Print the id of each ledger, one a line.

    With --json: ids, with --long metadata; of undecodable metadata the reason, as unreadable.
    """
    with client(zookeeper) as bookkeeper:
        ids = bookkeeper.list_ledgers()
        if not long:
            print_names(ids, as_json)
            return
        unreadable: dict[int, str] = {}
        found = [one.value for one in bookkeeper.metadata.read_ledgers(ids, unreadable)]
    for why in unreadable.values():
        problem(why)
    if as_json:
        documents = [metadata_document(one) for one in found]
        documents += [{"ledger_id": ledger_id, "unreadable": why} for ledger_id, why in unreadable.items()]
        print_json(documents)
        return
    columns = ("ledger", "state", "E/WQ/AQ", "digest", "last entry", "bytes", "fragments", "log")
    rows: list[tuple[Any, ...]] = [
        (
            str(one.ledger_id),
            one.state.value,
            f"{one.ensemble_size}/{one.write_quorum}/{one.ack_quorum}",
            one.digest_type.value,
            str(one.last_entry_id) if one.closed else None,
            one.length if one.closed else None,
            len(one.fragments),
            one.custom_metadata.get("bookspark.log", b"").decode(errors="backslashreplace"),
        )
        for one in found
    ]
    rows += [(str(ledger_id), "UNREADABLE", *[None] * (len(columns) - 2)) for ledger_id in unreadable]
    print_table(columns, rows, spare=("digest", "fragments", "E/WQ/AQ"))


@app.command()
def delete(ledger: LedgerId, zookeeper: Zookeeper = "", yes: Yes = False) -> None:
    """Delete a ledger and its entries."""
    with client(zookeeper) as bookkeeper:
        found = bookkeeper.get_ledger_metadata(ledger)
        if not yes:
            what = counted(found.last_entry_id + 1, "entry") if found.closed else found.state.value
            typer.confirm(f"Delete ledger {ledger} ({what}) for ever?", abort=True, err=True)
        bookkeeper.delete_ledger(ledger)


@app.command()
def recover(
    ledger: LedgerId,
    lost_bookies: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BOOKIE…]", help="With --accept-loss: bookies that are gone for good."),
    ] = None,
    zookeeper: Zookeeper = "",
    password: Password = "",
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Close without entries that bookies lost or only the named ones could have, for good.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Fence a ledger's writer, find the last entry and close the ledger there.

    Use --accept-loss only if recovery fails and no more bookies can be brought back: lost entries may be acknowledged ones.
    Name unreachable bookies as lost: `recover LEDGER --accept-loss BOOKIE BOOKIE`. The metadata keeps who did it, when, and
    the losses.
    """
    lost = tuple(lost_bookies or ())
    if lost and not accept_loss:
        raise ConfigurationError(
            f"{', '.join(lost)}: name bookies only together with --accept-loss, if they are gone for good"
        )
    with client(zookeeper) as bookkeeper:
        before = bookkeeper.get_ledger_metadata(ledger)
        check_names(lost, before.bookies(), f"bookie of ledger {ledger}")
        try:
            handle = bookkeeper.open_ledger(ledger, password=password.encode())
        except LedgerRecoveryError as error:
            if not accept_loss:
                raise
            problem(one_line(error))
            if not yes:
                named = f", and that {', '.join(lost)} may have had" if lost else ""
                typer.confirm(
                    f"Close ledger {ledger} for ever, without the entries that bookies say they lost{named}?",
                    abort=True,
                    err=True,
                )
            handle = bookkeeper.open_ledger(
                ledger, password=password.encode(), accept_loss_as=operator(), lost_bookies=lost
            )
        with handle:
            entries = handle.metadata.last_entry_id + 1
            verb = "was closed already" if before.closed else "is recovered and closed"
            say(f"ledger {ledger} {verb}: {counted(entries, 'entry')}, {handle.length:,} bytes")
            loss = handle.metadata.accepted_loss
            if loss is not None:
                problem(f"not known, and accepted as lost by {loss.by}: {'; '.join(loss.not_known)}")


@app.command()
def lost(
    zookeeper: Zookeeper = "",
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Let bookies collect these entries. This can't be undone.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Print ledgers without a record, after a restore of older ZooKeeper data.

    Starting bookies report them and keep their entries; no other ledger gets their ids. `bookspark bookie read` reads them
    from a stopped bookie's logs.
    """
    with client(zookeeper) as bookkeeper:
        ranges = read_lost_records(bookkeeper.metadata)
        found = _held_of(bookkeeper, ranges) if ranges else []
        if as_json:
            print_json({"ranges": ranges, "held": found})
        else:
            rows = [tuple(map(str, one.values())) for one in found]
            print_table(("ledger", "bookie", "first entry", "last entry"), rows)
        if give_up and ranges:
            ledgers = len({one["ledger_id"] for one in found})
            if not yes:
                typer.confirm(f"Give up what is held of {counted(ledgers, 'ledger')} for ever?", abort=True, err=True)
            give_up_lost_records(bookkeeper.metadata, ranges)
            problem(
                f"{counted(ledgers, 'ledger')} given up; bookies collect them, the next time they look for deleted ledgers"
            )


def _held_of(bookkeeper: BookKeeper, lost: Sequence[LostRecords]) -> list[dict[str, Any]]:
    """Ranges of the lost ledgers' entries on the answering bookies, one document each."""
    from bookspark.store.client.inspection.held_ranges import held_ranges

    found = []
    for bookie in bookkeeper.metadata.bookies():
        try:
            held = held_ranges(bookkeeper, bookie)
        except ReadError as error:
            problem(f"{error}; it may hold more")
            continue
        for ledger_id, ranges in held.items():
            if any(one.first <= ledger_id <= one.last for one in lost):
                found += [(ledger_id, bookie, *entries) for entries in with_ranges(NO_RANGES, ranges)]
    names = ("ledger_id", "bookie", "first_entry_id", "last_entry_id")
    return [dict(zip(names, one, strict=True)) for one in sorted(found)]


def _opened(file: Path | None) -> IO[bytes]:
    if file is None:
        return sys.stdin.buffer
    try:
        return file.open("rb")
    except OSError as error:
        raise ConfigurationError(f"{file} can't be read: {error.strerror}") from error


def _batches(lines: IO[bytes]) -> Iterator[list[bytes]]:
    """Lists of the available lines, without line breaks. A typed line does not wait for the next one."""
    read = lines.read1 if isinstance(lines, BufferedReader) else lines.read
    begun: list[bytes] = []
    while chunk := read(_CHUNK_BYTES):
        *complete, rest = chunk.split(b"\n")
        if complete:
            complete[0] = b"".join((*begun, complete[0]))
            begun = []
            yield complete
        if rest:
            begun.append(rest)
    if begun:
        yield [b"".join(begun)]
