"""A DataFrame with the current rows of a log.

Law: each call of ``log_frame`` loads anew, so its first action sees all rows committed by then. Spark keeps the plan of a
DataFrame, of a view, and of the static side of a join with a stream (Spark 4.2, ``PythonDataSourceV2``): all later actions see
the log's end of the first action. For the newest rows, call ``log_frame`` again, also in ``foreachBatch``.

Tasks read offloaded rows by delta-rs. If their table has a feature unknown to delta-rs, Spark's own reader takes its place here,
where there is a session. It checks that the table has each row once, and option ``where`` becomes Spark's filter, with the same
rows.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from bookspark.errors import ConfigurationError, ReadError
from bookspark.logs.chain.commit_times import row_at
from bookspark.logs.chain.registry import LaneName, LogRegistry, check_password
from bookspark.logs.feeds.lost_rows import data_loss
from bookspark.logs.feeds.times import Times, check_lanes
from bookspark.protocol.logs.lanes import MARK, LaneId, lane_id
from bookspark.spark.connector.data_source import ZOOKEEPER_VARIABLE
from bookspark.spark.offload.table import check_readable
from bookspark.spark.options.places import LATEST, Place
from bookspark.spark.options.source_options import SourceOptions, include
from bookspark.spark.process_client import ZOOKEEPER_CONF
from bookspark.store.client import BookKeeper
from bookspark.store.settings import of_environment
from bookspark.support.arguments import checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)


@checked
def log_frame(spark: SparkSession, log: LaneName, **options: str | int | bool) -> DataFrame:
    """A DataFrame with the rows of ``log`` that are committed when its first action begins.

    ``spark``: the session. ``log``: the name of a log or of one lane. ``options``: those of a batch read by name (see
    ``source_options``), for example ``startingOffsets=100``, ``startingTimestamp="2026-11-22T14:05:00Z"``, ``password="secret"``.

    Raises ConfigurationError, NoSuchLogError, UnauthorizedAccessError (wrong password), MetadataStoreError; DataLossError if rows
    from ``startingOffsets`` on were truncated; ReadError if Spark's own reader has to read offloaded rows and their table does
    not have each of them once; and Spark's errors.
    """
    given = {"log": log, **{name: str(value) for name, value in options.items()}}
    known = SourceOptions.parse(given, spark.conf.get(ZOOKEEPER_CONF, None) or os.environ.get(ZOOKEEPER_VARIABLE))
    known = known.for_batch()
    with BookKeeper(known.zookeeper, **of_environment("client")) as bookkeeper:
        registry = LogRegistry(bookkeeper.metadata)
        lanes = registry.lanes_of(log)
        record = registry.get(lanes[0])
        check_password(record, known.password)
        offloads = [registry.get(lane).offload for lane in lanes]
        row = partial(_row, bookkeeper, lane_id(record), known.password)
        first, last = (row(place) if any(offloads) and len(lanes) == 1 else None for place in (known.start, known.end))
        numbers = [lane.number for lane in lanes]
    given["logId"] = str(record.log_id)
    for place in (known.start, known.end):
        named = place.lanes if isinstance(place, Times) else place if isinstance(place, Mapping) else ()
        if any(offloads):
            check_lanes(log, named, numbers)
    if len(lanes) > 1 and any(offloads):
        for option, wanted in (("startingOffsets", known.start), ("endingOffsets", known.end)):
            if isinstance(wanted, int):
                raise ConfigurationError(
                    f"log {log!r} has {len(lanes)} lanes, and {option} {wanted} is a row of one of them: read one lane, for "
                    f"example {log}{MARK}0, or leave {option} out"
                )
        frames = [log_frame(spark, f"{log}{MARK}{lane}", **_of_lane(options, known, lane)) for lane in numbers]
        return reduce(DataFrame.union, frames)
    rows = spark.read.format("bookspark").options(**{"zookeeper": known.zookeeper, **given})
    start = max(record.first_position, first or 0)
    offloaded = record.offload.position if record.offload is not None else 0
    stop = offloaded if last is None else min(offloaded, last)
    if record.offload is None or start >= stop:
        return rows.load()
    try:
        check_readable(record.offload.table)
        return rows.load()
    except ReadError as error:
        if isinstance(known.start, int) and known.start < start:
            what = f"log {log!r}: rows {known.start} to {start - 1} were truncated, and were not read before"
            data_loss(what, known.fail_on_data_loss, start - known.start)
        for column in known.added:
            raise ConfigurationError(
                f"log {log!r}: rows {start} to {stop - 1} are in a table that only Spark's own reader can read, and it has "
                f"no such column: leave option {include(column)} out"
            ) from error
        _logger.warning(
            "log %r: Spark's own reader takes rows %d to %d from their table: %s", log, start, stop - 1, error
        )
    # One lane is named, so that a lane made before the first action does not enter this frame.
    lane = {"log": log if MARK in log else f"{log}{MARK}0", "zookeeper": known.zookeeper}
    places = {"startingOffsets": stop, "endingOffsets": LATEST if last is None else last}
    others = {name: value for name, value in given.items() if not name.lower().startswith(("starting", "ending"))}
    rest = spark.read.format("bookspark").options(**{**others, **lane, **places}).load()
    table = _by_spark(spark, record.offload.table, log, start, stop)
    for where in (value for name, value in given.items() if name.lower() == "where"):
        table = table.where(where)
    return table.select(*rest.columns).union(rest)


def _of_lane(options: Mapping[str, str | int | bool], known: SourceOptions, lane: int) -> dict[str, str | int | bool]:
    """The options for one lane: only its own places."""
    own = dict(options)
    for which, place in (("starting", known.start), ("ending", known.end)):
        if isinstance(place, Times):
            own = {name: value for name, value in own.items() if not name.lower().startswith(which)}
            time_ms = place.of_lane(lane)
            own |= {} if time_ms is None else {f"{which}Timestamp": time_ms}
        elif isinstance(place, Mapping):
            own = {name: value for name, value in own.items() if not name.lower().startswith(which)}
            own |= {f"{which}Offsets": place[lane]} if lane in place else {}
    return own


def _row(bookkeeper: BookKeeper, lane: LaneId, password: bytes, place: Place) -> int | None:
    """The lane's row that an option names by number or time; None if it names no row."""
    if isinstance(place, Times):
        time_ms = place.of_lane(lane.number)
        return None if time_ms is None else row_at(bookkeeper, lane, password, time_ms)
    if isinstance(place, Mapping):
        return place.get(lane.number)
    return place if isinstance(place, int) else None


def _by_spark(spark: SparkSession, table: str, log: str, start: int, stop: int) -> DataFrame:
    """Rows ``start`` to before ``stop`` of the table, by Spark's own reader. Raises ReadError if some are missing or double."""
    from pyspark.sql import functions as F

    position = F.col("position")
    rows = spark.read.format("delta").load(table).where((position >= start) & (position < stop))
    counts = rows.select(F.count("*").alias("rows"), F.countDistinct("position").alias("positions")).collect()[0]
    if (counts["rows"], counts["positions"]) != (stop - start, stop - start):
        raise ReadError(
            f"rows {start} to {stop - 1} of log {log!r} in {table}: there are {counts['rows']}, {counts['positions']} different; "
            f"there should be {stop - start}, each once: restore a version of the table that has them"
        )
    return rows
