"""Spark checkpoints in every state against logs in every state: each case ends exactly once or in a refusal that
names the remedy.

A case is a query that wrote ``BATCHES`` micro-batches, a change of its checkpoint (or its options, or its source), a
change of its log, new rows, and a restart of the query. An ``Engine`` runs it: real Spark, or a stand-in that keeps a
checkpoint with the same files and drives the real sink."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

BATCHES = 7
NEW = ["new 0", "new 1"]


@dataclass
class Query:
    """A query from the files of a folder into a log."""

    folder: Path
    log: str
    options: dict[str, str] = field(default_factory=dict)
    one_file_a_batch: bool = False

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def input(self) -> Path:
        found: Path = next(self.folder.glob("input*"))
        return found

    def add(self, lines: list[str]) -> None:
        number = len(list(self.input.iterdir()))
        temporary = self.folder / "next"
        temporary.write_text("".join(f"{line}\n" for line in lines))
        os.utime(temporary, (number + 1, number + 1))  # Spark takes the oldest first
        temporary.rename(self.input / f"{number:03}.txt")


class Engine(Protocol):
    def run(self, query: Query) -> str | None:
        """Run the query over the available rows. Return the error's text if it failed."""

    def rows(self, log: str) -> list[str]: ...

    def truncate(self, log: str, row: int) -> None: ...

    def offload(self, log: str) -> None: ...

    def delete(self, log: str) -> None: ...


# -- changes of a checkpoint


def numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()) if folder.exists() else []


def forget(checkpoint: Path, batches: int, *kinds: str) -> None:
    """Delete the files of the last batches in these folders, as in an older copy."""
    for folder in [part for kind in kinds for part in checkpoint.glob(kind)]:
        for number in [number for number in numbers(folder) if number >= BATCHES - batches]:
            (folder / str(number)).unlink()
            (folder / f".{number}.crc").unlink(missing_ok=True)


def set_back(batches: int) -> Callable[[Engine, Query], None]:
    return lambda engine, query: forget(query.checkpoint, batches, "offsets", "commits", "sources/*")


def restored_copy(engine: Engine, query: Query) -> None:
    """Restore a copy that is three batches old, from another folder."""
    forget(query.checkpoint, 3, "offsets", "commits", "sources/*")
    elsewhere = query.folder / "elsewhere"
    elsewhere.mkdir()
    shutil.move(str(query.checkpoint), elsewhere / "copy")
    shutil.move(str(elsewhere / "copy"), query.checkpoint)


def deleted(engine: Engine, query: Query) -> None:
    shutil.rmtree(query.checkpoint)


def another_querys(engine: Engine, query: Query) -> None:
    other = written(engine, query.folder / "other", f"{query.log}-other")
    shutil.rmtree(query.checkpoint)
    shutil.copytree(other.checkpoint, query.checkpoint)


def other_options(engine: Engine, query: Query) -> None:
    query.options["ackQuorum"] = "3"


def renamed_source(engine: Engine, query: Query) -> None:
    query.input.rename(query.folder / "input-renamed")


def killed_before_sparks_commit(engine: Engine, query: Query) -> None:
    forget(query.checkpoint, 1, "commits")


REFUSED_FOR = {
    "set back": r"its Spark checkpoint|Give the query its newest checkpoint again.*follows set to '[0-9a-f-]{36}'",
    "new": r"its Spark checkpoint was deleted or is another query's: give it its own again.*option follows to",
    "options": r"a write does not change the options of a log: leave out ack_quorum 3, or write to another log",
    "renamed": r"Give the folder its former name again, and delete .*offsets.*sources.*or start the query with a new",
}

Checkpoint = Callable[[Engine, Query], None]
# By state: the change, the reason of the refusal, and the reason if the log was created again; None: each row is
# there once.
CHECKPOINTS: dict[str, tuple[Checkpoint, str | None, str | None]] = {
    "set back by 0": (set_back(0), None, None),
    "set back by 1": (set_back(1), "set back", None),
    "set back by 2": (set_back(2), "set back", None),
    "set back by 5": (set_back(5), "set back", None),
    "a restored copy": (restored_copy, "set back", None),
    "deleted": (deleted, "new", None),
    "another query's": (another_querys, "new", None),
    "its own, with other options": (other_options, "options", None),
    "its own, with its source renamed": (renamed_source, "renamed", "renamed"),
    "its own, killed between the log's commit and Spark's": (killed_before_sparks_commit, None, None),
}


# -- changes of a log


def as_it_is(engine: Engine, log: str) -> None:
    pass


LOGS: dict[str, Callable[[Engine, str], None]] = {
    "as it is": as_it_is,
    "truncated": lambda engine, log: engine.truncate(log, 5),
    "offloaded": lambda engine, log: engine.offload(log),
    "deleted and made anew": lambda engine, log: engine.delete(log),
}

CASES = [(checkpoint, log) for checkpoint in CHECKPOINTS for log in LOGS]


def lines_of(batch: int) -> list[str]:
    return [f"{batch}-{row}" for row in range(2)]


def written(engine: Engine, folder: Path, log: str) -> Query:
    """A query that has written its batches, one per file."""
    (folder / "input").mkdir(parents=True)
    query = Query(folder, log, one_file_a_batch=True)
    for batch in range(BATCHES):
        query.add(lines_of(batch))
    failure = engine.run(query)
    assert failure is None, failure
    assert numbers(query.checkpoint / "offsets") == list(range(BATCHES))
    query.one_file_a_batch = False
    return query


def play(engine: Engine, folder: Path, checkpoint: str, log_state: str) -> str:
    """Play and check a case; return its outcome."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{checkpoint} {log_state}")
    query = written(engine, folder, name)
    befalls, refused_for, refused_anew = CHECKPOINTS[checkpoint]
    befalls(engine, query)
    LOGS[log_state](engine, name)
    anew = log_state == "deleted and made anew"
    before = [] if anew else engine.rows(name)
    query.add(NEW)
    wanted = refused_anew if anew else refused_for
    failure = engine.run(query)
    if wanted is not None:
        again = engine.run(query)
        for text in (failure, again):
            assert text is not None and re.search(REFUSED_FOR[wanted], text), f"{wanted}: {text}"
            assert name in text, "the log is named"
        assert engine.rows(name) == before
        return f"refused: {wanted}"
    assert failure is None, failure
    rows = engine.rows(name)
    assert len(rows) == len(set(rows)), f"rows are twice in the log: {json.dumps(rows)}"
    assert rows[: len(before)] == before and set(NEW) <= set(rows)
    assert anew or sorted(rows[len(before) :]) == NEW, "nothing else came in"
    return "exactly once"
