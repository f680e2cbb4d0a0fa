"""The records of logs in the metadata store: ``/bookspark/logs/<name>``, changed by compare-and-set only.

Law: every change is one of the transitions of ``bookspark.protocol.logs.log_record``. If another client's change came first, the
transition is tried again on the newest version. A transition that is done twice changes nothing, so a write whose answer was lost
is simply tried again too. Source: docs/decisions/logs.md.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from typing import Annotated

from bookspark.arguments import Password, Rule, checked, checks_methods
from bookspark.errors import ConfigurationError, MetadataVersionError, UnauthorizedAccessError
from bookspark.logs.chain.codec import decode_record, encode_record
from bookspark.metadata.store import MetadataStore
from bookspark.protocol.logs.lanes import MARK, lane_in_index, lane_name, lane_of, new_lane, with_lane
from bookspark.protocol.logs.log_record import (
    CommitLedger,
    LogChangedError,
    LogExistsError,
    LogOptions,
    LogRecord,
    NoSuchLogError,
)
from bookspark.wire.digests import master_key

KIND = "logs"
ATTEMPTS_MAX = 100
"""This number of consecutive lost compare-and-sets is an error. Each loss is another client's success."""
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")
"""The names that Kafka allows for topics."""
_LANE = re.compile(rf"{_NAME.pattern}(@(0|[1-9][0-9]{{0,8}}))?")


LogName = Annotated[
    str, Rule("a log name: 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'", _NAME.fullmatch)
]
"""The name of a log."""
LaneName = Annotated[
    str,
    Rule(
        "a log name (1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'), or that of its lane: orders@3",
        _LANE.fullmatch,
    ),
]
"""The name of a log, which is also that of its lane 0, or of another lane: ``orders@3``."""


POSITIONS, STARTS = "positions", "starts"
"""The kinds of records that keep the place of a reader, ``<reader>@<log>``: of a group, and of a stream that began at
``latest``."""


