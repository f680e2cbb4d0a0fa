"""Checkpoints that Spark 4.2 wrote, in each version of its offset log: each file is known, and no mishap doubles a row."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, product
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader

from bookspark.errors import BookKeeperError
from bookspark.protocol.logs.commits import FILES
from bookspark.spark.connector.checkpoint import SourceRenamedError, SparkCheckpoint
from tests.spark.checkpoint_matrix import NEW, Query, lines_of, numbers
from tests.spark.stand_in_spark import StandInSpark

pytestmark = pytest.mark.spark
SECONDS_MAX = 300

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
VERSION = "spark.sql.streaming.offsetLog.formatVersion"
COMPACTS = "spark.sql.streaming.fileSource.log.compactInterval"
VERSIONS: dict[str, dict[str, str]] = {
    "v1": {},
    "v2": {VERSION: "2"},
    "v2 with names": {VERSION: "2", EVOLUTION: "true"},
}
"""Spark's settings."""
KNOWN = [r"metadata", r"offsets/\d+", r"sources/\w+/\d+", r"sources/\w+/\d+\.compact", r"commits/\d+", r"state/.+"]
"""The files that ``connector.checkpoint`` describes."""


NAMED = "v2 with names"
CLOCK = count(1)
BATCHES = 3


@contextmanager
def set_for(spark: SparkSession, version: str) -> Iterator[None]:
    settings = {**VERSIONS[version], COMPACTS: "2", "spark.sql.shuffle.partitions": "1"}
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, former in before.items():
        if former is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, former)


class Stored:
    """A query that wrote BATCHES micro-batches. Sources: two of files, and one that counts; an operator with state."""

    def __init__(self, spark: SparkSession, version: str, folder: Path) -> None:
        self.spark, self.version, self.folder = spark, version, folder
        self.sources = ["a", "b"] if version == NAMED else ["0", "1"]
        self.checkpoint, self.location = folder / "checkpoint", f"file://{folder}/checkpoint"
        for batch in range(BATCHES):
            for name in ("a", "b"):
                (folder / name).mkdir(parents=True, exist_ok=True)
                (folder / name / f"{batch}.txt").write_text(f"{name} {batch}\n")
            self.run()

    def run(self) -> None:
        with set_for(self.spark, self.version):
            a, b = (self._source(name).text(f"{self.folder}/{name}*") for name in ("a", "b"))
            ticks = self._source("ticks").format("rate-micro-batch").option("rowsPerBatch", 1).load()
            rows = a.union(b).union(ticks.selectExpr("CAST(value AS STRING)")).dropDuplicates(["value"])
            writer = rows.writeStream.format("noop").option("checkpointLocation", self.location)
            query = writer.trigger(availableNow=True).start()
            assert query.awaitTermination(SECONDS_MAX)

    def _source(self, name: str) -> DataStreamReader:
        return self.spark.readStream.name(name) if self.version == NAMED else self.spark.readStream


@pytest.fixture(scope="module")
def stored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stored]:
    folder = tmp_path_factory.mktemp("stored")
    return {version: Stored(spark, version, folder / f"{version} Doe%20#1") for version in VERSIONS}


def files_of(checkpoint: Path) -> list[str]:
    """Without Hadoop's and Spark's own hidden files (checksums, temporary files)."""
    paths = (path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file())
    return sorted(str(path) for path in paths if not any(part.startswith(".") for part in path.parts))


