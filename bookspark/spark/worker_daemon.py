"""Spark's daemon of Python workers, without a traceback for each worker whose rows nobody wants any more.

Law: it is ``pyspark.daemon``. Over a Unix socket a worker learns at once that Spark has what it needs and has hung up, as after
each ``show()`` and ``limit``. Spark's own daemon prints that as an error; here the worker ends without a word, as over TCP.

Spark starts it by ``python -m``, before anything is forked, so it imports nothing else.
"""

from __future__ import annotations

from socket import socket

from pyspark import daemon

_HUNG_UP = 1
"""The worker waits until the connection is closed, and ends."""


def quiet(sock: socket, authenticated: bool) -> int:
    """``pyspark.daemon.worker``, for which a peer that has hung up is no error."""
    try:
        code: int = spark_worker(sock, authenticated)
    except BrokenPipeError:
        return _HUNG_UP
    return code


spark_worker = daemon.worker

if __name__ == "__main__":
    daemon.worker = quiet
    daemon.manager()
