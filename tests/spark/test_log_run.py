"""Address and writer of a log: values that tasks receive and messages may show."""

from __future__ import annotations

import pickle

from bookspark.logs import LogAddress, LogRun
from bookspark.protocol.logs.lanes import LaneId
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.options.source_options import SourceOptions

RUN = LogRun(LogAddress("host:1", "orders", b"secret"), LaneId(1000, 3, "orders"), "run", 7)


def test_run_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(RUN)) == RUN


def test_run_of_a_record_is_its_owner() -> None:
    record = LogRecord("orders@3", epoch=6, log_id=1000).claim("run")
    assert LogRun.of(RUN.address, record) == RUN


def test_no_repr_shows_the_password() -> None:
    given = {"zookeeper": "host:1", "log": "orders", "password": "secret"}
    for shown in (RUN, SinkOptions.parse(given), SourceOptions.parse(given)):
        assert "orders" in repr(shown) and "secret" not in repr(shown)
