"""The check of a story for lost and doubled rows."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bookspark import BookKeeper
from bookspark.errors import NotEnoughBookiesError
from tests.system.clusters import plain_load
from tests.system.clusters.cluster import Cluster
from tests.system.clusters.story import STEPS, Load, PlainLoad, Plot, Story, plot


def load(folder: Path, written: int, stored: list[int], *batches: list[int]) -> Load:
    """A finished load: Spark reported ``written`` rows, the log has ``stored``, and the reader got ``batches``."""
    ended = object.__new__(Load)
    ended.folder, ended.stored = folder, stored
    folder.joinpath("write.log").write_text(f"write: rows 1\nwrite: rows {written}\nwrite: failed: x\n")
    folder.joinpath("rows").mkdir()
    for number, batch in enumerate(batches):
        folder.joinpath("rows", str(number)).write_text("\n".join(map(str, batch)))
    folder.joinpath("rows", "9.new").write_text("7")
    return ended


def test_check_accepts_each_row_once_and_more_rows_than_spark_reported(tmp_path: Path) -> None:
    """A batch may be in the log before Spark reports it as written."""
    assert load(tmp_path, 3, [0, 1, 2, 3], [0, 1], [], [2, 3]).check().startswith("4 rows, each once")


@pytest.mark.parametrize(
    ("stored", "got", "what"),
    [
        ([0, 1, 3], [0, 1, 2, 3], "log: 1 rows lost: .2."),
        ([0, 1, 2, 3], [0, 3, 1], "reader: 1 rows lost: .2."),
        ([0, 1, 2], [0, 1, 2], "log: 1 rows lost: .3."),
        ([0, 1, 2, 3, 1], [0, 1, 2, 3], "log: 1 rows doubled: .1."),
        ([0, 1, 2, 3], [0, 1, 2, 3, 3], "reader: 1 rows doubled: .3."),
        ([0, 1, 2, 3], [], "reader: 4 rows lost"),
    ],
)
def test_check_names_lost_and_doubled_rows(stored: list[int], got: list[int], what: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=what):
        load(tmp_path, 4, stored, got).check()


def test_consecutive_failures_are_summed_up_in_one_line(tmp_path: Path) -> None:
    ended = load(tmp_path, 2, [0, 1])
    again = "write: failed: y\n" * 40
    tmp_path.joinpath("write.log").write_text(
        f"write: rows 1\nwrite: failed: x\n{again}write: resumed after 1.0 s\n{again}"
    )
    tmp_path.joinpath("read.log").write_text("read: failed: z\n")
    assert ended.trouble() == [
        "write: failed: x (and 40 more)",
        "write: resumed after 1.0 s",
        "write: failed: y (and 39 more)",
        "read: failed: z",
    ]


def test_command_line_chooses_the_steps_of_a_story() -> None:
    chosen = plot(["plain", "5", "lose_a_host", "kill_the_driver", "cluster"], "usage", "client", "cluster")
    assert chosen == Plot(PlainLoad, 5.0, ("kill_the_driver", "lose_a_host"))
    assert plot([], "usage") == Plot(Load, 180.0, STEPS)
    assert all(callable(getattr(Story, step)) for step in STEPS)


@pytest.mark.parametrize("word", ["kill_a_driver", "--help", "cluster"])
def test_unknown_word_on_the_command_line_exits_with_status_2(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 differs from that of a failed step, which is 1."""
    with pytest.raises(SystemExit) as ended:
        plot(["plain", word], "usage")
    told = capsys.readouterr().err
    assert (ended.value.code, told.startswith("usage"), told.endswith(f"not expected: {word}\n")) == (2, True, True)


def test_lost_host_has_bookies_and_is_not_the_drivers() -> None:
    """Without bookies on the host, nothing would be missed."""

    def chosen(driver: str, *lived: str) -> tuple[str, str]:
        story = object.__new__(Story)
        cluster = SimpleNamespace(hosts=("one", "two", "three"), driver_host=lambda: driver)
        story.cluster = cast(Cluster, cluster)
        story.home_hosts = lambda: dict(enumerate(lived))  # type: ignore[method-assign, assignment, return-value]
        return story.host(0), story.host(1)

    assert chosen("", "two", "one", "two") == ("one", "two")
    assert chosen("one", "two", "one", "two") == ("two", "two")
    assert chosen("", "two", "two", "two") == ("two", "two")


class ForgetfulLedger:
    """Acknowledges ``room`` appends, then fails; has three entries after recovery."""

    ledger_id, last_add_confirmed = 1, 2

    def __init__(self, room: int, full: threading.Event) -> None:
        self.numbers: list[int] = []
        self._room, self._full = room, full

    def append(self, payload: bytes) -> None:
        if self._full.is_set():
            raise NotEnoughBookiesError("two of three")
        self.numbers.append(int(payload))
        if len(self.numbers) == self._room:
            self._full.set()

    def __enter__(self) -> ForgetfulLedger:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_plain_writer_does_not_rewrite_entries_lost_in_recovery(tmp_path: Path) -> None:
    """Otherwise the check at the end would not notice the loss."""
    ended = threading.Event()
    lossy, next_one = ForgetfulLedger(5, threading.Event()), ForgetfulLedger(1, ended)
    made = iter((lossy, next_one))
    bookkeeper = SimpleNamespace(create_ledger=lambda **_: next(made), open_ledger=lambda _: lossy)
    plain_load.write(cast(BookKeeper, bookkeeper), tmp_path, ended)
    assert (lossy.numbers, next_one.numbers) == ([0, 1, 2, 3, 4], [5])
