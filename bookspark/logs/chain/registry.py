"""Logs in the metadata store: names, ids, and the records under an id, changed only by compare-and-set.

Law: a log gets an id when it is created, and no other log ever gets it. All that belongs to the log lies under its id; its name
only points to it. Whoever acts on a log resolves the name once and carries a ``LaneId`` from then on, so each compare-and-set
goes to a node that a later log of the name does not have. The record under the id is the log: without it there is none,
whatever else is left.

======================================  =================================================================
``/bookspark/logs/<name>``              the id of the log of this name
``/bookspark/log_records/<key>``        the ``LogRecord`` of a lane; its key is ``<id>``, or ``<id>@3``
``/bookspark/retention/<id>``           the log's retention
``/bookspark/ended/<id>@<digest>``      an ended lane, by its writer (``LaneIndex``)
``/bookspark/ended_blocks/<id>@<n>``    ended lanes, 1,000 in each
``/bookspark/positions/<group>@<key>``  the saved offset of a group of readers; ``starts`` for streams
``/bookspark/readers/<key>@<key>``      the report of a reader (``logs.readers``)
======================================  =================================================================

Every change is a transition of ``bookspark.protocol.logs.log_record``, applied again to the newest version after a lost
compare-and-set. A repeated transition changes nothing, so a write with a lost response is simply repeated. Source:
docs/decisions/logs.md.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Annotated
from zlib import crc32

import msgspec

from bookspark.errors import ConfigurationError, MetadataVersionError, UnauthorizedAccessError
from bookspark.logs.chain.codec import LogFormatError, decode_name, decode_record, encode_name, encode_record
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.logs.ended_lanes import blocks_of
from bookspark.protocol.logs.lanes import MARK, LaneId, lane_id, lane_name, lane_of, no_room_for_writer
from bookspark.protocol.logs.log_offload import Offload, OffloadError
from bookspark.protocol.logs.log_options import ALTERABLE, Compression, LogOptions
from bookspark.protocol.logs.log_record import (
    LANE_BYTES_MAX,
    NEW_BYTES_MAX,
    CommitLedger,
    LinkStart,
    LogExistsError,
    LogRecord,
    LogRecreatedError,
    NoSuchLogError,
)
from bookspark.protocol.logs.retention import Retention, check_not_offloaded
from bookspark.store.decisions.seam import decided
from bookspark.store.metadata.records.documents import proven_struct, read_struct
from bookspark.store.metadata.records.versioned import Record, compare_and_set
from bookspark.store.metadata.store import MetadataStore, change_record
from bookspark.store.wire.digests import master_key
from bookspark.support.arguments import AtLeastOne, BytesOrNone, Password, Rule, checked, checks_methods

logger = logging.getLogger(__name__)

NAMES, RECORDS = "logs", "log_records"
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""Kafka's rule for topic names."""
_LANE = re.compile(rf"{_NAME.pattern}(@(0|[1-9][0-9]{{0,8}}))?")


LogName = Annotated[
    str, Rule("a log name: 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'", _NAME.fullmatch)
]
LaneName = Annotated[
    str,
    Rule(
        "a log name (1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'), or that of its lane: orders@3",
        _LANE.fullmatch,
    ),
]
"""The name of a log, which is also that of its lane 0, or of another lane: ``orders@3``."""
Lane = LaneName | LaneId
"""A lane by its name, which is resolved now, or by its id."""


POSITIONS, STARTS = "positions", "starts"
READERS, ENDED, BLOCKS, RETENTION = "readers", "ended", "ended_blocks", "retention"
_IDS = 31
"""Bits of a log's number in its cluster."""


class EndedBlock(msgspec.Struct, frozen=True):
    """Lanes in the order of their ends."""

    lanes: tuple[int, ...]


