"""How far the readers of a log are behind, as figures for Prometheus; ``metrics.tables.LOG_READERS`` describes them.

Law: a label has few values. A reader is told by the name of its query or group, or by its query's id; one that has none of these
would be another series at each start, and is left out. Of several of one name those that live count, and of these the one that is
most behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bookspark.logs.readers.lag import ReaderLag, readers_of
from bookspark.protocol.logs.reader_record import ReaderState
from bookspark.support.metrics.described import Figures

if TYPE_CHECKING:
    from bookspark.logs.chain.log_run import LogAddress
    from bookspark.store.client import BookKeeper


def lag_figures(bookkeeper: BookKeeper, log: LogAddress) -> tuple[Figures, Mapping[str, str]]:
    """The figures of now, and the label of the log. Raises what ``readers_of`` does."""
    told: dict[tuple[str, str], ReaderLag] = {}
    # Those that live come first, and of these the one that is most behind.
    for one in readers_of(bookkeeper, log.name, log.password):
        if one.name or one.reader:
            told.setdefault((one.kind.value, one.title), one)
    figures: Figures = {
        "bookspark_log_reader_lag_rows": {key: one.lag_rows for key, one in told.items() if one.lag_rows is not None},
        "bookspark_log_reader_lag_seconds": {
            key: one.lag_seconds for key, one in told.items() if one.lag_seconds is not None
        },
        "bookspark_log_reader_live": {key: float(one.state is ReaderState.LIVE) for key, one in told.items()},
    }
    return figures, {"log": log.name}