@checks_methods
class LogRegistry:
    """Reads and changes log records in ``store``. Every method raises MetadataStoreError if the store does not answer."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def names(self) -> list[str]:
        """The names of all logs, sorted."""
        return [name for name in self.lane_names() if MARK not in name]

    def lane_names(self) -> list[str]:
        """The names of all lanes of all logs, sorted. Lane 0 has the name of its log."""
        return sorted(self._store.list_records(KIND))

    def lanes_of(self, name: LaneName) -> list[str]:
        """The names of the lanes of log ``name``, in their order; of a lane, its own. Raises what ``get`` does."""
        record = self.get(name)
        return [record.name, *(lane_name(record.name, lane.number) for lane in record.lanes if MARK not in name)]

    def get(self, name: LaneName) -> LogRecord:
        """The record of ``name``. Raises NoSuchLogError, which tells the most similar name, and LogFormatError."""
        record = self.find(name)
        if record is None:
            nearest = get_close_matches(name, self.names(), n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else "the first write to a log creates it"
            raise NoSuchLogError(f"there is no log {name!r}; {hint}")
        return record

    def find(self, name: LaneName) -> LogRecord | None:
        """The record of ``name``; None if there is no such log. Raises LogFormatError, and ConfigurationError for an invalid
        name."""
        name = lane_name(*lane_of(name))
        found = self._store.read_record(KIND, name)
        return None if found is None else decode_record(found.value, name)

    def create(self, name: LogName, options: LogOptions, password: Password) -> LogRecord:
        """Create an empty log. Raises LogExistsError, and ConfigurationError for an invalid name."""
        record = LogRecord(name, options, master_key(password), ctime_ms=time.time_ns() // 1_000_000)
        try:
            self._store.write_record(KIND, name, encode_record(record), None)
        except MetadataVersionError:
            raise LogExistsError(f"there is a log {name!r} already; choose another name, or delete that log") from None
        return record

    def ensure(self, name: LogName, options: dict[str, object], password: Password, columns: str = "") -> LogRecord:
        """The record of ``name``. If there is no such log, it is created.

        ``options``: fields of LogOptions; those that are left out have their defaults. ``columns``: the schema of the rows, as
        Spark's JSON, for a log that is created now. Raises ConfigurationError if the log exists and has another value of an
        option, UnauthorizedAccessError if it has another password.
        """
        while True:
            record = self.find(name)
            if record is not None:
                check_password(record, password)
                for option, wanted in options.items():
                    if getattr(record.options, option) != wanted:
                        raise ConfigurationError(
                            f"log {name!r} was made with {option} {_text(getattr(record.options, option))}, and the options of "
                            f"a log never change: leave out {option} {_text(wanted)}, or write to another log"
                        )
                return record
            # If another client created the log first, look at its record.
            with suppress(LogExistsError):
                return self.create(name, LogOptions(columns=columns, **options), password)  # type: ignore[arg-type]

    def update(self, name: LaneName, transition: Callable[[LogRecord], LogRecord]) -> LogRecord:
        """Change the record to ``transition(record)``, by compare-and-set. Returns the record as it is then.

        Raises NoSuchLogError, the errors of ``transition``, and MetadataVersionError after ATTEMPTS_MAX lost compare-and-sets.
        """
        name = lane_name(*lane_of(name))
        for _ in range(ATTEMPTS_MAX):
            found = self._store.read_record(KIND, name)
            if found is None:
                raise NoSuchLogError(f"there is no log {name!r}; was it deleted while it was written?")
            record = decode_record(found.value, name)
            changed = transition(record)
            if changed == record:
                return record
            try:
                self._store.write_record(KIND, name, encode_record(changed), found.version)
            except MetadataVersionError:
                continue
            return changed
        raise MetadataVersionError(
            f"log {name!r}: its record changed {ATTEMPTS_MAX} times in a row; too many writers claim it"
        )

    def forget_readers(self, name: LogName) -> None:
        """Delete what is kept of the places of readers of the log, and of its lanes."""
        for kind in (POSITIONS, STARTS):
            for record in self._store.list_records(kind):
                if lane_of(record.partition(MARK)[2])[0] == name:
                    self._store.delete_record(kind, record)

    def delete(self, name: LaneName) -> None:
        """Delete the record. The ledgers stay; ``delete_log`` deletes them too."""
        self._store.delete_record(KIND, lane_name(*lane_of(name)))

    def begin_lane(self, name: LogName, writer: str, checkpoint: str = "") -> int:
        """Make a lane for ``writer``, unless it has one. Returns its number. Raises NoSuchLogError and TooManyLanesError."""
        for _ in range(ATTEMPTS_MAX):
            record = self.get(name)
            lane = lane_in_index(record, writer)
            if lane is not None:
                return lane
            # Before the index names it, so whoever finds it there can open it.
            with suppress(LogChangedError):
                self._put(new_lane(record, record.lanes_made + 1), record)
                self.update(name, partial(_named, of=record, writer=writer, checkpoint=checkpoint))
        raise MetadataVersionError(
            f"log {name!r}: {ATTEMPTS_MAX} other lanes were made while one was to be made for {writer}"
        )

    def _put(self, made: LogRecord, log: LogRecord) -> None:
        """Create the record of a lane that the index of ``log`` does not name yet. One that is there was left by a crash, of this
        log or of an earlier one of its name, or another process has just made it. Raises LogChangedError if ``log`` is deleted,
        or has that lane by now: whoever is late writes over no lane of a later log."""
        found = self._store.read_record(KIND, made.name)
        if found is not None:
            if decode_record(found.value, made.name).ctime_ms == made.ctime_ms:
                return
            # Read after the lane's record: if the log is made anew after this, a lane of it has another version.
            _check_same(self.find(log.name), log)
        with suppress(MetadataVersionError):
            self._store.write_record(KIND, made.name, encode_record(made), None if found is None else found.version)

    def claim(self, name: LaneName, run: str, query: str = "", follows: str = "", last_query: str = "") -> LogRecord:
        """Make ``run`` of streaming query ``query`` the owner (see ``LogRecord.claim``).

        Raises LogTakenOverError if it has lost the log already, AnotherQueryError, and NoSuchLogError.
        """
        return self.update(name, lambda record: record.claim(run, query, follows, last_query))

    def begin_batch_write(self, name: LaneName, run: str) -> LogRecord:
        """Give the batch write ``run`` an epoch. Raises LogTakenOverError if it has ended, and NoSuchLogError."""
        now_ms = time.time_ns() // 1_000_000
        return self.update(name, lambda record: record.batch_write_begun(run, now_ms))

    def end_batch_write(self, name: LaneName, run: str, closed: bool) -> None:
        """Say that the batch write ``run`` commits nothing more (see ``LogRecord.batch_write_ended``). Raises NoSuchLogError."""
        self.update(name, lambda record: record.batch_write_ended(run, closed))

    def add_commit_ledger(
        self, name: LaneName, ledger_id: int, run: str, epoch: int, recovered: tuple[CommitLedger, ...]
    ) -> LogRecord:
        """Put ``ledger_id`` at the end of the chain, whose last ledger ``run`` has recovered.

        Raises LogTakenOverError, LogChangedError or NoSuchLogError; the ledger is then not in the chain.
        """
        return self.update(name, lambda record: record.with_commit_ledger(ledger_id, run, epoch, recovered))


@checked
def check_password(record: LogRecord, password: Password) -> None:
    """Raise UnauthorizedAccessError unless ``password`` is the log's."""
    if record.master_key != master_key(password):
        raise UnauthorizedAccessError(
            f"log {record.name!r}: wrong password; give the password that it was made with as option password"
        )


def _check_same(found: LogRecord | None, log: LogRecord) -> None:
    """Raise LogChangedError unless ``found`` is the record of the same log, with as many lanes."""
    if found is None or (found.ctime_ms, found.lanes_made) != (log.ctime_ms, log.lanes_made):
        raise LogChangedError(f"log {log.name!r}: it was made anew meanwhile, or other lanes of it were made")


def _named(record: LogRecord, of: LogRecord, writer: str, checkpoint: str) -> LogRecord:
    """The record with the next lane of log ``of`` as the lane of ``writer``."""
    if record.ctime_ms != of.ctime_ms:
        raise LogChangedError(f"log {of.name!r}: it was deleted and made anew meanwhile")
    return with_lane(record, of.lanes_made + 1, writer, checkpoint)


def check_one_lane(registry: LogRegistry, name: str, done: str) -> None:
    """Raise ConfigurationError if ``name`` is that of a log of several lanes, of which one is to be ``done`` something to."""
    lanes = registry.lanes_of(name)
    if len(lanes) > 1:
        raise ConfigurationError(
            f"log {name!r} has {len(lanes)} lanes, and a row number is of one of them: say which one is to be {done}, for "
            f"example {name}{MARK}0; the lanes are {', '.join(lane_name(*lane_of(lane)) for lane in lanes[:10])}"
        )


def _text(value: object) -> object:
    return getattr(value, "value", value)
