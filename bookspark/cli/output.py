"""What commands print.

Law: results go to stdout and nothing else does; problems go to stderr, one line each:
``bookspark: <what is wrong and what to do>``.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata

PROBLEM = "bookspark: "
_PLAIN_WIDTH = 200
"""Columns of a table that goes to a file or a pipe: what reads it has no screen to fit."""


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)


def one_line(error: BaseException) -> str:
    """The error's message with its line breaks taken out; its name if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def problem(message: str) -> None:
    """Tell on stderr what is wrong."""
    typer.echo(PROBLEM + message, err=True)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table of text; numbers stand on the right."""
    body = [list(row) for row in rows]
    result = Table(title=title or None, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        numeric = bool(body) and all(isinstance(row[number], int | float) or row[number] is None for row in body)
        result.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        result.add_row(*(_text(value) for value in row))
    return result


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape(str(value))


def size_text(count: float) -> str:
    """Bytes for people: 1.5 MB is 1,500,000 B."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def payload_document(payload: bytes) -> dict[str, str]:
    """``payload`` as text, or ``payload_base64`` where it is not UTF-8."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def metadata_document(metadata: LedgerMetadata) -> dict[str, Any]:
    """A ledger's metadata as a JSON object; ``last_entry_id`` and ``length`` are null until it is closed."""
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
    }
