"""The encoder of a log's rows and the decoder of a data ledger's entries.

Law: a task writes as the log's options and its dictionary say; a reader goes by the label of the data ledger. ``row_format`` has
the encodings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pyspark import TaskContext
from pyspark.sql.types import StructType

from bookspark.logs.rows.encodings import ARROW, ZSTD_DICTIONARY, RowDecoder, RowEncoder, parts_of, value_encoding
from bookspark.logs.rows.stamped_rows import split_stamps
from bookspark.logs.rows.value_rows import ValueDecoder, ValueEncoder
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.log_record import ENCODING_LABEL, LogRecord
from bookspark.spark.rows.arrow_rows import ArrowDecoder, ArrowEncoder
from bookspark.spark.rows.row_format import columns_of


def row_encoder(record: LogRecord, told: Sequence[str] | None = None) -> RowEncoder:
    """The encoder of a task that writes to the log. ``told``: the columns of which the commit tells (``arrow_rows``)."""
    task, compression = TaskContext.get(), record.options.compression
    where = f" of partition {task.partitionId() if task is not None else '?'}"
    columns = columns_of(record.options)
    if columns is not None:
        return ArrowEncoder(columns, compression, told)
    return ValueEncoder(value_encoding(record), record.dictionary, where)


def row_decoder(ledger: LedgerMetadata, columns: StructType | None, dictionary: Callable[[], bytes]) -> RowDecoder:
    """The decoder of a data ledger's entries.

    ``columns``: those of a log of Arrow rows, else None. ``dictionary`` gives the log's dictionary; it is called only if the
    ledger needs it. Raises BookKeeperError for an encoding that this version does not know.
    """
    label = ledger.custom_metadata.get(ENCODING_LABEL, b"").decode()
    if label == ARROW and columns is not None:
        return ArrowDecoder(columns)
    where = f"data ledger {ledger.ledger_id}"
    is_stamped, encoding = parts_of(label, where)
    split = partial(split_stamps, where=where) if is_stamped else None
    return ValueDecoder(encoding, dictionary() if encoding == ZSTD_DICTIONARY else b"", split)
