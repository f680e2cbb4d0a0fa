"""Resources used by processes, as counted by the kernel."""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_BLOCK_BYTES = 512


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of these processes so far, in seconds, summed over all their threads."""
    used = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(times.user + times.system for times in used)


def family_cpu_seconds() -> float:
    """Processor time of this process and its descendants so far, in seconds. An ended descendant counts after its parent
    has waited for it."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        # The process ended meanwhile.
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def resident_bytes(pids: Iterable[int]) -> list[int]:
    """Resident memory of each of these processes, in bytes."""
    return [psutil.Process(pid).memory_info().rss for pid in pids]


def written_bytes(*pids: int) -> int:
    """Bytes that these processes wrote to disks so far, in whole pages."""
    return sum(psutil.Process(pid).io_counters().write_bytes for pid in pids)


def bytes_written_by_ended_children() -> int:
    """Bytes that children of this process wrote to disks. A child counts after its end and a wait for it."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock * _BLOCK_BYTES


def use_memory_once(directory: Path, byte_count: int) -> None:
    """Make the page cache use and free ``byte_count`` bytes, a quarter of the free memory at most, with a temporary file.
    The host of a virtual machine assigns a page at the first touch, which costs up to ten times the write into it.
    Otherwise the first writer pays for all later ones."""
    left = min(byte_count, psutil.virtual_memory().available // 4, psutil.disk_usage(str(directory)).free // 4)
    piece = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(left // len(piece)):
            file.write(piece)


def drop_cached(directories: Iterable[str | Path]) -> None:
    """Remove all files under ``directories`` from the page cache. No process may have them open or mapped."""
    os.sync()
    for directory in directories:
        for path in Path(directory).rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)
