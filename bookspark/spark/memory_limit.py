"""The limit of a Python worker's memory, Spark's setting ``spark.executor.pyspark.memory``.

Law: a worker with a limit reserves few addresses, and an error at the limit names the setting.

Spark sets RLIMIT_AS, which counts reserved addresses instead of used memory. By default each thread reserves 8 MiB for its stack
and 64 MiB for an arena of malloc, and Arrow's allocator (mimalloc) 1 GiB: a client, with a dozen threads, did not start within 2
GiB. So such a worker has small stacks, one arena and Arrow's ``system`` allocator. With the client loaded it reserves some 350
MiB, and little more for each thread.

Arrow and malloc read their environment when the process starts, so the driver sets it (``prepare_workers``); in a session that
Bookspark did not start, ``spare_addresses`` does what can be done later.
"""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from bookspark.errors import BookKeeperError

if TYPE_CHECKING:
    from pyspark import SparkContext

SETTING = "spark.executor.pyspark.memory"
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1"}
_STACK_BYTES = 1 << 20
_ARENA_MAX = -8
"""Parameter of glibc's mallopt for the largest number of arenas."""
_NO_THREAD = "can't start new thread"


class WorkerMemoryError(BookKeeperError):
    """A Python worker of Spark has reached ``spark.executor.pyspark.memory``."""


def prepare_workers(context: SparkContext) -> None:
    """On the driver: give the workers of later functions the environment for a limit, if the application has one."""
    if context.getConf().get(SETTING, None):
        for name, value in _ENVIRONMENT.items():
            context.environment.setdefault(name, value)


def spare_addresses() -> None:
    """In a process with a limit: make its later threads and arrays reserve little."""
    if _limit() is None:
        return
    import pyarrow

    threading.stack_size(_STACK_BYTES)
    with suppress(OSError, AttributeError):
        # Another C library has no arenas.
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)


@contextmanager
def named_limit() -> Iterator[None]:
    """If the block fails for want of memory in a process with a limit, raise WorkerMemoryError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        limit = _limit()
        if limit is None or not (isinstance(error, MemoryError) or _NO_THREAD in str(error)):
            raise
        raise WorkerMemoryError(
            f"a Python worker of Spark has no memory left within {SETTING}, {limit >> 20} MiB ({error or 'MemoryError'}): give "
            "more, have Spark send it fewer rows at once (spark.sql.execution.arrow.maxRecordsPerBatch), or leave the limit out"
        ) from error


def _limit() -> int | None:
    """The limit in bytes, or None."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
