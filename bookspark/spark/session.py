"""A Spark session with Delta, the workers' Python and the cluster of ``format("bookspark")``.

Law: the caller's settings win over every default here. Java is checked before Spark starts, so that a wrong Java is an error of
one line.

Ivy fetches Delta's jars once (about 40 s), in a process that runs none of them. Later sessions name the files by a note in
``$XDG_CACHE_HOME/bookspark``. The jars are those of ``conf/jars.sha256``: without Spark's own, because each executor copies every
jar when it starts. A file with another hash is refused at each start. Under spark-submit the JVM runs already, and
``delta_session`` adds the files to it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bookspark.errors import ConfigurationError
from bookspark.spark.process_client import ZOOKEEPER_CONF
from bookspark.store.metadata.zookeeper.java import find_java
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.support.arguments import Name, checked
from bookspark.support.packaged_files import settings_file

SPARK_ERRORS = (PySparkException, Py4JError)
"""Spark's own errors, and Java errors without a Python class, such as those of failed tasks."""
_SCALA = "2.13"
_JAR = "delta-spark"
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta reads its log with 50 tasks by default: a second of scheduling for a table of a few files.
    "spark.databricks.delta.snapshotPartitions": "2",
}
_IVY = ".ivy2.5.2"
"""Ivy's folder in the home directory, by Spark's default."""
_FETCH_SECONDS_MAX = 1800.0
_QUIET = {"spark.ui.showConsoleProgress": "false"}
LOOPBACK = "127.0.0.1"
"""Spark's listen address, if all of Spark runs on this host."""
_ON_THIS_HOST = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "8",
}
_WORKERS = {
    # Over TCP, the kernel delays a task's rows by 40 ms: the JVM sends them in two parts, and the Python worker acknowledges the
    # first part late.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "bookspark.spark.worker_daemon",
}
"""For Python workers on this host that import Bookspark from the same place as this process."""


@checked
def session(
    app: Name, master: Name | None = None, zookeeper: ConnectionString | None = None, **conf: str | bool | int | float
) -> SparkSession:
    """A Spark session for application ``app``, with Delta, in which ``format("bookspark")`` reads and writes.

    ``master``: Spark's master URL; None: that of spark-submit, else ``local[*]``. ``zookeeper``: the cluster
    (``host:port[,host:port…][/chroot]``) of reads and writes without option ``zookeeper``; spark-submit's
    ``spark.bookspark.zookeeper`` wins over it. ``conf``: Spark's own settings by name, as in ``session("app",
    **{"spark.executor.memory": "2g"})``.

    If the process has a session already, Spark returns that session with these settings added. Under spark-submit the session has
    Delta only if spark-submit was given its jars; ``delta_session`` adds them. Raises ConfigurationError: Java is missing or has
    the wrong version, or a name in ``conf`` does not begin with ``spark.``.
    """
    for name in conf:
        if not name.startswith("spark."):
            raise ConfigurationError(f"unknown session option {name!r}; Spark's options begin with 'spark.'")
    # spark-submit sets this variable: its JVM runs already.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted:
        # Before this call, SparkConf lacks the settings of spark-submit.
        SparkContext._ensure_initialized()
    else:
        find_java()
        if (master or "local").startswith("local"):
            # For the masters and workers of local-cluster, and other code that asks for this host's address.
            os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

    given = SparkConf(loadDefaults=submitted)
    master = master or given.get("spark.master") or "local[*]"
    settings = {**_QUIET, **_DELTA}
    if master.startswith("local"):
        settings |= _ON_THIS_HOST if submitted else _ON_THIS_HOST | _WORKERS
    if submitted:
        # Spark would not start with Delta's settings if nothing (--packages, --jars, delta_session) brought Delta's jars.
        if not _has_delta(given) and _JAR not in str(conf.get("spark.jars", "")):
            settings = {name: value for name, value in settings.items() if name not in _DELTA}
    else:
        jars = _noted_jars() or _fetched_jars(conf)
        settings["spark.jars"] = ",".join(filter(None, [*jars, str(conf.pop("spark.jars", ""))]))
    if zookeeper is not None:
        settings[ZOOKEEPER_CONF] = zookeeper

    builder = SparkSession.builder.appName(app).master(master)
    for name, value in settings.items():
        if not given.contains(name):
            builder = builder.config(name, value)
    for name, wanted in conf.items():
        builder = builder.config(name, wanted)
    spark = builder.getOrCreate()
    if cluster := spark.conf.get(ZOOKEEPER_CONF, None):
        # Imported late, because it imports the client, which an application of bookies does not need.
        from bookspark.spark.connector.data_source import register

        register(spark, cluster)
    return spark


