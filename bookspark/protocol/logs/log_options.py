"""The options of a log: storage of its rows, and properties of its ledgers.

Source: docs/decisions/logs.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.ledger_choices import check_choices
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication


class RowFormat(Enum):
    VALUE = "value"
    """One row with one value: a string or bytes."""
    ARROW = "arrow"
    """Rows with all their columns, as an Arrow record batch."""


class Compression(Enum):
    NONE = "none"
    ZSTD = "zstd"
    ZSTD_DICTIONARY = "zstd_dictionary"
    """zstd with a dictionary, for small values. It is trained from the log's first rows and kept in the log's record."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Options of data ledgers. Commit ledgers are always PD (persistent durability: an append is acknowledged after the sync).
    Options in ``ALTERABLE`` may be changed later."""

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest_type: DigestType = DigestType.CRC32C
    ledger_type: LedgerType = LedgerType.PD_JOURNAL
    replication: Replication = Replication.BEST_EFFORT
    row_format: RowFormat = RowFormat.VALUE
    compression: Compression = Compression.NONE
    columns: str = ""
    """The schema of the rows, as Spark's JSON, if the row format is ARROW."""
    fewer_copies: bool = True
    """While fewer bookies than ``write_quorum`` can be written, are ledgers made over those that there are, at least
    ``ack_quorum``? Autorecovery adds the other copies later."""

    def __post_init__(self) -> None:
        check_choices(self.ensemble_size, self.write_quorum, self.ack_quorum, self.ledger_type, self.replication)
        if self.row_format is RowFormat.ARROW and self.compression is Compression.ZSTD_DICTIONARY:
            raise ConfigurationError(
                "compression 'zstd_dictionary' is for logs of single values; entries of row format 'arrow' hold many rows "
                "and gain nothing from it: use 'zstd'"
            )

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Ensemble size and write quorum of the next ledger, the wanted ones first, then those for fewer bookies.

        Without striping: then an entry that an ack quorum has is on all bookies but those that failed, whichever they are. A log
        whose acknowledgements need the write quorum makes no ledger of fewer copies.
        """
        yield self.ensemble_size, self.write_quorum
        if self.fewer_copies and self.replication is Replication.BEST_EFFORT:
            for copies in range(min(self.write_quorum, self.ensemble_size - 1), self.ack_quorum - 1, -1):
                yield copies, copies

    def larger_than(self, ensemble_size: int, possible: Callable[[int, int], int]) -> tuple[int, int] | None:
        """Ensemble size and write quorum of a ledger to go on in, instead of one over ``ensemble_size`` bookies; None if no
        larger one is possible now.

        ``possible``: number of bookies that a ledger of such an ensemble size and write quorum would get now, 0 if too few.
        """
        for size in self.sizes():
            if size[0] <= ensemble_size:
                break
            if possible(*size) > ensemble_size:
                return size
        return None

    @property
    def bookies_min(self) -> int:
        """Fewest writable bookies with which a ledger can be made."""
        return min(ensemble_size for ensemble_size, _ in self.sizes())


ALTERABLE = ("ensemble_size", "write_quorum", "ack_quorum", "digest_type", "compression", "fewer_copies")
"""Options that affect future ledgers only."""
