"""The lanes of a log: their names, their index in the log's record, the writer of each, and the meaning of an offset.

Law: a lane is a chain, like a log with one writer, with a record of its own, so its writer never affects another lane. The log's
record is lane 0. It has the index of the others: a number is given out once, and a writer with a lane gets it again, until the
lane ends (``ended_lanes``).

=====================  =================================================================================================
writer                 lane
=====================  =================================================================================================
a streaming query      its lane in the index; lane 0 if it owns that or has committed there; lane 0 of a log without any
                       writer; the lane of the query that it ``follows``; else a new lane
a batch write          lane 0 if no query ever owned it; else the one lane shared by batch writes
a service's producer   its lane in the index; else a new lane
=====================  =================================================================================================

The union of lanes between two offsets is in the order of lanes, in each lane in the order of rows. So it follows from the offsets
alone, and a repeated plan is the same plan.

Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

from bookspark.errors import BookKeeperError
from bookspark.protocol.logs.log_record import SERVICE, AnotherQueryError, Lane, LogChangedError, LogRecord

# -- Groups: the lanes of each reader in a group that shares them.


class Moves(NamedTuple):
    """Lanes that a reader leaves, and takes, ascending.

    Law: a lane has one reader at a time. Each reader has the same number of lanes, or one more for those that joined first. A
    reader with more leaves lanes whose progress it has saved, so a lane changes hands without a repeated row; the others wait for
    that. An ended lane is left once all of it is read and saved.

    Source: Kafka's consumer groups; here each reader decides for itself, from state visible to all of them."""

    leave: list[int]
    take: list[int]


def moves(
    lanes: Collection[int], members: Sequence[str], name: str, holders: Mapping[int, str], unsaved: Collection[int]
) -> Moves:
    """The moves of member ``name``. ``lanes``: those that have rows, or may get more. ``members``: in the order in which they
    joined. ``holders``: the reader of each lane. ``unsaved``: its lanes with unsaved progress."""
    each, over = divmod(len(lanes), len(members))
    share = each + (members.index(name) < over)
    mine = sorted(lane for lane, holder in holders.items() if holder == name)
    needed = [lane for lane in mine if lane in lanes]
    leave = [lane for lane in mine if lane not in lanes and lane not in unsaved]
    leave += [lane for lane in reversed(needed) if lane not in unsaved][: max(0, len(needed) - share)]
    free = [lane for lane in sorted(lanes) if lane not in holders]
    return Moves(sorted(leave), free[: max(0, share - len(needed))])


# -- Names, the index, and the lane of a writer.


LANES_MAX = 1000
"""Most lanes of a log beside lane 0: the index is a part of one record."""
WRITERS_MAX = 100
"""Most writers of a lane in the index."""
BATCH_WRITES = "batch"
"""The writer of the lane that all batch writes share."""
MARK = "@"
"""Separates a log's name from the number of a lane. No log's name contains it."""


class TooManyLanesError(BookKeeperError):
    """The log has no room for another lane."""


class LaneId(NamedTuple):
    """A lane of the log with this id. A name may be that of another log by now, an id never is."""

    log: int
    """The log's id."""
    number: int
    """The lane's number."""
    name: str
    """The log's name, for messages."""

    @property
    def key(self) -> str:
        """The name of the lane's record, and of all that lies under it: ``12``, ``12@3``."""
        return lane_name(str(self.log), self.number)

    def lane(self, number: int) -> LaneId:
        """Another lane of the log."""
        return self._replace(number=number)

    def __str__(self) -> str:
        return lane_name(self.name, self.number)


def lane_id(record: LogRecord) -> LaneId:
    """The lane that ``record`` describes."""
    name, number = lane_of(record.name)
    return LaneId(record.log_id, number, name)


def lane_name(log: str, lane: int) -> str:
    return f"{log}{MARK}{lane}" if lane else log


def lane_of(name: str) -> tuple[str, int]:
    """The log and the lane: ``orders`` and ``orders@0`` are lane 0 of log ``orders``."""
    log, mark, number = name.partition(MARK)
    return log, int(number) if mark else 0


def writer_of(query: str) -> str:
    """The name of a streaming query in the index."""
    return f"query:{query}"


def place_key(checkpoint: str) -> str:
    """The key of an ended lane's remains by its Spark checkpoint."""
    return f"checkpoint:{checkpoint}"


def service_writer(name: str) -> str:
    """The name of a service's producer in the index and in a commit."""
    return f"{SERVICE}{name}"


def writers_of_lanes(record: LogRecord, records: Iterable[LogRecord]) -> dict[str, str]:
    """Writers by the lane's name; ``ended`` for an ended lane. ``records``: those of the log's lanes."""
    writers = {record.name: writer_of(record.owner_query) if record.owner_query else BATCH_WRITES}
    writers |= {one.name: "ended" for one in records if one.ended_rows is not None}
    return writers | {lane_name(record.name, lane.number): lane.writers[-1] for lane in record.lanes}


def is_service(writer: str) -> bool:
    return writer.startswith(service_writer(""))