@checks_methods
class LogRegistry:
    """Reads and changes log records in ``store``. Every method raises MetadataStoreError if the store does not answer.

    A method that takes a name or a LaneId raises NoSuchLogError if there is no such log, and LogRecreatedError if the LaneId's
    log was deleted and its name is another log's by now."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def names(self) -> list[str]:
        """Names of all logs, sorted."""
        return sorted(self._store.list_records(NAMES))

    def all_lanes(self) -> list[LaneId]:
        """All lanes of all logs, ended lanes too, sorted by the logs' names. A log whose name is unreadable has the name in its
        record."""
        names = self.names()
        logs, unreadable = {}, set()
        for name, document in zip(names, self._store.read_records(NAMES, names), strict=True):
            try:
                if document is not None:
                    logs[decode_name(document.value, name)] = name
            except LogFormatError as error:
                logger.warning("%s", error)
                unreadable.add(name)
        keys = self._store.list_records(RECORDS)
        for key in keys if unreadable else ():
            if MARK not in key and int(key) not in logs:
                with suppress(LogFormatError):
                    record = self.find(LaneId(int(key), 0, key))
                    if record is not None and record.name in unreadable:
                        logs[record.log_id] = record.name
        # Without its own record there is no log: the rest was left by an interrupted deletion.
        there = {key for key in keys if MARK not in key and int(key) in logs}
        parts = map(lane_of, keys)
        lanes = [LaneId(int(log), number, logs[int(log)]) for log, number in parts if log in there]
        return sorted(lanes, key=lambda lane: (lane.name, lane.number))

    def lane(self, name: LaneName) -> LaneId | None:
        """The lane of this name now; None if there is no log of the name. Raises LogFormatError."""
        log, number = lane_of(name)
        record = self._store.read_record(NAMES, log)
        return None if record is None else LaneId(decode_name(record.value, log), number, log)

    def lanes_of(self, name: Lane) -> list[LaneId]:
        """All lanes of a log, ended lanes too, in the order of their numbers; for a lane's name, that lane. Raises the errors of
        ``ended_lanes``."""
        record = self.get(name)
        first = lane_id(record)
        if first.number or (isinstance(name, str) and MARK in name):
            return [first]
        numbers = sorted({0, *(lane.number for lane in record.lanes), *self.ended_lanes(record)})
        return [first.lane(number) for number in numbers]

    def ended_lanes(self, record: LogRecord, first: int = 0) -> list[int]:
        """Ended lanes of the log, in the order of their ends, from the ``first``-th on. Raises NoSuchLogError and
        UnreadableRecordError."""
        ended: list[int] = []
        for block in blocks_of(record, first):
            name = lane_name(str(record.log_id), block + 1)
            kept = self._store.read_record(BLOCKS, name)
            if kept is None:
                raise self.gone(lane_id(record))
            ended += read_struct(kept.value, EndedBlock, f"block {name!r} of lanes that ended").lanes
        ended += record.ended_lanes
        return ended[first - (record.ended_count - len(ended)) :]

    def get(self, name: Lane) -> LogRecord:
        """The record of a lane. Raises NoSuchLogError, with the most similar name, LogRecreatedError and LogFormatError."""
        record = self.find(name)
        if record is not None:
            return record
        if isinstance(name, LaneId):
            raise self.gone(name)
        log, number = lane_of(name)
        if number and self.find(log) is not None:
            raise NoSuchLogError(f"log {log!r} has no lane {number}; `bookspark log describe {log}` lists its lanes")
        nearest = get_close_matches(name, self.names(), n=1)
        hint = (
            f"did you mean {nearest[0]!r}?"
            if nearest and nearest[0] != name
            else "`bookspark log list` prints all; a query's first write or `bookspark log create` makes one"
        )
        raise NoSuchLogError(f"there is no log {name!r}; {hint}")

    def find(self, name: Lane) -> LogRecord | None:
        """The record of a lane; None if it does not exist. Raises LogFormatError."""
        lane = name if isinstance(name, LaneId) else self.lane(name)
        document = None if lane is None else self._store.read_record(RECORDS, lane.key)
        return None if lane is None or document is None else _record(document, lane)

    def find_each(self, lanes: Sequence[LaneId]) -> Iterator[LogRecord | None]:
        """``find`` for many lanes, in their order, with many requests at a time."""
        documents = self._store.read_records(RECORDS, [lane.key for lane in lanes])
        each = zip(lanes, documents, strict=True)
        return (None if document is None else _record(document, lane) for lane, document in each)

    def exists(self, log_id: int) -> bool:
        return self._store.read_record(RECORDS, str(log_id)) is not None

    def create(self, name: LogName, options: LogOptions, password: Password) -> LogRecord:
        """Create an empty log. Raises LogExistsError, and ConfigurationError for columns whose schema is too large."""
        made_ms = self._store.clock.known_ms()
        record = LogRecord(name, options, master_key(password), ctime_ms=made_ms, log_id=self._new_id())
        made = lane_id(record)

        def point(document: bytes | None) -> bytes:
            if document is not None:
                before = decode_name(document, name)
                if before != made.log and self.exists(before):
                    raise LogExistsError(f"there is a log {name!r} already; choose another name, or delete that log")
                # The log's deletion was interrupted.
                self.forget(before)
            return encode_name(made.log)

        self._store.write_record(RECORDS, made.key, _new_document(record), None)
        try:
            change_record(self._store, NAMES, name, f"log name {name!r}", point)
        except LogExistsError:
            self.forget(made.log)
            raise
        return record

    def ensure(self, name: LogName, options: dict[str, object], password: Password, columns: str = "") -> LogRecord:
        """The record of ``name``; creates the log if it does not exist.

        ``options``: fields of LogOptions; omitted fields have their defaults. ``columns``: schema of the rows, as Spark's JSON,
        for a new log. Raises ConfigurationError if the log exists with another value of an option, and UnauthorizedAccessError if
        it has another password.
        """
        while True:
            record = self.find(name)
            if record is not None:
                self.check(record, options, password)
                return record
            # Another client may create the log first; then check its record.
            with suppress(LogExistsError):
                return self.create(name, LogOptions(columns=columns, **options), password)  # type: ignore[arg-type]

    def check(self, record: LogRecord, options: dict[str, object], password: Password) -> None:
        """Raise ConfigurationError unless the log has these options, and UnauthorizedAccessError if it has another password."""
        check_password(record, password)
        for option, wanted in options.items():
            if getattr(record.options, option) != wanted:
                raise ConfigurationError(
                    f"log {record.name!r} has {option} {_text(getattr(record.options, option))}, and a write does not change "
                    f"the options of a log: leave out {option} {_text(wanted)}, or write to another log"
                )

    def update(self, lane: Lane, transition: Callable[[LogRecord], LogRecord]) -> LogRecord:
        """Change the record to ``transition(record)`` by compare-and-set. Returns the new record.

        Raises NoSuchLogError, LogRecreatedError, the errors of ``transition``, and MetadataVersionError if other clients keep
        changing the record.
        """
        lane = lane if isinstance(lane, LaneId) else lane_id(self.get(lane))
        stored: Record | None = None
        changed: LogRecord | None = None

        def read() -> Record | None:
            nonlocal stored
            stored = self._store.read_record(RECORDS, lane.key)
            return stored

        def stepped(document: bytes | None) -> bytes | None:
            nonlocal changed
            if stored is None:
                raise self.gone(lane)
            record = _record(stored, lane)
            changed = transition(record)
            return None if changed == record else encode_record(changed)

        compare_and_set(f"log '{lane}'", read, stepped, partial(self._store.write_record, RECORDS, lane.key))
        assert changed is not None
        return changed

    def alter(
        self,
        name: LogName | LaneId,
        *,
        ensemble_size: AtLeastOne | None = None,
        write_quorum: AtLeastOne | None = None,
        ack_quorum: AtLeastOne | None = None,
        digest_type: DigestType | None = None,
        compression: Compression | None = None,
        fewer_copies: bool | None = None,
        retention_ms: BytesOrNone | None = None,
        retention_bytes: BytesOrNone | None = None,
    ) -> LogOptions:
        """Change options of a log that is in use; None: no change. Returns all options.

        Writers apply the options to their next ledger: a producer at its next row, a query's tasks at the next micro-batch,
        the committer when its next ledger is due. ``retention_ms``, ``retention_bytes``: rows that are older, or have more bytes
        after them in their lane, are removed; 0: none are. Raises NoSuchLogError; and ConfigurationError for options that
        contradict each other, and for a retention of an offloaded log.
        """
        log = lane_id(self.get(name))
        if retention_ms or retention_bytes:
            for lane in self.lanes_of(log):
                check_not_offloaded(self.get(lane))
        given = {
            "ensemble_size": ensemble_size,
            "write_quorum": write_quorum,
            "ack_quorum": ack_quorum,
            "digest_type": digest_type,
            "compression": compression,
            "fewer_copies": fewer_copies,
        }
        changes = {option: value for option, value in given.items() if value is not None}
        record = self.update(log, lambda record: decided(LogRecord.altered, record, **changes))
        # A lane that is not in this version of the index gets the new options when it is made (``LaneIndex.begin``).
        for indexed in record.lanes:
            self._follow_options(log.lane(indexed.number))
        self._keep_retention(log, retention_ms, retention_bytes)
        return record.options

    def _follow_options(self, lane: LaneId) -> None:
        wanted = _alterable(self.get(lane.lane(0)))
        while True:
            self.update(lane, lambda record: decided(LogRecord.altered, record, **wanted))  # noqa: B023
            # Another client may have altered the log and this lane in between, so these values may be outdated.
            before, wanted = wanted, _alterable(self.get(lane.lane(0)))
            if wanted == before:
                return

    def retention(self, record: LogRecord) -> Retention:
        """Retention of a log. ``record``: of the log or of one of its lanes. Raises UnreadableRecordError."""
        document = self._store.read_record(RETENTION, str(record.log_id))
        return Retention() if document is None else _retention(document.value, record.name)

    def _keep_retention(self, log: LaneId, retention_ms: int | None, retention_bytes: int | None) -> None:
        given = {"retention_ms": retention_ms, "retention_bytes": retention_bytes}
        changes = {option: value for option, value in given.items() if value is not None}
        if not changes:
            return
        what = f"retention of log {log}"

        def changed(document: bytes | None) -> bytes:
            kept = Retention() if document is None else _retention(document, log.name)
            return proven_struct(replace(kept, **changes), what)

        change_record(self._store, RETENTION, log.key, what, changed)

    def take_back_offload(self, name: LogName | LaneId) -> list[str]:
        """End the offload of a log. Returns the tables, which stay as they are, and are the log's no more.

        Raises OffloadError if ledgers of a lane were deleted whose rows its table has: before any change, and if a job that runs
        meanwhile marks them, with the offloads of other lanes given back; NoSuchLogError and MetadataStoreError.
        """
        lanes = self.lanes_of(name)
        for lane in lanes:
            self.get(lane).offload_taken_back()
        taken: dict[LaneId, Offload] = {}
        for lane in lanes:
            offload = self.get(lane).offload
            try:
                self.update(lane, lambda record: decided(LogRecord.offload_taken_back, record))
            except OffloadError:
                for before, its in taken.items():
                    self.update(before, lambda record: replace(record, offload=record.offload or its))  # noqa: B023
                raise
            if offload is not None:
                taken[lane] = offload
        return [one.table for one in taken.values()]

    # -- deletion

    def delete(self, log: LaneId) -> None:
        """Delete a log's record, all that lies under its id, and its name, but not its ledgers (``delete_log`` does)."""
        self.forget(log.log)
        pointer = self._store.read_record(NAMES, log.name)
        if pointer is not None and decode_name(pointer.value, log.name) == log.log:
            # A name that points to another log by now has another version.
            with suppress(MetadataVersionError):
                self._store.delete_record(NAMES, log.name, pointer.version)

    def forget(self, log_id: int) -> None:
        """Delete all records under the id. The log's own goes first, and with it the log."""
        own = str(log_id)
        self._store.delete_record(RECORDS, own)
        for kind in (RECORDS, ENDED, BLOCKS, RETENTION, POSITIONS, STARTS, READERS):
            for name in self._store.list_records(kind):
                before, _, after = name.partition(MARK)
                if (lane_of(after)[0] if kind in (POSITIONS, STARTS, READERS) else before) == own:
                    self._store.delete_record(kind, name)

    # -- writers

    def claim(self, lane: Lane, run: str, query: str = "") -> LogRecord:
        """Make ``run`` of streaming query ``query`` the owner (``LogRecord.claim``).

        Raises LogTakenOverError if the run has lost the log already, AnotherQueryError, and the errors of ``update``.
        """
        return self.update(lane, lambda record: decided(LogRecord.claim, record, run, query, "", ""))

    def add_commit_ledger(
        self,
        lane: Lane,
        ledger_id: int,
        run: str,
        epoch: int,
        recovered: tuple[CommitLedger, ...],
        start: LinkStart | None = None,
    ) -> LogRecord:
        """Append ``ledger_id`` to the chain, whose last ledger ``run`` has recovered. ``start``: start of its commits.

        Raises LogTakenOverError, LogChangedError or NoSuchLogError; then the ledger is not in the chain.
        """
        return self.update(
            lane,
            lambda record: decided(LogRecord.with_commit_ledger, record, ledger_id, run, epoch, recovered, start),
        )

    # -- inside

    def _new_id(self) -> int:
        """An id that no log had before. Ids grow, so of two logs of one name the later one has the higher id, also if a server of
        ZooKeeper that lags behind still shows the earlier one. The upper bits tell clusters apart, so that an offset of another
        cluster is noticed. An id fits into a double (53 bits), as JSON's numbers in many languages."""
        return crc32(self._store.instance_id.encode()) >> 12 << _IDS | self._store.new_ledger_id()

    def gone(self, lane: LaneId) -> NoSuchLogError:
        """The error for a lane whose record is missing, or was made again after its log was deleted."""
        if lane.number and self.exists(lane.log):
            return NoSuchLogError(f"log {lane.name!r} has no lane {lane.number}")
        now = self.lane(lane.name)
        if now is not None and now.log != lane.log and self.exists(now.log):
            return recreated(lane.name, lane.log, now.log)
        return NoSuchLogError(f"log {lane.name!r} with id {lane.log} was deleted")


