"""The public test kit, for users as for our own tests: real clusters to break, and a judge of what clients saw.

==================  =========================================================================================================
``faulty_cluster``  ``FaultyCluster``: real bookie processes, with the wire to them in the test's hands
``wire_faults``     what may happen to messages: they are lost, late, held back, or come twice
``wire_proxy``      ``Wire``: the proxy before each bookie that does that, and cuts links
``history``         ``History``: what clients saw, in order, checked at once against what a ledger store may show
``recorded``        ledger handles that write down what they do and see in a ``History``
``chaos``           all of that at random: faults and clients, drawn from a seed
``memory_files``    a file system in memory that tells what a power cut leaves of it
``power_cuts``      what a power cut does to each change that was not synced
``faulty_files``    a file system of which chosen operations fail
``plugin``          fixtures for pytest: ``local_cluster`` and ``faulty_cluster``
==================  =========================================================================================================

``bookspark.local`` has ``LocalCluster``, the cluster without faults of the wire.

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
