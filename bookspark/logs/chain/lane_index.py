"""The index of a log's lanes in the metadata store: adds new lanes, removes ended lanes.

Law: a lane's record is written before the index names it, so every lane in the index can be opened. It gets the log's options in
the same version of the index, so an alteration finds each lane either there or with its own options. An ended lane's record is
kept before the lane leaves the index, so its writer always finds one of the two. The next client that meets the leftovers of a
crash repeats the step. ``protocol.logs.lanes`` and ``protocol.logs.ended_lanes`` have the rules.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import NamedTuple

from bookspark.errors import MetadataVersionError
from bookspark.logs.chain.codec import decode_record, encode_record
from bookspark.logs.chain.registry import BLOCKS, ENDED, RECORDS, EndedBlock, LogRegistry, room_for_writer
from bookspark.protocol.logs.ended_lanes import Ended, full_block, kept_of, out_of_index
from bookspark.protocol.logs.lanes import MARK, LaneId, has_lane, lane_id, lane_in_index, lane_name, new_lane, with_lane
from bookspark.protocol.logs.log_record import LogChangedError, LogRecord
from bookspark.store.metadata.records.documents import proven_struct, read_struct
from bookspark.store.metadata.store import MetadataStore, change_record


class NewLane(NamedTuple):
    writer: str
    checkpoint: str = ""
    """Path of the writer's Spark checkpoint; empty if none or unknown."""
    follows: str = ""
    """Writer of the ended lane to continue, if another writer."""


class LaneIndex:
    """The lanes of ``log``. Every method raises MetadataStoreError and NoSuchLogError."""

    def __init__(self, store: MetadataStore, log: LaneId) -> None:
        self._store, self._registry, self._log = store, LogRegistry(store), log.lane(0)

    def begin(self, new: NewLane) -> LaneId:
        """Create a lane for the writer, unless it has one.

        Raises TooManyLanesError, LogChangedError if the writer named in ``follows`` has a lane again, and MetadataVersionError.
        """
        number = 0

        def step(record: LogRecord) -> LogRecord:
            nonlocal number
            known = lane_in_index(record, new.writer)
            if known is not None and not self.finished(known):
                number = known
                return record
            if known is not None:
                # The index has changed, so this version's write loses, and the next one sees it.
                record = self._registry.get(self._log)
            before = self.ended(record, new.writer) or (self.ended(record, new.follows) if new.follows else None)
            follows = new.follows if before is not None and before.key == new.follows else ""
            if has_lane(record, follows):
                raise LogChangedError(f"log '{self._log}': {follows}, which {new.writer} follows, has a lane by now")
            number = record.lanes_made + 1
            self._put(new_lane(record, number))
            ended = None if before is None else self._registry.get(self._log.lane(before.lane))
            # The last ended lane with commits: this one, or one before it.
            after = 0 if ended is None else lane_id(ended).number if ended.commit_ledgers else ended.after
            made = with_lane(record, number, new.writer, new.checkpoint, after, follows)
            return room_for_writer(made, new.writer)

        self._registry.update(self._log, step)
        return self._log.lane(number)

    def ended(self, record: LogRecord, key: str) -> Ended | None:
        """The kept record of the ended lane of writer ``key``; None if there is none."""
        if not record.ended_count:
            return None
        document = self._store.read_record(ENDED, self._kept_name(key))
        kept = None if document is None else _read_kept(document.value, key)
        return kept if kept is not None and kept.key == key else None

    def check_claims_first_lane(self, record: LogRecord, writer: str, run: str) -> None:
        """Raise LogTakenOverError if ``run`` of ``writer`` had a lane that has ended: a run writes one lane, and other tasks of
        its micro-batch may have written to that one. ``record``: the log's, read after the run's lane was known."""
        kept = self.ended(record, writer)
        if kept is not None:
            ended = self._registry.get(self._log.lane(kept.lane))
            if run in ended.claims:
                ended.check_writer(run, ended.epoch)

    def finished(self, number: int) -> bool:
        """Has lane ``number`` ended? Finishes an end that a crash interrupted."""
        ended = self._registry.get(self._log.lane(number)) if number else None
        if ended is None or ended.ended_rows is None:
            return False

        def step(record: LogRecord) -> LogRecord:
            lane = next((one for one in record.lanes if one.number == number), None)
            if lane is None:
                return record
            for kept in kept_of(lane, ended.owner_query):
                self._keep(kept)
            block = full_block(record)
            if block is not None:
                self._put_block(*block)
            return out_of_index(record, number)

        self._registry.update(self._log, step)
        return True

    # -- inside

    def _kept_name(self, key: str) -> str:
        return f"{self._log.key}{MARK}{hashlib.sha256(key.encode()).hexdigest()[:40]}"

    def _keep(self, kept: Ended) -> None:
        """Keep the record of an ended lane, unless a later lane has the same key."""
        name = self._kept_name(kept.key)

        def later(document: bytes | None) -> bytes | None:
            if document is not None and _read_kept(document, kept.key).lane >= kept.lane:
                return None
            return proven_struct(kept, f"lane that ended of {kept.key!r}")

        change_record(self._store, ENDED, name, f"ended lane {kept.lane} of log {self._log}", later)

    def _put_block(self, block: int, lanes: tuple[int, ...]) -> None:
        name = lane_name(self._log.key, block + 1)
        # The record exists already if a crash came before the index was written.
        with suppress(MetadataVersionError):
            document = proven_struct(EndedBlock(lanes), f"block {name!r} of lanes that ended")
            self._store.write_record(BLOCKS, name, document, None)

    def _put(self, made: LogRecord) -> None:
        """Create a lane's record, with the options of the log, before the index names it. An existing record is another client's,
        or a crash left it."""
        key, number = lane_id(made).key, lane_id(made).number
        stored = self._store.read_record(RECORDS, key)
        if stored is not None:
            newest = self._registry.get(self._log)
            left = decode_record(stored.value, made.name)
            # If the index has changed since, the lane may be another writer's by now, and the write of this version loses.
            if left.options == made.options or (newest.lanes_made, newest.options) != (number - 1, made.options):
                return
        # Another client may write it first; then the index changes too, and this client begins again.
        with suppress(MetadataVersionError):
            self._store.write_record(RECORDS, key, encode_record(made), None if stored is None else stored.version)


def _read_kept(data: bytes, key: str) -> Ended:
    return read_struct(data, Ended, f"lane that ended of {key!r}")