def recreated(name: str, before: int, now: int) -> LogRecreatedError:
    """Error of a call that acts on the log with id ``before``, whose name is that of log ``now``."""
    return LogRecreatedError(
        f"log {name!r} with id {before} was deleted, and {name!r} is another log by now, with id {now}; nothing of that one was "
        "read or changed. Start again to work with the new log; a streaming query needs a new checkpointLocation, or option "
        "failOnDataLoss false, and an offset or checkpoint of another cluster never fits"
    )


def _record(document: Record, lane: LaneId) -> LogRecord:
    return decode_record(document.value, str(lane), document.changed_ms)


def _new_document(record: LogRecord) -> bytes:
    """Raises ConfigurationError if the record would lack room for the log's later changes."""
    document = encode_record(record)
    if len(document) > NEW_BYTES_MAX:
        columns = len(record.options.columns)
        raise ConfigurationError(
            f"log {record.name!r} can't be created: the schema of its columns takes {columns:,} bytes, and at most "
            f"{max(0, columns - (len(document) - NEW_BYTES_MAX)):,} are allowed: the log's record keeps room for lanes and "
            "commits; take fewer columns or shorter names, or write the rows as JSON into one column: "
            'df.selectExpr("to_json(struct(*)) AS value")'
        )
    return document


def room_for_writer(record: LogRecord, writer: str) -> LogRecord:
    """``record``, whose index has grown by ``writer``. Raises TooManyLanesError if the record lacks room for other changes."""
    if len(encode_record(record)) > LANE_BYTES_MAX:
        raise no_room_for_writer(record, writer)
    return record


def _alterable(record: LogRecord) -> dict[str, object]:
    return {name: getattr(record.options, name) for name in ALTERABLE}


def _retention(document: bytes, name: str) -> Retention:
    return read_struct(document, Retention, f"retention of log {name!r}")


@checked
def check_password(record: LogRecord, password: Password) -> None:
    """Raise UnauthorizedAccessError unless ``password`` is the log's."""
    if record.master_key != master_key(password):
        raise UnauthorizedAccessError(
            f"log {record.name!r}: wrong password; give the password that it was made with as option password"
        )


def only_lane(registry: LogRegistry, name: Lane, done: str) -> LaneId:
    """The lane ``name``. Raises ConfigurationError if that is a log of several lanes. ``done``: participle for the message, e.g.
    "truncated"."""
    lanes = registry.lanes_of(name)
    if len(lanes) > 1:
        raise ConfigurationError(
            f"log '{name}' has {len(lanes)} lanes, and a row number is of one of them: say which one is to be {done}, for "
            f"example {name}{MARK}0; the lanes are {', '.join(map(str, lanes[:10]))}"
        )
    return lanes[0]


def _text(value: object) -> object:
    return getattr(value, "value", value)
