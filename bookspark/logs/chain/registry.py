"""The records of logs in the metadata store: ``/bookspark/logs/<name>``, changed only by compare-and-set.

Law: every change is a transition of ``bookspark.protocol.logs.log_record``, applied again to the newest version after a lost
compare-and-set. A repeated transition changes nothing, so a write with a lost response is simply repeated. Source:
docs/decisions/logs.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Annotated

import msgspec

from bookspark.errors import ConfigurationError, MetadataVersionError, UnauthorizedAccessError
from bookspark.logs.chain.codec import LogFormatError, decode_record, encode_record
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.logs.ended_lanes import blocks_of
from bookspark.protocol.logs.lanes import MARK, lane_name, lane_of
from bookspark.protocol.logs.log_options import ALTERABLE, Compression, LogOptions
from bookspark.protocol.logs.log_record import (
    CommitLedger,
    LinkStart,
    LogChangedError,
    LogExistsError,
    LogRecord,
    NoSuchLogError,
)
from bookspark.protocol.logs.retention import Retention, check_not_offloaded
from bookspark.store.decisions.seam import decided
from bookspark.store.metadata.records.documents import proven_struct, read_struct
from bookspark.store.metadata.records.versioned import compare_and_set
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.wire.digests import master_key
from bookspark.support.arguments import AtLeastOne, BytesOrNone, Password, Rule, checked, checks_methods

KIND = "logs"
ATTEMPTS_MAX = 100
"""Limit of consecutive lost compare-and-sets. Each loss is another client's success."""
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


POSITIONS, STARTS = "positions", "starts"
"""Kinds of records that keep a reader's offset, ``<reader>@<log>``: of a group, and of a stream that began at ``latest``."""
READERS = "readers"
"""Kind of the records in which readers report their offsets, ``<key>@<log>`` (``logs.readers``)."""
ENDED, BLOCKS = "ended", "ended_blocks"
"""Kinds of records of ended lanes: by writer, ``<log>@<digest>``, and lists of ended lanes, 1,000 in each record,
``<log>@<number>``."""

RETENTION = "retention"
"""Kind of the records of retention, by log."""


class EndedBlock(msgspec.Struct, frozen=True):
    """Lanes in the order of their ends."""

    ctime_ms: int
    """Creation time of the log, in ms since 1970."""
    lanes: tuple[int, ...]


def ended_block(document: bytes, name: str) -> EndedBlock:
    """Decode a block of ended lanes. Raises UnreadableRecordError."""
    return read_struct(document, EndedBlock, f"block {name!r} of lanes that ended")


