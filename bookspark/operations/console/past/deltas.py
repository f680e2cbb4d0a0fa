"""Reads the tables of snapshots without Spark.

Law: nothing is written. Columns with a row for each ledger stay Arrow arrays: a million ledgers make no million Python objects.
A page of a list or one ledger reads only files chosen by the Delta log's statistics (``Files``), which also give a ledger's place
in the order of ids. At most ``_PART_IDS_KEPT`` ids of such files are kept, 8 bytes each. Without statistics, and to compare
snapshots, all ids of ``_IDS_KEPT`` snapshots are kept. For one thread.

Source: docs/decisions/delta-snapshots.md; Delta's protocol, by delta-rs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from bookspark.errors import ConfigurationError, ReadError
from bookspark.support.extras import extra_needed
from bookspark.support.plain_text import one_line
from bookspark.support.snapshot_commits import LAST, Commit, Snapshot, commit_of, kept, location

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyarrow.dataset import Expression, Fragment


# -- Files of one version of a table


ID = "ledger_id"
_FOOTERS_KEPT = 16
_READAHEAD = {"batch_readahead": 2, "fragment_readahead": 2}


class Holds(NamedTuple):
    """The Delta log's statistics of a file: lowest and highest ledger id, rows. None: unknown."""

    path: str
    least: int | None
    most: int | None
    rows: int | None

    def may_have(self, low: int, high: int) -> bool:
        """May the file have rows of ledgers ``low..high``?"""
        return (self.most is None or self.most >= low) and (self.least is None or self.least <= high)


class Files:
    """Reads one version of a table. For one thread.

    Law: the Delta log's statistics choose the files, so one ledger's rows cost the same with any number of files. A file with
    unknown ids is always read. Only footers of the last few chosen files are kept.
    """

    def __init__(self, table: DeltaTable) -> None:
        """Raises errors of delta-rs and Arrow, as all methods."""
        from pyarrow.dataset import ParquetReadOptions

        self._dataset: Any = table.to_pyarrow_dataset(
            parquet_read_options=ParquetReadOptions(coerce_int96_timestamp_unit="us")
        )
        self._told: Mapping[str, Expression] = {
            one.path: one.partition_expression for one in self._dataset.get_fragments()
        }
        """The partition expression of each file."""
        self._holds = _holds(table, self._told)
        self._chosen: OrderedDict[str, Fragment] = OrderedDict()

    def choose(self, low: int, high: int) -> list[str]:
        """Paths of the files that may have rows of ledgers ``low..high``."""
        return [one.path for one in self._holds if one.may_have(low, high)]

    def in_order(self) -> list[Holds] | None:
        """Files with rows, in the order of their ids; None if statistics are missing or ranges of ids overlap."""
        full = [one for one in self._holds if one.rows != 0]
        if any(None in one for one in full):
            return None
        full.sort(key=lambda one: one.least or 0)
        return None if any(after.least <= one.most for one, after in pairwise(full)) else full  # type: ignore[operator]

    def read(
        self, columns: Sequence[str], where: Expression | None = None, ids: tuple[int, int] | None = None
    ) -> pyarrow.Table:
        """Columns of the rows that match ``where``. ``ids``: only ledgers from the first id to the second, inclusive."""
        from pyarrow.dataset import field

        if ids is None:
            fragments = [self._fragment(path) for path in self._told]
        else:
            low, high = ids
            within = (field(ID) >= low) & (field(ID) <= high)
            where = within if where is None else where & within
            fragments = [self._kept(path) for path in self.choose(low, high)]
        return self._of(fragments).to_table(columns=list(columns), filter=where, **_READAHEAD)

    def column(self, path: str, name: str) -> pyarrow.Array:
        return self._of([self._kept(path)]).to_table(columns=[name], **_READAHEAD)[name].combine_chunks()

    def _of(self, fragments: Sequence[Fragment]) -> Any:
        from pyarrow.dataset import FileSystemDataset

        known = self._dataset
        return FileSystemDataset(fragments, known.schema, known.format, known.filesystem)

    def _kept(self, path: str) -> Fragment:
        found = self._chosen.pop(path, None)
        if found is None:
            found = self._fragment(path)
        self._chosen[path] = found
        while len(self._chosen) > _FOOTERS_KEPT:
            self._chosen.popitem(last=False)
        return found

    def _fragment(self, path: str) -> Fragment:
        known = self._dataset
        return known.format.make_fragment(path, known.filesystem, self._told[path])


