"""Which bookies make an ensemble, and which one replaces a failed one.

=====================  =====================================================================================================
``placement``          the policies: random, rack_aware, one_per_host, one_per_<label>; pure, over a ``Topology``
``free_space``         how much space bookies have left, asked of them and kept for a while
=====================  =====================================================================================================

::

    from random import Random
    from bookspark.client.placement.placement import Placement, Topology

    topology = Topology(bookies=store.bookies())
    ensemble = Placement("one_per_host").choose_ensemble(topology, ensemble_size=3, write_quorum=3, random=Random())
"""
