"""Choice of the bookies of an ensemble, and of replacements for failed bookies.

=====================  =====================================================================================================
``placement``          the policies: random, rack_aware, one_per_host, one_per_<label>; pure, over a ``Topology``
=====================  =====================================================================================================

::

    from random import Random
    from bookspark.store.client.placement.placement import Placement, Topology
    from bookspark.store.metadata.store import BookieRegistration

    bookies = {name: BookieRegistration(name, "127.0.0.1:3181", incarnation=1) for name in ("b1", "b2", "b3")}
    ensemble = Placement("random").choose_ensemble(Topology(bookies), 3, 2, Random(7))
"""
