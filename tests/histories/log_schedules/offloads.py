"""Offloads: the real steps (``spark.offload.offloading``), with a table in memory instead of Delta and Spark.

Law of the table: a transaction adds all its rows at once or none, and each transaction number is used once. Its rows are those of
the ledgers at that time. A row is in the table once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pyarrow
from pyspark.sql.types import StructType

from bookspark.errors import DataLossError, MetadataStoreError, NoSuchLedgerError, ReadError
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.rows.splits import Piece, SizedPiece
from bookspark.protocol.logs.lanes import MARK, LaneId
from bookspark.protocol.logs.log_offload import OffloadError
from bookspark.protocol.logs.log_record import NoSuchLogError
from bookspark.spark.offload import offloaded, offloading
from bookspark.spark.offload.offloading import _Run
from tests.histories.log_schedules.actors import LOG, Stage, values_in

if TYPE_CHECKING:
    from tests.histories.log_schedules.cluster import World

TABLE = "/table"


@dataclass
class Table:
    """An offload table."""

    owner: str
    version: int = 0
    rows: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By position: the ledger and the value."""
    transactions: set[int] = field(default_factory=set)


class Tables:
    """In-memory version of ``spark.offload.table``."""

    def __init__(self, world: World, may_be_anothers: bool) -> None:
        """``may_be_anothers``: a piece may be looked up in the table of the next log of that name."""
        self._world, self._may_be_anothers = world, may_be_anothers
        self.at: dict[str, Table] = {}

    def create(self, place: str, owner: str, columns: object) -> None:
        self._world.turns.step(f"creates {place}")
        self.at.setdefault(place, Table(owner))

    def check(self, place: str, owner: str, version: int = -1) -> int:
        self._world.turns.step(f"looks at {place}")
        found = self.at[place]
        if found.owner != owner or found.version < version:
            raise OffloadError("another table")
        return found.version

    def count(self, place: str, start: int, end: int) -> int:
        self._world.turns.step(f"counts rows of {place}")
        return sum(start <= position < end for position in self.at[place].rows)

    def sync(self, place: str, start: int, end: int) -> None:
        self._world.turns.step(f"syncs {place}")

    def rows(self, place: str, log: str, pieces: Iterable[Piece], schema: object) -> pyarrow.Table:
        self._world.turns.step(f"reads {place}")
        there = self.at[place].rows
        wanted = [(piece, row) for piece in pieces for row in range(piece.position, piece.position + piece.rows)]
        for piece, row in wanted:
            if self._may_be_anothers and (row not in there or there[row][0] != piece.ledger_id):
                raise ReadError(f"{place} is of another log of the name")
            assert row in there and there[row][0] == piece.ledger_id, f"{place} lacks row {row}, which is offloaded"
        return pyarrow.table({"value": [there[row][1] for _, row in wanted]})

    def append(self, place: str, end: int, rows: dict[int, tuple[int, str]]) -> None:
        table = self.at[place]
        if end in table.transactions:
            return
        twice = table.rows.keys() & rows.keys()
        assert not twice, f"rows {sorted(twice)} would be in {place} twice"
        table.rows.update(rows)
        table.transactions.add(end)
        table.version += 1


class Offload(_Run):
    """An offload of a lane, whose Spark jobs run here."""

    def __init__(self, tables: Tables, client: Any, lane: LaneId, place: str) -> None:
        super().__init__(cast(Any, None), client, lane, place, b"")
        self._tables, self._client = tables, client

    @property
    def _schema(self) -> StructType:  # type: ignore[override]
        return StructType()

    def check_writable(self) -> None:
        """The rows are single values."""

    def _write(self, start: int, end: int) -> None:
        rows = dict(self._in_ledgers(self._pieces(start, end)))
        self._client.step(f"writes rows {start} to {end} to {self._table}")
        self._tables.append(self._table, end, rows)
        self._client.step(f"hears of its transaction in {self._table}")

    def _prove(self, pieces: Iterable[SizedPiece]) -> None:
        there = self._tables.at[self._table].rows
        for position, row in self._in_ledgers(pieces):
            if there.get(position) != row:
                raise OffloadError(f"row {position} is {there.get(position)} in the table, and {row} in its ledger")

    def _in_ledgers(self, pieces: Iterable[SizedPiece]) -> Iterator[tuple[int, tuple[int, str]]]:
        for piece, _ in pieces:
            try:
                values = values_in(self._client, piece)
            except NoSuchLedgerError as error:
                raise ReadError("its ledger is deleted") from error
            for position, value in enumerate(values, piece.position):
                yield position, (piece.ledger_id, value)


class Offloads:
    """The offloads of a schedule."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self.tables = stage, Tables(stage.world, stage.makes_anew)
        stage.offloaded = self.offloaded

    def offload(self) -> None:
        """Some offloads of a process in sequence. If it dies, others continue."""
        client = self._stage.client(object())
        for _ in range(self._stage.random.randrange(1, 4)):
            # The next offload repeats a failed step.
            with suppress(ReadError, OffloadError, MetadataStoreError, NoSuchLogError, DataLossError):
                self._once(client)
            for _ in range(self._stage.random.randrange(60)):
                self._stage.turns.step("waits")

    def _once(self, client: Any) -> None:
        """Mirrors ``offload``."""
        deletes_after = self._stage.random.choice([None, 0.0, 0.1])
        self._each_lane(client, deletes_after)

    def at_the_end(self, client: Any) -> None:
        """Offload everything, and delete every needless ledger."""
        self._each_lane(client, 0.0)

    def _each_lane(self, client: Any, deletes_after: float | None) -> None:
        """Offload each lane; each log of the name has its own tables."""
        registry = LogRegistry(client.metadata)
        for lane in registry.lanes_of(LOG):
            run = Offload(self.tables, client, lane, f"{TABLE}-{lane.log}{MARK}{lane.number}")
            offloading._offload_lane(run, deletes_after)

    def offloaded(self, client: Any, log: LaneId, piece: Piece) -> list[str] | None:
        """The values of a piece with a deleted ledger, read like a task, or None if they were not offloaded."""
        found = offloaded.offloaded_rows(client.metadata, log, piece, deque(), StructType())
        return None if found is None else [value for batch in found for value in batch.column("value").to_pylist()]

    def stand_ins(self) -> list[Any]:
        """Replacements for tables and bounds."""
        return [
            mock.patch.object(offloading, "tables", self.tables),
            mock.patch.object(offloaded, "table", self.tables),
            mock.patch.object(offloading, "IDLE_SECONDS", self._stage.random.choice([0.0, 0.2, 60.0])),
            mock.patch.object(offloading, "TRANSACTION_BYTES_MAX", self._stage.random.choice([1, 60, 1 << 30])),
        ]
