"""The public test kit, for users as for our own tests.

- ``FaultyCluster``: real bookie processes, with the wire to them in the test's hands (``wire_faults``, ``wire_proxy``)
- ``plugin``: its fixtures for pytest
- ``history`` and ``recorded``: what clients saw, written down and checked
- ``chaos``: all of that at random
- ``memory_files`` and ``faulty_files``: disks that lose, damage, refuse and fill up
"""

from bookspark.testing.cluster import FaultyCluster
from bookspark.testing.history import History, Violation
from bookspark.testing.recorded import RecordedReader, RecordedWriter
from bookspark.testing.wire_faults import Delay, Duplicate, Fault, Message, Park, Pattern
from bookspark.testing.wire_proxy import Cut, Wire
from bookspark.wire.header import Flag, Kind

__all__ = [
    "Cut",
    "Delay",
    "Duplicate",
    "Fault",
    "FaultyCluster",
    "Flag",
    "History",
    "Kind",
    "Message",
    "Park",
    "Pattern",
    "RecordedReader",
    "RecordedWriter",
    "Violation",
    "Wire",
]
