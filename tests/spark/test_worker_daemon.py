"""Spark's daemon of Python workers: a closed connection is no error."""

from __future__ import annotations

import socket

import pytest

from bookspark.spark import worker_daemon


@pytest.mark.parametrize("code", [0, 3])
def test_worker_returns_sparks_exit_code(monkeypatch, code):
    monkeypatch.setattr(worker_daemon, "spark_worker", lambda sock, authenticated: code)
    with socket.socket() as sock:
        assert worker_daemon.quiet(sock, True) == code


def test_worker_with_a_closed_connection_ends_without_an_error(monkeypatch):
    """After each ``show()`` of a log the traceback of a broken pipe was on the console."""

    def hung_up(sock, authenticated):
        raise BrokenPipeError

    monkeypatch.setattr(worker_daemon, "spark_worker", hung_up)
    with socket.socket() as sock:
        assert worker_daemon.quiet(sock, True) != 0


def test_other_worker_errors_are_raised(monkeypatch):
    def fails(sock, authenticated):
        raise RuntimeError("a defect")

    monkeypatch.setattr(worker_daemon, "spark_worker", fails)
    with socket.socket() as sock, pytest.raises(RuntimeError, match="a defect"):
        worker_daemon.quiet(sock, True)


@pytest.mark.spark
def test_session_of_this_process_uses_the_daemon(spark):
    assert spark.sparkContext.getConf().get("spark.python.daemon.module") == worker_daemon.__name__