@checks_methods
class LogRegistry:
    """Reads and changes log records in ``store``. Every method raises MetadataStoreError if the store does not answer."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def names(self) -> list[str]:
        """Names of all logs, sorted."""
        return [name for name in self.lane_names() if MARK not in name]

    def lane_names(self) -> list[str]:
        """Names of all lanes of all logs, sorted. Lane 0 has the name of its log."""
        return sorted(self._store.list_records(KIND))

    def lanes_of(self, name: LaneName) -> list[str]:
        """Names of all lanes of a log, ended lanes too, in the order of their numbers; for a lane, its own name. Raises the
        errors of ``ended_lanes``."""
        record = self.get(name)
        if lane_of(name)[1] or MARK in name:
            return [record.name]
        numbers = sorted({0, *(lane.number for lane in record.lanes), *self.ended_lanes(record)})
        return [lane_name(record.name, number) for number in numbers]

    def ended_lanes(self, record: LogRecord, first: int = 0) -> list[int]:
        """Ended lanes of the log, in the order of their ends, from the ``first``-th on. Raises NoSuchLogError and
        UnreadableRecordError."""
        found: list[int] = []
        for block in blocks_of(record, first):
            name = lane_name(record.name, block + 1)
            kept = self._store.read_record(BLOCKS, name)
            lanes = None if kept is None else ended_block(kept.value, name)
            if lanes is None or lanes.ctime_ms != record.ctime_ms:
                raise NoSuchLogError(f"log {record.name!r} was deleted, or made anew, since its record was read")
            found += lanes.lanes
        found += record.ended_lanes
        return found[first - (record.ended_count - len(found)) :]

    def get(self, name: LaneName) -> LogRecord:
        """The record of ``name``. Raises NoSuchLogError, with the most similar name, and LogFormatError."""
        record = self.find(name)
        if record is None:
            nearest = get_close_matches(name, self.names(), n=1)
            hint = (
                f"did you mean {nearest[0]!r}?"
                if nearest
                else "a query's first write or `bookspark log create` makes it"
            )
            raise NoSuchLogError(f"there is no log {name!r}; {hint}")
        return record

    def find(self, name: LaneName) -> LogRecord | None:
        """The record of ``name``; None if it does not exist. Raises LogFormatError, and ConfigurationError for an invalid
        name."""
        name = lane_name(*lane_of(name))
        found = self._store.read_record(KIND, name)
        return None if found is None else decode_record(found.value, name)

    def find_each(self, names: Sequence[str]) -> Iterator[LogRecord | None]:
        """``find`` for many lanes, in their order, with many requests at a time."""
        found = self._store.read_records(KIND, names)
        return (None if one is None else decode_record(one.value, name) for name, one in zip(names, found, strict=True))

    def create(self, name: LogName, options: LogOptions, password: Password) -> LogRecord:
        """Create an empty log. Raises LogExistsError, and ConfigurationError for an invalid name."""
        record = LogRecord(name, options, master_key(password), ctime_ms=time.time_ns() // 1_000_000)
        try:
            self._store.write_record(KIND, name, encode_record(record), None)
        except MetadataVersionError:
            raise LogExistsError(f"there is a log {name!r} already; choose another name, or delete that log") from None
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

    def update(
        self, name: LaneName, transition: Callable[[LogRecord], LogRecord], ctime_ms: int | None = None
    ) -> LogRecord:
        """Change the record to ``transition(record)`` by compare-and-set. Returns the new record.

        ``ctime_ms``: expected creation time of the log; None: any. Raises LogChangedError if the log was recreated,
        NoSuchLogError, the errors of ``transition``, and MetadataVersionError if other clients keep changing it.
        """
        name = lane_name(*lane_of(name))
        changed: LogRecord | None = None

        def stepped(document: bytes | None) -> bytes | None:
            nonlocal changed
            if document is None:
                raise NoSuchLogError(f"there is no log {name!r}; was it deleted while it was written?")
            record = decode_record(document, name)
            if ctime_ms not in (None, record.ctime_ms):
                raise LogChangedError(f"log {name!r} was deleted and created again meanwhile")
            changed = transition(record)
            return None if changed == record else encode_record(changed)

        read, write = partial(self._store.read_record, KIND, name), partial(self._store.write_record, KIND, name)
        compare_and_set(f"log {name!r}", read, stepped, write)
        assert changed is not None
        return changed

    def alter(
        self,
        name: LogName,
        *,
        ensemble_size: AtLeastOne | None = None,
        write_quorum: AtLeastOne | None = None,
        ack_quorum: AtLeastOne | None = None,
        digest_type: DigestType | None = None,
        compression: Compression | None = None,
        retention_ms: BytesOrNone | None = None,
        retention_bytes: BytesOrNone | None = None,
    ) -> LogOptions:
        """Change options of a log that is in use; None: no change. Returns all options.

        Writers apply the options to their next ledger: a producer at its next row, a query's tasks at the next micro-batch,
        the committer when its next ledger is due. ``retention_ms``, ``retention_bytes``: rows that are older, or have more bytes
        after them in their lane, are removed; 0: none are. Raises NoSuchLogError; and ConfigurationError for options that
        contradict each other, and for a retention of an offloaded log.
        """
        if retention_ms or retention_bytes:
            for lane in self.lanes_of(name):
                check_not_offloaded(self.get(lane))
        given = {
            "ensemble_size": ensemble_size,
            "write_quorum": write_quorum,
            "ack_quorum": ack_quorum,
            "digest_type": digest_type,
            "compression": compression,
        }
        changes = {option: value for option, value in given.items() if value is not None}
        log = self.update(name, lambda record: decided(LogRecord.altered, record, **changes))
        # A client that creates a lane meanwhile gives it the new options itself (``LaneIndex.begin``).
        for lane in [one for one in self.lane_names() if lane_of(one)[0] == log.name != one]:
            # (An earlier log of the name left this lane, or it was deleted since.)
            with suppress(NoSuchLogError):
                self.follow_options(lane)
        self._keep_retention(log, retention_ms, retention_bytes)
        return log.options

    def follow_options(self, lane: LaneName) -> None:
        """Copy the log's alterable options to the lane. Raises NoSuchLogError."""
        wanted = _alterable(self.get(lane_of(lane)[0]))
        while True:
            self.update(lane, lambda record: decided(LogRecord.altered, record, **wanted))  # noqa: B023
            # Another client may have altered the log and this lane in between, so these values may be outdated.
            before, wanted = wanted, _alterable(self.get(lane_of(lane)[0]))
            if wanted == before:
                return

    def retention(self, record: LogRecord) -> Retention:
        """Retention of a log. ``record``: of the log or of one of its lanes. Raises UnreadableRecordError."""
        name = lane_of(record.name)[0]
        found = self._store.read_record(RETENTION, name)
        kept = Retention() if found is None else _retention(found.value, name)
        return kept if kept.ctime_ms == record.ctime_ms else Retention(record.ctime_ms)

    def _keep_retention(self, record: LogRecord, retention_ms: int | None, retention_bytes: int | None) -> None:
        given = {"retention_ms": retention_ms, "retention_bytes": retention_bytes}
        changes = {option: value for option, value in given.items() if value is not None}
        if not changes:
            return
        what = f"retention of log {record.name!r}"

        def changed(document: bytes | None) -> bytes:
            kept = Retention() if document is None else _retention(document, record.name)
            kept = kept if kept.ctime_ms == record.ctime_ms else Retention(record.ctime_ms)
            return proven_struct(replace(kept, **changes), what)

        read = partial(self._store.read_record, RETENTION, record.name)
        compare_and_set(what, read, changed, partial(self._store.write_record, RETENTION, record.name))

    def forget(self, log: LogRecord) -> None:
        """Delete the log's retention, the saved offsets and reports of readers of the log and its lanes, and the records of ended
        lanes; but not those of a later log of the name."""
        for kind in (ENDED, BLOCKS, RETENTION, POSITIONS, STARTS, READERS):
            parted = {one: one.partition(MARK) for one in self._store.list_records(kind)}
            logs = {
                one: before if kind in (ENDED, BLOCKS, RETENTION) else after
                for one, (before, _, after) in parted.items()
            }
            names = [one for one, name in logs.items() if lane_of(name)[0] == log.name]
            # The log is checked after the records are read: records of a later log have other versions.
            for name, found in zip(names, [*self._store.read_records(kind, names)], strict=True):
                while found is not None and getattr(self.find(log.name), "ctime_ms", None) == log.ctime_ms:
                    try:
                        self._store.delete_record(kind, name, found.version)
                        break
                    except MetadataVersionError:
                        found = self._store.read_record(kind, name)

    def delete(self, name: LaneName, ctime_ms: int | None = None) -> None:
        """Delete the record, but not the ledgers (``delete_log`` does). ``ctime_ms``: only a record of that creation time, or an
        unreadable record."""
        name = lane_name(*lane_of(name))
        if ctime_ms is None:
            self._store.delete_record(KIND, name)
            return
        for _ in range(ATTEMPTS_MAX):
            found = self._store.read_record(KIND, name)
            if found is None:
                return
            with suppress(LogFormatError):
                if decode_record(found.value, name).ctime_ms != ctime_ms:
                    return
            with suppress(MetadataVersionError):
                self._store.delete_record(KIND, name, found.version)
                return
        raise MetadataVersionError(f"log {name!r}: its record changed {ATTEMPTS_MAX} times in a row; stop its writers")

    def delete_left(self, name: LogName) -> list[str]:
        """Delete the records of lanes that an interrupted deletion of log ``name`` left, unless the log exists. Returns their
        names."""
        left = []
        for lane in (one for one in self.lane_names() if MARK in one and lane_of(one)[0] == name):
            # The log is checked after the lane is read: the lane of a later log has another version.
            while (found := self._store.read_record(KIND, lane)) is not None and self.find(name) is None:
                with suppress(MetadataVersionError):
                    self._store.delete_record(KIND, lane, found.version)
                    left.append(lane)
        return left

    def claim(self, name: LaneName, run: str, query: str = "", ctime_ms: int | None = None) -> LogRecord:
        """Make ``run`` of streaming query ``query`` the owner (``LogRecord.claim``).

        Raises LogTakenOverError if the run has lost the log already, AnotherQueryError, and the errors of ``update``.
        """
        return self.update(name, lambda record: decided(LogRecord.claim, record, run, query, "", ""), ctime_ms)

    def begin_batch_write(self, name: LaneName, run: str, ctime_ms: int | None = None) -> LogRecord:
        """Give the batch write ``run`` an epoch. Raises LogTakenOverError if it has ended, and the errors of ``update``."""
        now_ms = time.time_ns() // 1_000_000
        return self.update(name, lambda record: decided(LogRecord.batch_write_begun, record, run, now_ms), ctime_ms)

    def end_batch_write(self, name: LaneName, run: str, closed: bool) -> None:
        """Mark the batch write ``run`` as ended (``LogRecord.batch_write_ended``). Raises NoSuchLogError."""
        self.update(name, lambda record: decided(LogRecord.batch_write_ended, record, run, closed))

    def add_commit_ledger(
        self,
        name: LaneName,
        ledger_id: int,
        run: str,
        epoch: int,
        recovered: tuple[CommitLedger, ...],
        start: LinkStart | None = None,
        ctime_ms: int | None = None,
    ) -> LogRecord:
        """Append ``ledger_id`` to the chain, whose last ledger ``run`` has recovered. ``start``: start of its commits.

        Raises LogTakenOverError, LogChangedError or NoSuchLogError; then the ledger is not in the chain.
        """
        return self.update(
            name,
            lambda record: decided(LogRecord.with_commit_ledger, record, ledger_id, run, epoch, recovered, start),
            ctime_ms,
        )


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


def check_one_lane(registry: LogRegistry, name: str, done: str) -> None:
    """Raise ConfigurationError if ``name`` is a log of several lanes. ``done``: participle for the message, e.g. "truncated"."""
    lanes = registry.lanes_of(name)
    if len(lanes) > 1:
        raise ConfigurationError(
            f"log {name!r} has {len(lanes)} lanes, and a row number is of one of them: say which one is to be {done}, for "
            f"example {name}{MARK}0; the lanes are {', '.join(lane_name(*lane_of(lane)) for lane in lanes[:10])}"
        )


def _text(value: object) -> object:
    return getattr(value, "value", value)
