"""Encodings of the entries of a log's data ledgers, and the interfaces of encoders and decoders of rows.

Law: rows are read exactly as they were written, in order. The label ``bookspark.encoding`` in a data ledger's custom metadata
names the encoding of its payloads, so no reader guesses, even if the log got its dictionary after its first rows:

=====================  ==========================================================================================
no label               an entry is a row; its payload is the row's ``value``
``zstd``               the same, each payload a zstd frame; an empty value is an empty payload
``zstd_dictionary``    the same, compressed with the dictionary in the log's record
``arrow``              an entry is an encapsulated Arrow IPC record batch message, with the schema in the log's record;
                       with compression ``zstd`` its buffers are compressed as in Arrow's format, and the message
                       says so
``stamped``            an entry is a producer's row: a stamp (``chain.stamps``), then the value as without a label; with an
                       underscore and one of the labels above appended: then the value as with that label
=====================  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bookspark.errors import BookKeeperError, EntryTooLargeError, InvalidRowError
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.logs.log_options import Compression
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.store.wire.entry_batch import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow

PLAIN, ZSTD, ZSTD_DICTIONARY, ARROW = "", "zstd", "zstd_dictionary", "arrow"
"""The encodings: values of the label ``bookspark.encoding``."""
STAMPED = "stamped"
VALUE_ENCODINGS = (PLAIN, ZSTD, ZSTD_DICTIONARY)
APPENDED_AT = "timestamp"
ROW_KEY, ROW_HEADERS = "key", "headers"
VALUE_BYTES_MAX = PAYLOAD_BYTES_MAX - (64 << 10)
"""Largest row, with key and headers, before compression: below an entry's limit, because compression may enlarge it a little."""
ID_COLUMNS = ("position", "ledger_id", "entry_id")
"""Columns that reading adds to the written ones."""


class Payloads(NamedTuple):
    values: pyarrow.Array
    """The payloads: binary, without nulls."""
    rows_each: int = 1


class RowEncoder(Protocol):
    """Encodes the rows of one task into entries."""

    encoding: str

    def add(self, rows: pyarrow.RecordBatch) -> Iterator[Payloads]:
        """Add rows. Returns the entries that are now full."""

    def finish(self) -> Iterator[Payloads]:
        """The entries of the remaining rows."""

    def statistics(self, size: int) -> str:
        """Statistics of all rows, for a commit of ``size`` bytes of payload (``statistics``); empty: none."""


class RowDecoder(Protocol):
    """Decodes the entries of one data ledger into rows."""

    def rows(self, entries: pyarrow.RecordBatch, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        """The rows of ``piece`` in ``entries``, which are consecutive and all belong to the piece."""

    def whole(self, entries: pyarrow.RecordBatch, counts: Sequence[int]) -> pyarrow.RecordBatch | None:
        """All rows of ``entries``, any entries of the ledger, in order; without meaningful positions. ``counts``: expected rows
        of each entry; returns None if an entry has another number."""


def value_encoding(record: LogRecord) -> str:
    """Encoding of values in the log's next ledgers."""
    if record.options.compression is Compression.NONE:
        return PLAIN
    with_dictionary = record.options.compression is Compression.ZSTD_DICTIONARY and record.dictionary
    return ZSTD_DICTIONARY if with_dictionary else ZSTD


def stamped_label(encoding: str) -> str:
    """Label of a ledger whose entries are a stamp and a value of this encoding."""
    return f"{STAMPED}_{encoding}" if encoding else STAMPED


def parts_of(label: str, where: str) -> tuple[bool, str]:
    """(Entries are stamped?, encoding of their values). ``where``: for the error. Raises BookKeeperError for an unknown encoding,
    or if entries are not values."""
    if label in VALUE_ENCODINGS:
        return False, label
    if label.startswith(STAMPED) and (encoding := label.removeprefix(STAMPED).removeprefix("_")) in VALUE_ENCODINGS:
        return True, encoding
    raise BookKeeperError(
        f"{where} has the encoding {label!r}, which this version does not know: use a newer bookspark"
    )


def too_large(size: int, which: str = "a row") -> EntryTooLargeError:
    """The refusal of a row of ``size`` bytes. ``which``: the row, in words."""
    return EntryTooLargeError(
        f"{which} of {size:,} bytes is larger than {VALUE_BYTES_MAX:,}, more than a log takes; split it"
    )


def invalid_row(log: str, position: int, ledger_id: int, entry_id: int, why: object, rows: int = 1) -> InvalidRowError:
    """Error of a reader at an entry that is no row. ``log``: the log or lane; ``position``: of the entry's first row; ``why``:
    the fault; ``rows``: rows that the entry should have."""
    which = f"row {position}" if rows == 1 else f"rows {position} to {position + rows - 1}"
    return InvalidRowError(
        f"{which} of log '{log}', entry {entry_id} of ledger {ledger_id}, can't be decoded: {why}. The other rows are readable: "
        f"go on at row {position + rows} (bookspark log read --from-row, RowReader.seek), or skip such rows (option "
        "failOnDataLoss false, RowReader.read_with_gaps)"
    )
