"""Groups of readers with saved places: the real ``RowReader``, alone or sharing lanes.

Laws, for each log of the name, judged at each row that a group gets:

* Every reader sees the same row at a place.
* A reader gets the rows of a lane in order, and the group has got all rows before, or they were truncated: no place was saved
  behind an unread row.
* No place is saved behind a row that no commit was to save.
* A row saved as read never comes to the group again, unless the log is being deleted with its saved places, or a reader's session
  ended: it reads on until it notices.
* A group begins a later log of the name like a new group.

At the end the group has got each row that was not truncated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

from bookspark.errors import BookKeeperError, DataLossError, ReadError
from bookspark.logs import row_reader
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.feeds.gaps import Gap, GapKind
from bookspark.logs.row_reader import LogRow, RowReader
from bookspark.protocol.logs.log_record import NoSuchLogError
from bookspark.store.metadata.store_clock import StoreClock
from tests.histories.log_schedules.actors import ADDRESS, LOG, Stage


class GroupHistory:
    """Rows of a log that a group got."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = defaultdict(int)
        """For each lane: the group got all rows before this one, or they were truncated."""
        self.saved: dict[int, int] = defaultdict(int)
        """For each lane: the rows before this one are saved as read."""
        self.to_be_saved: dict[int, int] = defaultdict(int)
        """For each lane: some commit was to save the rows before this one, perhaps without success."""


