"""Spark's daemon of Python workers, without a traceback for each worker whose reader hangs up.

Law: it is ``pyspark.daemon``. Over a Unix socket a worker notices at once that Spark has enough rows and has hung up, as after
each ``show()`` and ``limit``. Spark's own daemon prints that as an error; here the worker ends silently, as over TCP.

Spark starts it by ``python -m`` before any fork, so it imports nothing else.
"""

from __future__ import annotations

from socket import socket

from pyspark import daemon

_HUNG_UP = 1
"""The worker's status: wait until the connection is closed, and end."""


def quiet(sock: socket, authenticated: bool) -> int:
    """``pyspark.daemon.worker``, for which a hung-up peer is no error."""
    try:
        code: int = spark_worker(sock, authenticated)
    except BrokenPipeError:
        return _HUNG_UP
    return code


spark_worker = daemon.worker

if __name__ == "__main__":
    daemon.worker = quiet
    daemon.manager()
