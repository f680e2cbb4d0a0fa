"""Ends of Spark's Python workers: real worker processes of pyspark, with this test in the place of the JVM."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from tempfile import TemporaryDirectory

import pytest
from pyspark.serializers import CloudPickleSerializer, SpecialLengths, read_int, write_int, write_with_length
from pyspark.sql.streaming.python_streaming_source_runner import GET_DEFAULT_READ_LIMIT_FUNC_ID
from pyspark.sql.types import StructType

from bookspark.spark.connector.data_source import BookSparkDataSource
from bookspark.spark.connector.source import LEDGER_SCHEMA
from tests.awaiting import SECONDS_MAX, await_that

ARROW_ROWS_MAX = 10_000
INITIALIZED = 0


class Worker:
    """The process of a streaming source, and the JVM's side of its connection."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process, self._connection = process, connection
        self.answers: BufferedReader = connection.makefile("rb")
        assert read_int(self.answers) == process.pid

    def plan(self, source: BookSparkDataSource, schema: StructType) -> None:
        with self._connection.makefile("wb") as request:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            for text in (version, "/nonexistent"):
                write_with_length(text.encode(), request)
            write_int(0, request)  # no further Python files
            write_with_length(CloudPickleSerializer().dumps(source), request)
            write_with_length(schema.json().encode(), request)
            write_int(ARROW_ROWS_MAX, request)

    def call(self, function: int) -> None:
        with self._connection.makefile("wb") as request:
            write_int(function, request)

    def error(self) -> str:
        assert read_int(self.answers) == SpecialLengths.PYTHON_EXCEPTION_THROWN
        return self.answers.read(read_int(self.answers)).decode()

    def hang_up(self) -> str:
        """Close the connection, as Spark does at the query's end. Returns the worker's words on the terminal."""
        self.answers.close()
        self._connection.close()
        return self._process.communicate(timeout=SECONDS_MAX)[1].decode()


@pytest.fixture
def folder() -> Iterator[str]:
    """A short path: that of a socket has 107 bytes at most."""
    with TemporaryDirectory() as made:
        yield made


@pytest.fixture
def worker(folder: str) -> Iterator[Worker]:
    with streaming_worker(folder) as made:
        yield made


@contextmanager
def streaming_worker(folder: str) -> Iterator[Worker]:
    path = f"{folder}/worker.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        listening.settimeout(SECONDS_MAX)
        environment = os.environ | {"PYTHON_WORKER_FACTORY_SOCK_PATH": path}
        command = [sys.executable, "-m", "pyspark.sql.streaming.python_streaming_source_runner"]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
            try:
                with listening.accept()[0] as connection:
                    yield Worker(process, connection)
            finally:
                process.kill()


def test_ended_query_leaves_no_traceback_of_a_broken_pipe_on_the_terminal(worker: Worker) -> None:
    """Each successful query over a log ended with one."""
    worker.plan(BookSparkDataSource({"zookeeper": "127.0.0.1:1", "ledger": "7"}), LEDGER_SCHEMA)
    assert read_int(worker.answers) == INITIALIZED
    assert worker.hang_up() == ""


def test_users_mistake_reaches_spark_as_one_sentence_without_a_traceback(worker: Worker) -> None:
    """The sentence stood below a traceback, and below that Spark said that a local variable 'reader' has no value."""
    given = {"zookeeper": "127.0.0.1:1", "ledger": "7", "minPartition": "2"}
    worker.plan(BookSparkDataSource(given), LEDGER_SCHEMA)
    assert read_int(worker.answers) == INITIALIZED
    worker.call(GET_DEFAULT_READ_LIMIT_FUNC_ID)
    said = "unknown option 'minpartition' of format bookspark; did you mean 'minPartitions'?"
    assert worker.error() == f"bookspark.errors.ConfigurationError: {said}\n"


def test_idle_worker_that_spark_closes_leaves_no_traceback_on_the_terminal(folder: str) -> None:
    """Spark closes a worker after a minute without work. Each that had planned or committed, and the first that had looked for
    data sources, printed the traceback of a broken pipe."""
    environment = os.environ | {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark.sql.worker.lookup_data_sources"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as daemon:
        path = daemon.stdout.read(read_int(daemon.stdout)).decode()
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rwb") as jvm:
            connection.settimeout(SECONDS_MAX)
            connection.connect(path)
            worker = read_int(jvm)
            for text in (f"{sys.version_info.major}.{sys.version_info.minor}", "/nonexistent"):
                write_with_length(text.encode(), jvm)
            write_int(0, jvm)  # no further Python files
            jvm.write(b"\0")  # no broadcasts from a server
            for number in (0, 0, SpecialLengths.END_OF_STREAM):  # no broadcasts, no settings
                write_int(number, jvm)
            jvm.flush()
            names = [jvm.read(read_int(jvm)) for _ in range(2 * read_int(jvm))][::2]
            assert b"bookspark" in names
            for _ in range(read_int(jvm)):  # accumulators
                jvm.read(read_int(jvm))
            assert read_int(jvm) == SpecialLengths.END_OF_STREAM
        await_that(lambda: not os.path.exists(f"/proc/{worker}"))
        assert daemon.communicate(timeout=SECONDS_MAX)[1].decode() == ""


class Defect(BookSparkDataSource):
    def streamReader(self, schema: StructType) -> None:  # type: ignore[override]
        raise KeyError("a defect")


def test_defect_keeps_its_traceback(worker: Worker) -> None:
    worker.plan(Defect({}), LEDGER_SCHEMA)
    assert 'raise KeyError("a defect")' in worker.error()


def test_error_outside_of_a_worker_changes_no_setting_of_the_process() -> None:
    """A driver hands its environment to the JVM, and that to all workers."""
    with pytest.raises(ValueError, match="which cluster"):
        BookSparkDataSource({"log": "a"}).schema()
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
