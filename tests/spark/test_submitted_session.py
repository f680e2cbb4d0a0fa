"""A session of an application started by spark-submit: it has Delta, or says how to get it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable

from bookspark.errors import ConfigurationError
from bookspark.spark.short_jobs import QUICK_JVM

pytestmark = pytest.mark.acceptance

module = import_module("bookspark.spark.session")  # the package has a function of that name

APPLICATION = """
import sys
from bookspark.spark.session import delta_session
spark = delta_session("test")
spark.range(3).write.format("delta").save(sys.argv[1])
"""


def test_missing_delta_jars_raise_a_line_that_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(module.SparkContext, "_ensure_initialized", lambda: None)
    monkeypatch.setattr(module, "SparkConf", lambda: SimpleNamespace(get=lambda name, default=None: default))
    monkeypatch.setattr(module, "_noted_jars", list)
    with pytest.raises(ConfigurationError, match=r"--packages io\.delta:delta-spark_\d\.\d_2\.13:\d+\.\d+\.\d+$"):
        module.delta_session("test")


@pytest.mark.spark
def test_spark_submit_as_in_the_readme_has_delta(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    spark_submit = Path(sys.executable).with_name("spark-submit")
    conf = [
        "--conf",
        f"spark.driver.extraJavaOptions={QUICK_JVM}",
        "--conf",
        "spark.databricks.delta.snapshotPartitions=1",
    ]
    path = f"{spark_submit.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [spark_submit, "--master", "local[1]", *conf, tmp_path / "application.py", str(tmp_path / "table")],
        capture_output=True, text=True, timeout=900, cwd=tmp_path,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().num_rows == 3