def new_lane(record: LogRecord, lane: int) -> LogRecord:
    name = lane_name(record.name, lane)
    return LogRecord(name, record.options, record.master_key, ctime_ms=record.ctime_ms, log_id=record.log_id)


def with_lane(
    record: LogRecord, lane: int, writer: str, checkpoint: str = "", after: int = 0, follows: str = ""
) -> LogRecord:
    """The record with ``lane`` as the lane of ``writer``. Unchanged if repeated.

    ``after``: the ended lane that it continues; 0: none. ``follows``: that lane's writer, if it was another. Raises
    LogChangedError if another writer has that lane, the writer another lane, or the followed writer has a lane again;
    TooManyLanesError.
    """
    known = lane_in_index(record, writer)
    if known == lane:
        return record
    if known is not None or has_lane(record, follows) or lane != record.lanes_made + 1:
        raise LogChangedError(f"log {record.name!r}: other lanes were made meanwhile, {record.lanes_made} in all")
    if len(record.lanes) >= LANES_MAX:
        raise no_room_for_writer(record, writer)
    writers = (follows, writer) if follows else (writer,)
    return replace(record, lanes=(*record.lanes, Lane(lane, writers, checkpoint, after)), lanes_made=lane)


def no_room_for_writer(record: LogRecord, writer: str) -> TooManyLanesError:
    return TooManyLanesError(
        f"log {record.name!r} has {len(record.lanes)} lanes, and no room for {writer}: end lanes that nobody writes "
        f"any more (`bookspark log end {record.name}`), or use a new log"
    )


def with_writer(record: LogRecord, lane: int, writer: str, checkpoint: str = "") -> LogRecord:
    """The record with ``writer``, who may follow another, as the last one of ``lane``. Lane 0 has its owner in its own record."""

    def written(one: Lane) -> Lane:
        before = tuple(other for other in one.writers if other != writer)
        return one._replace(writers=(*before, writer)[-WRITERS_MAX:], checkpoint=checkpoint)

    lanes = tuple(written(one) if one.number == lane else one for one in record.lanes)
    return record if lanes == record.lanes else replace(record, lanes=lanes)


def lane_in_index(record: LogRecord, writer: str) -> int | None:
    """The lane that ``writer`` writes, or wrote before another followed it, or None."""
    return next((lane.number for lane in record.lanes if writer in lane.writers), None)


def has_lane(record: LogRecord, follows: str) -> bool:
    """Has the followed writer a lane that has not ended? Then its follower takes that lane, and gets no new one beside it: two
    runs of the follower could each choose another of the two."""
    return bool(follows) and lane_in_index(record, follows) is not None


def after_of(record: LogRecord, number: int) -> int:
    """The ended lane that lane ``number`` continues; 0: none."""
    return next((lane.after for lane in record.lanes if lane.number == number), 0)


def _never(key: str) -> str | None:
    return None


def lane_of_query(
    record: LogRecord,
    query: str,
    committed: Collection[str],
    follows: str = "",
    checkpoint: str = "",
    ended: Callable[[str], str | None] = _never,
) -> int | None:
    """The lane of a streaming query; None if it needs a new one.

    ``committed``: the queries in the newest header of lane 0. ``follows``: the query whose lane it may take over. ``checkpoint``:
    the place of its Spark checkpoint; empty if unknown. ``ended``: the writer of an ended lane, by a writer's name or by the
    place of a Spark checkpoint, or None. Raises AnotherQueryError if the query to follow has no lane, or if another query's Spark
    checkpoint was at the place: it was deleted or replaced, and its rows would come again.
    """
    found = _known_lane(record, query, committed)
    if found is not None:
        return found
    if not (record.owner_query or committed or record.batch_epoch):
        return 0
    if ended(writer_of(query)) is not None:
        return None
    if not follows:
        there = {record.checkpoint: writer_of(record.owner_query)}
        there.update({lane.checkpoint: lane.writers[-1] for lane in record.lanes})
        before = (there.get(checkpoint) or ended(place_key(checkpoint))) if checkpoint else None
        if before is not None:
            raise record.another_query(query, before.removeprefix(writer_of("")))
        return None
    found = _known_lane(record, follows, committed)
    if found is None and ended(writer_of(follows)) is not None:
        return None
    if found is None:
        raise AnotherQueryError(
            f"log {record.name!r}: query {query} is to follow query {follows!r}, which never wrote to the log. Nothing is "
            "written. Give the id of a query that did (the table log_commits has them), or leave the option follows out"
        )
    return found


def lane_of_batch_write(record: LogRecord, run: str) -> int | None:
    """None if batch writes need a new lane."""
    if record.batch_write(run) is not None or record.epoch == 0:
        return 0
    return lane_in_index(record, BATCH_WRITES)


def _known_lane(record: LogRecord, query: str, committed: Collection[str]) -> int | None:
    found = lane_in_index(record, writer_of(query))
    if found is None and (query == record.owner_query or query in committed):
        return 0
    return found


# -- offsets

