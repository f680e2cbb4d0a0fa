"""What processes use, as Linux counts it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 512


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time that these processes have used, all of their threads together."""
    return sum(sum(map(int, _stat(pid)[11:13])) for pid in pids) / _TICKS_PER_SECOND


def resident_bytes(pids: Iterable[int]) -> list[int]:
    """Memory of each of these processes."""
    return [int(_stat(pid)[21]) * _PAGE_BYTES for pid in pids]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def bytes_written_by_ended_children() -> int:
    """Bytes that this process's children, as far as they have ended and were waited for, had written to block devices."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock * _BLOCK_BYTES


def drop_cached(directories: Iterable[str | Path]) -> None:
    """Have the kernel forget what it caches of all files under ``directories``; nobody may have them open or mapped."""
    os.sync()
    for directory in directories:
        for path in Path(directory).rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