def _holds(table: DeltaTable, paths: Mapping[str, object]) -> list[Holds]:
    """Statistics of these files; unknown for a path that the log does not name."""
    import pyarrow

    actions = pyarrow.table(table.get_add_actions(flatten=True))
    nothing = [None] * actions.num_rows
    told = {
        name: actions[name].to_pylist() if name in actions.schema.names else nothing
        for name in (f"min.{ID}", f"max.{ID}", "num_records")
    }
    found = {
        path: Holds(path, least, most, rows)
        for path, least, most, rows in zip(actions["path"].to_pylist(), *told.values(), strict=True)
    }
    return [found.get(path, Holds(path, None, None, None)) for path in paths]


class Ids(Sequence[int]):
    """Ascending ids, in parts that are read on demand."""

    def __init__(self, parts: Sequence[tuple[int, int]], part: Callable[[int], pyarrow.Array]) -> None:
        """``parts``: each part's lowest id and number of ids; ``part``: returns a part by its number, ascending."""
        self._least = [least for least, _ in parts]
        self._ends = list(accumulate(count for _, count in parts))
        self._part = part

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        at += len(self) if at < 0 else 0
        if not 0 <= at < len(self):
            raise IndexError(at)
        number = bisect_right(self._ends, at)
        return self._part(number)[at - self._before(number)].as_py()

    def before(self, ledger_id: int) -> int:
        number = bisect_right(self._least, ledger_id) - 1
        if number < 0:
            return 0
        return self._before(number) + bisect_left(_Objects(self._part(number)), ledger_id)

    def __contains__(self, ledger_id: object) -> bool:
        if not isinstance(ledger_id, int):
            return False
        at = self.before(ledger_id)
        return at < len(self) and bool(self[at] == ledger_id)

    def _before(self, number: int) -> int:
        return self._ends[number - 1] if number else 0


class _Objects(Sequence[int]):
    """View of an array that makes a Python object only for a requested value."""

    def __init__(self, array: pyarrow.Array) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, at: Any) -> Any:
        return self._array[at].as_py()


def ascending(ids: pyarrow.Array) -> pyarrow.Array:
    import pyarrow.compute as pc

    return ids.take(pc.array_sort_indices(ids))


# -- Tables


SNAPSHOTS_MAX = 2000
"""Newest snapshots that the console shows at most."""
_OPENED_KEPT = 16
_IDS_KEPT = 2
_PART_IDS_KEPT = 1 << 20