Offset = Mapping[str, int]
"""A place in a log: ``position``, the rows of lane 0 before it; ``log``, the id of the log; for each other lane its number, and
its rows before it. ``ended``: the number of lanes, first ended first, that lie before it whole and unnamed. Any other
lane is at its beginning."""
_LANE_0, _LOG, _ENDED = "position", "log", "ended"
_NO_LANES = frozenset({_LANE_0, _LOG, _ENDED})


def offset_at(log_id: int, rows: Mapping[int, int], ended: int = 0) -> dict[str, int]:
    """The offset behind these rows by lane, and behind the first ``ended`` ended lanes."""
    others = {str(lane): rows[lane] for lane in sorted(rows) if lane}
    return {_LANE_0: rows.get(0, 0), _LOG: log_id, **others, **({_ENDED: ended} if ended else {})}


def with_rows(offset: Offset, rows: Mapping[int, int]) -> dict[str, int]:
    """The offset with these numbers of rows before it in these lanes."""
    return {**offset, **{str(lane) if lane else _LANE_0: count for lane, count in rows.items()}}


def rows_before(offset: Offset) -> dict[int, int]:
    """The rows before the offset by named lane, in the order of lanes."""
    found = {int(key): rows for key, rows in offset.items() if key not in _NO_LANES}
    return {0: offset[_LANE_0], **dict(sorted(found.items()))}


def ended_before(offset: Offset) -> int:
    """Unnamed ended lanes before the offset."""
    return offset.get(_ENDED, 0)


def later(offset: Offset, newest: Offset) -> dict[str, int]:
    """The later of two places in a log, or in ledgers, lane by lane: a row once known may be missing in the next look.

    Lanes that ended between the two are named in ``offset`` alone. If ``newest`` counts fewer ended lanes, it was read too early
    to add lanes: a lane that it still names may be one of those. Raises ValueError for places in different logs.
    """
    if offset.get(_LOG) != newest.get(_LOG):
        raise ValueError(f"{offset} and {newest} are places in different logs")
    known, new = ended_before(offset), ended_before(newest)
    if new < known:
        return {key: max(rows, newest.get(key, rows)) for key, rows in offset.items()}
    found = {key: max(rows, offset.get(key, rows)) for key, rows in newest.items()}
    return found if new > known else {**offset, **found}


def is_offset(offset: Mapping[str, object]) -> bool:
    """Has it the form of a place in a log?"""
    others = offset.keys() - _NO_LANES
    named = all(key.isascii() and key.isdigit() and key != "0" for key in others)
    return (
        {_LANE_0, _LOG} <= offset.keys() and named and all(isinstance(one, int) and one >= 0 for one in offset.values())
    )


def rows_in_bytes(waiting: Mapping[int, int], sized: Mapping[int, Iterator[tuple[int, int]]], most: int) -> int:
    """The number of rows of all lanes that have about ``most`` bytes, if each lane gives the same part of its ``waiting`` rows.

    ``sized``: consecutive rows of each lane, as (number of rows, bytes). It is read only as far as ``most`` reaches."""
    ends: list[tuple[float, int]] = []
    """For each lane the part of its rows that was read."""
    read, bytes_each = dict.fromkeys(waiting, 0), dict.fromkeys(waiting, 0.0)

    def read_on(lane: int) -> None:
        rows, size = next(sized[lane], (0, 0))
        read[lane] += rows
        bytes_each[lane] = size * waiting[lane] / rows if rows else 0.0
        if rows:
            heappush(ends, (read[lane] / waiting[lane], lane))

    for lane in waiting:
        read_on(lane)
    part, size, bytes_of_all = 0.0, 0.0, sum(bytes_each.values())
    while ends:
        end, lane = heappop(ends)
        if size + bytes_of_all * (end - part) > most:
            # Rounding must not cost a row.
            return int(sum(waiting.values()) * (part + (most - size) / bytes_of_all) + 1e-6)
        size += bytes_of_all * (end - part)
        part = end
        bytes_of_all -= bytes_each[lane]
        read_on(lane)
        bytes_of_all += bytes_each[lane]
    return sum(waiting.values())


def shared_out(waiting: Mapping[int, int], most: int) -> dict[int, int]:
    """Split a budget of ``most`` rows over lanes; the shares are ``most`` in all, or everything that waits.

    Each lane with waiting rows gives at least one, the longest backlog first; the rest is split in proportion.
    """
    busy = sorted((lane for lane, some in waiting.items() if some), key=lambda lane: -waiting[lane])
    shares = dict.fromkeys(waiting, 0) | dict.fromkeys(busy[:most], 1)
    left = min(most, sum(waiting.values())) - sum(shares.values())
    rest = {lane: waiting[lane] - shares[lane] for lane in busy}
    total = sum(rest.values())
    if left:
        for lane, some in rest.items():
            shares[lane] += some * left // total
    for lane in busy:
        over = min(most, sum(waiting.values())) - sum(shares.values())
        shares[lane] += min(over, waiting[lane] - shares[lane])
    return shares
