"""The index of a log's lanes, and places in the log, against a list of all lanes.

Law: a number is given out once, and a writer has one lane at a time. What has ended is there in the order in which it ended, from
any number on, whoever looks by whatever record. What is kept of a lane that ended has each of its writers, and the place of its
Spark checkpoint. A place names what it says: of two, the later one is behind each of their rows, as far as the newest can tell,
and behind none that neither is behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import msgspec

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.logs.chain.registry import EndedBlock, LogRegistry
from bookspark.protocol.logs import ended_lanes
from bookspark.protocol.logs.ended_lanes import check_may_end, full_block, kept_of, out_of_index
from bookspark.protocol.logs.lanes import (
    BATCH_WRITES,
    after_of,
    ended_before,
    has_lane,
    is_offset,
    lane_in_index,
    lane_name,
    later,
    offset_at,
    place_key,
    rows_before,
    service_writer,
    with_lane,
    with_writer,
    writer_of,
)
from bookspark.protocol.logs.log_record import LogRecord

_WRITERS = [writer_of("a"), writer_of("b"), service_writer("a"), service_writer("b"), BATCH_WRITES]


@dataclass
class _Lane:
    writers: list[str]
    checkpoint: str
    after: int
    rows: int = 0
    has_ended: bool = False


def live(random: Random) -> None:
    with mock.patch.object(ended_lanes, "BLOCK", random.choice([1, 2, 3, 1000])):
        index = _Index(random)
        for _ in range(random.randrange(1, 16)):
            random.choice([index.make, index.make, index.follow, index.end, index.end, index.grow])()
            index.check()


@dataclass
class _Index:
    random: Random
    record: LogRecord = field(default_factory=lambda: LogRecord("orders", ctime_ms=5, owner_query="q", epoch=1))
    lanes: dict[int, _Lane] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    made_before: list[int] = field(default_factory=list)
    """How many lanes had been made when each of these ended."""
    blocks: dict[str, bytes] = field(default_factory=dict)
    rows: int = 0
    """Of lane 0."""
    told: list[tuple[dict[str, int], dict[int, int], int]] = field(default_factory=list)
    """Places that somebody was told: as it is written, the rows of each lane before it, and how many lanes had ended."""

    def living(self) -> dict[int, _Lane]:
        return {number: lane for number, lane in self.lanes.items() if not lane.has_ended}

    def lane_of(self, writer: str) -> int | None:
        return next((number for number, lane in self.living().items() if writer in lane.writers), None)

    def make(self) -> None:
        writer, follows = self.random.choice(_WRITERS), self.random.choice([*_WRITERS, "", "", ""])
        number = self.random.choice([len(self.lanes) + 1] * 3 + [len(self.lanes), len(self.lanes) + 2])
        checkpoint, after = self.random.choice(["", f"/{writer}"]), self.random.choice([0, *self.ended])
        known = self.lane_of(writer)
        fits = number == len(self.lanes) + 1 and (not follows or self.lane_of(follows) is None)
        may = known == number or (known is None and fits)
        try:
            after_it = with_lane(self.record, number, writer, checkpoint, after, follows)
        except BookKeeperError:
            assert not may, "a lane is refused"
            return
        assert may, f"lane {number} is given to {writer}, who has lane {known}, of {len(self.lanes)}"
        assert with_lane(after_it, number, writer, checkpoint, after, follows) == after_it, "a lane is made twice"
        self.record = after_it
        if known is None:
            self.lanes[number] = _Lane([*filter(None, [follows]), writer], checkpoint, after)

    def follow(self) -> None:
        """Another writer claims a lane."""
        if self.living():
            number, lane = self.random.choice([*self.living().items()])
            writer = self.random.choice(_WRITERS)
            if self.lane_of(writer) in (None, number):
                self.record = with_writer(self.record, number, writer, "/its")
                lane.writers, lane.checkpoint = [*(one for one in lane.writers if one != writer), writer], "/its"

    def grow(self) -> None:
        self.rows += self.random.randrange(3)
        for lane in self.living().values():
            lane.rows += self.random.randrange(3)

    def end(self) -> None:
        number = self.random.choice([0, *range(1, len(self.lanes) + 2)])
        lane = self.living().get(number)
        may = lane is not None and BATCH_WRITES not in lane.writers
        try:
            check_may_end(self.record, number)
        except ConfigurationError:
            assert not may, f"lane {number} may not end"
            return
        assert may and lane is not None, f"lane {number} may end"
        (entry,) = (one for one in self.record.lanes if one.number == number)
        owner = self.random.choice([lane.writers[-1], *_WRITERS[:-1], "", "query:x"])
        kept = kept_of(self.record, entry, owner.removeprefix("query:"))
        keys = {*lane.writers, *([owner] if owner else ()), *([place_key(lane.checkpoint)] if lane.checkpoint else ())}
        assert {one.key for one in kept} == keys, f"of lane {number} other names are kept than {keys}"
        assert {(one.ctime_ms, one.lane) for one in kept} == {(5, number)}, "it is kept of another lane"
        wrong = [
            one for one in kept if one.writer != (one.key if one.key in (*lane.writers, owner) else lane.writers[-1])
        ]
        assert not wrong, f"another writer is kept: {wrong}"
        block = full_block(self.record)
        if block is not None:
            name = lane_name("orders", block[0] + 1)
            assert name not in self.blocks, f"block {name} is written twice"
            self.blocks[name] = msgspec.json.encode(EndedBlock(5, block[1]))
        self.record = out_of_index(self.record, number)
        assert out_of_index(self.record, number) == self.record, "a lane leaves the index twice"
        lane.has_ended = True
        self.ended.append(number)
        self.made_before.append(len(self.lanes))

    # -- what must hold

    def check(self) -> None:
        record = self.record
        named = {one.number: (list(one.writers), one.checkpoint, one.after) for one in record.lanes}
        assert named == {n: (one.writers, one.checkpoint, one.after) for n, one in self.living().items()}, "other lanes"
        assert (record.lanes_made, record.ended_count) == (len(self.lanes), len(self.ended)), (
            "lanes are counted wrongly"
        )
        for writer in _WRITERS:
            assert lane_in_index(record, writer) == self.lane_of(writer), f"{writer} has another lane"
            assert has_lane(record, writer) == (self.lane_of(writer) is not None), f"{writer} has a lane, or has none"
        for number in (0, *self.lanes):
            wanted = self.lanes[number].after if number in self.living() else 0
            assert after_of(record, number) == wanted, f"lane {number} goes on after another one"
        registry = LogRegistry(cast(Any, SimpleNamespace(read_record=self._block)))
        first = self.random.randint(0, len(self.ended))
        found = registry.ended_lanes(record, first)
        assert found == self.ended[first:], f"from number {first} on {found} have ended, and not {self.ended[first:]}"
        self._places()

    def _block(self, kind: str, name: str) -> Any:
        return SimpleNamespace(value=self.blocks[name]) if name in self.blocks else None

    def _places(self) -> None:
        """Of a reader that is done with all of some lanes that ended, and is anywhere in the others."""
        done = self.random.choice([len(self.ended), self.random.randint(0, len(self.ended))])
        counted, everything = set(self.ended[:done]), {0: self.rows, **{n: one.rows for n, one in self.lanes.items()}}
        if done < len(self.ended):
            # What is behind lanes that ended waits for them, and lanes that were made since are not known.
            everything = {n: rows for n, rows in everything.items() if n <= self.made_before[done]}
        some = done < len(self.ended) or self.random.random() < 0.5
        at = {n: self.random.randint(0, rows) if some and n not in counted else rows for n, rows in everything.items()}
        place = offset_at(5, {n: rows for n, rows in at.items() if n not in counted}, done)
        assert is_offset(place), f"{place} is no place"
        there = {n: rows for n, rows in self._all(place).items() if rows or n in at}
        assert there == at, f"{place} is not where it was to be: {at}"
        assert (ended_before(place), place["log"]) == (done, 5), f"{place} tells another log, or of other lanes"
        assert list(rows_before(place)) == sorted(rows_before(place)), "lanes are out of order"
        for other, then, known in [*self.told[-3:]]:
            for one, newest, a, b, knew, knows in (
                (place, other, at, then, done, known),
                (other, place, then, at, known, done),
            ):
                found = later(one, newest)
                assert is_offset(found), f"{found} is no place"
                rows = self._all(found)
                most = {n: max(a.get(n, 0), b.get(n, 0)) for n in rows}
                assert all(a.get(n, 0) <= rows[n] <= most[n] for n in rows), f"{found} is later than {one} and {newest}"
                told = rows if knew <= knows else {n: rows[n] for n in rows_before(one) if n in rows_before(newest)}
                assert all(rows[n] == most[n] for n in told), f"{found} is not behind both {one} and {newest}"
        self.told.append((place, at, done))
        wrong: dict[str, Any] = {**place, self.random.choice(["", "-1", "0", "x"]): 1}
        lacks = self.random.choice(["log", "position"])
        for strange in (
            wrong,
            {key: rows for key, rows in place.items() if key != lacks},
            {**place, self.random.choice(list(place)): self.random.choice([-1, 0.5, "1", None])},
        ):
            assert not is_offset(cast(Mapping[str, object], strange)), f"{strange} is taken for a place"

    def _all(self, place: Mapping[str, int]) -> dict[int, int]:
        """How many rows of each lane are before the place."""
        ended = {n: self.lanes[n].rows for n in self.ended[: place.get("ended", 0)]}
        named = {int(key): rows for key, rows in place.items() if key not in ("position", "log", "ended")}
        return {**dict.fromkeys(self.lanes, 0), **ended, **named, 0: place["position"]}