@pytest.mark.parametrize("version", VERSIONS)
def test_each_file_of_a_checkpoint_is_known(stored: dict[str, Stored], version: str, tmp_path: Path) -> None:
    written = stored[version]
    files = files_of(written.checkpoint)
    unknown = [file for file in files if not any(re.fullmatch(kind, file) for kind in KNOWN)]
    assert not unknown, f"the reader of checkpoints does not know {unknown}"
    assert {kind for kind in KNOWN if any(re.fullmatch(kind, file) for file in files)} == set(KNOWN), files
    assert any(file.endswith(".compact") for file in files)
    checkpoint = SparkCheckpoint(written.location, "orders")
    checkpoint.check()
    plans = [checkpoint.plan(number) for number in numbers(written.checkpoint / "offsets")]
    assert len({plan.offsets for plan in plans}) == len(plans) == BATCHES
    assert all(plan.whole and plan.offsets.startswith(FILES) for plan in plans)
    assert checkpoint.files_read(0) == dict.fromkeys(written.sources, range(1))
    assert set(checkpoint.files_read(BATCHES - 1)) == set(written.sources)
    checkpoint.check_sources(BATCHES - 1)
    (written.folder / "a").rename(written.folder / "a-renamed")
    shutil.copytree(written.checkpoint, tmp_path / "before")
    written.run()
    with pytest.raises(SourceRenamedError, match=r"a-renamed/0\.txt was read before as"):
        checkpoint.check_sources(BATCHES)
    shutil.rmtree(written.checkpoint)
    shutil.copytree(tmp_path / "before", written.checkpoint)
    (written.folder / "a-renamed").rename(written.folder / "a")


# -- Mishaps of these checkpoints, at each spelling of their place


def by_a_link(checkpoint: Path) -> str:
    link = checkpoint.parent / "link"
    if not link.is_symlink():
        link.symlink_to(checkpoint.name)
    return str(link)


SPELLINGS: dict[str, Callable[[Path], str]] = {
    "path": str,
    "slash behind": "{}/".format,
    "file:/": "file:{}".format,
    "file:///": "file://{}".format,
    "file://localhost": "file://localhost{}".format,
    "relative": os.path.relpath,
    "up and down": lambda path: f"{path.parent}/x/../{path.name}",
    "link": by_a_link,
}


class Restarted:
    """The query of a checkpoint that Spark wrote: its batches are in the log ``orders``."""

    def __init__(self, engine: StandInSpark, stored: Stored, folder: Path) -> None:
        self.engine, self.stored = engine, stored
        self.query = Query(folder, "orders")
        shutil.copytree(stored.checkpoint, self.query.checkpoint)
        engine.version, engine.source = stored.version[:2], stored.sources[0]
        engine.begin_run(self.query)
        for batch in range(BATCHES):
            engine.write(self.query, batch, lines_of(batch))

    @property
    def checkpoint(self) -> Path:
        return self.query.checkpoint

    def copy(self) -> Restarted:
        """The query with a copy of the checkpoint, in another folder."""
        copied = object.__new__(Restarted)
        copied.engine, copied.stored = self.engine, self.stored
        copied.query = Query(self.query.folder / "copy", "orders")
        shutil.copytree(self.checkpoint, copied.checkpoint)
        return copied

    def forget(self, batches: int) -> None:
        for file in [
            path for kind in ("offsets", "commits", "sources/*") for path in self.checkpoint.glob(f"{kind}/[0-9]*")
        ]:
            if int(file.stem) >= BATCHES - batches:
                file.unlink()

    def go_on(self, rows: list[str]) -> None:
        """The next micro-batch of a new run, with a file for ``rows`` from each source."""
        self.engine.begin_run(self.query)
        planned = numbers(self.checkpoint / "offsets")
        number = planned[-1] + 1 if planned else 0
        plan = (self.stored.checkpoint / "offsets" / str(BATCHES - 1)).read_text()
        plan = plan.replace(f'{{"logOffset":{BATCHES - 1}}}', f'{{"logOffset":{number}}}')
        plan = re.sub(r'"batchTimestampMs":\d+', f'"batchTimestampMs":{next(CLOCK)}', plan)
        (self.checkpoint / "offsets" / str(number)).write_text(plan)
        for source in self.stored.sources:
            listed = {"path": f"file:///{source}/{rows[0]}", "timestamp": 1, "batchId": number}
            folder = self.checkpoint / "sources" / source
            folder.mkdir(exist_ok=True)
            (folder / str(number)).write_text(f"v1\n{json.dumps(listed)}")
        self.engine.write(self.query, number, rows)


def killed_before_sparks_commit(restarted: Restarted) -> Restarted:
    last = BATCHES - 1
    (restarted.checkpoint / "commits" / str(last)).unlink()
    restarted.engine.begin_run(restarted.query)
    restarted.engine.write(restarted.query, last, lines_of(last))
    return restarted


