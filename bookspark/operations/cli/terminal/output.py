"""Output of commands.

Law: standard output has the results and nothing else. Progress goes to standard error: a bar on a
terminal, else a line each ten seconds. A problem is one line on standard error: ``bookspark: <problem and remedy>``.

Much of it is foreign: names, hosts, labels, errors. ``say``, ``say_lines``, tables and ``console`` make it ``printable``, and
``guarded_streams`` whatever else writes text. Payloads go to a pipe or a file as they are, and to a terminal ``printable``.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, time
from time import monotonic
from typing import Any, TextIO, cast

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment

from bookspark.protocol.ledger.accepted_loss import AcceptedLoss
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.support.plain_text import PROBLEM, printable
from bookspark.support.printed_tables import PrintedTable, facts, width_of

PROGRESS_SECONDS = 10.0
"""Interval of progress lines where standard error is a file or a pipe."""


class _Printable:
    """A text stream that writes ``printable`` lines to another one. ``rich`` writes its own colours to that one directly."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(printable(text, lines=True))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Make all text on standard output and standard error ``printable``."""
    # A closed one (`>&-`): nobody wants it, and the next file must not get its descriptor.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115 -- until the end
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Printable(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, lines=True))


def console() -> Console:
    """Standard output for tables."""
    return _Console(highlight=False, width=width_of(sys.stdout))


def say(line: object, *, err: bool = False) -> None:
    """Print one line."""
    typer.echo(printable(str(line)), err=err)


def say_lines(lines: Iterable[object], *, err: bool = False) -> None:
    for line in lines:
        say(line, err=err)


def payload_writer() -> Callable[[bytes | memoryview], None]:
    """A function that writes content of ledgers to standard output: the bytes to a pipe or a file, ``printable`` text to a
    terminal."""
    out, raw = sys.stdout, sys.stdout.buffer
    if not out.isatty():
        return lambda content: cast("None", raw.write(content))
    return lambda content: cast(
        "None", out.write(printable(bytes(content).decode(errors="backslashreplace"), lines=True))
    )


def print_json(found: object, *, one_line: bool = False) -> None:
    """Print values, also msgspec's structs and dataclasses, as one JSON document on standard output."""
    # With an escape for all but ASCII.
    typer.echo(json.dumps(msgspec.to_builtins(found), indent=None if one_line else 2))


def print_names(names: Iterable[object], as_json: bool) -> None:
    """Print names one a line, or as a JSON list in one line."""
    if as_json:
        print_json(list(names), one_line=True)
    else:
        say_lines(names)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "", spare: Sequence[str] = ()
) -> None:
    console().print(PrintedTable(columns, rows, title, spare))


def print_facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, a pair a line."""
    console().print(facts(pairs))


def problem(message: str) -> None:
    """Print ``message`` as one line on standard error."""
    say(PROBLEM + message, err=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on standard error if that is a terminal, else a line each ``PROGRESS_SECONDS``. Yields a function of item
    name, items done and items in all."""
    with _kept_standard_error() as stream:
        shown = _Console(file=stream)
        if not shown.is_terminal:
            with _progress_lines(what, stream) as begins:
                yield begins
            return
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=shown,
            transient=True,
        ) as bar:
            task = bar.add_task(what, total=None)

            def begins(name: str, number: int, count: int) -> None:
                bar.update(task, description=f"{what}: {name.replace('_', ' ')}", completed=number, total=count)

            yield begins


@contextmanager
def _kept_standard_error() -> Iterator[TextIO]:
    """Standard error as it is now: the start of Spark leads descriptor 2 to a file."""
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except OSError:
        # A stream without a descriptor.
        yield sys.stderr
        return
    with os.fdopen(descriptor, "w", errors="backslashreplace") as stream:
        yield stream


@contextmanager
def _progress_lines(what: str, stream: TextIO) -> Iterator[Callable[[str, int, int], None]]:
    ended, began, now = threading.Event(), monotonic(), [""]

    def begins(name: str, number: int, count: int) -> None:
        now[0] = f": {name.replace('_', ' ')} ({number + 1} of {count})"

    def tell() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            print(printable(f"{what}{now[0]}, {monotonic() - began:.0f} s"), file=stream, flush=True)

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield begins
    finally:
        ended.set()
        thread.join()


def json_line(row: dict[str, Any]) -> bytes:
    """Columns and values as one line of JSON, without a line break; not ``printable`` characters as JSON's escapes."""
    line = json.dumps(row, default=_plain, ensure_ascii=False)
    if not line.isprintable():
        line = "".join(each if each == printable(each) else f"\\u{ord(each):04x}" for each in line)
    return line.encode()


def _plain(value: Any) -> object:
    """JSON form of other types: bytes as in ``ledger read --json``, times as ISO 8601, the rest as text."""
    if isinstance(value, bytes):
        return payload_document(value)
    return value.isoformat() if isinstance(value, date | time) else str(value)


def payload_document(payload: bytes) -> dict[str, str]:
    """The payload for JSON: UTF-8 text as ``payload``, other bytes as ``payload_base64``."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def metadata_document(metadata: LedgerMetadata) -> dict[str, Any]:
    """A ledger's metadata as a JSON object. ``last_entry_id`` and ``length`` are null until the ledger is closed."""
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.value,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest_type": metadata.digest_type.value,
        "ledger_type": metadata.ledger_type.value,
        "replication": metadata.replication.value,
        "last_entry_id": metadata.last_entry_id if metadata.closed else None,
        "length": metadata.length if metadata.closed else None,
        "ctime_ms": metadata.ctime_ms,
        "custom_metadata": {
            name: value.decode(errors="backslashreplace") for name, value in sorted(metadata.custom_metadata.items())
        },
        "fragments": [
            {"first_entry_id": fragment.first_entry_id, "last_entry_id": last, "ensemble": list(fragment.ensemble)}
            for fragment, last in metadata.fragment_ranges()
        ],
        "accepted_loss": None if metadata.accepted_loss is None else _loss_document(metadata.accepted_loss),
    }


def _loss_document(loss: AcceptedLoss) -> dict[str, Any]:
    return {
        "by": loss.by,
        "at_ms": loss.at_ms,
        "named": list(loss.named),
        "losses": [
            {
                "kind": one.kind.value,
                "first_entry_id": one.first,
                "last_entry_id": one.last,
                "bookies": list(one.bookies),
            }
            for one in loss.losses
        ],
        "not_known": list(loss.not_known),
    }
