"""The index of a log's lanes in the metadata store: a new lane, and one that has ended.

Law: a lane's record is there before the index names it, so whoever finds it there can open it; and what is kept of an ended lane
is there before the index has it no more, so its writer always finds one or the other. Each step is done again by whoever meets a
lane that a crash left in between. ``protocol.logs.lanes`` and ``protocol.logs.ended_lanes`` have the rules.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from bookspark.errors import MetadataVersionError
from bookspark.logs.chain.codec import decode_record, encode_record
from bookspark.logs.chain.registry import ATTEMPTS_MAX, BLOCKS, ENDED, KIND, EndedBlock, LogRegistry, ended_block
from bookspark.protocol.logs.ended_lanes import Ended, full_block, kept_of, out_of_index
from bookspark.protocol.logs.lanes import MARK, has_lane, lane_in_index, lane_name, new_lane, with_lane
from bookspark.protocol.logs.log_record import LogChangedError, LogRecord
from bookspark.store.metadata.records.documents import proven_struct, read_struct
from bookspark.store.metadata.store import MetadataStore


class NewLane(NamedTuple):
    """What a lane is made for."""

    writer: str
    checkpoint: str = ""
    """Where the writer's Spark checkpoint is; empty if it has none, or that is not known."""
    follows: str = ""
    """The writer of the ended lane that it takes over, if that was another one."""


