"""The index of a log's lanes in the metadata store: adds new lanes, removes ended lanes.

Law: a lane's record is written before the index names it, so every lane in the index can be opened. An ended lane's record is
kept before the lane leaves the index, so its writer always finds one of the two. The next client that meets the leftovers of a
crash repeats the step. ``protocol.logs.lanes`` and ``protocol.logs.ended_lanes`` have the rules.
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
    """Request for a lane."""

    writer: str
    checkpoint: str = ""
    """Path of the writer's Spark checkpoint; empty if none or unknown."""
    follows: str = ""
    """Writer of the ended lane to continue, if another writer."""


class LaneIndex:
    """The lanes of log ``name``. Every method raises MetadataStoreError and NoSuchLogError."""

    def __init__(self, store: MetadataStore, name: str) -> None:
        self._store, self._registry, self._name = store, LogRegistry(store), name
        self.ctime_ms = 0
        """Creation time of the log in which ``begin`` found the lane; in a later log the number may be another writer's."""

    def begin(self, new: NewLane, ctime_ms: int | None = None) -> int:
        """Create a lane for the writer, unless it has one. Returns the lane's number.

        ``ctime_ms``: expected creation time of the log; None: any. Raises TooManyLanesError; and LogChangedError if the log was
        recreated, or the writer named in ``follows`` has a lane again."""
        for _ in range(ATTEMPTS_MAX):
            record = self._registry.get(self._name)
            if ctime_ms not in (None, record.ctime_ms):
                raise LogChangedError(f"log {self._name!r} was deleted and created again meanwhile")
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
                # The log may have been altered meanwhile, or the lane's record may be old, left by a crash.
                self._registry.follow_options(made.name)
                self._registry.update(self._name, named)
        raise MetadataVersionError(
            f"log {self._name!r}: {ATTEMPTS_MAX} other lanes were made while one was to be made for {new.writer}"
        )

    def ended(self, record: LogRecord, key: str) -> Ended | None:
        """The kept record of the ended lane of writer ``key``; None if there is none."""
        if not record.ended_count:
            return None
        found = self._store.read_record(ENDED, self._kept_name(key))
        kept = None if found is None else _read_kept(found.value, key)
        return kept if kept is not None and (kept.ctime_ms, kept.key) == (record.ctime_ms, key) else None

    def finished(self, number: int) -> bool:
        """Has lane ``number`` ended, or is its log gone? Finishes an end that a crash interrupted."""
        ended = self._registry.get(lane_name(self._name, number)) if number else None
        if ended is None or ended.ended_rows is None:
            return False
        for _ in range(ATTEMPTS_MAX):
            record = self._registry.get(self._name)
            lane = next((one for one in record.lanes if one.number == number), None)
            # In a recreated log this number is another lane.
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
        """Keep the record of an ended lane, unless a later lane has the same key."""
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
        """Raise LogChangedError unless the log has this creation time. Call after reading another log's record of the name: if
        this log still exists, that record is an earlier log's and may be overwritten."""
        log = self._registry.find(self._name)
        if log is None or log.ctime_ms != ctime_ms:
            raise LogChangedError(f"log {self._name!r} was deleted, or made anew, meanwhile")

    def _put(self, made: LogRecord, log: LogRecord) -> None:
        """Create a lane's record before the index of ``log`` names it. An existing record is another process's, or a crash left
        it, in this log or an earlier log. Raises LogChangedError if ``log`` is deleted or has the lane already: a late client
        overwrites no lane of a later log."""
        found = self._store.read_record(KIND, made.name)
        if found is not None:
            if decode_record(found.value, made.name).ctime_ms == made.ctime_ms:
                return
            # Read after the lane's record: if the log is recreated after this, the lane's record has another version.
            _check_same(self._registry.find(log.name), log)
        with suppress(MetadataVersionError):
            self._store.write_record(KIND, made.name, encode_record(made), None if found is None else found.version)


def _read_kept(data: bytes, key: str) -> Ended:
    return read_struct(data, Ended, f"lane that ended of {key!r}")


def _check_same(found: LogRecord | None, log: LogRecord) -> None:
    """Raise LogChangedError unless ``found`` is the same log, with the same number of lanes."""
    if found is None or (found.ctime_ms, found.lanes_made) != (log.ctime_ms, log.lanes_made):
        raise LogChangedError(f"log {log.name!r}: meanwhile it was created again, or got other lanes")


def _named(record: LogRecord, of: LogRecord, new: NewLane, after: int) -> LogRecord:
    if record.ctime_ms != of.ctime_ms:
        raise LogChangedError(f"log {of.name!r}: it was deleted and created again meanwhile")
    return with_lane(record, of.lanes_made + 1, new.writer, new.checkpoint, after, new.follows)
