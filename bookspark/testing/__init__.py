"""Public test kit, for users as for our own tests: real clusters to break, and a judge of the clients' observations.

==================  =========================================================================================================
``faulty_cluster``  ``FaultyCluster``: real bookie processes behind a wire that the test controls
``wire_faults``     rules for messages: lose, delay, hold back, duplicate
``wire_proxy``      ``Wire``: the proxy before each bookie that applies these rules and cuts links
``history``         ``History``: the clients' observations in order, each checked at once against the laws of a ledger store
``recorded``        ledger handles that record their calls and results in a ``History``
``chaos``           random faults and clients, drawn from a seed
``memory_files``    a file system in memory, with the disk that a power cut leaves
``power_cuts``      power cuts: the fate of each unsynced change
``faulty_files``    a file system in which chosen operations fail
``plugin``          fixtures for pytest: ``local_cluster`` and ``faulty_cluster``
==================  =========================================================================================================

``bookspark.local`` has ``LocalCluster``, the cluster without wire faults.

::

    from bookspark.testing import FaultyCluster, Kind

    with FaultyCluster(bookies=3) as cluster:
        with cluster.wire.drop(Kind.ADD, bookie=cluster.bookies[0].bookie_id):
            cluster.bookkeeper().create_ledger().append(b"two of three bookies have it")
"""

from bookspark.store.wire.header import Flag, Kind
from bookspark.testing.faulty_cluster import FaultyCluster
from bookspark.testing.history import History, Violation
from bookspark.testing.recorded import RecordedReader, RecordedWriter
from bookspark.testing.wire_faults import Delay, Duplicate, Fault, Message, Park, Pattern
from bookspark.testing.wire_proxy import Cut, Wire

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
