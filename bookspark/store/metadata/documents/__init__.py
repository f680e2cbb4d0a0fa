"""Documents: small values at paths of one session, the basis of autorecovery.

===========  ================================================================================================
``tree``     the interface: read, create, compare-and-set, watch
``locks``    locks that end with their holder's session, and waiting for changes
``sharing``  things distributed among members
===========  ================================================================================================

Example::

    from bookspark.store.metadata.documents.locks import give_back, new_token, take_lock
    lock = take_lock(tree, "locks/nightly", "host-1", new_token())
    if lock is not None:
        give_back(tree, lock)
"""
