"""Spark's daemon of Python workers, without a traceback for each worker whose reader hangs up.

Law: it is ``pyspark.daemon``. Over a Unix socket a worker notices at once that Spark has hung up: it has enough rows, as after
each ``show()`` and ``limit``, or the worker was idle for a minute. Spark's own daemon prints that as an error; here the worker
ends silently, as over TCP.

Spark starts it by ``python -m`` before any fork, so it imports nothing else. Workers that plan and commit always come from
Spark's own daemon (seen on 4.2): ``end_silently`` brings them here.
"""

from __future__ import annotations

import sys
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


def end_silently() -> None:
    """In a worker of Spark's own daemon, let it end as those of this one from its next request on."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name == daemon.__name__:
        main.worker = quiet  # type: ignore[attr-defined]


if __name__ == "__main__":
    daemon.worker = quiet
    daemon.manager()
