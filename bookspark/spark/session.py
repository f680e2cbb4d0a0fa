"""A Spark session with everything that Bookspark needs set up: Delta, the workers' Python, the data source.

Law: what the caller sets wins over every default here. Java is checked before Spark is started, so that a wrong one
is an error of one line. The Delta jars are resolved by Ivy once (some 40 s); which ones they were is noted in
``$XDG_CACHE_HOME/bookspark``, and later sessions name the files (those that Spark has itself are left out: executors
copy each of them at their start). Under spark-submit ``delta_session`` adds those files to the JVM, which runs already.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookspark.errors import ConfigurationError
from bookspark.metadata.zookeeper.java import find_java

ZOOKEEPER_CONF = "spark.bookspark.zookeeper"
"""Where the data source finds the cluster when its ``zookeeper`` option is not given."""
SPARK_ERRORS = (PySparkException, Py4JError)
"""What Spark raises: its own errors, and Java's that it has no Python class for, a failed task's among them."""
_SCALA = "2.13"
_JAR = "delta-spark"
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta reads its log with 50 tasks by default: a second of scheduling for a table of a few files.
    "spark.databricks.delta.snapshotPartitions": "2",
}
_QUIET = {"spark.ui.showConsoleProgress": "false"}
_ON_THIS_HOST = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "8",
}


def session(app: str, master: str | None = None, zookeeper: str | None = None, **conf: Any) -> SparkSession:
    """The session of application ``app``. ``master`` None: what spark-submit was given, else ``local[*]``. ``conf``
    takes Spark's own names: ``session("app", **{"spark.executor.memory": "2g"})``. Raises ConfigurationError for a
    missing or wrong Java."""
    for name in conf:
        if not name.startswith("spark."):
            raise ConfigurationError(f"unknown session option {name!r}; Spark's options begin with 'spark.'")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit: its JVM runs already
    if submitted:
        SparkContext._ensure_initialized()  # before this SparkConf knows nothing of what spark-submit was given
    else:
        find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

    given = SparkConf(loadDefaults=submitted)
    master = master or given.get("spark.master") or "local[*]"
    settings = {**_QUIET, **(_ON_THIS_HOST if master.startswith("local") else {}), **_DELTA}
    resolving = False
    if submitted:
        # Delta is left out if neither spark-submit (--packages, --jars) nor delta_session brings it.
        if not _has_delta(given) and _JAR not in conf.get("spark.jars", ""):
            settings = {name: value for name, value in settings.items() if name not in _DELTA}
    elif jars := _noted_jars():
        settings["spark.jars"] = ",".join(filter(None, [*jars, str(conf.pop("spark.jars", ""))]))
    else:
        resolving = True
        packages = str(conf.pop("spark.jars.packages", ""))
        settings["spark.jars.packages"] = ",".join(filter(None, [_delta_package(), packages]))
    if zookeeper is not None:
        settings[ZOOKEEPER_CONF] = zookeeper

    builder = SparkSession.builder.appName(app).master(master)
    for name, value in settings.items():
        if not given.contains(name):
            builder = builder.config(name, value)
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if resolving:
        _note_jars(spark)
    _register_data_source(spark)
    return spark


def delta_session(app: str, zookeeper: str | None = None) -> SparkSession:
    """The session of an application that needs Delta, started by spark-submit or not. Raises what ``session`` raises, and
    ConfigurationError if there is no Delta."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return session(app, zookeeper=zookeeper)
    SparkContext._ensure_initialized()
    given = SparkConf()
    if _has_delta(given):
        return session(app, zookeeper=zookeeper)
    jars = _noted_jars()
    if not jars:
        raise ConfigurationError(f"Delta is not among Spark's jars: give spark-submit --packages {_delta_package()}")
    _add_to_jvm(jars)
    jars = [*jars, *filter(None, [given.get("spark.jars")])]
    return session(app, zookeeper=zookeeper, **{"spark.jars": ",".join(jars)})


def _register_data_source(spark: SparkSession) -> None:
    from bookspark.spark.connector.data_source import (
        register,  # imports the client, which the bookies' tasks don't need
    )

    register(spark)


def _delta_package() -> str:
    """Delta's Maven coordinates for this Spark."""
    spark = ".".join(pyspark.__version__.split(".")[:2])
    return f"io.delta:delta-spark_{spark}_{_SCALA}:{importlib.metadata.version('delta-spark')}"


def _has_delta(conf: SparkConf) -> bool:
    named = ",".join(
        conf.get(name, "") or "" for name in ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
    )
    return _JAR in named or any(_spark_jars().glob(f"{_JAR}*.jar"))


def _add_to_jvm(jars: list[str]) -> None:
    """As spark-submit itself does with ``--jars``, which can't be given any more. Executors get them by ``spark.jars``."""
    jvm: Any = SparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for jar in jars:
        loader.addURL(jvm.java.io.File(jar).toURI().toURL())


def _note() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "bookspark" / (re.sub(r"[^\w.-]", "_", _delta_package()) + ".json")


def _noted_jars() -> list[str]:
    """The files of Delta's jars, if they were resolved before and are still there."""
    try:
        jars = json.loads(_note().read_text())
    except (OSError, ValueError):
        return []
    if not isinstance(jars, list) or not all(isinstance(jar, str) and os.path.isfile(jar) for jar in jars):
        return []
    return jars


def _note_jars(spark: SparkSession) -> None:
    """Write down what Ivy found, for later sessions. One that can't be written costs them time, nothing else."""
    names = [
        jar.removeprefix("file://").removeprefix("file:")
        for jar in spark.sparkContext.getConf().get("spark.jars", "").split(",")
    ]
    own = {_artifact(jar.name) for jar in _spark_jars().glob("*.jar")}
    jars = [
        name
        for name in names
        if os.path.isfile(name) and _artifact(os.path.basename(name).rpartition("_")[2]) not in own
    ]
    if not any(_JAR in jar for jar in jars):
        return
    note = _note()
    temporary = note.with_suffix(f".{os.getpid()}")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(jars))
        temporary.replace(note)
    except OSError:
        return


def _spark_jars() -> Path:
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"


def _artifact(jar: str) -> str:
    """``jackson-core-2.13.5.jar`` → ``jackson-core``."""
    return re.sub(r"-\d.*", "", jar)
