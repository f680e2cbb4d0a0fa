"""What the entries of a log's data ledgers hold: the encodings, and what an encoder and a decoder of rows do.

Law: rows come back as they went in, in order. A data ledger says itself how its payloads are encoded, in its custom metadata
(label ``bookspark.encoding``). So no reader has to guess, not even in a log whose dictionary came after its first rows:

=====================  ==========================================================================================
no label               an entry is a row; its payload is the row's ``value``
``zstd``               the same, each payload a zstd frame; an empty value is an empty payload
``zstd_dictionary``    the same, compressed with the dictionary in the log's record
``arrow``              an entry is an encapsulated Arrow IPC record batch message, of the schema in the log's record;
                       with compression ``zstd`` its buffers are compressed as Arrow's format has it, and the message
                       says so
``stamped``            an entry is a producer's row: a stamp (``chain.stamps``), then the value as without a label; with an
                       underscore and one of the labels above behind it: then the value as with that label
=====================  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bookspark.errors import BookKeeperError
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.logs.log_options import Compression
from bookspark.protocol.logs.log_record import LogRecord

if TYPE_CHECKING:
    import pyarrow

PLAIN, ZSTD, ZSTD_DICTIONARY, ARROW = "", "zstd", "zstd_dictionary", "arrow"
"""The encodings, as the label ``bookspark.encoding`` has them."""
STAMPED = "stamped"
VALUE_ENCODINGS = (PLAIN, ZSTD, ZSTD_DICTIONARY)
APPENDED_AT = "timestamp"
"""The column of the times that stamped rows say themselves."""
ROW_KEY, ROW_HEADERS = "key", "headers"
"""The columns of their keys and headers."""
ID_COLUMNS = ("position", "ledger_id", "entry_id")
"""The columns that reading adds to those that were written."""


class Payloads(NamedTuple):
    """Entries to append."""

    values: pyarrow.Array
    """Their payloads: binary, without nulls."""
    rows_each: int = 1
    """How many rows each entry holds."""


class RowEncoder(Protocol):
    """Makes entries of the rows of one task."""

    encoding: str
    """The encoding of the data ledgers that take the entries."""

    def add(self, rows: pyarrow.RecordBatch) -> Iterator[Payloads]:
        """Take more rows. Returns the entries that are full now."""

    def finish(self) -> Iterator[Payloads]:
        """The entries of the rows that are left."""

    def statistics(self, size: int) -> str:
        """What a commit of ``size`` bytes of payload tells of all rows (``statistics``); empty: nothing."""


class RowDecoder(Protocol):
    """Makes rows of the entries of one data ledger."""

    def rows(self, entries: pyarrow.RecordBatch, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        """The rows of ``piece`` that are in ``entries``. These are consecutive, and all of them belong to the piece."""

    def whole(self, entries: pyarrow.RecordBatch, counts: Sequence[int]) -> pyarrow.RecordBatch | None:
        """All rows of ``entries``, which are any of the ledger, in order. Positions have no meaning. ``counts``: how many rows
        each entry has; None if one has another number."""


def value_encoding(record: LogRecord) -> str:
    """How values become payloads of the log."""
    if record.options.compression is Compression.NONE:
        return PLAIN
    with_dictionary = record.options.compression is Compression.ZSTD_DICTIONARY and record.dictionary
    return ZSTD_DICTIONARY if with_dictionary else ZSTD


def stamped_label(encoding: str) -> str:
    """The label of a ledger whose entries are a stamp and a value of this encoding."""
    return f"{STAMPED}_{encoding}" if encoding else STAMPED


def parts_of(label: str, where: str) -> tuple[bool, str]:
    """Whether the entries have a stamp, and the encoding of their values. ``where``: what is read, for the error. Raises
    BookKeeperError for an encoding that this version does not know, or whose entries are not values."""
    if label in VALUE_ENCODINGS:
        return False, label
    if label.startswith(STAMPED) and (encoding := label.removeprefix(STAMPED).removeprefix("_")) in VALUE_ENCODINGS:
        return True, encoding
    raise BookKeeperError(
        f"{where} has the encoding {label!r}, which this version does not know: use a newer bookspark"
    )
