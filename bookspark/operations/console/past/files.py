"""The files of one version of a table, and which of them may have rows of some ledgers.

Law: the statistics of the Delta log choose the files, so rows of one ledger cost the same however many files there are. A file
whose statistics don't tell its ids is always read: what is not known is never taken for absent. The footers of the last few
chosen files are kept, those of a read of all files are not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow
    from deltalake import DeltaTable
    from pyarrow.dataset import Expression, Fragment

ID = "ledger_id"
_FOOTERS_KEPT = 16
_READAHEAD = {"batch_readahead": 2, "fragment_readahead": 2}


class Holds(NamedTuple):
    """What the log tells of a file."""

    path: str
    least: int | None
    """The lowest ledger id; None: it is not told."""
    most: int | None
    rows: int | None

    def may_have(self, low: int, high: int) -> bool:
        """May it have rows of the ledgers ``low..high``?"""
        return (self.most is None or self.most >= low) and (self.least is None or self.least <= high)


class Files:
    """Reads one version of a table. Used by one thread."""

    def __init__(self, table: DeltaTable) -> None:
        """Raises the errors of delta-rs and Arrow, as all methods do."""
        from pyarrow.dataset import ParquetReadOptions

        self._dataset: Any = table.to_pyarrow_dataset(
            parquet_read_options=ParquetReadOptions(coerce_int96_timestamp_unit="us")
        )
        self._told: Mapping[str, Expression] = {
            one.path: one.partition_expression for one in self._dataset.get_fragments()
        }
        """What is told of all rows of each file."""
        self._holds = _holds(table, self._told)
        self._chosen: OrderedDict[str, Fragment] = OrderedDict()

    def choose(self, low: int, high: int) -> list[str]:
        """The paths of those that may have rows of the ledgers ``low..high``."""
        return [one.path for one in self._holds if one.may_have(low, high)]

    def in_order(self) -> list[Holds] | None:
        """Those that have rows, in the order of their ids; None if the log does not tell the order, or there is none, as for
        files that share ids."""
        full = [one for one in self._holds if one.rows != 0]
        if any(None in one for one in full):
            return None
        full.sort(key=lambda one: one.least or 0)
        return None if any(after.least <= one.most for one, after in pairwise(full)) else full  # type: ignore[operator]

    def read(
        self, columns: Sequence[str], where: Expression | None = None, ids: tuple[int, int] | None = None
    ) -> pyarrow.Table:
        """Columns of the rows for which ``where`` holds. ``ids``: of the ledgers from the first to the second only."""
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
        """One column of one file."""
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
    """What the log tells of these files. Of one that it does not name so, nothing is known."""
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
    """Ascending ids, in parts that are read when they are asked for."""

    def __init__(self, parts: Sequence[tuple[int, int]], part: Callable[[int], pyarrow.Array]) -> None:
        """``parts``: of each its lowest id, and how many there are; ``part``: gives a part, ascending, by its number."""
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
        """How many are lower."""
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
    """An array, each of whose values is made an object when it is asked for."""

    def __init__(self, array: pyarrow.Array) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, at: Any) -> Any:
        return self._array[at].as_py()


def ascending(ids: pyarrow.Array) -> pyarrow.Array:
    """The ids in their order."""
    import pyarrow.compute as pc

    return ids.take(pc.array_sort_indices(ids))
