"""The session of a reader that shares lanes ends behind every single request: rows come at least once, none is skipped, and the
reader raises nothing but MetadataStoreError."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.logs import LogAddress, LogRegistry, row_reader
from bookspark.logs.chain.registry import POSITIONS
from bookspark.logs.producer import Producer
from bookspark.logs.readers import registration
from bookspark.logs.row_reader import LogRow, RowReader
from bookspark.protocol.logs.lanes import rows_before
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.store.metadata.memory.memory_store import MemoryStore, World
from bookspark.store.metadata.records.documents import read_struct
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore, ZooKeeperTree
from tests.logs.test_producer_faults import Cluster
from tests.spark.memory_bookkeeper import MemoryBookKeeper
from tests.store.metadata.kit import begun, end_session

LOG, GROUP = "orders", "audit"
LANES, ROWS = 2, 2
Row = tuple[int, int]
Result = TypeVar("Result")


class EndingStore(MemoryStore):
    """A client whose session ``ends`` behind request number ``end_at``; like ZooKeeper's client it goes on with a new session.
    ``loses``: the answer to that request is lost."""

    end_at, ends, loses, requests = 0, True, False, 0
    at_end: Callable[[], None] = staticmethod(lambda: None)

    @contextmanager
    def _open(self) -> Iterator[World]:
        with super()._open() as world:
            yield world
        self.requests += 1
        if self.requests == self.end_at:
            with world.lock:
                for key in [key for key, owner in world.ephemerals.items() if self.ends and owner is self]:
                    world.remove(key)
            self.at_end()
            if self.loses:
                raise MetadataStoreError("the answer was lost")


class Story:
    """A reader with a failing session; ``another`` is a reader that takes its lanes meanwhile, saves what it read, and leaves."""

    def __init__(self, memory: Any, client: Any, others: bool) -> None:
        self.memory, self.client, self.others = memory, client, others
        self.appended: set[Row] = set()
        self.read: Counter[Row] = Counter()
        self.saved: set[Row] = set()
        """Rows that the reader knows to be saved."""
        for number in range(LANES):
            producer = Producer(memory, LogAddress("memory", LOG), f"service-{number}")
            for _ in range(ROWS):
                self.appended.add((producer.lane, producer.append(b"row").position))

    def run(self) -> None:
        with self.new_reader() as first:
            rows = first.read(1)
            reader = self.attempt(lambda: self.reader(self.client))
            # Its lanes come to the other reader, which must not read its saved rows again.
            rows += first.read(1)
            first.commit()
        mine: set[Row] = set()
        self.note(rows, mine)
        self.saved |= set() if self.others else mine
        for turn in range(60):
            if turn % 2:
                # A generator that raised has ended; the reader has not.
                row = self.attempt(partial(next, iter(reader), None))
                rows = [] if row is None else [row]
                self.note(rows, mine)
                if row is not None:
                    self.attempt(partial(reader.commit, row))
            else:
                rows = self.attempt(lambda: reader.read(2))
                self.note(rows, mine)
                self.attempt(reader.commit)
            if not self.others:
                self.saved |= mine
            if set(self.read) == self.appended:
                break
        reader.close()
        self.client.metadata.close()
        self.check_saved()
        with self.new_reader() as last:
            while rows := last.read():
                self.read.update((row.lane, row.position) for row in rows)
        assert set(self.read) == self.appended, "a row was skipped"

    def reader(self, client: Any) -> RowReader:
        return RowReader(client, LogAddress("memory", LOG), "earliest", GROUP, share=True)

    def note(self, rows: list[LogRow], mine: set[Row]) -> None:
        found = [(row.lane, row.position) for row in rows]
        assert not self.saved.intersection(found), "a row came again to the reader that had saved it"
        self.read.update(found)
        mine.update(found)

    def new_reader(self) -> RowReader:
        return self.reader(self.memory)

    def another(self) -> None:
        with self.new_reader() as other:
            self.read.update((row.lane, row.position) for row in other.read(2))
            other.commit()

    def attempt(self, does: Callable[[], Result]) -> Result:
        """Like a service that tries again if the store did not answer."""
        for _ in range(5):
            try:
                return does()
            except MetadataStoreError:
                continue
        raise AssertionError("it never works again")

    def check_saved(self) -> None:
        log_id = LogRegistry(self.memory.metadata).get(LOG).log_id
        found = self.memory.metadata.read_record(POSITIONS, f"{GROUP}@{log_id}")
        assert found is not None
        for lane, rows in rows_before(read_struct(found.value, dict[str, int], "position")).items():
            assert all((lane, position) in self.read for position in range(rows)), "an unread row counts as saved"


@pytest.fixture(autouse=True)
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers look for lanes at each read, and report nothing."""
    monkeypatch.setattr(row_reader, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(registration, "_LAST_SECONDS_MAX", 0.0)
    nobody = SimpleNamespace(add=lambda reader: None, wake=lambda: None)
    monkeypatch.setattr(registration, "_teller", lambda: nobody)


@pytest.mark.parametrize(
    ("ends", "loses", "others"),
    [(True, False, False), (True, True, False), (False, True, False), (True, False, True), (True, True, True)],
)
def test_session_that_ends_behind_any_request_skips_no_row(ends: bool, loses: bool, others: bool) -> None:
    """It raised ZeroDivisionError between the steps of a join. A reader whose request failed between the taking of a lane
    and the reading of its saved offset read saved rows again."""
    end_at, ended = 0, True
    while ended:
        end_at += 1
        memory = Cluster().memory
        store = EndingStore.__new__(EndingStore)
        store._join(memory.metadata._world)
        client: Any = MemoryBookKeeper(store, memory.entries)
        client.zookeeper = "memory"
        story = Story(memory, client, others)
        store.end_at, store.ends, store.loses = end_at, ends, loses
        if others:
            store.at_end = story.another
        try:
            story.run()
        except BaseException as error:
            error.add_note(f"the session ended behind request {end_at}")
            raise
        ended = store.requests >= end_at
    assert end_at > 40


@pytest.mark.parametrize("end_at", [3, 5, 9, 14, 20])
def test_session_at_a_real_zookeeper_that_ends_behind_a_request_skips_no_row(
    end_at: int, chroot: str, zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(begun(chroot)) as store, closing(ZooKeeperStore(chroot)) as failing:
        memory: Any = MemoryBookKeeper(store)  # type: ignore[arg-type]
        memory.context, memory.zookeeper = Cluster().memory.context, "memory"
        LogRegistry(store).create(LOG, LogOptions(), b"")
        client: Any = MemoryBookKeeper(failing, memory.entries)  # type: ignore[arg-type]
        client.zookeeper = "memory"
        story = Story(memory, client, others=False)
        left = [end_at]

        def counted(original: Any, store_of: Callable[[Any], object]) -> Any:
            def call(self: Any, *arguments: Any, **options: Any) -> Any:
                result = original(self, *arguments, **options)
                if store_of(self) is failing._nodes:
                    left[0] -= 1
                    if not left[0]:
                        end_session(zookeeper.connection_string, failing.client)
                return result

            return call

        for name in ("read", "read_each", "create", "write", "delete", "children"):
            monkeypatch.setattr(ZooKeeperTree, name, counted(getattr(ZooKeeperTree, name), lambda tree: tree._nodes))
        for name in ("read_record", "write_record"):
            monkeypatch.setattr(
                ZooKeeperStore, name, counted(getattr(ZooKeeperStore, name), lambda store: store._nodes)
            )
        story.run()
        assert left[0] <= 0
