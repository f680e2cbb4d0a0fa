"""Spark's daemon of Python workers: who hangs up is no error."""

from __future__ import annotations

import socket

import pytest

from bookspark.spark import worker_daemon


@pytest.mark.parametrize("code", [0, 3])
def test_a_worker_ends_as_spark_has_it_end(monkeypatch, code):
    monkeypatch.setattr(worker_daemon, "spark_worker", lambda sock, authenticated: code)
    with socket.socket() as sock:
        assert worker_daemon.quiet(sock, True) == code


def test_a_worker_whose_rows_nobody_wants_any_more_ends_without_an_error(monkeypatch):
    """After each ``show()`` of a log the traceback of a broken pipe was on the console."""

    def hung_up(sock, authenticated):
        raise BrokenPipeError

    monkeypatch.setattr(worker_daemon, "spark_worker", hung_up)
    with socket.socket() as sock:
        assert worker_daemon.quiet(sock, True) != 0


def test_another_error_is_told(monkeypatch):
    def fails(sock, authenticated):
        raise RuntimeError("a defect")

    monkeypatch.setattr(worker_daemon, "spark_worker", fails)
    with socket.socket() as sock, pytest.raises(RuntimeError, match="a defect"):
        worker_daemon.quiet(sock, True)


@pytest.mark.spark
def test_a_session_that_this_process_starts_has_it(spark):
    assert spark.sparkContext.getConf().get("spark.python.daemon.module") == worker_daemon.__name__
