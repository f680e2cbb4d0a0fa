"""The encoder of a log's rows and the decoder of a data ledger's entries.

Law: a task writes as the log's options and its dictionary say; a reader goes by the label of the data ledger. ``row_format`` has
the encodings.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.types import StructType

from bookspark.errors import BookKeeperError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.log_record import ENCODING_LABEL, Compression, LogRecord
from bookspark.spark.logs.arrow_rows import ArrowDecoder, ArrowEncoder
from bookspark.spark.logs.row_format import ARROW, PLAIN, ZSTD, ZSTD_DICTIONARY, RowDecoder, RowEncoder, columns_of
from bookspark.spark.logs.value_rows import ValueDecoder, ValueEncoder


def row_encoder(record: LogRecord) -> RowEncoder:
    """The encoder of a task that writes to the log."""
    compression = record.options.compression
    columns = columns_of(record.options)
    if columns is not None:
        return ArrowEncoder(columns, compression)
    if compression is Compression.NONE:
        return ValueEncoder(PLAIN)
    if record.dictionary:
        return ValueEncoder(ZSTD_DICTIONARY, record.dictionary)
    return ValueEncoder(ZSTD)


def row_decoder(ledger: LedgerMetadata, columns: StructType | None, dictionary: Callable[[], bytes]) -> RowDecoder:
    """The decoder of a data ledger's entries.

    ``columns``: those of a log of Arrow rows, else None. ``dictionary`` gives the log's dictionary; it is called only if the
    ledger needs it. Raises BookKeeperError for an encoding that this version does not know.
    """
    encoding = ledger.custom_metadata.get(ENCODING_LABEL, b"").decode()
    if encoding in (PLAIN, ZSTD):
        return ValueDecoder(encoding)
    if encoding == ZSTD_DICTIONARY:
        return ValueDecoder(encoding, dictionary())
    if encoding == ARROW and columns is not None:
        return ArrowDecoder(columns)
    raise BookKeeperError(
        f"data ledger {ledger.ledger_id} has the encoding {encoding!r}, which this version does not know: use a newer bookspark"
    )