@checked
def delta_session(app: Name, zookeeper: ConnectionString | None = None) -> SparkSession:
    """A Spark session with Delta, whether or not spark-submit started the application.

    ``app`` and ``zookeeper`` are those of ``session``. Under spark-submit, Delta's jars from the note of an earlier session are
    added to the JVM. Raises ConfigurationError: neither spark-submit nor a note names Delta's jars, or Java is missing or has the
    wrong version.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return session(app, zookeeper=zookeeper)
    SparkContext._ensure_initialized()
    given = SparkConf()
    if _has_delta(given):
        return session(app, zookeeper=zookeeper)
    jars = _noted_jars()
    if not jars:
        raise ConfigurationError(f"Delta is not among Spark's jars: give spark-submit --packages {delta_package()}")
    _add_to_jvm(jars)
    jars = [*jars, *filter(None, [given.get("spark.jars")])]
    return session(app, zookeeper=zookeeper, **{"spark.jars": ",".join(jars)})


@checked
@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Context in which the session has these settings; the earlier settings return at its end."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def delta_package() -> str:
    """Delta's Maven coordinates for this Spark."""
    spark = ".".join(pyspark.__version__.split(".")[:2])
    return f"io.delta:delta-spark_{spark}_{_SCALA}:{importlib.metadata.version('delta-spark')}"


def _has_delta(conf: SparkConf) -> bool:
    named = ",".join(
        conf.get(name, "") or "" for name in ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
    )
    return _JAR in named or any(_spark_jars().glob(f"{_JAR}*.jar"))


def _add_to_jvm(jars: list[str]) -> None:
    """Put the files on the class path of the running JVM, as spark-submit does with ``--jars``. Executors get them by
    ``spark.jars``."""
    jvm: Any = SparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for jar in jars:
        loader.addURL(jvm.java.io.File(jar).toURI().toURL())


def _note() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "bookspark" / (re.sub(r"[^\w.-]", "_", delta_package()) + ".json")


def _noted_jars() -> list[str]:
    """Paths of Delta's jars from the note; empty without a note, or if a file is gone or missing in it. Raises
    ConfigurationError."""
    try:
        jars = json.loads(_note().read_text())
    except (OSError, ValueError):
        return []
    if not isinstance(jars, list) or not all(isinstance(jar, str) and os.path.isfile(jar) for jar in jars):
        return []
    if {os.path.basename(jar) for jar in jars} != _hashes().keys():
        return []
    _check_jars([Path(jar) for jar in jars])
    return jars


def _fetched_jars(conf: Mapping[str, object]) -> list[str]:
    """Paths of Delta's jars, fetched by Ivy with the settings ``spark.jars.*`` of ``conf``, and noted for later sessions. Raises
    ConfigurationError."""
    place = Path(str(conf.get("spark.jars.ivy") or Path.home() / _IVY)).absolute()
    given = {
        name: value for name, value in conf.items() if name.startswith("spark.jars.") and name != "spark.jars.packages"
    }
    options = [f"--conf={name}={value}" for name, value in (given | {"spark.jars.ivy": str(place)}).items()]
    home = _spark_jars().parent
    # Spark puts the packages on the class path of a program that is its own, and prints its version.
    command = [str(home / "bin/spark-submit"), "--master=local", f"--packages={delta_package()}", *options]
    command += ["--class=org.apache.spark.deploy.SparkSubmit", "spark-internal", "--version"]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    try:
        done = subprocess.run(
            command,
            env=environment | {"SPARK_HOME": str(home)},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_FETCH_SECONDS_MAX,
        )
        words = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except (OSError, subprocess.TimeoutExpired) as error:
        words = [str(error)]
    if words:
        raise ConfigurationError(
            f"Delta's jars ({delta_package()}) could not be fetched: {words[0]}; see that Maven Central, or the repository of "
            "spark.jars.ivySettings, can be reached"
        )
    jars = [place / "jars" / name for name in _hashes()]
    _check_jars(jars)
    _note_jars([str(jar) for jar in jars])
    return [str(jar) for jar in jars]


def _hashes() -> dict[str, str]:
    """The SHA-256 of each of Delta's jars, in hexadecimal, by the file's name."""
    lines = (line.split() for line in settings_file("jars.sha256").read_text().splitlines())
    return {name: digest for digest, name in lines}


def _check_jars(jars: list[Path]) -> None:
    """Raises ConfigurationError unless these are the jars of ``_hashes``, byte for byte."""
    hashes = _hashes()
    for jar in jars:
        try:
            with open(jar, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ConfigurationError(f"{jar}, a part of Delta, can't be read: {error.strerror}") from error
        if digest != hashes[jar.name]:
            raise ConfigurationError(
                f"{jar} has the SHA-256 {digest}, and Delta's has {hashes[jar.name]}: it was changed, or another was sent; find "
                f"out who did it, then remove it together with {_note()}"
            )


def _note_jars(jars: list[str]) -> None:
    """Note Ivy's files for later sessions. Without a note, those ask Ivy again."""
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