class Deltas:
    """The tables under ``path``, a directory or URI."""

    def __init__(self, path: str) -> None:
        """Raises MissingExtraError if the Delta reader is not installed."""
        with extra_needed("bookspark console --snapshots"):
            import deltalake
            import pyarrow.dataset  # noqa: F401

            self._delta: type[DeltaTable] = deltalake.DeltaTable
        self.path = path
        self._commits: dict[str, dict[int, Commit]] = {}
        self._looked: dict[str, int] = {}
        """The newest version of each table with read commits."""
        self._opened: OrderedDict[tuple[str, int], Files] = OrderedDict()
        self._ids: OrderedDict[str, pyarrow.Array] = OrderedDict()
        self._parts: OrderedDict[str, pyarrow.Array] = OrderedDict()
        """Ids of some files of table ``ledgers``, by path; a file never changes."""

    def snapshots(self) -> list[Snapshot]:
        """Complete snapshots that were not given up, the oldest first. Raises ReadError; ConfigurationError if none exists."""
        found = kept(list(self._commits_to(LAST).values()))
        if not found:
            raise ConfigurationError(f"no snapshot under {self.path} is whole; take one with `bookspark snapshot`")
        return found[::-1]

    def files(self, snapshot: Snapshot, table: str) -> Files:
        """The files of a snapshot's table. Raises ReadError."""
        version = self._version(snapshot, table)
        if version is None:
            raise ReadError(
                f"{location(self.path, table)} has no version of snapshot {snapshot.version}; was it vacuumed, or copied in part?"
            )
        found = self._opened.pop((table, version), None)
        if found is None:
            with _failures(f"{location(self.path, table)} at version {version}"):
                found = Files(self._delta(location(self.path, table), version=version))
        self._opened[table, version] = found
        while len(self._opened) > _OPENED_KEPT:
            self._opened.popitem(last=False)
        return found

    def read(
        self,
        snapshot: Snapshot,
        table: str,
        columns: Sequence[str],
        where: Expression | None = None,
        ids: tuple[int, int] | None = None,
    ) -> pyarrow.Table:
        """Columns of a table's rows, as ``Files.read``. Raises ReadError."""
        with _failures(f"{table} of snapshot {snapshot.version}"):
            return self.files(snapshot, table).read(columns, where, ids)

    def rows(
        self,
        snapshot: Snapshot,
        table: str,
        columns: Sequence[str],
        where: Expression | None = None,
        ids: tuple[int, int] | None = None,
    ) -> list[dict[str, Any]]:
        """A few rows as dictionaries; otherwise as ``read``. Raises ReadError."""
        found: list[dict[str, Any]] = self.read(snapshot, table, columns, where, ids).to_pylist()
        return found

    def ledgers(self, snapshot: Snapshot) -> Ids:
        """The snapshot's ledger ids, ascending. Raises ReadError, as does the result."""
        files = self.files(snapshot, "ledgers")
        parts = files.in_order()
        if parts is None:
            every = self.every_id(snapshot)
            return Ids([(every[0].as_py(), len(every))] if len(every) else [], lambda _: every)
        return Ids(
            [(one.least or 0, one.rows or 0) for one in parts],
            lambda number: self._part(snapshot, files, parts[number].path),
        )

    def every_id(self, snapshot: Snapshot) -> pyarrow.Array:
        """The snapshot's ledger ids as one array, ascending. Raises ReadError."""
        found = self._ids.pop(snapshot.snapshot_id, None)
        if found is None:
            found = ascending(self.read(snapshot, "ledgers", [ID])[ID].combine_chunks())
        self._ids[snapshot.snapshot_id] = found
        while len(self._ids) > _IDS_KEPT:
            self._ids.popitem(last=False)
        return found

    def _part(self, snapshot: Snapshot, files: Files, path: str) -> pyarrow.Array:
        found = self._parts.pop(path, None)
        if found is None:
            with _failures(f"ledgers of snapshot {snapshot.version}"):
                found = ascending(files.column(path, ID))
        self._parts[path] = found
        while len(self._parts) > 1 and sum(map(len, self._parts.values())) > _PART_IDS_KEPT:
            self._parts.popitem(last=False)
        return found

    def _version(self, snapshot: Snapshot, table: str) -> int | None:
        for again in (False, True):
            found = self._commits_to(table, again).values()
            version = next((one.version for one in found if one.snapshot_id == snapshot.snapshot_id), None)
            if version is not None:
                return version
        return None

    def _commits_to(self, table: str, again: bool = True) -> dict[int, Commit]:
        """The snapshots' commits to ``table``, the newest first. ``again``: also read the commits since the previous call."""
        known = self._commits.get(table)
        if known is not None and not again:
            return known
        with _failures(location(self.path, table)):
            opened = self._delta(location(self.path, table))
            newest, looked = opened.version(), self._looked.get(table, -1)
            if newest < looked:
                # The table was deleted and created again.
                known, looked = None, -1
                self._opened.clear()
                self._parts.clear()
            found = opened.history(min(newest - looked, SNAPSHOTS_MAX)) if newest > looked else []
        fresh: dict[int, Commit] = {}
        for one in found:
            commit = commit_of(table, one["version"], one.get("timestamp", 0), one.get("userMetadata"))
            if commit is not None:
                fresh[one["version"]] = commit
        together = {**fresh, **(known or {})}
        for old in list(together)[SNAPSHOTS_MAX:]:
            del together[old]
        self._commits[table], self._looked[table] = together, newest
        return together


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """Turns the libraries' errors in the block into ReadError."""
    import pyarrow
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        yield
    except TableNotFoundError as error:
        raise ReadError(f"there is no table at {what}; `bookspark snapshot` makes it") from error
    except FileNotFoundError as error:
        raise ReadError(f"{what}: a file is gone; the snapshot may have been given up a moment ago") from error
    except (DeltaError, OSError, pyarrow.ArrowException) as error:
        raise ReadError(f"{what} can't be read: {one_line(error)}") from error