class LaneIndex:
    """The lanes of log ``name``. Every method raises MetadataStoreError, and NoSuchLogError if there is no such log."""

    def __init__(self, store: MetadataStore, name: str) -> None:
        self._store, self._registry, self._name = store, LogRegistry(store), name
        self.ctime_ms = 0
        """When the log was made that ``begin`` found a lane of: later that lane may be another writer's, of a later log."""

    def begin(self, new: NewLane, ctime_ms: int | None = None) -> int:
        """Make a lane for the writer, unless it has one. Returns its number. ``ctime_ms``: when the log was made that is meant;
        None: whichever is there. Raises TooManyLanesError, and LogChangedError if it was made anew, or if the one that the writer
        follows has a lane by now."""
        for _ in range(ATTEMPTS_MAX):
            record = self._registry.get(self._name)
            if ctime_ms not in (None, record.ctime_ms):
                raise LogChangedError(f"log {self._name!r} was deleted and made anew meanwhile")
            lane, self.ctime_ms = lane_in_index(record, new.writer), record.ctime_ms
            if lane is not None:
                if not self.finished(lane):
                    return lane
                continue
            before = self.ended(record, new.writer) or (self.ended(record, new.follows) if new.follows else None)
            follows = new.follows if before is not None and before.key == new.follows else ""
            if has_lane(record, follows):
                raise LogChangedError(f"log {self._name!r}: {follows}, which {new.writer} follows, has a lane by now")
            named = partial(_named, of=record, new=new._replace(follows=follows), after=before.lane if before else 0)
            made = new_lane(record, record.lanes_made + 1)
            with suppress(LogChangedError):
                self._put(made, record)
                # The log may have been altered before the lane was there, or the lane have been left by a crash.
                self._registry.follow_options(made.name)
                self._registry.update(self._name, named)
        raise MetadataVersionError(
            f"log {self._name!r}: {ATTEMPTS_MAX} other lanes were made while one was to be made for {new.writer}"
        )

    def ended(self, record: LogRecord, key: str) -> Ended | None:
        """What is kept of a lane of the log ``record`` by this key; None if nothing is."""
        if not record.ended_count:
            return None
        found = self._store.read_record(ENDED, self._kept_name(key))
        kept = None if found is None else _read_kept(found.value, key)
        return kept if kept is not None and (kept.ctime_ms, kept.key) == (record.ctime_ms, key) else None

    def finished(self, number: int) -> bool:
        """Has lane ``number`` ended, or is its log gone? What a crash left to do is done."""
        ended = self._registry.get(lane_name(self._name, number)) if number else None
        if ended is None or ended.ended_rows is None:
            return False
        for _ in range(ATTEMPTS_MAX):
            record = self._registry.get(self._name)
            lane = next((one for one in record.lanes if one.number == number), None)
            # In a log that was made anew since, the lane of this number is another one.
            if lane is None or record.ctime_ms != ended.ctime_ms:
                return True
            block = full_block(record)

            def take_out(newest: LogRecord) -> LogRecord:
                if lane not in newest.lanes or full_block(newest) != block:  # noqa: B023
                    raise LogChangedError(f"log {self._name!r}: the index has changed")
                return out_of_index(newest, number)

            with suppress(LogChangedError):
                for kept in kept_of(record, lane, ended.owner_query):
                    self._keep(kept)
                if block is not None:
                    self._put_block(record, *block)
                self._registry.update(self._name, take_out, record.ctime_ms)
        raise MetadataVersionError(
            f"log {self._name!r}: lane {number} has ended, and its index changed again and again"
        )

    # -- inside

    def _kept_name(self, key: str) -> str:
        return f"{self._name}{MARK}{hashlib.sha256(key.encode()).hexdigest()[:40]}"

    def _keep(self, kept: Ended) -> None:
        """Keep it, unless a later lane is kept by that key."""
        name = self._kept_name(kept.key)
        document = proven_struct(kept, f"lane that ended of {kept.key!r}")
        while True:
            found = self._store.read_record(ENDED, name)
            known = None if found is None else _read_kept(found.value, kept.key)
            if known is not None and known.ctime_ms == kept.ctime_ms and known.lane >= kept.lane:
                return
            if known is not None and known.ctime_ms != kept.ctime_ms:
                self._check_still_of(kept.ctime_ms)
            with suppress(MetadataVersionError):
                self._store.write_record(ENDED, name, document, None if found is None else found.version)

    def _put_block(self, record: LogRecord, block: int, lanes: tuple[int, ...]) -> None:
        name = lane_name(self._name, block + 1)
        found = self._store.read_record(BLOCKS, name)
        if found is not None and ended_block(found.value, name).ctime_ms == record.ctime_ms:
            return
        if found is not None:
            self._check_still_of(record.ctime_ms)
        with suppress(MetadataVersionError):
            document = proven_struct(EndedBlock(record.ctime_ms, lanes), f"block {name!r} of lanes that ended")
            self._store.write_record(BLOCKS, name, document, None if found is None else found.version)

    def _check_still_of(self, ctime_ms: int) -> None:
        """Raise LogChangedError unless the log is that of this time. Asked after a record of another log of the name was read: if
        the log is still there, that one is of an earlier log, and may go."""
        log = self._registry.find(self._name)
        if log is None or log.ctime_ms != ctime_ms:
            raise LogChangedError(f"log {self._name!r} was deleted, or made anew, meanwhile")

    def _put(self, made: LogRecord, log: LogRecord) -> None:
        """Create the record of a lane that the index of ``log`` does not name yet. One that is there was left by a crash, of this
        log or of an earlier one of its name, or another process has just made it. Raises LogChangedError if ``log`` is deleted,
        or has that lane by now: whoever is late writes over no lane of a later log."""
        found = self._store.read_record(KIND, made.name)
        if found is not None:
            if decode_record(found.value, made.name).ctime_ms == made.ctime_ms:
                return
            # Read after the lane's record: if the log is made anew after this, a lane of it has another version.
            _check_same(self._registry.find(log.name), log)
        with suppress(MetadataVersionError):
            self._store.write_record(KIND, made.name, encode_record(made), None if found is None else found.version)


def _read_kept(data: bytes, key: str) -> Ended:
    return read_struct(data, Ended, f"lane that ended of {key!r}")


def _check_same(found: LogRecord | None, log: LogRecord) -> None:
    """Raise LogChangedError unless ``found`` is the record of the same log, with as many lanes."""
    if found is None or (found.ctime_ms, found.lanes_made) != (log.ctime_ms, log.lanes_made):
        raise LogChangedError(f"log {log.name!r}: it was made anew meanwhile, or other lanes of it were made")


def _named(record: LogRecord, of: LogRecord, new: NewLane, after: int) -> LogRecord:
    """The record with the next lane of log ``of`` as the lane that is ``new``."""
    if record.ctime_ms != of.ctime_ms:
        raise LogChangedError(f"log {of.name!r}: it was deleted and made anew meanwhile")
    return with_lane(record, of.lanes_made + 1, new.writer, new.checkpoint, after, new.follows)
