"""Delta's jars are those of conf/jars.sha256, byte for byte: no other is given to Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from bookspark.errors import ConfigurationError
from bookspark.spark.session import session
from bookspark.support.packaged_files import settings_file

NAMES = [line.split()[1] for line in settings_file("jars.sha256").read_text().splitlines()]
SUBMIT = """#!/bin/sh
for option; do case $option in --conf=spark.jars.ivy=*) ivy=${option#--conf=spark.jars.ivy=};; esac; done
mkdir -p "$ivy/jars" && cp "$(dirname "$0")"/../sent/* "$ivy/jars/" && echo "$@" "through $https_proxy" > "$ivy/asked"
"""


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A session that comes as far as Spark fails."""

    class Reached:
        @property
        def builder(self) -> None:
            raise AssertionError("Spark got the jars")

    monkeypatch.setattr(import_module("bookspark.spark.session"), "SparkSession", Reached())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


@pytest.fixture
def note(tmp_path: Path) -> Callable[[list[Path]], Path]:
    def write(jars: list[Path]) -> Path:
        path = tmp_path / "cache/bookspark/io.delta_delta-spark_4.2_2.13_4.4.0.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(list(map(str, jars))))
        return path

    return write


def files(folder: Path) -> list[Path]:
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_bytes(b"of another")
    return [folder / name for name in NAMES]


def test_changed_jar_is_refused_before_spark_starts(
    no_spark: None, note: Callable[[list[Path]], Path], tmp_path: Path
) -> None:
    path = note(files(tmp_path / "jars"))
    with pytest.raises(ConfigurationError, match=rf"{NAMES[0]} has the SHA-256 .*remove it together with {path}"):
        session("changed", master="local[1]")


def test_other_jar_sent_by_a_repository_is_refused_and_not_noted(
    no_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, ivy = tmp_path / "spark", tmp_path / "ivy"
    (home / "bin").mkdir(parents=True)
    (home / "bin/spark-submit").write_text(SUBMIT)
    (home / "bin/spark-submit").chmod(0o700)
    files(home / "sent")
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setenv("https_proxy", "a-proxy")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="has the SHA-256"):
            session("sent", master="local[1]", **{"spark.jars.ivy": str(ivy), "spark.jars.repositories": "r"})
    asked = (ivy / "asked").read_text()
    assert "--packages=io.delta:delta-spark_4.2_2.13:4.4.0" in asked and "--conf=spark.jars.repositories=r" in asked
    assert asked.endswith("through a-proxy\n"), "the user's environment"
    assert not (tmp_path / "cache").exists()


def test_repository_that_does_not_answer_is_an_error_with_its_words(
    no_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/spark-submit").write_text("#!/bin/sh\necho 'unresolved dependency' >&2; exit 1\n")
    (tmp_path / "bin/spark-submit").chmod(0o700)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="could not be fetched: unresolved dependency"):
        session("absent", master="local[1]")