class Groups:
    """The groups of a schedule."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._histories: dict[tuple[str, int], GroupHistory] = defaultdict(GroupHistory)
        self._shares: dict[str, bool] = {}
        self.reads = 0
        """How often a group got rows."""

    def group(self, name: str, share: bool, polls: int) -> None:
        """Readers of the group in sequence. Each continues at the saved place of the one before."""
        self._shares[name] = share
        left = [polls]
        while left[0] > 0:
            left[0] -= 1
            process = object()
            self._stage.runs += 1
            run = partial(self._stage.with_errors, partial(self._run, name, left, process))
            self._stage.turns.join(self._stage.turns.begin(f"{name}-run{self._stage.runs}", run, process))

    def at_the_end(self, ends: dict[int, int]) -> None:
        """After all writing the groups read the rest. ``ends``: the number of rows of each lane."""
        for name in self._shares:
            with _Session(self._stage, None) as client:
                reader = self._reader(client, name)
                got: dict[int, int] = {}
                while self._poll(client, name, reader, got):
                    self._commit(name, reader, got)
                reader.close()
            history = self._histories[name, reader._feed.log_id]
            for lane, end in ends.items():
                self._stage.passed(client, reader._feed, lane, history.ends[lane], end)

    # -- inside

    def _run(self, name: str, left: list[int], process: object) -> None:
        """A reader until its process dies, another process ends it, or it has read often enough."""
        try:
            with _Session(self._stage, process) as client:
                reader = self._reader(client, name)
                got: dict[int, int] = {}
                while left[0] > 0 and self._stage.random.random() < 0.95:
                    left[0] -= 1
                    if self._stage.random.random() < 0.3:
                        self._iterate(client, name, reader, got)
                        continue
                    with suppress(ReadError):
                        self._poll(client, name, reader, got)
                    if self._stage.random.random() < 0.6:
                        self._commit(name, reader, got)
                reader.close()
        except (DataLossError, NoSuchLogError) as error:
            if not self._stage.makes_anew:
                raise AssertionError(f"{name}: {error}") from error
            raise

    def _reader(self, client: Any, name: str) -> RowReader:
        reader = RowReader(client, ADDRESS, "earliest", name, self._shares[name])
        history = self._histories[name, reader._feed.log_id]
        for lane, rows in reader._feed.all_rows(reader.offset).items():
            self._stage.passed(client, reader._feed, lane, history.to_be_saved[lane], rows)
        return reader

    def _iterate(self, client: Any, name: str, reader: RowReader, got: dict[int, int]) -> None:
        """Handle some rows, one by one; commit each, or some, or none."""
        chance = self._stage.random.choice([0.0, 0.3, 1.0])
        rows, handled = iter(reader), list[LogRow]()
        try:
            for _ in range(self._stage.random.choice([1, 2, 5])):
                row = next(rows, None)
                if row is None:
                    break
                self._got(client, name, reader, got, row)
                handled.append(row)
                if self._stage.random.random() < chance:
                    row = self._stage.random.choice([None, *handled])
                    self._commit(name, reader, got, row)
                    # An older row can't be committed after this one.
                    handled = [one for one in handled if row and one.lane == row.lane and one.position > row.position]
        except DataLossError:
            if LogRegistry(client.metadata).get(LOG).log_id != reader._feed.log_id:
                raise
        except ReadError:
            pass
        self._leave_out_lost(reader, got)

    def _poll(self, client: Any, name: str, reader: RowReader, got: dict[int, int]) -> bool:
        """Read some rows. ``got``: for each lane, the end of the rows that the reader got."""
        before, rows_max = reader.offset, self._stage.random.choice([1, 3, 100])
        try:
            found: Sequence[LogRow | Gap] = reader.read(rows_max)
        except DataLossError:
            log = LogRegistry(client.metadata).get(LOG)
            if log.log_id != reader._feed.log_id:
                raise
            # Rows were truncated before the group got them.
            found = reader.read_with_gaps(rows_max)
            if any(isinstance(one, Gap) and one.kind is GapKind.NOT_YET_KNOWN for one in found):
                if reader._share is not None:
                    # It may have taken lanes since, which begin elsewhere.
                    raise BookKeeperError("what is not known yet is read by the group's next reader") from None
                reader.seek(before)
                return False
        rows = sum(not isinstance(one, Gap) for one in found)
        assert rows <= rows_max, f"{name} asked for {rows_max} rows, and got {rows}"
        for one in found:
            self._got(client, name, reader, got, one)
        self._leave_out_lost(reader, got)
        self.reads += bool(found)
        return bool(found)

    def _got(self, client: Any, name: str, reader: RowReader, got: dict[int, int], one: LogRow | Gap) -> None:
        """Judge a row or gap that the reader returned."""
        history = self._histories[name, reader._feed.log_id]
        first, last = (one.first, one.last + 1) if isinstance(one, Gap) else (one.position, one.position + 1)
        self._stage.passed(client, reader._feed, one.lane, history.ends[one.lane], first)
        again = self._stage.is_deleted(reader._feed.log_id) or self._stage.sessions_ended
        assert first >= history.saved[one.lane] or again, (
            f"{name} got row {first} of lane {one.lane} again, which was saved"
        )
        at = got.get(one.lane, first)
        assert first >= at or self._stage.sessions_ended, (
            f"{name} got row {first} of lane {one.lane} after row {at - 1}"
        )
        if isinstance(one, Gap):
            self._stage.passed(client, reader._feed, one.lane, first, last)
        else:
            self._stage.history(reader._feed.log_id).seen(one.lane, first, one.value.decode())
        history.ends[one.lane] = max(history.ends[one.lane], last)
        got[one.lane] = last

    def _commit(self, name: str, reader: RowReader, got: dict[int, int], row: LogRow | None = None) -> None:
        """``row``: in its lane only the rows up to this one are saved."""
        history = self._histories[name, reader._feed.log_id]
        to_be_saved = got | ({} if row is None else {row.lane: row.position + 1})
        for lane, end in to_be_saved.items():
            history.to_be_saved[lane] = max(history.to_be_saved[lane], end)
        reader.commit(row)
        self._leave_out_lost(reader, got)
        for lane in got:
            history.saved[lane] = max(history.saved[lane], to_be_saved[lane])

    def _leave_out_lost(self, reader: RowReader, got: dict[int, int]) -> None:
        """The reader saves nothing of lanes that another reader has now."""
        if reader._share is not None:
            for lane in got.keys() - reader.lanes:
                del got[lane]


class _Session:
    """The client of a process, with its own session, which ends with the process, or at any request: then the client goes on with
    a new one, as ZooKeeper's does."""

    def __init__(self, stage: Stage, process: object) -> None:
        self._stage, self._client, self._session = stage, stage.client(process), stage.world.records.another()
        self._client.metadata.sharing = self._sharing
        self._client.before_each = self._may_end

    def __enter__(self) -> Any:
        return self._client

    def __exit__(self, *error: object) -> None:
        self._session.close()

    def _may_end(self) -> None:
        if self._client.happens(self._stage.session_ends):
            self._stage.sessions_ended += 1
            world = self._session._world
            with world.lock:
                for key in [key for key, owner in world.ephemerals.items() if owner is self._session]:
                    world.remove(key)

    def _sharing(self, path: str, name: str) -> Any:
        sharing = self._session.sharing(path, name)

        def step(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                self._client.step(f"{method.__name__} of {path}: {[*map(str, arguments)]}")
                return method(*arguments)

            return call

        return SimpleNamespace(
            **{one: step(getattr(sharing, one)) for one in ("join", "holders", "take", "give_back", "leave")}
        )


class _Untold:
    """Replaces a reader's registration, which runs a thread of its own."""

    def __init__(self, *arguments: Any) -> None:
        pass

    def moved(self, offset: object) -> None:
        pass

    def close(self) -> None:
        pass


def stand_ins(stage: Stage) -> list[Any]:
    """Replacements for clocks, threads and random names."""
    names, share_again = count(), stage.random.choice([5, 40])
    return [
        mock.patch.object(row_reader, "Registration", _Untold),
        mock.patch.multiple(StoreClock, known_ms=lambda _: next(names)),
        mock.patch.object(row_reader, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="0" * 12))),
        mock.patch.object(row_reader, "time", SimpleNamespace(monotonic=lambda: stage.turns.steps / share_again)),
        # Dropping a reader does not wait for it; the end of its session returns its lanes.
        mock.patch.object(row_reader, "_leave_soon", return_value=None),
    ]