def moved(restarted: Restarted) -> Restarted:
    copy = restarted.copy()
    shutil.rmtree(restarted.checkpoint)
    return copy


def set_back(batches: int) -> Callable[[Restarted], Restarted]:
    def forget(restarted: Restarted) -> Restarted:
        restarted.forget(batches)
        return restarted

    return forget


def copied(by_the_copy: bool) -> Callable[[Restarted], Restarted]:
    """Two live copies: one writes a batch, then the other one its own."""

    def both(restarted: Restarted) -> Restarted:
        copy = restarted.copy()
        first, second = (copy, restarted) if by_the_copy else (restarted, copy)
        first.go_on(["of the other copy"])
        return second

    return both


def cut(file: str, part: float) -> Callable[[Restarted], Restarted]:
    def damage(restarted: Restarted) -> Restarted:
        path = restarted.checkpoint / file.format(source=restarted.stored.sources[0], last=BATCHES - 1)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
        return restarted

    return damage


def deleted(restarted: Restarted) -> Restarted:
    for part in restarted.checkpoint.iterdir():
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    return restarted


def without_metadata(restarted: Restarted) -> Restarted:
    """Spark gives the query a new id."""
    (restarted.checkpoint / "metadata").unlink()
    return restarted


def of_another_query(restarted: Restarted) -> Restarted:
    (restarted.checkpoint / "metadata").write_text('{"id":"another"}')
    return restarted


OLDER, NOT_ITS = "was restored from an older copy, or two queries have copies of one", "give it its own again"
ACCEPTED_BY = "set the sink's option compareCheckpoint to false"
MISHAPS: dict[str, tuple[Callable[[Restarted], Restarted], str]] = {
    "none": (lambda restarted: restarted, ""),
    "killed before Spark's commit": (killed_before_sparks_commit, ""),
    "moved": (moved, ""),
    "restored, one batch back": (set_back(1), OLDER),
    "restored, two batches back": (set_back(2), OLDER),
    "copied, and the copy was first": (copied(True), OLDER),
    "copied, and the copy is second": (copied(False), OLDER),
    "plan cut": (cut("offsets/{last}", 0.9), OLDER),
    "plan emptied": (cut("offsets/{last}", 0), ACCEPTED_BY),
    "list cut": (cut("sources/{source}/{last}", 0.9), ACCEPTED_BY),
    "metadata lost": (without_metadata, NOT_ITS),
    "deleted": (deleted, NOT_ITS),
    "another query's": (of_another_query, NOT_ITS),
}
"""By mishap: the refusal's remedy; empty: each row is there once."""


@pytest.mark.parametrize("mishap", MISHAPS)
def test_no_mishap_at_any_spelling_of_the_place_doubles_or_drops_a_row(
    stored: dict[str, Stored], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mishap: str
) -> None:
    """Of a deleted checkpoint the spelling is what the log knows: all pairs of one before the mishap and one after it. Else each
    spelling after it, and the ones before it and the versions in turn."""
    monkeypatch.chdir(tmp_path)
    befalls, remedy = MISHAPS[mishap]
    turn, names = list(MISHAPS).index(mishap), list(SPELLINGS)
    pairs = (
        product(names, names) if mishap == "deleted" else zip(names[turn % 8 :] + names[: turn % 8], names, strict=True)
    )
    for number, (before, after) in enumerate(pairs):
        version = list(VERSIONS)[(number + turn) % len(VERSIONS)]
        case = f"{version}, {before}, then {after}"
        engine = StandInSpark(monkeypatch)
        engine.location = SPELLINGS[before]
        restarted = befalls(Restarted(engine, stored[version], tmp_path / f"{number} [a]%20#"))
        rows = engine.rows("orders")
        engine.location = SPELLINGS[after]
        failure = ""
        try:
            restarted.go_on(NEW)
        except BookKeeperError as error:
            failure = str(error)
        assert bool(remedy) == bool(failure) and remedy in failure, f"{case}: {failure}"
        assert engine.rows("orders") == rows + ([] if remedy else NEW), case
