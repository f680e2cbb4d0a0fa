"""The true content of a lane, read directly from its record and ledgers, and the laws for changes and removals.

Laws, judged at the moment of each change:

* A ledger joins a chain only while it exists, and while a writer of its epoch may still commit: any other ledger may be an orphan
  about to be deleted.
* Truncated rows stay truncated, and a lane has the rows up to which it is truncated.
* A ledger is of the log whose chain it joins.
* A lane ends as an idle one only if its record did not change within that time.
* A lane ends with all its rows and is never written again: all its epochs are over.
* A run that lost a lane never owns it again, and an ended batch write never begins again.
* An epoch is over only if every reader sees all commits of it.
* The oldest live epoch of a lane is not over.
* A ledger with a non-numeric epoch belongs to a user: only the deletion of the log deletes it.
* No needed ledger is deleted: a ledger named by the chain, a ledger with rows neither truncated nor offloaded, and the open
  ledger of the newest commit.
* Retention truncates only whole commits beyond a bound: older than the bound by the latest clock and by the rows' own times, or
  with the bound's bytes of the lane behind them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from bookspark.errors import NoSuchLedgerError
from bookspark.logs.chain.codec import decode_commit, decode_header, decode_record
from bookspark.logs.chain.registry import RECORDS
from bookspark.logs.chain.stamps import stamp_of
from bookspark.protocol.logs.commits import Commit, Position
from bookspark.protocol.logs.lanes import lane_name, lane_of, writer_of
from bookspark.protocol.logs.log_record import EPOCH_LABEL, LOG_ID_LABEL, LogRecord
from bookspark.protocol.logs.orphans import epoch_of

if TYPE_CHECKING:
    from tests.histories.log_schedules.cluster import World


class Truth:
    """Judges all changes of ``world``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.now_ms = 0
        """The latest time of any clock."""
        self.bounds_ms: set[int] = set()
        """All retention times so far, then all retention sizes."""
        self.bounds_bytes: set[int] = set()
        self.lanes_of: dict[str, list[str]] = defaultdict(list)
        """The lanes of each writer in order, as owner or by the index. (Not for several logs of a name.)"""
        self._gone: dict[tuple[int, str], set[str]] = defaultdict(set)
        """Earlier runs and batch writes of a lane, by its log's id and its name."""
        self.changed_at: dict[str, int] = {}
        """The step of the last change of each record, by its name."""
        self.seen: Callable[[int, int, int, str], None]
        """Called with each row that retention removes: id of the log, lane, position and value. It may be unread."""

    def lanes(self) -> Iterator[LogRecord]:
        """The lanes of the existing log, unless it is being deleted."""
        store = self._world.records
        records = {
            name: decode_record(store.read_record(RECORDS, name).value, name) for name in store.list_records(RECORDS)
        }
        for name, record in records.items():
            log = records.get(lane_of(name)[0])
            if log is not None and log.log_id not in self._world.meant_to_go:
                yield record

    def commits(self, record: LogRecord) -> Iterator[tuple[Commit, Position]]:
        """The acknowledged commits of a lane, each with the position behind it."""
        for link in record.commit_ledgers:
            ledger = self._world.ledgers[link.ledger_id]
            after = decode_header(ledger.entries[0], link.ledger_id).position
            for number, entry in enumerate(ledger.entries[1 : ledger.acknowledged], 1):
                commit = decode_commit(entry, link.ledger_id, number)
                after = after.followed_by(commit)
                yield commit, after

    def changed(self, before: LogRecord, after: LogRecord) -> None:
        """Judge a change of a lane's record. Raises AssertionError."""
        live = {before.epoch, *(write.epoch for write in before.batch_writes)} if before.ended_rows is None else set()
        there = {link.ledger_id for link in before.commit_ledgers}
        for link in after.commit_ledgers:
            if link.ledger_id not in there:
                try:
                    labels = self._world.records.read_ledger(link.ledger_id).value.custom_metadata
                except NoSuchLedgerError as error:
                    raise AssertionError(
                        f"{after.name} is to name ledger {link.ledger_id}, which is deleted"
                    ) from error
                assert labels[LOG_ID_LABEL] == str(after.log_id).encode(), (
                    f"{after.name} of log {after.log_id} is to name ledger {link.ledger_id} of log {labels[LOG_ID_LABEL]!r}"
                )
                assert epoch_of(labels) in live, (
                    f"{after.name} is to name ledger {link.ledger_id} of an epoch that is over"
                )
        assert after.first_position >= before.first_position, f"rows of {after.name} are no more truncated"
        assert after.first_position in (before.first_position, *range(self._rows(before) + 1)), (
            f"{after.name} is to be truncated at row {after.first_position}, and has {self._rows(before)}"
        )
        if before.ended_rows is None and after.ended_rows is not None:
            rows = self._rows(before)
            assert after.ended_rows == rows, f"{after.name} is to end with {after.ended_rows} rows, and has {rows}"
        if before.ended_rows is not None:
            writers = [(one.ended_rows, one.epoch, one.owner, one.batch_writes) for one in (before, after)]
            assert writers[0] == writers[1], f"{after.name} has ended, and is to go on: {writers}"
        gone = self._gone[after.log_id, after.name]
        had, has = ({record.owner, *(write.run for write in record.batch_writes)} for record in (before, after))
        assert gone.isdisjoint(has), f"{after.name} is to be written by one that lost it: {gone & has}"
        gone |= had - has - {""}
        if after.ended_rows is not None:
            newest = after.newest_epoch
            assert after.ended(newest) and not after.live_epochs, (
                f"{after.name} has ended, and epoch {newest} is not over"
            )
        self._over(after)
        oldest = after.oldest_live_epoch
        assert not oldest or not after.ended(oldest), f"{after.name} tells that epoch {oldest} lives, and it is over"
        self._given_out(before, after)

    def idled(self, name: str, steps: int) -> None:
        """Judge the end of a lane that is to be idle for ``steps``. ``name``: of its record. Raises AssertionError."""
        since = self._world.turns.steps - self.changed_at.get(name, 0)
        assert since >= steps, f"{name} is ended as idle for {steps} steps, and changed {since} steps ago"

    def _over(self, record: LogRecord) -> None:
        """Check that every reader sees the commits of epochs that are over."""
        for link in record.commit_ledgers[-1:]:
            if not self._world.records.read_ledger(link.ledger_id).value.closed:
                ledger = self._world.ledgers[link.ledger_id]
                for number in range(max(1, ledger.told + 1), ledger.acknowledged):
                    epoch = decode_commit(ledger.entries[number], link.ledger_id, number).epoch
                    assert not record.ended(epoch), (
                        f"epoch {epoch} of {record.name} is over, and not every reader sees entry {number} of ledger "
                        f"{link.ledger_id}, which was committed in it"
                    )

    def _given_out(self, before: LogRecord, after: LogRecord) -> None:
        """Record new owners of lanes."""
        known = {(writer, lane.number) for lane in before.lanes for writer in lane.writers}
        got = [
            (writer, lane_name(after.name, lane.number))
            for lane in after.lanes
            for writer in lane.writers
            if (writer, lane.number) not in known
        ]
        if after.owner_query != before.owner_query:
            got.append((writer_of(after.owner_query), after.name))
        for writer, name in got:
            if name not in self.lanes_of[writer]:
                self.lanes_of[writer].append(name)

    def _rows(self, record: LogRecord) -> int:
        """The number of acknowledged or settled rows of a lane."""
        found = list(self.commits(record))
        if not found:
            return 0
        commit, after = found[-1]
        open_rows = 0 if commit.open_ledger is None else self._world.ledgers[commit.open_ledger].acknowledged
        return after.rows + open_rows

    def deleted(self, ledger_id: int, with_its_log: bool) -> None:
        """Judge the deletion of a ledger. ``with_its_log``: by the deletion of a log. Raises AssertionError."""
        theirs = not self._labels(ledger_id).get(EPOCH_LABEL, b"0").isdigit()
        for record in self.lanes():
            assert with_its_log or not theirs, f"ledger {ledger_id} is deleted, and is of no writer of {record.name}"
            assert ledger_id not in [link.ledger_id for link in record.commit_ledgers], (
                f"ledger {ledger_id} is deleted, and the chain of {record.name} names it"
            )
            gone = max(record.first_position, 0 if record.offload is None else record.offload.position)
            newest = None
            for commit, after in self.commits(record):
                newest = commit.open_ledger
                named = [item.ledger_id for item in commit.ranges]
                assert ledger_id not in named or after.rows <= gone, (
                    f"ledger {ledger_id} is deleted, and has rows of {record.name} before {after.rows}; gone: {gone}"
                )
            assert ledger_id != newest, f"ledger {ledger_id} is deleted, and {record.name} has it open"

    def _labels(self, ledger_id: int) -> Mapping[str, bytes]:
        there = ledger_id in self._world.records.list_ledgers()
        return self._world.records.read_ledger(ledger_id).value.custom_metadata if there else {}

    def expired(self, before: LogRecord, after: LogRecord) -> None:
        """Judge a truncation by retention. Raises AssertionError."""
        commits = list(self.commits(before))
        size, ends = commits[-1][1].size, {place.rows for _, place in commits}
        first, last = before.first_position, after.first_position
        assert last in ends, f"{before.name} is truncated at row {last}, within a commit"
        for commit, place in commits:
            if commit.rows and first < place.rows <= last:
                newest_ms = max([commit.time_ms, *self._times_of(commit)])
                old = any(0 < newest_ms < self.now_ms - bound for bound in self.bounds_ms)
                many = any(size - place.size >= bound for bound in self.bounds_bytes)
                assert old or many, (
                    f"retention took rows before {place.rows} of {before.name}, which were to stay: of {newest_ms} at "
                    f"{self.now_ms}, with {size - place.size} bytes behind them, for {self.bounds_ms} and {self.bounds_bytes}"
                )
                for row, payload in enumerate(self._payloads(commit), place.rows - commit.rows):
                    value = stamp_of(payload, "a row").value if commit.stamped else payload
                    self.seen(before.log_id, lane_of(before.name)[1], row, value.decode())

    def _payloads(self, commit: Commit) -> Iterator[bytes]:
        for item in commit.ranges:
            yield from self._world.ledgers[item.ledger_id].entries[item.first_entry_id : item.last_entry_id + 1]

    def _times_of(self, commit: Commit) -> Iterator[int]:
        """The times stamped on the rows."""
        return (stamp_of(payload, "a row").time_ms for payload in self._payloads(commit) if commit.stamped)
